"""Memories of a run's clients: which rows hold them, where the rows are, and how they are saved.

The rows have one of three placements:

- device: one device holds a row for every client, and row k is client k's.
- divided: each of several devices holds an equal part of these rows, so their number is padded to a multiple of the
  devices. What is saved has no padding and does not depend on the number of devices.
- host: the host holds the rows of all clients sampled so far, in the order of first sampling, and the devices those of
  a chunk's clients, which they may divide. All shapes on the devices are fixed before the first round.

`take` and `put` copy the memories of a chunk's clients from the host to the devices and back; for the other placements
they do nothing, because rounds take rows on the devices themselves (`engine.cohort_memories`). `save` and `restore`
copy the memories of all clients for a checkpoint. Where other processes hold some of the rows, every process gets all
rows of one tensor at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

from fedvg_jax.config import Config, cohort_size
from fedvg_jax.core import tree
from fedvg_jax.core.types import Schedule, SimState, Tree
from fedvg_jax.engine import cohort_memories, local_training
from fedvg_jax.host import hardware as hw, processes
from fedvg_jax.runs.placement import pool_rows
from fedvg_jax.runs.record import checkpoint

DENSE_BYTES = 2**26
"""Bytes of memories up to which the devices hold those of all clients."""

CHUNK_BYTES = 2**26
"""Bytes of the memories of a chunk's clients, where memories are on the host; those of one cohort may take more."""


# --- placement --------------------------------------------------------------------------------------------------------
class Placement(NamedTuple):
    """Where a run keeps the memories of its clients."""

    num_rows: int | None = None
    """rows of a chunk's clients on the devices, a multiple of those that divide them, where the host holds all
    memories; None where the devices hold a row for every client"""
    max_rounds: int = 1
    """of a chunk, whose clients the rows on the devices always hold"""
    sharding: NamedSharding | None = None
    """of the rows over devices; None if each device holds all"""
    fresh: Tree = ()
    """the memories of a client that was not sampled yet, leaves [1, ...] on the devices"""
    has_given: bool = False
    """whether the initial model, and what `fresh` has of it, is from outside the run"""

    @property
    def is_on_host(self) -> bool:
        """Whether the host holds all memories, and the devices those of a chunk's clients."""
        return self.num_rows is not None


