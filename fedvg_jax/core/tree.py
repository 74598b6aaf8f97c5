"""Pytree algebra: the operations of the equations that `optax.tree` does not have."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec as P

from fedvg_jax.core.types import Tree, Variables
from fedvg_jax.host import hardware as hw

__all__ = ["dtype", "gather", "paths", "real_rows", "take"]

add = optax.tree.add
sub = optax.tree.sub
scale = optax.tree.scale
zeros_like = optax.tree.zeros_like


@jax.jit
def copies(arrays: Tree) -> Tree:
    """Returns copies of JAX arrays, made by one program; `jnp.copy` is a program for every shape."""
    return jax.tree.map(jnp.copy, arrays)


def take(tree: Tree, index) -> Tree:
    """Returns entry `index` of every leaf's leading axis."""
    return jax.tree.map(lambda x: x[index], tree)


def entry_shapes(tree: Tree) -> Tree:
    """Returns the shapes of one entry of every leaf's leading axis."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), tree)


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    """Returns the shape of an array of floats, of any dtype, for checks."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def floats_like(tree: Tree) -> Tree:
    """Returns the shapes of arrays or numbers, as floats of any dtype, for checks."""
    return jax.tree.map(lambda x: floats(*np.shape(x)), tree)


def num_bytes(tree: Tree) -> int:
    """Returns the bytes of a pytree of arrays or shapes; a random key has 8."""
    return sum(leaf.size * (leaf.dtype.itemsize or 8) for leaf in jax.tree.leaves(tree))


def put(tree: Tree, index, entry: Tree) -> Tree:
    """Returns `tree` with `entry` at `index` of every leaf's leading axis; writes past the end are dropped."""
    return jax.tree.map(lambda x, e: x.at[index].set(e, mode="drop"), tree, entry)


def replaced(tree: Tree, index, entry: Tree) -> Tree:
    """Returns `tree` with `entry` at `index`, one place within every leaf's leading axis: `put` without its checks."""
    return jax.tree.map(lambda x, e: lax.dynamic_update_index_in_dim(x, e, index, 0), tree, entry)


def where(mask, new: Tree, old: Tree) -> Tree:
    """Returns `new` where `mask` is True, else `old`; the mask's axes are the leading axes of every leaf."""
    return jax.tree.map(
        lambda n, o: jnp.where(mask.reshape(mask.shape + (1,) * (n.ndim - mask.ndim)), n, o),
        new,
        old,
    )


def repeat(tree: Tree, count: int) -> Tree:
    """Returns every leaf repeated `count` times along a new leading axis."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), tree)


def total(tree: Tree) -> Tree:
    """Returns the sum over every leaf's leading axis."""
    return jax.tree.map(lambda x: x.sum(0), tree)


def scale_tensors(factors: Tree, tensors: Tree) -> Tree:
    """Returns each tensor, or the pytree in its place, times its factor []; () stays ()."""
    return jax.tree.map(scale, factors, tensors) if jax.tree.leaves(tensors) else tensors


def weighted_sum(
    weights: Tree, stack: Tree, origin: Tree, sharding: NamedSharding | None = None
) -> Tree:
    """Returns sum_k w_k (x_k - origin) in the dtype of x, added up in at least float32, on a CPU in the order of k.

    A loop reads every x_k once; on a CPU, a matrix-vector product would first write all differences. Derivatives use
    the product, because differentiating the loop would take K times as long.

    Where several devices hold the x_k, each adds up its part, and the devices' sums are then added: one x is exchanged
    instead of K. This order of additions differs from one device's, so the results are equal up to rounding.

    An x_k of weight 0 adds 0, also where it is not finite.

    Args:
        weights: leaves [K].
        stack: leaves [K, ...], the x_k, floats.
        origin: leaves [...] or [].
        sharding: of axis K over devices; None if every device that computes the sum holds all x_k. XLA divides a
            product by itself, and would gather all x_k for a loop.

    >>> weighted_sum(jnp.array([0.5, 0.25, 0.0]), jnp.array([[3.0], [5.0], [jnp.nan]]), jnp.ones(1)).tolist()
    [2.0]
    """
    sum_of = _product_sum
    if hw.choices().weighted_mean == "loop":
        sum_of = _loop_sum if sharding is None else _loop_sum_over_devices(sharding)
    weights = jax.tree.map(lambda w, x: w.astype(wide_dtype(x)), weights, stack)
    return like(_weighted_sum(sum_of, weights, stack, origin), stack)


def _product_sum(weights: Tree, stack: Tree, origin: Tree) -> Tree:
    """Returns the sums as one reduction each, which a GPU computes in one kernel together with the differences."""

    def summed(weights, stack, origin):
        weights = weights.reshape(-1, *(stack.ndim - 1) * [1])
        origin = wide(origin[None] if origin.ndim else origin)
        return (weights * (jnp.where(weights == 0, origin, wide(stack)) - origin)).sum(0)

    return jax.tree.map(summed, weights, stack, origin)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _weighted_sum(sum_of, weights: Tree, stack: Tree, origin: Tree) -> Tree:
    return sum_of(weights, stack, origin)


