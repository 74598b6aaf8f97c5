"""FedLC: a client calibrates its logits by its label counts, so that frequent classes do not crowd out rare ones.

    loss_i = -log( exp(z_iy - m_y) / sum_c exp(z_ic - m_c) ),    m_c = tau n_c^(-1/4)

with the logits z_i of row i, its class y, and the client's n_c training rows of class c: the rarer a class on the
client, the more its logit is lowered, and the more the model has to raise it. The client counts its labels once, before
the first round; the counts never leave it. A class without rows counts as 1e-8 rows: at tau = 1 its logit is lowered by
100, which takes it out of the softmax, and at tau = 0 by nothing.

Source: Zhang et al., "Federated Learning with Label Distribution Skew via Logits Calibration", ICML 2022, with weights
n_k / sum_j n_j.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fedvg_jax.algorithms.base import PLAIN, class_logits, forward, mean_over_rows
from fedvg_jax.core.types import (
    Algorithm,
    Anchor,
    ClientRows,
    Hyper,
    Hyperparameter,
    NamedAlgorithm,
    Task,
    Tree,
)

TAU = Hyperparameter("fedlc.tau", 1.0, 0, doc="Strength of the calibration of logits.")

NO_ROWS = 1e-8
"""Rows that a class without any counts as."""


def fedlc() -> Algorithm:
    """Returns FedLC, which reads `fedlc.tau`. At tau = 0 it is FedAvg."""
    return PLAIN._replace(loss=loss, describe=ClientRows.label_counts, hyperparameters=(TAU,))


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
    """Returns the task's loss with calibrated logits: its cross-entropy changes by the calibration's cross-entropy."""
    outputs, new_stats = forward(task, params, stats, batch, mask, key)
    logits = class_logits(outputs, batch.y, "FedLC")
    tau = hyper[TAU.name].astype(logits.dtype)
    margins = tau * inverse_fourth_root(anchor.described, logits.dtype)
    by_class = margins.reshape(*[1] * (logits.ndim - 1), -1)
    calibrated = jax.nn.logsumexp(logits - by_class, -1) + margins[batch.y]
    return outputs.loss + mean_over_rows(calibrated - jax.nn.logsumexp(logits, -1), mask), new_stats


def inverse_fourth_root(counts: Array, dtype) -> Array:
    """Returns n_c^(-1/4) [C] of label counts.

    >>> inverse_fourth_root(jnp.array([1, 16]), jnp.float32).tolist()
    [1.0, 0.5]
    """
    return jnp.maximum(counts.astype(dtype), jnp.asarray(NO_ROWS, dtype)) ** -0.25


ENTRY = NamedAlgorithm("FedLC", fedlc, (TAU,))
