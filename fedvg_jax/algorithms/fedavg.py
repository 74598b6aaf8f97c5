"""FedAvg: the weighted mean of the clients' models.

    theta <- theta_g - sum_k s_k (theta_g - theta_k)                                        R = 0

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, with
weights n_k / sum_j n_j. FedVG (Devkota et al., CVPR 2026) is this algorithm with `weightings.fedvg`.
"""

from __future__ import annotations

from fedvg_jax.algorithms.base import PLAIN
from fedvg_jax.core.types import Algorithm, NamedAlgorithm


def fedavg() -> Algorithm:
    """Returns FedAvg: the general rule with R = 0. It has no hyperparameters."""
    return PLAIN


ENTRY = NamedAlgorithm("FedAvg", fedavg)
