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
from fedvg_jax.models.norm import wide


def classification(
    module: nn.Module,
    num_classes: int,
    image_shape: Sequence[int],
    block_of: Callable[[str], str] | None = None,
    normalise: str = "none",
) -> Task:
    """Cross-entropy of `module(x, mask, train) -> logits [B, C]` on uint8 images, scaled to [0, 1]; numbers of other
    dtypes are taken as they are.

    Args:
        image_shape: (H, W, D), or of whatever else the module takes.
        block_of: path of a tensor -> block; by default the head `classifier` and the rest, `base`.
        normalise: statistics that pixels in [0, 1] are normalised by, of `pixels.STATISTICS`; by default none.

    Raises:
        UsageError: by the loss, for images of another shape.
    """

    def apply(params: Tree, stats: Tree, x: Array, mask: Array, train: bool) -> tuple[Array, Tree]:
        x = pixels.scale(x, tree.dtype(params), normalise)
        logits, new = module.apply({"params": params, "batch_stats": stats}, x, mask, train, mutable=["batch_stats"])
        return wide(logits), new.get("batch_stats", stats)

    def init(key: Array) -> Variables:
        x = pixels.scale(jnp.zeros((1, *image_shape)), jnp.float32, normalise)
        variables = module.init(key, x, jnp.ones(1, bool), False)
        return Variables(variables["params"], variables.get("batch_stats", {}))

    def losses(logits: Array, batch: Batch, mask: Array) -> Array:
        return jnp.where(mask, optax.softmax_cross_entropy_with_integer_labels(logits, batch.y), 0)

    def loss(params: Tree, stats: Tree, batch: Batch, mask: Array, train: bool) -> tuple[Array, Tree]:
        if batch.x.shape[1:] != tuple(image_shape):  # other parameters could be without a gradient
            got, wanted = batch.x.shape[1:], tuple(image_shape)
            raise UsageError(f"images of {got} for the loss of a task made for {wanted}; make one for {got}")
        logits, stats = apply(params, stats, batch.x, mask, train)
        return losses(logits, batch, mask).sum() / jnp.maximum(mask.sum(), 1).astype(logits.dtype), stats

    def predict(params: Tree, stats: Tree, batch: Batch) -> Array:
        return apply(params, stats, batch.x, jnp.ones(len(batch.x), bool), False)[0]

    def measure(params: Tree, stats: Tree, batch: Batch, mask: Array) -> Tree:
        logits = predict(params, stats, batch)
        cell = batch.y * num_classes + jnp.argmax(logits, -1).astype(batch.y.dtype)
        confusion = jnp.zeros(num_classes**2, jnp.int32).at[cell].add(mask.astype(jnp.int32))
        return {"loss": losses(logits, batch, mask).sum(), "confusion": confusion}

    init, live_kernels = live_taps.watched(init)
    return Task(
        init, loss, predict, measure, metrics, block_of or head_and_base, gradient_support.by_path(live_kernels)
    )


def metrics(sums: dict[str, np.ndarray]) -> dict[str, float]:
    """Loss, accuracy, balanced accuracy, macro-F1 and the share of the largest class.

    From the confusion matrix M [true, predicted]: accuracy tr M / sum M; balanced accuracy the mean recall of the
    classes that occur; macro-F1 the mean of 2 M_cc / (row_c + column_c) over classes that occur or are predicted.
    """
    matrix = np.asarray(sums["confusion"], np.float64)
    matrix = matrix.reshape(2 * [round(matrix.size**0.5)])
    hit, true, predicted = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    seen, named = true > 0, true + predicted > 0
    return {
        "loss": float(sums["loss"]) / true.sum(),
        "accuracy": hit.sum() / true.sum(),
        "balanced_accuracy": float(np.mean(hit[seen] / true[seen])),
        "macro_f1": float(np.mean(2 * hit[named] / (true + predicted)[named])),
        "majority_accuracy": true.max() / true.sum(),
    }


def head_and_base(path: str) -> str:
    """The reference code's two blocks of a small network."""
    return "classifier" if path.startswith("classifier/") else "base"