@jax.jit
def _loop_sum(weights: Tree, stack: Tree, origin: Tree) -> Tree:
    """Returns the sums by one loop over k for all tensors: a loop for each tensor takes long to compile."""

    def add_one(k, total, weights, stack, origin):
        return total + weights[k] * (
            jnp.where(weights[k] == 0, wide(origin), wide(stack[k])) - wide(origin)
        )

    def add_client(k, totals):
        return jax.tree.map(functools.partial(add_one, k), totals, weights, stack, origin)

    zeros = jax.tree.map(lambda w, x: jnp.zeros_like(x[0], w.dtype), weights, stack)
    count = max(map(len, jax.tree.leaves(weights)), default=0)
    return lax.fori_loop(0, count, add_client, zeros)


@functools.cache  # one function of a sharding, so that it is traced once
def _loop_sum_over_devices(sharding: NamedSharding):
    """Returns `_loop_sum` for a stack that devices hold in equal parts, in the order of k.

    XLA would gather all clients for `_loop_sum` itself. For ten clients of ResNet-18 on two CPU devices, this takes a
    quarter of the time, and 43 MiB instead of 443.
    """
    mesh, (axis,) = sharding.mesh, sharding.spec

    def sum_on_device(weights, stack, origin):
        return lax.psum(_loop_sum(weights, stack, origin), axis)

    specs = {"in_specs": (P(axis), P(axis), P()), "out_specs": P()}
    sum_over_devices = jax.shard_map(sum_on_device, mesh=mesh, **specs, check_vma=False)

    def padded(x):  # with dummies of weight 0
        return jnp.pad(x, [(0, -len(x) % mesh.size), *(x.ndim - 1) * [(0, 0)]])

    @jax.jit
    def sum_padded(weights, stack, origin):
        weights, stack = jax.tree.map(padded, (weights, stack))
        return sum_over_devices(weights, stack, origin)

    return sum_padded


@_weighted_sum.defjvp
def _weighted_sum_jvp(sum_of, primals, tangents):
    (weights, stack, origin), (d_weights, d_stack, d_origin) = primals, tangents

    def product(w, x, start, is_dropped):
        difference = wide(x) - wide(start[None] if start.ndim else start)
        return jnp.tensordot(
            w, jnp.where(is_dropped, 0, difference), 1, precision=lax.Precision.HIGHEST
        )

    is_dropped = jax.tree.map(
        lambda w, x: (w == 0).reshape(-1, *(x.ndim - 1) * [1]) & ~jnp.isfinite(x), weights, stack
    )
    moved = jax.tree.map(product, weights, d_stack, d_origin, is_dropped)
    return _weighted_sum(sum_of, *primals), add(
        jax.tree.map(product, d_weights, stack, origin, is_dropped), moved
    )


def gather(pool: Tree, rows) -> tuple[Tree, Array]:
    """Returns the rows of minibatches and their mask, bool [..., B].

    Padding copies a real row of the minibatch, of another one if it has none, or row 0: an unrelated row can overflow
    BatchNorm when the real rows are nearly equal.

    Args:
        pool: leaves [T, ...], e.g. `Data.pool`.
        rows: int32 [..., B], -1 for padding, e.g. a row of `Data.val` or `Schedule.rows`.

    >>> gather({"x": jnp.array([5.0, 6.0, 7.0])}, jnp.array([2, 1, -1]))
    ({'x': Array([7., 6., 7.], dtype=float32)}, Array([ True,  True, False], dtype=bool))
    """
    largest, mask = rows.max(-1, keepdims=True), rows >= 0
    substitute = jnp.where(largest >= 0, largest, jnp.maximum(rows.max(), 0))
    return take(pool, jnp.where(mask, rows, substitute)), mask


def real_rows(table) -> np.ndarray:
    """Returns the row numbers of a table without its padding, in order, as NumPy's int32 [n].

    Args:
        table: int32 [..., B], -1 for padding, e.g. `Data.val`, `Data.test` or `Schedule.rows`.

    >>> real_rows([[4, 0], [2, -1]]).tolist()
    [4, 0, 2]
    """
    rows = np.asarray(table, np.int32)
    return rows[rows >= 0]


def params_of(state: Tree) -> Tree:
    """Returns the state of trained tensors only: every `Variables` in it is replaced by its params."""

    def params(node):
        return node.params if isinstance(node, Variables) else node

    return jax.tree.map(params, state, is_leaf=lambda node: isinstance(node, Variables))