def choose(config: Config, client_bytes: int, max_rounds: int, sharding: NamedSharding | None = None) -> Placement:
    """Returns where a run keeps its clients' memories. It depends on sizes, never on the seed.

    By default they are on the host if they are large, and the run samples some clients only or they fill the devices.

    Args:
        config: its `placement` is "auto", "device" or "host".
        client_bytes: of one client's memory.
        max_rounds: R, rounds that a chunk can hold.
        sharding: of the rows over devices; None if each device holds all.

    >>> million = Config(clients=10**6, join_ratio=1e-3, rounds=50)
    >>> with hw.assumed(hw.Hardware("gpu", "NVIDIA H100", num_devices=1, cores=16, memory_bytes=80 * 2**30)):
    ...     [choose(million, size, 64).num_rows for size in (2**6, 2**18)]
    [None, 1024]
    """
    num_bytes, size = config.clients * client_bytes, cohort_size(config)
    own_bytes = num_bytes // (1 if sharding is None else sharding.mesh.size)
    is_sparse = most_clients(config) < config.clients
    is_too_large = num_bytes > DENSE_BYTES and (is_sparse or hw.auto_pool(2 * own_bytes) == "host")
    if client_bytes == 0 or config.placement == "device" or (config.placement == "auto" and not is_too_large):
        return Placement(None, max_rounds, sharding)
    of_chunk = max(size, min(size * max_rounds, CHUNK_BYTES // client_bytes))
    capacity = padded(min(config.clients, pool_rows.round_up(of_chunk)), sharding)
    fitting = max_rounds if capacity >= config.clients else max(1, capacity // size)
    return Placement(capacity, min(max_rounds, fitting), sharding)


def most_clients(config: Config) -> int:
    """Returns a bound on the clients that the rounds of a run sample, and one round after them."""
    return min(config.clients, (config.rounds + 1) * cohort_size(config))


def padded(num_rows: int, sharding: NamedSharding | None) -> int:
    """Returns the number of rows up to a multiple of the devices that hold them."""
    return num_rows if sharding is None else num_rows + -num_rows % sharding.mesh.size


# --- states -----------------------------------------------------------------------------------------------------------
def is_by_client(state: SimState) -> bool:
    """Returns whether the state has a row for every client, by number."""
    return isinstance(state.memory_clients, tuple)


def with_memories(state: SimState, memories: Tree, owners: Tree = ()) -> SimState:
    """Returns the state with other memories, of the clients `owners`."""
    return state._replace(clients=memories, memory_clients=owners)


def shapes_of_rows(
    state: SimState, num_rows: int | None, num_clients: int, sharding: NamedSharding | None = None
) -> SimState:
    """Returns the state on the devices with shapes for the memories of clients in other rows.

    Args:
        state: arrays or shapes, with any rows.
        num_rows: None for a row for every client.
        num_clients: N.
        sharding: of the rows over devices; None if each device holds all.
    """
    count = padded(num_clients, sharding) if num_rows is None else num_rows

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype, sharding=sharding)

    return with_memories(state, jax.tree.map(shape, state.clients))


def first_state(placement: Placement, one: SimState, num_clients: int) -> SimState:
    """Returns the state before the first round; each device makes the rows that it holds.

    Args:
        placement: of the run.
        one: with the memories of one client, leaves [1, ...].
        num_clients: N.

    Returns:
        All rows equal; without any row where memories are on the host.
    """
    memories, sharding = one.clients, placement.sharding
    if placement.is_on_host:
        no_rows = jax.tree.map(lambda leaf: checkpoint.to_host(leaf)[:0], memories)
        return with_memories(one, no_rows, np.zeros(0, np.int32))
    if not jax.tree.leaves(memories):
        return one
    return with_memories(one, _repeating(padded(num_clients, sharding), sharding)(memories))


@functools.cache  # one program for all runs of these sizes
def _repeating(num_rows: int, sharding: NamedSharding | None) -> Any:
    def repeated(one: Tree) -> Tree:
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_rows, *leaf.shape[1:])), one)

    return jax.jit(repeated, out_shardings=sharding)


def _replicated(sharding: NamedSharding | None) -> NamedSharding | None:
    return sharding and NamedSharding(sharding.mesh, P())


# --- rows of rounds ---------------------------------------------------------------------------------------------------
def number_rows(placement: Placement, planned: list[Schedule]) -> tuple[np.ndarray, list[Schedule]]:
    """Returns the clients of a chunk in the order of first sampling, and its schedules with their rows on the devices.

    Where the devices hold all rows, there is no client to take, and the schedules are unchanged.

    >>> from fedvg_jax.engine import schedule
    >>> batches = 2 * [np.zeros((1, 4), np.int32)]
    >>> rounds = [schedule.pack(c, batches, [4, 4], num_lanes=1, capacity=2) for c in ([9, 4], [4, 6])]
    >>> clients, rounds = number_rows(Placement(4), rounds)
    >>> clients.tolist(), [r.memory_rows.tolist() for r in rounds]
    ([9, 4, 6], [[0, 1], [1, 2]])
    """
    if not placement.is_on_host:
        return np.zeros(0, np.int32), planned
    sampled = np.concatenate([planned_round.clients for planned_round in planned])
    clients = sampled[np.sort(np.unique(sampled, return_index=True)[1])]
    order = np.argsort(clients).astype(np.int32)
    sorted_clients = clients[order]
    rows = (order[np.searchsorted(sorted_clients, planned_round.clients)] for planned_round in planned)
    return clients, [each._replace(memory_rows=r) for each, r in zip(planned, rows, strict=True)]


