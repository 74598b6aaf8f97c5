"""Pytree algebra: what the equations need and optax.tree does not name."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from fedvg_jax.core.types import Tree, Variables

add = optax.tree.add
sub = optax.tree.sub
scale = optax.tree.scale
zeros_like = optax.tree.zeros_like


def take(tree: Tree, index) -> Tree:
    """Entry `index` of every leaf's leading axis."""
    return jax.tree.map(lambda x: x[index], tree)


def put(tree: Tree, index, entry: Tree) -> Tree:
    """`tree` with `entry` at `index` of every leaf's leading axis; an index past the end changes nothing."""
    return jax.tree.map(lambda x, e: x.at[index].set(e, mode="drop"), tree, entry)


def where(mask, new: Tree, old: Tree) -> Tree:
    """`new` where `mask` holds; the mask's axes are the leading axes of every leaf."""
    return jax.tree.map(lambda n, o: jnp.where(mask.reshape(mask.shape + (1,) * (n.ndim - mask.ndim)), n, o), new, old)


def repeat(tree: Tree, count: int) -> Tree:
    """Every leaf `count` times along a new leading axis."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), tree)


def total(tree: Tree) -> Tree:
    """The sum over every leaf's leading axis."""
    return jax.tree.map(lambda x: x.sum(0), tree)


@jax.custom_jvp
def weighted_sum(weights: Array, stack: Array, origin: Array) -> Array:
    """sum_k w_k (x_k - origin), one after the other; weights [K], stack [K, ...], origin [...] or [].

    Every x_k is read once, where a matrix-vector product has all differences written first. It gives the slopes, which
    would take a loop K times as long.
    """

    return _added_up(weights, stack, origin)


@jax.jit  # traced once for all tensors of a shape
def _added_up(weights: Array, stack: Array, origin: Array) -> Array:
    def add_one(k, total):
        return total + weights[k] * (stack[k] - origin)

    return lax.fori_loop(0, len(weights), add_one, jnp.zeros_like(stack[0]))


@weighted_sum.defjvp
def _weighted_sum_slope(at, along):
    (weights, stack, origin), (d_weights, d_stack, d_origin) = at, along

    def product(w, x, start):
        return jnp.tensordot(w, x - (start[None] if start.ndim else start), 1, precision=lax.Precision.HIGHEST)

    return weighted_sum(*at), product(d_weights, stack, origin) + product(weights, d_stack, d_origin)


def gather(pool: Tree, rows) -> tuple[Tree, Array]:
    """The rows of a minibatch and the mask of the real ones; rows [B] int32, -1 where there is none."""
    return take(pool, jnp.maximum(rows, 0)), rows >= 0


def params_of(memory: Tree) -> Tree:
    """The memory of trained tensors only: every `Variables` in it gives way to its params."""
    return jax.tree.map(_params, memory, is_leaf=lambda node: isinstance(node, Variables))


def is_finite(tree: Tree) -> Array:
    """Whether all entries of stacked trees are finite, [K] bool."""
    # a maximum is NaN where an entry is, and XLA's loops for it are faster than those of a conjunction
    flags = [jnp.isfinite(jnp.abs(x).reshape(len(x), -1).max(1, initial=0)) for x in jax.tree.leaves(tree)]
    return jnp.stack(flags).all(0)


def dtype(tree: Tree):
    """The floating type of a model."""
    return jax.tree.leaves(tree)[0].dtype


def paths(tree: Tree) -> list[str]:
    """Names of the leaves, "a/b/kernel", in leaf order."""
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(tree)]


def wide(x: Array) -> Array:
    """At least float32: half-precision numbers overflow at 65,504, and sums of inverses reach that."""
    return x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x


def arrays(tree: Tree, dtype=None) -> Tree:
    """Every leaf as a JAX array; numbers without a type of their own, as Python's and NumPy's, take `dtype` if given.

    >>> arrays({"lr": 1, "rows": np.arange(2)}, jnp.bfloat16)
    {'lr': Array(1, dtype=bfloat16), 'rows': Array([0, 1], dtype=int32)}
    """

    def one(leaf) -> Array:
        is_plain = isinstance(leaf, (int, float, np.floating)) and not isinstance(leaf, bool)
        is_plain |= getattr(leaf, "weak_type", False)  # a Python number inside jit
        return jnp.asarray(leaf, dtype if is_plain else None)

    return jax.tree.map(one, tree)


def size(tree: Tree) -> int:
    """Number of scalars."""
    return sum(x.size for x in jax.tree.leaves(tree))


def _params(node: Tree) -> Tree:
    return node.params if isinstance(node, Variables) else node
