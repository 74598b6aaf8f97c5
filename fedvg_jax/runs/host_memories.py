"""Memories of clients that stay on the host: the devices hold those of a chunk's clients.

Before a chunk runs, the memories of its clients are copied to the devices, and after it back to the host. A client that
was not sampled yet takes no memory. All shapes on the devices are fixed before the first round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedvg_jax.config import Config, cohort_size
from fedvg_jax.core import hardware as hw
from fedvg_jax.core.types import Schedule, SimState, Tree, UsageError
from fedvg_jax.engine.cohort_memories import MEMORIES
from fedvg_jax.runs import client_memories, memory_copies
from fedvg_jax.runs.record import checkpoint


class HostMemories(NamedTuple):
    """How the devices hold the memories of a chunk's clients."""

    capacity: int
    """C, rows on the devices"""
    max_rounds: int
    """of a chunk, whose clients C rows always hold"""
    fresh: SimState
    """before the first round, on the devices, with the memories of one client"""
    num_clients: int
    """N"""
    sharding: Any = None
    """of the rows over the devices; None if each device holds all"""


class Stored(NamedTuple):
    """The memories of all clients that were sampled, on the host. The arrays are changed in place and may grow."""

    row_of: np.ndarray
    """int32 [N], -1 for a client that was not sampled yet"""
    count: int
    """n, clients that were sampled"""
    clients: np.ndarray
    """int32 [capacity], the client of each row, in the order of first sampling; the first n are in use"""
    memories: dict[str, Tree]
    """field of the state -> its memories, NumPy arrays [capacity, ...]"""


