"""Client states of a run: which rows store them, where the rows are, and how they are saved.

The client state is what an algorithm or a weighting remembers of a client between rounds. A run stores the rows of all
clients in one of two ways:

- A row for every client on the devices: row k is client k's. Each of several devices may store an equal part of the
  rows, so their number is padded to a multiple of the devices. What is saved has no padding and does not depend on the
  number of devices.
- In a `Store` on the host, the rows of all clients sampled so far, in the order of first sampling, and on the devices
  those of a chunk's clients, which they may divide. All shapes on the devices are fixed before the first round.

Rounds take rows on the devices themselves (`engine.executors`). Where other processes store some of the rows, every
process gets all rows of one tensor at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

from fedvg_jax.core import tree
from fedvg_jax.core.types import Schedule, SimState, Tree
from fedvg_jax.engine import local_training
from fedvg_jax.host import hardware as hw, processes
from fedvg_jax.runs.record import checkpoint

DENSE_BYTES = 2**26
"""Bytes up to which the devices store the states of all clients."""

CHUNK_BYTES = 2**26
"""Bytes of the states of a chunk's clients, where the host stores them; the states of one cohort may take more."""


# --- placement --------------------------------------------------------------------------------------------------------
class Federation(NamedTuple):
    """The numbers that decide how many clients a run samples."""

    num_clients: int
    """N"""
    cohort_size: int
    """K"""
    rounds: int

    @property
    def most_clients(self) -> int:
        """A bound on the clients that the rounds of a run sample, and one round after them."""
        return min(self.num_clients, (self.rounds + 1) * self.cohort_size)


class Placement(NamedTuple):
    """Where a run stores the states of its clients."""

    federation: Federation
    num_rows: int | None = None
    """rows on the devices for the clients of a chunk, a multiple of the devices that divide them, where the host stores
    all client states; None where the devices store a row for every client"""
    max_rounds: int = 1
    """rounds of a chunk; their clients always fit the rows on the devices"""
    sharding: NamedSharding | None = None
    """of the rows over devices; None if each device stores all"""
    fresh: Tree = ()
    """the state of a client that was not sampled yet, leaves [1, ...] on the devices"""
    has_custom_model: bool = False
    """whether the initial model, which `fresh` may have tensors of, is from outside the run"""

    @property
    def is_on_host(self) -> bool:
        """Whether the host stores all client states, and the devices only the states of a chunk's clients."""
        return self.num_rows is not None


