"""Scaffold: control variates take the drift out of local training.

    client   g <- g + c - c_k
             c_k+ = c_k - c + (theta_g - theta_k) / d      d: how far a constant unit gradient would have moved it
    server   theta <- theta_g - eta_g u,   that is   R = (1 - eta_g) u
             c <- c + (1/N) sum_k (c_k+ - c_k)

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020, option II, with
uniform weights; d is steps x lr for plain SGD and right for any client optimiser. Without a step a client sends 0.

The published FedVG code takes five single minibatch steps a round and never keeps c_k, so that c is N times smaller
than a mean and sums up all past gradients.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedvg_jax import tree
from fedvg_jax.algorithms.neutral import no_probe
from fedvg_jax.types import Algorithm, Anchor, Cohort, Hyper, Tree


def scaffold(keeps: bool = True) -> Algorithm:
    """Scaffold; reads `eta_g`. Its first round is FedAvg's. `keeps` False forgets c_k, as the published code does."""

    def remember(hyper: Hyper, params: Tree, anchor: Anchor, displacement) -> tuple[Tree, Tree, Tree]:
        memory, *messages = report(hyper, params, anchor, displacement)
        return (memory if keeps else anchor.client), *messages

    return Algorithm(init, correct, remember, residual, no_probe, native_weighting="uniform")


def init(hyper: Hyper, params: Tree) -> tuple[Tree, Tree]:
    """c = 0 and c_k = 0"""
    return tree.zeros_like(params), tree.zeros_like(params)


def correct(hyper: Hyper, grads: Tree, params: Tree, anchor: Anchor) -> Tree:
    """g + c - c_k"""
    return jax.tree.map(lambda g, c, c_k: g + c - c_k, grads, anchor.server, anchor.client)


def report(hyper: Hyper, params: Tree, anchor: Anchor, displacement) -> tuple[Tree, Tree, Tree]:
    """c_k+, and c_k+ - c_k to be summed"""
    moved = displacement > 0
    safe = jnp.where(moved, displacement, 1)

    def change(p, global_p, c):
        return jnp.where(moved, (global_p - p) / safe - c, jnp.zeros_like(c))

    message = jax.tree.map(change, params, anchor.params, anchor.server)
    return tree.add(anchor.client, message), message, ()


def residual(hyper: Hyper, server: Tree, params: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
    """R = (1 - eta_g) u and c + (1/N) sum_k message"""
    c = jax.tree.map(lambda c, m: c + m / cohort.num_clients, server, cohort.summed)
    return tree.scale(1 - hyper["eta_g"], cohort.update), c
