"""FedNova: clients that took more steps do not pull harder.

    D_k: how far client k's optimiser carries a constant unit gradient (steps x lr for plain SGD)
    theta <- theta_g - (sum_k s_k D_k) sum_k s_k (theta_g - theta_k) / D_k,   that is   R = u - that

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020,
with weights n_k / N. A client without a step sends 0.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedvg_jax.algorithms.base import no_correction, no_memory, no_probe
from fedvg_jax.core.types import Algorithm, Anchor, Cohort, Hyper, Tree


def fednova() -> Algorithm:
    """FedNova. Where all clients take equally many steps it is FedAvg."""
    return Algorithm(no_memory, no_correction, report, residual, no_probe, native_weighting="samples")


def report(hyper: Hyper, params: Tree, anchor: Anchor, displacement) -> tuple[Tree, Tree, Tree]:
    """((theta_g - theta_k) / D_k, D_k) of every tensor, to be averaged"""
    safe = jnp.where(displacement > 0, displacement, 1)
    told = jax.tree.map(lambda p, global_p: ((global_p - p) / safe, displacement), params, anchor.params)
    return anchor.client, (), told


def residual(hyper: Hyper, server: Tree, params: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
    """R = u - (sum_k s_k D_k) sum_k s_k delta_k / D_k"""

    def rest(u, told):
        direction, displacement = told
        return u - displacement * direction

    return jax.tree.map(rest, cohort.update, cohort.averaged), server