# --- chunks: between the host and the devices -------------------------------------------------------------------------
class Store(NamedTuple):
    """The memories of all clients sampled so far, on the host; the arrays are changed in place."""

    row_of: np.ndarray
    """int32 [N], the row of each client; 0 before it is sampled"""
    clients: np.ndarray
    """int32 [n], the clients of rows 1..n, in the order of first sampling"""
    memories: Tree
    """NumPy arrays [1 + most clients, ...]; row 0 is of a client not sampled yet. Rows take memory once they are
    written."""


def open_store(placement: Placement, config: Config, state: SimState) -> Store | None:
    """Returns a copy of the memories of a state on the host, perhaps without any row; None for other placements.

    Args:
        placement: of the run.
        config: the run's settings.
        state: before the first round, or of a checkpoint.
    """
    if not placement.is_on_host:
        return None
    clients = np.asarray(state.memory_clients)
    row_of = np.zeros(config.clients, np.int32)
    row_of[clients] = np.arange(1, len(clients) + 1, dtype=np.int32)

    def allocated(fresh: np.ndarray, stored: np.ndarray) -> np.ndarray:
        rows = np.empty((1 + max(most_clients(config), len(clients)), *fresh.shape[1:]), fresh.dtype)
        rows[:1], rows[1 : 1 + len(clients)] = fresh, stored
        return rows

    memories = jax.tree.map(allocated, checkpoint.to_host(placement.fresh), state.clients)
    return Store(row_of, clients, memories)


def take(placement: Placement, store: Store | None, state: SimState, clients: np.ndarray) -> SimState:
    """Returns the state on the devices with the memories of a chunk's clients.

    Args:
        placement: of the run.
        store: of all clients; None where the devices hold all memories already.
        state: its other fields are on the devices.
        clients: int32 [n], of the chunk; at most as many as rows on the devices.
    """
    if store is None:
        return state
    rows, capacity = store.row_of[clients], placement.num_rows
    assert capacity is not None, "the devices hold as many rows as a chunk needs"

    def placed(fresh: Any, stored: np.ndarray) -> jax.Array:
        taken = np.zeros((capacity, *stored.shape[1:]), stored.dtype)  # rows past the chunk's clients are not read
        np.take(stored, rows, 0, out=taken[: len(rows)], mode="clip")
        return checkpoint.typed_like(fresh, processes.place(taken, placement.sharding))

    return with_memories(state, jax.tree.map(placed, placement.fresh, store.memories))


def put(store: Store | None, state: SimState, clients: np.ndarray) -> Store | None:
    """Returns the memories of all clients after a chunk. All processes must call it.

    Args:
        store: before the chunk; its arrays are changed.
        state: after the chunk, on the devices.
        clients: int32 [n], of the chunk.
    """
    if store is None:
        return None
    new, count = clients[store.row_of[clients] == 0], len(store.clients)
    store.row_of[new] = np.arange(count + 1, count + 1 + len(new), dtype=np.int32)
    rows = store.row_of[clients]

    def write(stored: np.ndarray, entries: np.ndarray) -> None:
        stored[rows] = entries

    jax.tree.map(write, store.memories, _read(state.clients, len(clients)))
    return store._replace(clients=np.concatenate([store.clients, new]))


def read(placement: Placement, store: Store | None, state: SimState, clients: np.ndarray) -> Tree:
    """Returns clients' local tensors or personal models, leaves [n, ...] on every device; () without any.

    Those of a client that was not sampled yet are the initial ones. All processes must call it.

    Args:
        placement: of the run.
        store: of all clients; None where the devices hold all memories.
        state: after a round, on the devices.
        clients: int [n].
    """
    if not isinstance(state.clients, local_training.Kept):
        return ()
    if store is not None:
        rows = store.row_of[clients]
        own = jax.tree.map(lambda leaf: leaf[rows], store.memories.local)
        return processes.place(own, _replicated(placement.sharding))
    rows, own = clients.astype(np.int32), state.clients.local
    return tree.take(own, rows) if placement.sharding is None else _exchange(placement.sharding)(own, rows)


def shapes_on_devices(placement: Placement, state: SimState) -> SimState:
    """Returns the state of a chunk, with shapes for memories that `take` adds.

    Args:
        placement: of the run.
        state: before the first round.
    """
    if not placement.is_on_host:
        return state
    return shapes_of_rows(with_memories(state, placement.fresh), placement.num_rows, 0, placement.sharding)


