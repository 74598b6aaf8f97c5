"""Ditto: each client trains a personal model beside the global one, to which a proximal term ties it.

    v_k <- v_k - lr (grad F_k(v_k) + lambda (v_k - theta_g))

in each local step of a round in which the client is sampled. v_k stays with the client. The global model is trained as
by a base algorithm, which v_k does not affect.

Source: Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, algorithm 1. As in
the published code, theta_k and v_k take their steps on the same minibatches at the same rate. The default lambda is
the paper's for clients with too few validation rows to choose one.
"""

from __future__ import annotations

import jax

from fedvg_jax.algorithms.base import PLAIN
from fedvg_jax.core.types import Algorithm, Anchor, Hyper, Hyperparameter, NamedAlgorithm, Tree

LAM = Hyperparameter(
    "ditto.lam",
    1.0,
    0,
    doc="Lambda, the strength with which the global model attracts a personal one.",
)


def ditto(base: Algorithm = PLAIN) -> Algorithm:
    """Returns Ditto, which reads `ditto.lam`; at 0 clients also train alone. Its global model is the one of `base`."""
    return base._replace(personal=personal, hyperparameters=(*base.hyperparameters, LAM))


def personal(hyper: Hyper, grads: Tree, params: Tree, anchor: Anchor) -> Tree:
    """Returns g + lambda (v - theta_g)."""
    return jax.tree.map(
        lambda g, v, theta: g + hyper[LAM.name] * (v - theta), grads, params, anchor.params
    )


ENTRY = NamedAlgorithm("Ditto", ditto, (LAM,))
