"""FedNTD: a client distils the global model's predictions among the classes that are not true.

    loss <- loss + beta mean_i KL( q_i^glob || q_i )
    q_i(c) = exp(z_ic / tau) / sum_{c' != y_i} exp(z_ic' / tau)

over the classes c != y_i, with the logits z_i of row i under theta, and q_i^glob from those under theta_g.

Source: Lee et al., "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning", NeurIPS 2022,
equations 4 and 5, with weights n_k / sum_j n_j. theta_g uses the minibatch's statistics in BatchNorm.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fedvg_jax.algorithms.base import PLAIN, class_logits, forward, mean_over_rows
from fedvg_jax.core.types import (
    Algorithm,
    Anchor,
    Hyper,
    Hyperparameter,
    NamedAlgorithm,
    Task,
    Tree,
)

BETA = Hyperparameter("fedntd.beta", 1.0, 0, doc="Weight of the distillation.")
TAU = Hyperparameter("fedntd.tau", 1.0, 0, doc="Temperature of the logits.", excludes_low=True)


def fedntd() -> Algorithm:
    """Returns FedNTD, which reads `fedntd.beta` and `fedntd.tau`. At beta = 0 it is FedAvg."""
    return PLAIN._replace(loss=loss, hyperparameters=(BETA, TAU))


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
    """Returns the task's loss + beta mean_i KL(q_i^glob || q_i)."""
    outputs, new_stats = forward(task, params, stats, batch, mask, key)
    teacher, _ = forward(task, anchor.params, stats, batch, mask)
    log_q, log_p = (
        not_true(class_logits(each, batch.y, "FedNTD") / hyper[TAU.name], batch.y)
        for each in (outputs, teacher)
    )
    is_not_true = log_p > -jnp.inf
    terms = jnp.where(is_not_true, jnp.exp(log_p) * jnp.where(is_not_true, log_p - log_q, 0), 0)
    return outputs.loss + hyper[BETA.name] * mean_over_rows(terms.sum(-1), mask), new_stats


def not_true(logits: Array, y: Array) -> Array:
    """Returns log softmax [..., C] over the classes c != y, and -inf at c = y.

    >>> jnp.exp(not_true(jnp.zeros((1, 3)), jnp.array([1]))).tolist()
    [[0.5, 0.0, 0.5]]
    """
    is_true = jax.nn.one_hot(y, logits.shape[-1], dtype=bool)
    return jax.nn.log_softmax(logits, where=~is_true)


ENTRY = NamedAlgorithm("FedNTD", fedntd, (BETA, TAU))
