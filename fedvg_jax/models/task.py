"""A Linen module as a `Task`: image classification by cross-entropy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fedvg_jax.core import gradient_support, tree
from fedvg_jax.core.types import Batch, Task, Tree, UsageError, Variables
from fedvg_jax.models import live_taps, pixels
from fedvg_jax.models.norm import at_least_float32


def classification(
    module: nn.Module,
    num_classes: int,
    image_shape: Sequence[int],
    block_of: Callable[[str], str] | None = None,
    normalise: str = "none",
) -> Task:
    """Returns the task of classifying images with `module` by cross-entropy.

    Args:
        module: called as module(x, mask, train) -> logits [B, C]; x is [B, H, W, D] and mask bool [B], or [G, B] for G
            groups of rows with batch statistics of their own, as `norm.BatchNorm` takes it.
        num_classes: C.
        image_shape: (H, W, D). uint8 pixels are scaled to [0, 1]; other dtypes are not scaled.
        block_of: path of a tensor -> name of its block; defaults to `head_and_base`.
        normalise: name of the pixel statistics in `pixels.STATISTICS`.

    Returns:
        The task. Its loss raises UsageError for images of another shape than `image_shape`.
    """

    def apply(params: Tree, stats: Tree, x: Array, mask: Array, train: bool) -> tuple[Array, Tree]:
        x = pixels.scale(x, tree.dtype(params), normalise)
        logits, new = module.apply({"params": params, "batch_stats": stats}, x, mask, train, mutable=["batch_stats"])
        return at_least_float32(logits), new.get("batch_stats", stats)

    def init(key: Array) -> Variables:
        x = pixels.scale(jnp.zeros((1, *image_shape)), jnp.float32, normalise)
        variables = module.init(key, x, jnp.ones(1, bool), False)
        return Variables(variables["params"], variables.get("batch_stats", {}))

    def loss(params: Tree, stats: Tree, batch: Batch, mask: Array, train: bool) -> tuple[Array, Tree]:
        _check_image_shape(batch.x.shape[1:], tuple(image_shape))
        logits, stats = apply(params, stats, batch.x, mask, train)
        losses = _cross_entropies(logits, batch, mask.reshape(-1))
        return losses.sum() / jnp.maximum(mask.sum(), 1).astype(logits.dtype), stats

    def predict(params: Tree, stats: Tree, batch: Batch) -> Array:
        return apply(params, stats, batch.x, jnp.ones(len(batch.x), bool), False)[0]

    def measure(params: Tree, stats: Tree, batch: Batch, mask: Array) -> Tree:
        logits = predict(params, stats, batch)
        cell = batch.y * num_classes + jnp.argmax(logits, -1).astype(batch.y.dtype)
        confusion = jnp.zeros(num_classes**2, jnp.int32).at[cell].add(mask.astype(jnp.int32))
        return {"loss": _cross_entropies(logits, batch, mask).sum(), "confusion": confusion}

    recording_init, live_boxes = live_taps.record_live_taps(init)
    support = gradient_support.from_boxes(live_boxes)
    return Task(recording_init, loss, predict, measure, metrics, block_of or head_and_base, support, True)


def _check_image_shape(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raises UsageError for another image shape, in which other parameters could be without a gradient."""
    if shape != expected:
        raise UsageError(f"images of {shape} for the loss of a task made for {expected}; make a task for {shape}")


def _cross_entropies(logits: Array, batch: Batch, mask: Array) -> Array:
    """Returns the loss [B] of every row, 0 for padding."""
    return jnp.where(mask, optax.softmax_cross_entropy_with_integer_labels(logits, batch.y), 0)


def metrics(sums: dict[str, np.ndarray]) -> dict[str, float]:
    """Returns loss, accuracy, balanced accuracy, macro-F1 and the share of the largest class.

    With the confusion matrix M [true, predicted]: accuracy is tr M / sum M; balanced accuracy is the mean recall of the
    classes that occur; macro-F1 is the mean of 2 M_cc / (row_c + column_c) over the classes that occur or are
    predicted.

    Args:
        sums: `loss` [], the summed loss, and `confusion` [C * C], the flattened M, as `Task.measure` adds them up.
    """
    matrix = np.asarray(sums["confusion"], np.float64)
    matrix = matrix.reshape(2 * [round(matrix.size**0.5)])
    correct, true, predicted = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    occurs, occurs_or_predicted = true > 0, true + predicted > 0
    return {
        "loss": float(sums["loss"]) / true.sum(),
        "accuracy": correct.sum() / true.sum(),
        "balanced_accuracy": float(np.mean(correct[occurs] / true[occurs])),
        "macro_f1": float(np.mean(2 * correct[occurs_or_predicted] / (true + predicted)[occurs_or_predicted])),
        "majority_accuracy": true.max() / true.sum(),
    }


def head_and_base(path: str) -> str:
    """Returns the block of a tensor in the reference code's two blocks of a small network: `classifier` or `base`."""
    return "classifier" if path.startswith("classifier/") else "base"
