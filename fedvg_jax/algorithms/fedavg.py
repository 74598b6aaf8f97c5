"""FedAvg: average what the clients return.

    theta <- theta_g - sum_k s_k (theta_g - theta_k)                                        R = 0

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, weights
clients by n_k / N. FedVG (Devkota et al., CVPR 2026) is this algorithm under `weighting.fedvg`.
"""

from __future__ import annotations

from fedvg_jax.algorithms.base import no_correction, no_memory, no_probe, no_report, no_residual
from fedvg_jax.core.types import Algorithm


def fedavg() -> Algorithm:
    """FedAvg: the general rule with nothing added."""
    return Algorithm(no_memory, no_correction, no_report, no_residual, no_probe, native_weighting="samples")