def make(config: Config, capacity: int, max_rounds: int, one_client: SimState, sharding: Any = None) -> HostMemories:
    """Returns how the devices of a run hold the memories of a chunk's clients.

    Args:
        config: the run's settings.
        capacity: C, rows on the devices.
        max_rounds: R, rounds that a chunk can hold.
        one_client: the state before the first round with the memories of one client, on the devices.
        sharding: of the rows over the devices, of which C is a multiple; None if each device holds all.
    """
    fitting = max_rounds if capacity >= config.clients else max(1, capacity // cohort_size(config))
    return HostMemories(capacity, min(max_rounds, fitting), one_client, config.clients, sharding)


def refuse_unfitting(config: Config, client_bytes: int) -> None:
    """Raises UsageError if the host cannot hold twice the memories of all clients that a run may sample, unless forced.

    They are copied where their arrays grow, and for a checkpoint.
    """
    count, limit = client_memories.most_clients(config), hw.host_memory()
    needed = 2 * count * client_bytes
    if limit is not None and needed > limit and not config.force:
        raise UsageError(
            f"the memories of {count:,} clients and a copy of them need {needed / 2**30:,.1f} GiB, and this machine has"
            f" {limit / 2**30:,.1f} GiB; use smaller --rounds, --join-ratio or --model, or --force to start it anyway"
        )


def without_rows(state: SimState) -> SimState:
    """Returns the state before the first round as the host holds it: no client has a memory yet.

    Args:
        state: with any rows.
    """
    no_rows = client_memories.map_memories(lambda leaf: checkpoint.to_host(leaf)[:0], state)
    return no_rows._replace(memory_clients=np.zeros(0, np.int32))


def without_memories(state: SimState) -> SimState:
    """Returns the state without the memories of clients, which `load` adds for each chunk."""
    return state._replace(clients=(), optimisers=(), memory_clients=())


def shapes_on_device(host: HostMemories, state: SimState) -> SimState:
    """Returns the state of a chunk: with shapes for the memories of its clients."""

    def shape(leaf: jax.Array, sharding: Any) -> jax.ShapeDtypeStruct:
        sharding = sharding or (leaf.sharding if leaf.committed else None)
        return jax.ShapeDtypeStruct((host.capacity, *leaf.shape[1:]), leaf.dtype, sharding=sharding)

    memories = client_memories.map_memories(lambda leaf: shape(leaf, host.sharding), host.fresh)
    fields = {name: getattr(memories, name) for name in MEMORIES}
    return state._replace(**fields, memory_clients=shape(host.fresh.memory_clients, None))


def number_rows(planned: Sequence[Schedule]) -> tuple[np.ndarray, list[Schedule]]:
    """Returns the clients of a chunk in the order of first sampling, and its schedules with their rows.

    >>> from fedvg_jax.engine import schedule
    >>> batches = 2 * [np.zeros((1, 4), np.int32)]
    >>> rounds = [schedule.pack(c, batches, [4, 4], num_lanes=1, capacity=2) for c in ([9, 4], [4, 6])]
    >>> clients, rounds = number_rows(rounds)
    >>> clients.tolist(), [r.memory_rows.tolist() for r in rounds]
    ([9, 4, 6], [[0, 1], [1, 2]])
    """
    clients = client_memories.in_order(np.concatenate([schedule.clients for schedule in planned]))
    order = np.argsort(clients).astype(np.int32)
    sorted_clients = clients[order]
    rows = (order[np.searchsorted(sorted_clients, schedule.clients)] for schedule in planned)
    return clients, [schedule._replace(memory_rows=r) for schedule, r in zip(planned, rows, strict=True)]


def store_of(host: HostMemories, state: SimState) -> Stored:
    """Returns a copy of the memories of a state on the host: of one before the first round, or of a checkpoint."""
    clients = np.asarray(state.memory_clients)
    row_of = np.full(host.num_clients, -1, np.int32)
    row_of[clients] = np.arange(len(clients), dtype=np.int32)
    memories = {name: getattr(state, name) for name in MEMORIES}
    return _grown(Stored(row_of, len(clients), clients, memories), len(clients))


def load(host: HostMemories, stored: Stored, state: SimState, clients: np.ndarray) -> SimState:
    """Returns the state on the devices with the memories of a chunk's clients.

    Args:
        stored: of all clients.
        state: its other fields are on the devices.
        clients: int32 [n], of the chunk; at most C.
    """
    rows = stored.row_of[clients]
    is_known = np.flatnonzero(rows >= 0)

    def filled(fresh: Any, kept: np.ndarray) -> np.ndarray:
        one = checkpoint.to_host(fresh)
        result = np.zeros((host.capacity, *one.shape[1:]), one.dtype)  # rows past the chunk's clients are not read
        result[: len(clients)] = one
        result[is_known] = kept[rows[is_known]]
        return result

    fields = {name: jax.tree.map(filled, getattr(host.fresh, name), stored.memories[name]) for name in MEMORIES}
    owners = np.full(host.capacity, -1, np.int32)
    owners[: len(clients)] = clients
    fields = {n: checkpoint.place_like(getattr(host.fresh, n), value, host.sharding) for n, value in fields.items()}
    return state._replace(**fields, memory_clients=checkpoint.place_like(host.fresh.memory_clients, owners))


def save(stored: Stored, state: SimState, clients: np.ndarray) -> Stored:
    """Returns the memories of all clients after a chunk. All processes must call it.

    Args:
        stored: before the chunk; its arrays are changed.
        state: after the chunk, on the devices.
        clients: int32 [n], of the chunk.
    """
    new = clients[stored.row_of[clients] < 0]
    if stored.count + len(new) > len(stored.clients):
        stored = _grown(stored, stored.count + len(new))
    stored.row_of[new] = np.arange(stored.count, stored.count + len(new), dtype=np.int32)
    stored.clients[stored.count : stored.count + len(new)] = new
    rows = stored.row_of[clients]

    def write(kept: np.ndarray, entries: np.ndarray) -> None:
        kept[rows] = entries

    for name in MEMORIES:
        jax.tree.map(write, stored.memories[name], memory_copies.read(getattr(state, name), len(clients)))
    return stored._replace(count=stored.count + len(new))


def whole_state(stored: Stored, state: SimState) -> SimState:
    """Returns the state with the memories of all clients that were sampled, as views on the host."""
    memories = {
        name: jax.tree.map(lambda leaf: leaf[: stored.count], of_clients)
        for name, of_clients in stored.memories.items()
    }
    return state._replace(**memories, memory_clients=stored.clients[: stored.count])


def _grown(stored: Stored, count: int) -> Stored:
    """Returns the same memories in new arrays with a quarter more rows than `count`."""
    num_rows = min(len(stored.row_of), count + count // 4)

    def grown(leaf: np.ndarray) -> np.ndarray:
        result = np.empty((num_rows, *leaf.shape[1:]), leaf.dtype)
        result[: stored.count] = leaf[: stored.count]
        return result

    memories = {name: jax.tree.map(grown, of_clients) for name, of_clients in stored.memories.items()}
    return stored._replace(clients=grown(stored.clients), memories=memories)
