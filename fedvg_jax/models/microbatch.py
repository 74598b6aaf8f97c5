"""A minibatch's gradient a few rows at a time, for models whose activations would leave the caches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.core import tree
from fedvg_jax.core.types import Task, Tree


def in_chunks(task: Task, most: int) -> Task:
    """`task`, with a loss whose gradient is added up over chunks of at most so many rows:

        grad L = sum_c (n_c / n) grad L_c

    For models in which no row depends on another, and without running statistics. The activations of one chunk are held
    at a time, and a chunk of padding costs nothing. Loss and gradient have slopes in both modes.

    Args:
        most: rows of a chunk; it takes the largest number up to it that divides the minibatch.
    """

    def loss(params: Tree, stats: Tree, batch: Tree, mask: Array, train: bool) -> tuple[Array, Tree]:
        size = max(rows for rows in range(1, most + 1) if len(mask) % rows == 0)
        if size == len(mask) or any(jnp.issubdtype(x.dtype, jnp.inexact) for x in jax.tree.leaves(batch)):
            return task.loss(params, stats, batch, mask, train)  # numbers have a gradient too, images in bytes none

        @jax.custom_jvp
        def mean(params: Tree, batch: Tree, mask: Array) -> Array:
            return task.loss(params, stats, batch, mask, train)[0]

        @mean.defjvp
        def slope(at, along):
            value, grads = added_up(*at)
            products = jax.tree.map(lambda g, d: (g * d).sum(), grads, along[0])
            return value, sum(jax.tree.leaves(products))

        def added_up(params: Tree, batch: Tree, mask: Array) -> tuple[Array, Tree]:
            real = jnp.maximum(mask.sum(), 1)

            def add_chunk(total, chunk):
                def share(params):
                    part = (chunk[1].sum() / real).astype(tree.dtype(params))
                    return part * task.loss(params, stats, *chunk, train)[0]

                measured = lax.cond(chunk[1].any(), lambda: jax.value_and_grad(share)(params), lambda: nothing)
                return tree.add(total, measured), None  # the sum stays outside, where it is added to in place

            chunks = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), (batch, mask))
            nothing = jnp.zeros((), tree.dtype(params)), tree.zeros_like(params)
            return lax.scan(add_chunk, nothing, chunks)[0]

        return mean(params, batch, mask), stats

    return task._replace(loss=loss)
