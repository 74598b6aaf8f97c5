"""Tasks of equal results that compute otherwise: gradients by microbatches, and other formats of numbers.

And the augmentation of images while a client trains.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.core import trained_part, tree
from fedvg_jax.core.types import Batch, Task, Tree, Variables
from fedvg_jax.models.task import loss_of, wrapped


def accumulate_gradients(task: Task, max_rows: int, base: Variables | None = None) -> Task:
    """Returns the task of the trained part, with a loss that adds up its gradient over microbatches of rows.

        grad L = sum_m (n_m / n) grad L_m        n_m, n: real rows of microbatch m and of the minibatch

    For models in which no row depends on another and without running statistics. Only one microbatch's activations are
    in memory at a time, and a microbatch of padding is skipped. Loss and gradient are differentiable in forward and
    reverse mode.

    Args:
        task: its batches' leaves have leading axis B.
        max_rows: the microbatches have the largest number of rows up to this that divides B.
        base: frozen tensors, which may be traced; None if all are trained. The rule takes them as an argument: it must
            close over no tracer.
    """
    part = trained_part.bind(task, base)

    def loss(params, stats, batch, mask, train):
        # groups of rows are nothing to models in which no row depends on another
        mask = mask.reshape(-1)
        size = max(rows for rows in range(1, max_rows + 1) if len(mask) % rows == 0)
        # the rule below differentiates by the parameters only: float inputs need gradients, uint8 images do not
        has_float_inputs = any(jnp.issubdtype(x.dtype, jnp.inexact) for x in jax.tree.leaves(batch))
        if size == len(mask) or has_float_inputs:
            return part.loss(params, stats, batch, mask, train)
        mean = _mean_by_microbatches(task, stats, train, size)
        # a base from outside of `shard_map` has a type of another mesh, and the rule could make no zero tangents of it
        return mean(params, lax.optimization_barrier(base), batch, mask), stats

    return part._replace(loss=loss)


def _mean_by_microbatches(task: Task, stats: Tree, train: bool, size: int):
    """Returns (params, base, batch, mask) -> mean loss over the real rows, differentiable by the parameters only."""

    def mean(params, base, batch, mask):
        return trained_part.bind(task, base).loss(params, stats, batch, mask, train)[0]

    def value_and_grad(params, base, batch, mask):
        num_real = jnp.maximum(mask.sum(), 1)

        def add_microbatch(total, microbatch):
            batch, mask = microbatch

            def weighted_loss(params):
                weight = (mask.sum() / num_real).astype(tree.dtype(params))
                return weight * mean(params, base, batch, mask)

            term = lax.cond(
                mask.any(), lambda: jax.value_and_grad(weighted_loss)(params), lambda: zero
            )
            # outside of the conditional, where XLA adds in place
            return tree.add(total, term), None

        microbatches = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), (batch, mask))
        zero = jnp.zeros((), tree.dtype(params)), tree.zeros_like(params)
        return lax.scan(add_microbatch, zero, microbatches)[0]

    def directional_derivative(primals, tangents):
        value, grads = value_and_grad(*primals)
        products = jax.tree.map(lambda g, d: (g * d).sum(), grads, tangents[0])
        return value, sum(jax.tree.leaves(products), start=jnp.zeros((), value.dtype))

    rule = jax.custom_jvp(mean)
    rule.defjvp(directional_derivative)
    return rule


def compute_in(task: Task, name: str) -> Task:
    """Returns `task` with its forward and backward pass in another format than the device's default.

    Losses, statistics, outputs and features come out in the format of the parameters.

    Args:
        task: with float32 parameters and `forward`.
        name: "highest", float32 throughout, without TF32; or "bfloat16".
    """

    def narrow(x: Array) -> Array:
        is_narrowed = name == "bfloat16" and jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(jnp.bfloat16) if is_narrowed else x

    def in_format(f: Callable) -> Callable:
        def run(params, stats, batch, *args, **key):
            is_exact = name == "highest"
            with jax.default_matmul_precision(name) if is_exact else contextlib.nullcontext():
                narrowed = batch._replace(x=narrow(batch.x))
                return f(jax.tree.map(narrow, params), stats, narrowed, *args, **key)

        return run

    converted = wrapped(task, in_format)

    def forward(params, stats, *args, **key):
        assert converted.forward is not None  # every named model has one
        outputs, new = converted.forward(params, stats, *args, **key)
        wide = jax.tree.map(lambda x: x.astype(tree.dtype(params)), outputs)
        return wide, tree.like(new, stats)

    return converted._replace(loss=loss_of(forward), forward=forward)


def flip(key: Array, x: Array) -> Array:
    """Mirrors each image of x [B, H, W, D] left to right with probability 1/2."""
    is_mirrored = jax.random.bernoulli(key, shape=(len(x), 1, 1, 1))
    return jnp.where(is_mirrored, x[:, :, ::-1], x)


def crop(key: Array, x: Array, pad: int = 4) -> Array:
    """Shifts each image of x [B, H, W, D] by -pad to pad pixels in both directions, filling with black."""
    padded = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    corners = jax.random.randint(key, (len(x), 2), 0, 2 * pad + 1)

    def window(image: Array, corner: Array) -> Array:
        return lax.dynamic_slice(image, (*corner, 0), x.shape[1:])

    return jax.vmap(window)(padded, corners)


def _augment_images(augment: Callable[[Array, Array], Array], key: Array, batch: Batch) -> Batch:
    return batch._replace(x=augment(key, batch.x))


def _flip_and_crop(key: Array, x: Array) -> Array:
    flip_key, crop_key = jax.random.split(key)
    return crop(crop_key, flip(flip_key, x))


AUGMENTATIONS = {
    "none": None,
    "flip": partial(_augment_images, flip),
    "crop": partial(_augment_images, crop),
    "flip_crop": partial(_augment_images, _flip_and_crop),
}
