"""Scaffold: control variates remove client drift from local training.

    client   g <- g + c - c_k
             c_k+ = c_k - c + (theta_g - theta_k) / d      d: displacement under a constant unit gradient
    server   theta <- theta_g - eta_g u,   that is   R = (1 - eta_g) u
             c <- c + (1/N) sum_k (c_k+ - c_k)

Source: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020, option II,
with uniform weights. The displacement d is steps x lr for plain SGD and is defined for any client optimiser. A client
without a local step sends 0.

Scaffold needs a smaller learning rate than FedAvg where local training is unstable: the correction c - c_k is constant
during the local steps, and nothing damps it. benchmarks/results/README.md has runs that diverge.

The published FedVG code takes five single-minibatch steps a round and does not store c_k. Its c is therefore 1 / N of a
mean and accumulates all past gradients.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedvg_jax.algorithms.base import no_probe
from fedvg_jax.core import tree
from fedvg_jax.core.types import (
    Algorithm,
    Anchor,
    Cohort,
    Hyper,
    Hyperparameter,
    NamedAlgorithm,
    Published,
    Tree,
)

ETA_G = Hyperparameter(
    "scaffold.eta_g", 1.0, 0, doc="Learning rate of the server.", excludes_low=True
)


def scaffold(keeps: bool = True, single_batches: bool = False) -> Algorithm:
    """Returns Scaffold, which reads `scaffold.eta_g`. With eta_g = 1 its first round equals FedAvg's.

    Args:
        keeps: whether clients store c_k between rounds. The published FedVG code does not.
        single_batches: whether a local epoch is one minibatch, as in that code.
    """

    def report_and_store(hyper, params, anchor, displacement):
        state, *messages = report(hyper, params, anchor, displacement)
        return (state if keeps else anchor.client), *messages

    return Algorithm(
        init,
        correct,
        report_and_store,
        residual,
        no_probe,
        native_weighting="uniform",
        hyperparameters=(ETA_G,),
        single_batches=single_batches,
    )


def init(hyper: Hyper, params: Tree) -> tuple[Tree, Tree]:
    """Returns c = 0 and c_k = 0."""
    return tree.zeros_like(params), tree.zeros_like(params)


def correct(hyper: Hyper, grads: Tree, params: Tree, anchor: Anchor) -> Tree:
    """Returns g + c - c_k."""
    return jax.tree.map(lambda g, c, c_k: g + c - c_k, grads, anchor.server, anchor.client)


def report(hyper: Hyper, params: Tree, anchor: Anchor, displacement) -> tuple[Tree, Tree, Tree]:
    """Returns the state c_k+, and the message c_k+ - c_k to be summed."""
    has_moved = displacement > 0
    safe = jnp.where(has_moved, displacement, 1)

    def change(p, global_p, c):
        return jnp.where(has_moved, (global_p - p) / safe - c, jnp.zeros_like(c))

    message = jax.tree.map(change, params, anchor.params, anchor.server)
    return tree.add(anchor.client, message), message, ()


def residual(hyper: Hyper, server: Tree, params: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
    """Returns R = (1 - eta_g) u, and the state c + (1/N) sum_k (c_k+ - c_k)."""
    c = jax.tree.map(lambda c, m: c + m / cohort.num_clients, server, cohort.summed)
    return tree.scale(1 - hyper[ETA_G.name], cohort.update), c


ENTRY = NamedAlgorithm(
    "Scaffold",
    scaffold,
    (ETA_G,),
    published={
        "scaffold-steps": Published({"single_batches": True}),
        "scaffold-state": Published({"keeps": False}),
    },
)