def is_finite(tree: Tree) -> Array:
    """Returns bool [K], whether all entries of leaves [K, ...] are finite."""
    # the maximum is NaN if any entry is; XLA reduces it faster than a conjunction
    flags = [
        jnp.isfinite(jnp.abs(x).reshape(len(x), -1).max(1, initial=0))
        for x in jax.tree.leaves(tree)
    ]
    return jnp.stack(flags).all(0)


def dtype(tree: Tree):
    """Returns the floating dtype of a model, which may have constants of integers; without floats the first dtype."""
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(tree)]
    return next((dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)), dtypes[0])


def wide_dtype(tree: Tree):
    """Returns the dtype of sums over a model's clients or rows: the model's, or float32 for half precision."""
    narrow = dtype(tree)
    is_half = jnp.issubdtype(narrow, jnp.floating) and narrow.itemsize < 4
    return jnp.dtype(jnp.float32) if is_half else narrow


def paths(tree: Tree) -> list[str]:
    """Returns the paths of the leaves, e.g. "a/b/kernel", in leaf order."""
    return list(by_path(tree))


def by_path(tree: Tree) -> dict[str, Any]:
    """Returns the leaves by path, in leaf order."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def wide(x: Array) -> Array:
    """Returns x in at least float32. Half precision overflows at 65,504, and bfloat16 counts no further than 256."""
    return x.astype(wide_dtype(x))


def wide_zeros(tree: Tree) -> Tree:
    """Returns zeros of the shapes of `tree`, in at least float32: the start of a sum."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, wide_dtype(x)), tree)


def like(new: Tree, old: Tree) -> Tree:
    """Returns `new` in the dtypes of `old`: hyperparameters are float32, a model may be of half precision."""
    return jax.tree.map(lambda n, o: n.astype(o.dtype), new, old)


def arrays(tree: Tree, dtype=None) -> Tree:
    """Returns every leaf as a JAX array; Python and NumPy floats and Python ints take `dtype` if it is not None.

    >>> arrays({"lr": 1, "rows": np.arange(2)}, jnp.bfloat16)
    {'lr': Array(1, dtype=bfloat16), 'rows': Array([0, 1], dtype=int32)}
    """

    def as_array(leaf) -> Array:
        is_plain = isinstance(leaf, (int, float, np.floating)) and not isinstance(leaf, bool)
        is_plain |= getattr(leaf, "weak_type", False)  # a Python number inside jit
        return jnp.asarray(leaf, dtype if is_plain else None)

    return jax.tree.map(as_array, tree)


def size(tree: Tree) -> int:
    """Returns the number of scalars."""
    return sum(x.size for x in jax.tree.leaves(tree))


# --- names of the loops of a run, which compiled programs and traces of a profiler show


ROUNDS = "rounds"
SEGMENTS = "segments"
"""Segments of a schedule's plan, between which lanes change clients."""
LOCAL_STEPS = "local_steps"
SCORING_PASSES = "scoring_passes"
EVALUATION = "evaluation"


# --- one vector for each dtype, which a GPU moves with one kernel instead of one per tensor


class Packing(NamedTuple):
    """The two directions, exact inverses of each other."""

    pack: Callable[[Tree], dict[str, Array]]
    """pytree -> vector by dtype"""
    unpack: Callable[[dict[str, Array]], Tree]


def packing_of(shapes: Tree) -> Packing:
    """Returns the packing of pytrees of these shapes.

    Args:
        shapes: arrays or their shapes.

    >>> packing = packing_of({"a": jnp.zeros(2), "b": jnp.zeros((), jnp.int32), "c": jnp.zeros((1, 1))})
    >>> packed = packing.pack({"a": jnp.ones(2), "b": jnp.int32(3), "c": jnp.full((1, 1), 4.0)})
    >>> {dtype: vector.tolist() for dtype, vector in packed.items()}
    {'float32': [1.0, 1.0, 4.0], 'int32': [3]}
    >>> packing.unpack(packed)["c"].tolist()
    [[4.0]]
    """
    leaves, structure = jax.tree.flatten(shapes)
    sizes = collections.Counter[str]()
    places = []  # the vector of every leaf, and where it begins and ends there
    for leaf in leaves:
        dtype = str(leaf.dtype)
        places.append((dtype, sizes[dtype], sizes[dtype] + leaf.size))
        sizes[dtype] += leaf.size

    def pack(tree):
        arrays = {dtype: [] for dtype in sizes}
        for (dtype, *_), array in zip(places, jax.tree.leaves(tree), strict=True):
            arrays[dtype].append(array.reshape(-1))
        return {dtype: jnp.concatenate(of_dtype) for dtype, of_dtype in arrays.items()}

    def unpack(packed):
        arrays = []
        for (dtype, *ends), leaf in zip(places, leaves, strict=True):
            arrays.append(lax.slice_in_dim(packed[dtype], *ends).reshape(leaf.shape))
        return jax.tree.unflatten(structure, arrays)

    return Packing(pack, unpack)


UNPACKED = Packing(lambda tree: tree, lambda tree: tree)
"""No packing."""
