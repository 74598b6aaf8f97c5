"""Copies memories of clients between the host and devices that each hold some of the rows.

Devices of one process are read and written directly. Where other processes hold rows, they are exchanged in pieces of
bounded size, so no device ever holds all of them, and no file system is shared.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fedvg_jax.core import memory_rows, processes
from fedvg_jax.core.types import Tree
from fedvg_jax.runs.record import checkpoint

PIECE_BYTES = 2**26
"""Bytes of the rows that processes exchange at a time; one row may take more."""


def first_row(leaf: Any) -> np.ndarray:
    """Returns [1, ...], a row that this process holds; before the first round all rows are equal."""
    own = leaf if isinstance(leaf, np.ndarray) else leaf.addressable_data(0)
    return checkpoint.to_host(own[:1])


def is_divided(memories: Tree) -> bool:
    """Returns whether other processes hold some of the rows."""
    return any(isinstance(leaf, jax.Array) and not _is_readable(leaf) for leaf in jax.tree.leaves(memories))


def read(memories: Tree, count: int, is_kept: bool = True) -> Tree:
    """Returns the first rows on the host; they may share the memory of a CPU device.

    All processes must call it if they share the rows.

    Args:
        memories: leaves [M, ...]; typed keys become their key data.
        count: n, rows to read.
        is_kept: whether this process keeps the rows.

    Returns:
        NumPy arrays [n, ...], or [0, ...] if they are not kept.
    """
    memories = jax.tree.map(checkpoint.untyped, memories)
    if not is_divided(memories):
        return jax.tree.map(lambda leaf: _readable_rows(leaf, count if is_kept else 0), memories)
    leaves, structure = jax.tree.flatten(memories)
    num_kept = count if is_kept else 0
    results = [np.empty((num_kept, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
    exchange = _exchange(leaves[0].sharding)
    for rows in _pieces(leaves, count):
        # other processes wait too: a process that runs ahead would allocate all pieces on its devices
        piece = jax.block_until_ready(exchange(leaves, np.minimum(rows, count - 1)))
        if is_kept:
            is_row = rows < count
            for result, leaf in zip(results, piece, strict=True):
                result[rows[is_row]] = np.asarray(leaf.addressable_data(0))[is_row]
    return structure.unflatten(results)


def to_host(memories: Tree, count: int, is_kept: bool = True) -> Tree:
    """Returns copies of the first rows, which no later round overwrites; see `read`."""
    return jax.tree.map(lambda x: x if x.flags.owndata else x.copy(), read(memories, count, is_kept))


def from_first(fresh: Tree, stored: Tree, count: int) -> Tree:
    """Returns memories on the devices, with the first rows of process 0. All processes must call it.

    Args:
        fresh: before the first round, on the devices of all processes.
        stored: on the host, leaves [M, ...] in process 0; not read in others.
        count: n, rows to send; the others stay as in `fresh`.
    """
    of_first = jax.tree.leaves(stored)
    leaves = [checkpoint.untyped(leaf) for leaf in jax.tree.leaves(fresh)]
    own = [_own_rows(leaf) for leaf in leaves]
    for rows in _pieces(leaves, count):
        within = np.minimum(rows, count - 1)
        shapes = [np.zeros((len(rows), *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        sent = [leaf[within] for leaf in of_first] if processes.is_first() else shapes
        for buffers, piece in zip(own, processes.from_first(sent), strict=True):
            for begin, buffer in buffers.items():
                is_own = (rows >= begin) & (rows < begin + len(buffer)) & (rows < count)
                buffer[rows[is_own] - begin] = piece[is_own]

    def placed(expected: Any, leaf: Any, buffers: dict[int, np.ndarray]) -> Any:
        def of_device(index: Any) -> np.ndarray:
            return buffers[index[0].start or 0]

        return checkpoint.typed_like(expected, jax.make_array_from_callback(leaf.shape, leaf.sharding, of_device))

    structure = jax.tree.structure(fresh)
    return structure.unflatten([placed(*each) for each in zip(jax.tree.leaves(fresh), leaves, own, strict=True)])


def _pieces(leaves: Sequence[Any], count: int) -> Iterator[np.ndarray]:
    """Yields the numbers of rows, int32 [R], of pieces that together have the first `count`; the last may have more."""
    row_bytes = sum(leaf.dtype.itemsize * int(np.prod(leaf.shape[1:])) for leaf in leaves)
    size = max(1, min(count, PIECE_BYTES // max(1, row_bytes)))
    for begin in range(0, count, size):
        yield np.arange(begin, begin + size, dtype=np.int32)


@functools.cache
def _exchange(sharding: NamedSharding) -> Any:
    """Returns (leaves, rows) -> those rows on every device, jitted."""
    take = functools.partial(memory_rows.take, sharding=sharding)
    return jax.jit(take, out_shardings=NamedSharding(sharding.mesh, P()))


def _is_readable(leaf: jax.Array) -> bool:
    """Returns whether the devices of this process hold all rows."""
    return leaf.is_fully_addressable or leaf.is_fully_replicated


def _readable_rows(leaf: Any, count: int) -> np.ndarray:
    """Returns the first rows of an array of which this process holds all."""
    if isinstance(leaf, np.ndarray):
        return leaf[:count]
    if leaf.is_fully_replicated:
        return np.asarray(leaf.addressable_data(0))[:count]
    result = np.empty((count, *leaf.shape[1:]), leaf.dtype)
    for shard in leaf.addressable_shards:
        begin = shard.index[0].start or 0
        own = np.asarray(shard.data)[: max(0, count - begin)]
        result[begin : begin + len(own)] = own
    return result


def _own_rows(leaf: jax.Array) -> dict[int, np.ndarray]:
    """Returns copies of the rows that the devices of this process hold, by the number of their first row."""
    return {shard.index[0].start or 0: np.array(shard.data) for shard in leaf.addressable_shards}
