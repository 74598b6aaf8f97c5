"""A Linen module as a `Task`: one label for each row, or each place of a sequence, by cross-entropy; its features."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fedvg_jax.core import tree
from fedvg_jax.core.types import Batch, Outputs, Task, Tree, UsageError, Variables

BlockOf = Callable[[str], str]
"""path of a tensor -> name of its block"""


def classification(
    module: nn.Module,
    num_classes: int,
    image_shape: Sequence[int],
    block_of: BlockOf | None = None,
    normalise: str = "none",
) -> Task:
    """Returns the task of classifying images, or rows of a table, with `module` by cross-entropy.

    Args:
        module: called as module(x, mask, train) -> logits [B, C]; x is [B, H, W, D], or [B, D] for a table, and mask
            bool [B], or [G, B] for G groups of rows with separate batch statistics, as `norm.BatchNorm` takes it.
        num_classes: C.
        image_shape: (H, W, D), or (D,) for a table. uint8 pixels are scaled to [0, 1]; other dtypes are not scaled.
        block_of: path of a tensor -> name of its block; defaults to `head_and_base`.
        normalise: name of the pixel statistics in `STATISTICS`.

    Returns:
        The task. Its loss raises UsageError for images of another shape than `image_shape`.
    """
    scaled = functools.partial(scale, statistics=normalise)
    row = jax.ShapeDtypeStruct(tuple(image_shape), jnp.float32)
    return _labelling(module, num_classes, row, scaled, block_of)


def next_character(
    module: nn.Module, num_classes: int, length: int, block_of: BlockOf | None = None
) -> Task:
    """Returns the task of predicting the next character at every place of a sequence by cross-entropy.

    The loss is the mean over the characters of the real rows, and so are the metrics.

    Args:
        module: called as module(x, mask, train) -> logits [B, L, C]; x is int32 [B, L] and mask [B] bool.
        num_classes: C, different characters.
        length: L, characters of a row; labels y are int32 [B, L].
        block_of: path of a tensor -> name of its block; defaults to `head_and_base`.

    Returns:
        The task. Its loss raises UsageError for sequences of another length than `length`.

    >>> from fedvg_jax.models.plain import GRU
    >>> import jax
    >>> task = next_character(GRU(num_classes=5), 5, length=8)
    >>> x = jnp.zeros((2, 8), jnp.int32)
    >>> task.predict(*task.init(jax.random.key(0)), Batch(x, x)).shape
    (2, 8, 5)
    """
    row = jax.ShapeDtypeStruct((length,), jnp.int32)
    return _labelling(module, num_classes, row, lambda x, dtype: x, block_of)


def _labelling(
    module: nn.Module,
    num_classes: int,
    row: jax.ShapeDtypeStruct,
    prepare: Callable[[Array, Any], Array],
    block_of: BlockOf | None,
) -> Task:
    """Returns the task of giving one of C labels to each row, or to each place of it, by cross-entropy.

    Args:
        module: (x, mask, train) -> logits [B, ..., C], where y is [B, ...].
        num_classes: C.
        row: shape and dtype of a row.
        prepare: (x, dtype of the parameters) -> the module's input.
        block_of: path of a tensor -> name of its block; None for `head_and_base`.
    """

    def apply(params, stats, x, mask, train):
        x = prepare(x, tree.dtype(params))
        logits, new = module.apply(
            {"params": params, "batch_stats": stats}, x, mask, train, mutable=["batch_stats"]
        )
        return tree.wide(logits), new.get("batch_stats", stats)

    def init(key: Array) -> Variables:
        x = prepare(jnp.zeros((1, *row.shape), row.dtype), jnp.float32)
        variables = module.init(key, x, jnp.ones(1, bool), False)
        return Variables(variables["params"], variables.get("batch_stats", {}))

    def forward(params, stats, batch, mask, train, key=None):
        if (shape := batch.x.shape[1:]) != row.shape:
            raise UsageError(
                f"rows of {shape} for the loss of a task made for {row.shape}; make a task for {shape}"
            )
        with recorded_features() as features:
            logits, stats = apply(params, stats, batch.x, mask, train)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.y)
        return Outputs(mean_over_rows(losses, mask), logits, features.value), stats

    def predict(params, stats, batch: Batch):
        return apply(params, stats, batch.x, jnp.ones(len(batch.x), bool), False)[0]

    def measure(params, stats, batch, mask):
        return _sums(predict(params, stats, batch), batch.y, mask, num_classes)

    return Task(
        init,
        loss_of(forward),
        predict,
        measure,
        classification_metrics,
        block_of or head_and_base,
        takes_groups=True,
        forward=forward,
    )


def _sums(logits: Array, y: Array, mask: Array, num_classes: int) -> Tree:
    """Returns the summed loss [] of the real rows, and their confusion matrix [C * C]."""
    true = y.astype(jnp.int32)
    predicted = jnp.argmax(logits, -1).astype(jnp.int32)
    is_real = tree.where(mask, jnp.ones_like(true), jnp.zeros_like(true))
    # in int32: a product of uint8 labels wraps from 256 on
    cells = jnp.zeros(num_classes**2, jnp.int32)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
    return {
        "loss": tree.where(mask, losses, jnp.zeros_like(losses)).sum(),
        "confusion": cells.at[true * num_classes + predicted].add(is_real),
    }


def loss_of(forward: Callable) -> Callable:
    """Returns the loss of a `Task.forward`, which draws no random numbers."""

    def loss(params, stats, batch, mask, train):
        outputs, stats = forward(params, stats, batch, mask, train)
        return outputs.loss, stats

    return loss


def wrapped(task: Task, wrap: Callable[[Callable], Callable]) -> Task:
    """Returns the task with `wrap` applied to each of its functions of a batch."""
    functions = {name: getattr(task, name) for name in ("loss", "predict", "measure", "forward")}
    return task._replace(**{name: wrap(f) for name, f in functions.items() if f})


def mean_over_rows(losses: Array, mask: Array) -> Array:
    """Returns the mean of losses [B, ...] over the real rows, of mask [B] or [G, B / G]; 0 without any."""
    losses = tree.where(mask.reshape(-1), losses, jnp.zeros_like(losses))
    count = jnp.maximum(mask.sum(), 1) * (losses.size // mask.size)
    return losses.sum() / count.astype(losses.dtype)


def classification_metrics(sums: dict[str, np.ndarray]) -> dict[str, float]:
    """Returns loss, accuracy, balanced accuracy, macro-F1 and the share of the largest class.

    With the confusion matrix M [true, predicted]: accuracy is tr M / sum M; balanced accuracy is the mean recall of the
    classes that occur; macro-F1 is the mean of 2 M_cc / (row_c + column_c) over the classes that occur or are
    predicted.

    Args:
        sums: `loss` [], the summed loss, and `confusion` [C * C], the flattened M, as `Task.measure` adds them up.
    """
    matrix = np.asarray(sums["confusion"], np.float64)
    matrix = matrix.reshape(2 * [round(matrix.size**0.5)])
    correct = np.diag(matrix)
    true = matrix.sum(1)
    predicted = matrix.sum(0)
    occurs = true > 0
    total = true + predicted
    return {
        "loss": float(sums["loss"]) / true.sum(),
        "accuracy": correct.sum() / true.sum(),
        "balanced_accuracy": float(np.mean(correct[occurs] / true[occurs])),
        "macro_f1": float(np.mean(2 * correct[total > 0] / total[total > 0])),
        "majority_accuracy": true.max() / true.sum(),
    }


def head_and_base(path: str) -> str:
    """Returns the block of a tensor in the reference code's two blocks of a small network: `classifier` or `base`."""
    return "classifier" if path.startswith("classifier/") else "base"


