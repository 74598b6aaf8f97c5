"""FedNova: normalised averaging; clients with more local steps have no larger influence.

    D_k: displacement of client k's optimiser under a constant unit gradient (steps x lr for plain SGD)
    theta <- theta_g - (sum_k s_k D_k) sum_k s_k (theta_g - theta_k) / D_k,   that is
    R = u - (sum_k s_k D_k) sum_k s_k (theta_g - theta_k) / D_k

Source: Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS
2020, with weights n_k / sum_j n_j. A client without a local step sends 0.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedvg_jax.algorithms.base import PLAIN
from fedvg_jax.core.types import Algorithm, Anchor, Cohort, Hyper, NamedAlgorithm, Tree


def fednova() -> Algorithm:
    """Returns FedNova. It has no hyperparameters. With equal numbers of steps it is FedAvg."""
    return PLAIN._replace(report=report, residual=residual)


def report(hyper: Hyper, params: Tree, anchor: Anchor, displacement) -> tuple[Tree, Tree, Tree]:
    """Returns the message ((theta_g - theta_k) / D_k, D_k) of every tensor, to be averaged."""
    safe = jnp.where(displacement > 0, displacement, 1)
    message = jax.tree.map(
        lambda p, global_p: ((global_p - p) / safe, displacement), params, anchor.params
    )
    return anchor.client, (), message


def residual(hyper: Hyper, server: Tree, params: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
    """Returns R = u - (sum_k s_k D_k) sum_k s_k delta_k / D_k."""

    def difference(u, means):
        direction, displacement = means
        return u - displacement * direction

    return jax.tree.map(difference, cohort.update, cohort.averaged), server


ENTRY = NamedAlgorithm("FedNova", fednova)