def choose(
    placement: str,
    federation: Federation,
    client_bytes: int,
    max_rounds: int,
    sharding: NamedSharding | None = None,
) -> Placement:
    """Returns where a run stores its client states. It depends on sizes, never on the seed.

    By default they are on the host if they are large, and the run samples some clients only or they fill the devices.

    Args:
        placement: "auto", "device" or "host".
        federation: of the run.
        client_bytes: of one client's state.
        max_rounds: R, the most rounds of a chunk.
        sharding: of the rows over devices; None if each device stores all.

    >>> million = Federation(num_clients=10**6, cohort_size=1000, rounds=50)
    >>> with hw.assumed(hw.Hardware("gpu", "NVIDIA H100", num_devices=1, cores=16, memory_bytes=80 * 2**30)):
    ...     [choose("auto", million, size, 64).num_rows for size in (2**6, 2**18)]
    [None, 1024]
    """
    on_devices = Placement(federation, None, max_rounds, sharding)
    if client_bytes == 0 or placement == "device":
        return on_devices
    if placement == "auto" and not _is_too_large(federation, client_bytes, sharding):
        return on_devices
    count, size = federation.num_clients, federation.cohort_size
    clients_per_chunk = max(size, min(size * max_rounds, CHUNK_BYTES // client_bytes))
    capacity = padded(min(count, round_up(clients_per_chunk)), sharding)
    fitting = max_rounds if capacity >= count else max(1, capacity // size)
    return Placement(federation, capacity, min(max_rounds, fitting), sharding)


def _is_too_large(
    federation: Federation, client_bytes: int, sharding: NamedSharding | None
) -> bool:
    """Returns whether the states of all clients are large, and the run samples few of them or they fill the devices."""
    num_bytes = federation.num_clients * client_bytes
    num_devices = 1 if sharding is None else sharding.mesh.size
    is_sparse = federation.most_clients < federation.num_clients
    return num_bytes > DENSE_BYTES and (
        is_sparse or hw.auto_pool(2 * (num_bytes // num_devices)) == "host"
    )


def round_up(number: int) -> int:
    """Returns the number rounded up to four significant bits, so that other partitions have the same shapes.

    >>> [round_up(number) for number in (7, 17, 1000, 1025)]
    [7, 18, 1024, 1152]
    """
    unit = 1 << max(0, number.bit_length() - 4)
    return -(-number // unit) * unit


def padded(num_rows: int, sharding: NamedSharding | None) -> int:
    """Returns the number of rows up to a multiple of the devices that store them."""
    return num_rows if sharding is None else num_rows + -num_rows % sharding.mesh.size


# --- states -----------------------------------------------------------------------------------------------------------
def is_by_client(state: SimState) -> bool:
    """Returns whether the state has a row for every client, by number."""
    return isinstance(state.client_ids, tuple)


def with_client_states(state: SimState, states: Tree, clients: Tree = ()) -> SimState:
    """Returns the state with other client states, a row for each of `clients`."""
    return state._replace(clients=states, client_ids=clients)


def first_state(placement: Placement, one: SimState) -> SimState:
    """Returns the state before the first round; each device makes the rows that it stores.

    Args:
        placement: of the run.
        one: with the state of one client, leaves [1, ...].

    Returns:
        All rows equal; without any row where the host stores them.
    """
    states, sharding = one.clients, placement.sharding
    if placement.is_on_host:
        no_rows = jax.tree.map(lambda leaf: checkpoint.to_host(leaf)[:0], states)
        return with_client_states(one, no_rows, np.zeros(0, np.int32))
    if not jax.tree.leaves(states):
        return one
    num_rows = padded(placement.federation.num_clients, sharding)
    return with_client_states(one, _repeating(num_rows, sharding)(states))


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

    Where the devices store all rows, there is no client to take, and the schedules are unchanged.

    >>> from fedvg_jax.engine import schedule
    >>> batches = 2 * [np.zeros((1, 4), np.int32)]
    >>> rounds = [schedule.pack(c, batches, [4, 4], num_lanes=1, capacity=2) for c in ([9, 4], [4, 6])]
    >>> clients, rounds = number_rows(Placement(Federation(10, 2, 2), 4), rounds)
    >>> clients.tolist(), [r.state_rows.tolist() for r in rounds]
    ([9, 4, 6], [[0, 1], [1, 2]])
    """
    if not placement.is_on_host:
        return np.zeros(0, np.int32), planned
    row_of: dict[int, int] = {}
    numbered = []
    for each in planned:
        rows = [row_of.setdefault(k, len(row_of)) for k in each.clients.tolist()]
        numbered.append(each._replace(state_rows=np.array(rows, np.int32)))
    return np.array(list(row_of), np.int32), numbered


# --- functions of a placement -----------------------------------------------------------------------------------------
class Store(NamedTuple):
    """The states of all clients sampled so far, on the host; the arrays are changed in place."""

    row_of: np.ndarray
    """int32 [N], the row of each client; 0 before it is sampled"""
    clients: np.ndarray
    """int32 [n], the clients of rows 1..n, in the order of first sampling"""
    states: Tree
    """NumPy arrays [1 + most clients, ...]; row 0 is of a client not sampled yet. Rows take memory once they are
    written."""


def take(
    placement: Placement, store: Store | None, state: SimState, clients: np.ndarray
) -> SimState:
    """Returns the state with the rows of a chunk's clients on the devices."""
    if store is None:
        return state
    rows = store.row_of[clients]

    def taken(stored: np.ndarray) -> np.ndarray:
        # rows past the chunk's clients are not read
        result = np.zeros((placement.num_rows or 0, *stored.shape[1:]), stored.dtype)
        np.take(stored, rows, 0, out=result[: len(rows)], mode="clip")
        return result

    states = processes.place(jax.tree.map(taken, store.states), placement.sharding)
    return with_client_states(state, jax.tree.map(checkpoint.typed_like, placement.fresh, states))


def put(store: Store | None, state: SimState, clients: np.ndarray) -> Store | None:
    """Returns the store with the states of a chunk's clients; its arrays are changed. All processes must call it."""
    if store is None:
        return None
    new, count = clients[store.row_of[clients] == 0], len(store.clients)
    store.row_of[new] = np.arange(count + 1, count + 1 + len(new), dtype=np.int32)
    rows = store.row_of[clients]

    def write(stored: np.ndarray, entries: np.ndarray) -> None:
        stored[rows] = entries

    jax.tree.map(write, store.states, _rows_on_host(state.clients, len(clients)))
    return store._replace(clients=np.concatenate([store.clients, new]))


def read(placement: Placement, store: Store | None, state: SimState, clients: np.ndarray) -> Tree:
    """Returns clients' local tensors or personal models, leaves [n, ...] on every device; () without any.

    They are the initial ones for a client that was not sampled yet. All processes must call it.

    Args:
        placement: of the run.
        store: of all clients; None where the devices store a row for every client.
        state: after a round, on the devices.
        clients: int [n].
    """
    if not isinstance(state.clients, local_training.ClientState):
        return ()
    if store is not None:
        rows = store.row_of[clients]
        tensors = jax.tree.map(lambda leaf: leaf[rows], store.states.local)
        return processes.place(tensors, _replicated(placement.sharding))
    ids = clients.astype(np.int32)
    if placement.sharding is None:
        return tree.take(state.clients.local, ids)
    return _exchange(placement.sharding)(state.clients.local, ids)


# --- stores on the host -----------------------------------------------------------------------------------------------
def open_store(placement: Placement, state: SimState) -> Store | None:
    """Returns a copy of the client states on the host, perhaps without any row; None for other placements.

    Args:
        placement: of the run.
        state: before the first round, or of a checkpoint.
    """
    if not placement.is_on_host:
        return None
    clients = np.asarray(state.client_ids)
    row_of = np.zeros(placement.federation.num_clients, np.int32)
    row_of[clients] = np.arange(1, len(clients) + 1, dtype=np.int32)
    num_rows = 1 + max(placement.federation.most_clients, len(clients))

    def allocated(fresh: np.ndarray, stored: np.ndarray) -> np.ndarray:
        rows = np.empty((num_rows, *fresh.shape[1:]), fresh.dtype)
        rows[:1], rows[1 : 1 + len(clients)] = fresh, stored
        return rows

    states = jax.tree.map(allocated, checkpoint.to_host(placement.fresh), state.clients)
    return Store(row_of, clients, states)


def shapes_on_devices(placement: Placement, state: SimState) -> SimState:
    """Returns the state of a chunk, with shapes for the client states that `take` adds.

    Args:
        placement: of the run.
        state: before the first round.
    """
    if not placement.is_on_host:
        return state

    def shape(leaf: jax.Array) -> jax.ShapeDtypeStruct:
        shape = (placement.num_rows or 0, *leaf.shape[1:])
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=placement.sharding)

    return with_client_states(state, jax.tree.map(shape, placement.fresh))


def whole_state(store: Store | None, state: SimState) -> SimState:
    """Returns the state with the states of all clients that were sampled, on the host as views."""
    if store is None:
        return state
    count = len(store.clients)
    states = jax.tree.map(lambda leaf: leaf[1 : 1 + count], store.states)
    return with_client_states(state, states, store.clients)


# --- checkpoints ------------------------------------------------------------------------------------------------------
def saved_shapes(state: SimState, leaves: Mapping[str, np.ndarray]) -> SimState:
    """Returns the shapes of a saved state, with its numbers of client states and of versions of the model.

    Args:
        state: before the first round of the run that continues.
        leaves: saved leaves by path.
    """

    def with_entries_of(prefix: str, entries: Tree) -> Tree:
        saved = (leaf for path, leaf in leaves.items() if f"{path}.".startswith(f"{prefix}."))
        count = len(next(saved, ()))
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype), entries
        )

    return state._replace(
        clients=with_entries_of("state.clients", state.clients),
        client_ids=leaves.get("state.client_ids", ()),
        versions=with_entries_of("state.versions", state.versions),
    )


def save(state: SimState, num_clients: int) -> SimState:
    """Returns a copy of a state on the host, as checkpoints store it: with the rows that clients use.

    All processes must call it.

    Args:
        state: after a round.
        num_clients: N.
    """
    num_rows = num_clients if is_by_client(state) else len(state.client_ids)
    others = checkpoint.to_host(state._replace(clients=()))
    # copies, which no later round overwrites
    states = jax.tree.map(np.array, _rows_on_host(state.clients, num_rows))
    return with_client_states(others, states, others.client_ids)


def restore(state: SimState, saved: SimState) -> SimState:
    """Returns a saved state, stored on the host or on the devices as the state before the first round is.

    It has as many slots for versions of the model as this one: a longer run may need more.
    """

    def resized(leaf: jax.Array, stored: np.ndarray) -> np.ndarray:
        return np.resize(stored, leaf.shape)

    saved = saved._replace(versions=jax.tree.map(resized, state.versions, saved.versions))
    others = checkpoint.place_like(with_client_states(state, ()), with_client_states(saved, ()))
    num_rows = len(next(iter(jax.tree.leaves(saved.clients)), ()))
    owners = np.arange(num_rows, dtype=np.int32) if is_by_client(saved) else saved.client_ids

    def placed(leaf: jax.Array, stored: np.ndarray) -> jax.Array:
        first = np.asarray(checkpoint.untyped(leaf).addressable_data(0))[:1]  # all rows are equal
        rows = np.broadcast_to(first, (leaf.shape[0], *first.shape[1:])).copy()
        rows[owners] = stored
        return checkpoint.typed_like(leaf, processes.place(rows, leaf.sharding))

    if not is_by_client(state):
        return with_client_states(others, saved.clients, np.asarray(owners))
    return with_client_states(others, jax.tree.map(placed, state.clients, saved.clients))


def _rows_on_host(states: Tree, count: int) -> Tree:
    """Returns the first rows on the host, NumPy arrays [n, ...], which may share the memory of a CPU device.

    All processes must call it if they share the rows.

    Args:
        states: leaves [M, ...]; typed keys become their key data.
        count: n, rows to read.
    """

    def read_leaf(leaf: Any) -> np.ndarray:
        leaf = checkpoint.untyped(leaf)
        if isinstance(leaf, np.ndarray) or leaf.is_fully_addressable:
            return np.asarray(leaf)[:count]
        if not leaf.is_fully_replicated:  # a leaf at a time has all of its rows on every device
            leaf = jax.jit(lambda rows: rows, out_shardings=_replicated(leaf.sharding))(leaf)
        return np.asarray(leaf.addressable_data(0))[:count]

    return jax.tree.map(read_leaf, states)


@functools.cache
def _exchange(sharding: NamedSharding) -> Any:
    """Returns (leaves, rows) -> those rows on every device, jitted."""
    return jax.jit(tree.take, out_shardings=_replicated(sharding))
