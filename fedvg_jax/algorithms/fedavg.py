"""FedAvg: average what the clients return.

    theta <- theta_g - sum_k s_k (theta_g - theta_k)            no correction, no memory, R = 0

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, weights
clients by n_k / N. FedVG (Devkota et al., CVPR 2026) is this algorithm under `weighting.fedvg`.
"""

from __future__ import annotations

from fedvg_jax import tree
from fedvg_jax.types import Algorithm, Anchor, Cohort, Hyper, Tree


def fedavg() -> Algorithm:
    """FedAvg as the general rule with nothing added."""
    return Algorithm(init, correct, report, residual, native_weighting="samples")


def init(params: Tree) -> tuple[Tree, Tree]:
    """No memory."""
    return (), ()


def correct(hyper: Hyper, grads: Tree, params: Tree, anchor: Anchor) -> Tree:
    """g"""
    return grads


def report(hyper: Hyper, params: Tree, anchor: Anchor, num_steps) -> tuple[Tree, Tree]:
    """No memory, no message."""
    return (), ()


def residual(hyper: Hyper, server: Tree, params: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
    """R = 0"""
    return tree.zeros_like(params), server
