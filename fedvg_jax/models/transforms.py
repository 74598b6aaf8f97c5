"""Tasks of equal results that compute otherwise: gradients by microbatches, and other formats of numbers.

And operations on images inside the program: scaling and normalising always, augmentation while a client trains.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.core import tree
from fedvg_jax.core.types import Augment, Batch, Outputs, Task, Tree


def accumulate_gradients(
    task: Task,
    max_rows: int,
    base: Tree = (),
    bind: Callable[[Task, Tree], Task] = lambda task, base: task,
) -> Task:
    """Returns `task` with a loss that adds up its gradient over microbatches of at most `max_rows` rows.

        grad L = sum_m (n_m / n) grad L_m        n_m, n: real rows of microbatch m and of the minibatch

    For models in which no row depends on another and without running statistics. Only one microbatch's activations are
    in memory at a time, and a microbatch of padding is skipped. Loss and gradient are differentiable in forward and
    reverse mode.

    Args:
        task: its batches' leaves have leading axis B.
        max_rows: the microbatches have the largest number of rows up to this that divides B.
        base: frozen tensors, which may be traced. The rule takes them as an argument: it must close over no tracer.
        bind: (task, base) -> the task of the trained part, by default of the whole model.
    """
    part = bind(task, base)

    def loss(
        params: Tree, stats: Tree, batch: Tree, mask: Array, train: bool
    ) -> tuple[Array, Tree]:
        # groups of rows are nothing to models in which no row depends on another
        mask = mask.reshape(-1)
        size = max(rows for rows in range(1, max_rows + 1) if len(mask) % rows == 0)
        # the rule below differentiates by the parameters only: float inputs need gradients, uint8 images do not
        has_float_inputs = any(jnp.issubdtype(x.dtype, jnp.inexact) for x in jax.tree.leaves(batch))
        if size == len(mask) or has_float_inputs:
            return part.loss(params, stats, batch, mask, train)
        mean = _mean_by_microbatches(lambda base: bind(task, base).loss, stats, train, size)
        # a base from outside of `shard_map` has a type of another mesh, and the rule could make no zero tangents of it
        return mean(params, lax.optimization_barrier(base), batch, mask), stats

    return part._replace(loss=loss)


def _mean_by_microbatches(loss_of: Callable[[Tree], Callable], stats: Tree, train: bool, size: int):
    """Returns (params, base, batch, mask) -> mean loss over the real rows, differentiable by the parameters only."""

    @jax.custom_jvp
    def mean(params: Tree, base: Tree, batch: Tree, mask: Array) -> Array:
        return loss_of(base)(params, stats, batch, mask, train)[0]

    @mean.defjvp
    def directional_derivative(primals, tangents):
        value, grads = value_and_grad(*primals)
        products = jax.tree.map(lambda g, d: (g * d).sum(), grads, tangents[0])
        return value, sum(jax.tree.leaves(products), start=jnp.zeros((), value.dtype))

    def value_and_grad(params: Tree, base: Tree, batch: Tree, mask: Array) -> tuple[Array, Tree]:
        num_real = jnp.maximum(mask.sum(), 1)

        def add_microbatch(total, microbatch):
            def weighted_loss(params):
                weight = (microbatch[1].sum() / num_real).astype(tree.dtype(params))
                return weight * loss_of(base)(params, stats, *microbatch, train)[0]

            has_rows = microbatch[1].any()
            term = lax.cond(
                has_rows, lambda: jax.value_and_grad(weighted_loss)(params), lambda: zero
            )
            # outside of the conditional, where XLA adds in place
            return tree.add(total, term), None

        microbatches = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), (batch, mask))
        zero = jnp.zeros((), tree.dtype(params)), tree.zeros_like(params)
        return lax.scan(add_microbatch, zero, microbatches)[0]

    return mean


NAMES = ("default", "highest", "bfloat16")
"""default: float32, with matmul factors rounded as the device prefers (TF32 on a GPU); highest: float32 throughout;
bfloat16: forward and backward pass in bfloat16."""


def compute_in(task: Task, name: str) -> Task:
    """Returns `task` with its forward and backward pass in that format; losses and statistics come out in float32.

    So do outputs and features of `forward`.

    Args:
        task: with float32 parameters.
        name: one of `NAMES`.
    """
    if name == "default":
        return task

    def narrow(x: Array) -> Array:
        is_narrowed = name == "bfloat16" and jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(jnp.bfloat16) if is_narrowed else x

    def in_format(f: Callable) -> Callable:
        def run(params: Tree, stats: Tree, batch: Batch, *args, **key):
            precision = "highest" if name == "highest" else None
            with jax.default_matmul_precision(precision) if precision else contextlib.nullcontext():
                converted = batch._replace(x=narrow(batch.x))
                return f(jax.tree.map(narrow, params), stats, converted, *args, **key)

        return run

    def forward(params: Tree, stats: Tree, *args, **key) -> tuple[Outputs, Tree]:
        assert task.forward is not None  # every named model has one
        outputs, new = in_format(task.forward)(params, stats, *args, **key)
        wide = jax.tree.map(lambda x: x.astype(tree.dtype(params)), outputs)
        return wide, tree.like(new, stats)

    def loss(params: Tree, stats: Tree, batch: Batch, mask, train: bool) -> tuple[Array, Tree]:
        outputs, new = forward(params, stats, batch, mask, train)
        return outputs.loss, new

    predict, measure = in_format(task.predict), in_format(task.measure)
    return task._replace(loss=loss, forward=forward, predict=predict, measure=measure)


STATISTICS: dict[str, tuple[tuple[float, ...], tuple[float, ...]] | None] = {
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
    is_wide = (
        jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize >= jnp.dtype(dtype).itemsize
    )
    scaled = x if is_wide else x.astype(dtype)
    scaled = scaled / 255 if x.dtype == jnp.uint8 else scaled
    moments = STATISTICS[statistics]
    if moments is None:
        return scaled
    mean, deviation = (
        jnp.asarray(s, scaled.dtype).reshape(*[1] * (x.ndim - 1), -1) for s in moments
    )
    return (scaled - mean) / deviation


def flip(key: Array, x: Array) -> Array:
    """Mirrors each image of x [B, H, W, D] left to right with probability 1/2."""
    is_mirrored = jax.random.bernoulli(key, shape=(len(x), 1, 1, 1))
    return jnp.where(is_mirrored, x[:, :, ::-1], x)


def crop(key: Array, x: Array, pad: int = 4) -> Array:
    """Shifts each image of x [B, H, W, D] by -pad to pad pixels in both directions, filling with black."""
    padded = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    corners = jax.random.randint(key, (len(x), 2), 0, 2 * pad + 1)
    return jax.vmap(lambda image, corner: lax.dynamic_slice(image, (*corner, 0), x.shape[1:]))(
        padded, corners
    )


def _augment_images(augment: Callable[[Array, Array], Array], key: Array, batch: Batch) -> Batch:
    return batch._replace(x=augment(key, batch.x))


def _flip_and_crop(key: Array, x: Array) -> Array:
    flip_key, crop_key = jax.random.split(key)
    return crop(crop_key, flip(flip_key, x))


AUGMENTATIONS: dict[str, Augment | None] = {
    "none": None,
    "flip": partial(_augment_images, flip),
    "crop": partial(_augment_images, crop),
    "flip_crop": partial(_augment_images, _flip_and_crop),
}