# --- pixels

STATISTICS = {
    "none": None,
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5,), (0.5,)),
}
"""Name -> mean and standard deviation of each channel of pixels in [0, 1]. imagenet: torchvision's, for its ImageNet
weights; half: timm's, for its ViTs; none: the published code does not normalise."""


def scale(x: Array, dtype, statistics: str = "none") -> Array:
    """Returns (x / 255 - mean) / deviation for uint8 pixels; inputs of other dtypes are not divided by 255.

    With the statistics of three channels, a grayscale image becomes three channels.

    Args:
        x: [..., H, W, D].
        dtype: of the result, unless x has wider floats.
        statistics: a name of `STATISTICS`.

    >>> scale(jnp.full((1, 1, 1, 1), 255, jnp.uint8), jnp.float32, "half").tolist()
    [[[[1.0]]]]
    """
    size = jnp.dtype(dtype).itemsize
    is_wide = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize >= size
    scaled = x if is_wide else x.astype(dtype)
    scaled = scaled / 255 if x.dtype == jnp.uint8 else scaled
    moments = STATISTICS[statistics]
    if moments is None:
        return scaled
    shape = *[1] * (x.ndim - 1), -1
    mean, deviation = (jnp.asarray(moment, scaled.dtype).reshape(shape) for moment in moments)
    return (scaled - mean) / deviation


# --- features


class Features:
    """The features of the last call of a module while they are recorded."""

    value: Array | None = None
    """[B, ...]; None before a layer was called."""


@contextlib.contextmanager
def recorded_features() -> Iterator[Features]:
    """Records the input of the last layer that Linen modules call.

    A layer has parameters and no layers inside it, and is called as such or as `Embed.attend`. Scales and offsets of
    the entries of an array, such as a LayerNorm's, make no layer.

    >>> module, x = nn.Sequential([nn.Dense(3), nn.relu, nn.Dense(2)]), jnp.ones((4, 5))
    >>> with recorded_features() as features:
    ...     logits = module.apply(module.init(jax.random.key(0), x), x)
    >>> logits.shape, features.value.shape
    ((4, 2), (4, 3))
    """
    features = Features()

    def record(run, args, kwargs, context):
        outputs = run(*args, **kwargs)
        inputs = [*args, *kwargs.values()]
        is_call = context.method_name in ("__call__", "attend") and inputs
        params = context.module.variables.get("params", {}) if is_call else {}
        # a module with layers inside it is none, even with parameters beside them, such as a ViT's class token
        if params and not any(hasattr(entry, "keys") for entry in params.values()):
            is_scale = max(map(jnp.ndim, params.values())) <= 1
            if not is_scale or jnp.shape(outputs) != jnp.shape(inputs[0]):
                features.value = inputs[0]
        return outputs

    with nn.intercept_methods(record):
        yield features