def whole_state(store: Store | None, state: SimState) -> SimState:
    """Returns the state with the memories of all clients that were sampled, on the host as views."""
    if store is None:
        return state
    count = len(store.clients)
    return with_memories(state, jax.tree.map(lambda leaf: leaf[1 : 1 + count], store.memories), store.clients)


# --- checkpoints ------------------------------------------------------------------------------------------------------
def save(state: SimState, num_clients: int) -> SimState:
    """Returns a copy of a state on the host, as checkpoints store it: with the rows that clients use.

    All processes must call it if they share the rows.

    Args:
        state: after a round.
        num_clients: N.
    """
    others = checkpoint.to_host(state._replace(clients=()))
    count = num_clients if is_by_client(state) else len(others.memory_clients)
    memories = jax.tree.map(np.array, _read(state.clients, count))  # copies, which no later round overwrites
    return with_memories(others, memories, others.memory_clients)


def saved_shapes(state: SimState, leaves: Mapping[str, np.ndarray], num_clients: int) -> SimState:
    """Returns the shapes of a saved state, whose memories may have other rows than this one's.

    Args:
        state: before the first round of the run that continues.
        leaves: saved leaves by path.
        num_clients: N.
    """
    owners = leaves.get("state.memory_clients")
    if owners is None:
        return shapes_of_rows(state, None, num_clients)
    (count,) = owners.shape
    return shapes_of_rows(state, count, num_clients)._replace(memory_clients=jax.ShapeDtypeStruct((count,), np.int32))


def restore(state: SimState, saved: SimState) -> SimState:
    """Returns a saved state on the devices, with its memories where the run keeps them.

    Args:
        state: before the first round of the run that continues.
        saved: on the host, in every process.
    """
    others = checkpoint.place_like(with_memories(state, ()), with_memories(saved, ()))
    if not is_by_client(state) or not jax.tree.leaves(state.clients):
        return with_memories(others, saved.clients, () if is_by_client(state) else _owners(saved))
    clients = _owners(saved)

    def placed(leaf: jax.Array, stored: np.ndarray) -> Any:
        first = np.asarray(checkpoint.untyped(leaf).addressable_data(0))[:1]  # all rows are equal
        rows = np.broadcast_to(first, (leaf.shape[0], *first.shape[1:])).copy()
        rows[clients] = stored
        return checkpoint.typed_like(leaf, processes.place(rows, leaf.sharding))

    return with_memories(others, jax.tree.map(placed, state.clients, saved.clients))


def _owners(state: SimState) -> np.ndarray:
    """Returns int32 [n], the client of each row on the host."""
    if is_by_client(state):
        return np.arange(len(jax.tree.leaves(state.clients)[0]), dtype=np.int32)
    return np.asarray(state.memory_clients)


def _read(memories: Tree, count: int) -> Tree:
    """Returns the first rows on the host, NumPy arrays [n, ...], which may share the memory of a CPU device.

    All processes must call it if they share the rows.

    Args:
        memories: leaves [M, ...]; typed keys become their key data.
        count: n, rows to read.
    """

    def read_leaf(leaf: Any) -> np.ndarray:
        leaf = checkpoint.untyped(leaf)
        if isinstance(leaf, np.ndarray) or leaf.is_fully_addressable:
            return np.asarray(leaf)[:count]
        if not leaf.is_fully_replicated:  # a leaf at a time has all of its rows on every device
            leaf = jax.jit(lambda rows: rows, out_shardings=_replicated(leaf.sharding))(leaf)
        return np.asarray(leaf.addressable_data(0))[:count]

    return jax.tree.map(read_leaf, memories)


@functools.cache
def _exchange(sharding: NamedSharding) -> Any:
    """Returns (leaves, rows) -> those rows on every device, jitted."""
    take_rows = functools.partial(cohort_memories.take_rows, sharding=sharding)
    return jax.jit(take_rows, out_shardings=_replicated(sharding))
