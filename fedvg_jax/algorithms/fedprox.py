"""FedProx: a proximal term pulls each client's model towards the global one.

    local loss + (mu / 2) ||theta - theta_g||^2,  that is  g <- g + mu (theta - theta_g)      R = 0

Source: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, with weights n_k / sum_j n_j. The
published FedVG code has the same correction, on trained tensors, with mu = 0.01.
"""

from __future__ import annotations

import jax

from fedvg_jax.algorithms.base import PLAIN
from fedvg_jax.core.types import Algorithm, Anchor, Hyper, Hyperparameter, NamedAlgorithm, Tree

MU = Hyperparameter("fedprox.mu", 0.01, 0, doc="Coefficient of the proximal term.")


def fedprox() -> Algorithm:
    """Returns FedProx, which reads `fedprox.mu`. At mu = 0 it is FedAvg."""
    return PLAIN._replace(correct=correct, hyperparameters=(MU,))


def correct(hyper: Hyper, grads: Tree, params: Tree, anchor: Anchor) -> Tree:
    """Returns g + mu (theta - theta_g)."""
    return jax.tree.map(
        lambda g, p, global_p: g + hyper[MU.name] * (p - global_p), grads, params, anchor.params
    )


ENTRY = NamedAlgorithm("FedProx", fedprox, (MU,))
