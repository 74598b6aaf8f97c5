"""MOON: a model-contrastive term keeps the features close to the global model's and away from the previous local ones.

    loss <- loss + mu l_con,    l_con = mean_i -log( exp(s_i^glob / tau) / (exp(s_i^glob / tau) + exp(s_i^prev / tau)) )

with the cosine similarities s_i^glob of z_i and z_i^glob, and s_i^prev of z_i and z_i^prev, where z_i, z_i^glob and
z_i^prev are the features of row i under theta, theta_g and the client's model of its last round.

Source: Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021, equations 3 and 4, with weights
n_k / sum_j n_j. Features are the input of the network's last layer; the paper adds a projection head of two layers to
the network. theta_g and the previous model use the minibatch's statistics in BatchNorm. Before a client's first
round, its previous model is the initial one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fedvg_jax.algorithms.base import PLAIN, features_of, forward, mean_over_rows
from fedvg_jax.core.types import (
    Algorithm,
    Anchor,
    Hyper,
    Hyperparameter,
    NamedAlgorithm,
    Task,
    Tree,
)

MU = Hyperparameter("moon.mu", 1.0, 0, doc="Weight of the contrastive term.")
TAU = Hyperparameter(
    "moon.tau", 0.5, 0, doc="Temperature of the similarities of features.", excludes_low=True
)


def moon() -> Algorithm:
    """Returns MOON, which reads `moon.mu` and `moon.tau`. At mu = 0, and in a run's first round, it is FedAvg."""
    return PLAIN._replace(
        init=init, report=report, loss=loss, reads_features=True, hyperparameters=(MU, TAU)
    )


def init(hyper: Hyper, params: Tree) -> tuple[Tree, Tree]:
    """Returns no state of the server, and the initial model as the client's previous one."""
    return (), params


def report(hyper: Hyper, params: Tree, anchor: Anchor, displacement) -> tuple[Tree, Tree, Tree]:
    """Returns the trained model as the client's state, and no messages."""
    return params, (), ()


def loss(
    hyper: Hyper,
    task: Task,
    params: Tree,
    stats: Tree,
    batch: Tree,
    mask: Array,
    key: Array,
    anchor: Anchor,
) -> tuple[Array, Tree]:
    """Returns the task's loss + mu l_con."""
    outputs, new_stats = forward(task, params, stats, batch, mask, key)
    compared = [
        forward(task, model, stats, batch, mask)[0] for model in (anchor.params, anchor.client)
    ]
    z, *others = map(features_of, (outputs, *compared))
    to_global, to_previous = (similarity(z, other) / hyper[TAU.name] for other in others)
    contrast = jax.nn.softplus(to_previous - to_global)
    return outputs.loss + hyper[MU.name] * mean_over_rows(contrast, mask), new_stats


def similarity(a: Array, b: Array) -> Array:
    """Returns the cosine similarity [B] of the rows of two arrays [B, F]; 0 for a row of zeros.

    >>> similarity(jnp.array([[3.0, 4.0], [0.0, 0.0]]), jnp.array([[4.0, 3.0], [1.0, 0.0]])).round(2)
    Array([0.96, 0.  ], dtype=float32)
    """
    squares = (a * a).sum(-1) * (b * b).sum(-1)
    is_zero = squares == 0
    return jnp.where(is_zero, 0, (a * b).sum(-1) / jnp.sqrt(jnp.where(is_zero, 1, squares)))


ENTRY = NamedAlgorithm("MOON", moon, (MU, TAU))
