"""Parts of losses of one's own, which see the minibatch: the forward pass, its features, a mean over real rows."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from fedvg_jax.core import tree
from fedvg_jax.core.types import Outputs, Task, Tree, UsageError


def forward(
    task: Task, params: Tree, stats: Tree, batch: Tree, mask: Array, key: Array | None = None
) -> tuple[Outputs, Tree]:
    """Returns loss, outputs and features of a minibatch in training, and the new running statistics.

    Args:
        task: the model and its loss.
        params, stats: the model's arrays, e.g. `anchor.params` of the global model.
        batch, mask: the minibatch and its real rows.
        key: of the local step; None for a model without randomness, such as one that is compared with.

    Raises:
        UsageError: the task has no `forward`.
    """
    if task.forward is None:
        raise UsageError(
            "this algorithm needs task.forward, which this task lacks; use fedvg_jax.linen_task or nnx_task, or add it"
        )
    return task.forward(params, stats, batch, mask, True, key)


def features_of(outputs: Outputs) -> Array:
    """Returns the features of the rows, flattened to [B, F], in at least float32.

    Raises:
        UsageError: they are not known.
    """
    if outputs.features is None:
        raise UsageError(
            "this algorithm needs features; task.forward must return the inputs of the last layer as Outputs.features"
        )
    return tree.wide(outputs.features).reshape(len(outputs.features), -1)


def mean_over_rows(values: Array, mask: Array) -> Array:
    """Returns the mean [] of values [B, ...] over the real rows; 0 without any.

    >>> float(mean_over_rows(jnp.array([1.0, 3.0, 100.0]), jnp.array([True, True, False])))
    2.0
    """
    real = jnp.broadcast_to(mask.reshape(len(mask), *[1] * (values.ndim - 1)), values.shape)
    return jnp.where(real, values, 0).sum() / jnp.maximum(real.sum(), 1).astype(values.dtype)
