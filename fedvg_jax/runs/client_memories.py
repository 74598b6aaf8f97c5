"""Which rows of the state hold the clients' memories, and where they are.

A small population has a row for every client, and row k is client k's. A large one has rows for the clients of the
run's cohorts only, in the order in which they are first sampled. Cohorts are functions of (seed, round), so the host
knows the rows before a round runs, and a run of more rounds only appends rows.

Several devices divide the rows among them. Then the number of rows is padded to a multiple of the devices; what is
stored has no padding, so it does not depend on their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedvg_jax.config import Config, cohort_size
from fedvg_jax.core import hardware as hw
from fedvg_jax.core import memory_rows
from fedvg_jax.core.types import SimState, UsageError
from fedvg_jax.engine import schedule
from fedvg_jax.engine.cohort_memories import MEMORIES
from fedvg_jax.runs import host_pool, memory_copies
from fedvg_jax.runs.record import checkpoint

DENSE_BYTES = 2**26
"""Bytes of memories up to which every client has a row."""

CHUNK_BYTES = 2**26
"""Bytes of the memories of a chunk's clients, where memories are on the host; those of one cohort may take more."""


class Layout(NamedTuple):
    """Where a run keeps the memories of its clients."""

    num_rows: int | None
    """rows that clients of the run use on the devices; None for a row for every client, by number"""
    is_on_host: bool
    """whether the host holds all memories, and the devices those of a chunk's clients"""


def choose(
    config: Config,
    client_bytes: int,
    max_rounds: int,
    hardware: hw.Hardware,
    num_parts: int = 1,
) -> Layout:
    """Returns where a run keeps its clients' memories. It depends on sizes, never on the seed.

    Args:
        config: its `memories` is "auto", "device" or "host".
        client_bytes: of one client's memory.
        max_rounds: R, rounds that a chunk can hold.
        hardware: what the run is for.
        num_parts: memories among which the rows are divided, see `memory_rows.num_parts`.

    >>> gpu = hw.Hardware("gpu", "NVIDIA H100", num_devices=1, cores=16, memory_bytes=80 * 2**30)
    >>> million = Config(clients=10**6, join_ratio=1e-3, rounds=50)
    >>> choose(million, 2**18, 64, gpu), choose(million, 2**20, 64, gpu)
    (Layout(num_rows=53248, is_on_host=False), Layout(num_rows=1024, is_on_host=True))
    >>> choose(Config(clients=100), 2**18, 64, gpu)
    Layout(num_rows=None, is_on_host=False)
    >>> choose(million, 2**20, 64, gpu, num_parts=8)
    Layout(num_rows=53248, is_on_host=False)
    """
    rows, size = host_pool.round_up(most_clients(config)), cohort_size(config)
    num_bytes = min(rows, config.clients) * client_bytes
    is_too_large = num_bytes > DENSE_BYTES and hw.auto_pool(2 * num_bytes // num_parts, hardware) == "host"
    on_host = client_bytes > 0 and (config.memories == "host" or (config.memories == "auto" and is_too_large))
    if on_host:
        of_chunk = max(size, min(size * max_rounds, CHUNK_BYTES // client_bytes))
        return Layout(min(config.clients, host_pool.round_up(of_chunk)), True)
    is_dense = rows >= config.clients or config.clients * client_bytes <= DENSE_BYTES
    return Layout(None if is_dense else rows, False)


def most_clients(config: Config) -> int:
    """Returns a bound on the clients that the rounds of a run sample, and one round after them."""
    return min(config.clients, (config.rounds + 1) * cohort_size(config))


def cohorts(config: Config) -> Callable[[int], np.ndarray]:
    """Returns round, from 0 -> the clients of its cohort, int32 [K]."""
    size = cohort_size(config)
    if config.cohorts == "official":
        return schedule.official_cohorts(config.seed, config.clients, size)
    return lambda number: schedule.cohort(config.seed, number, config.clients, size)[0]


def rows_of_rounds(config: Config, layout: Layout) -> Callable[[int], np.ndarray | None]:
    """Returns round, from 0 -> the rows of its cohort's memories, int32 [K]; None for a row for every client.

    On the devices, a client's row is its place in the order of first sampling. All cohorts up to the round are drawn
    for that, once. Where memories stay on the host, the rows are those of a chunk of this round only.

    >>> config = Config(clients=1000, join_ratio=0.002, rounds=3)
    >>> rows = rows_of_rounds(config, Layout(8, is_on_host=False))
    >>> rows(2).tolist(), rows(0).tolist()
    ([4, 5], [0, 1])
    """
    if layout.num_rows is None:
        return lambda number: None
    if layout.is_on_host:
        return lambda number: np.arange(cohort_size(config), dtype=np.int32)
    return _rows_in_order(config, layout.num_rows)


def _rows_in_order(config: Config, num_rows: int) -> Callable[[int], np.ndarray]:
    """Returns round, from 0 -> the rows of its cohort, in the order of first sampling."""
    cohort_of = cohorts(config)
    row_of = np.full(config.clients, -1, np.int32)
    num_drawn = num_used = 0

    def rows_of_round(number: int) -> np.ndarray:
        nonlocal num_drawn, num_used
        while num_drawn <= number:
            clients = cohort_of(num_drawn)
            new = clients[row_of[clients] < 0]
            if num_used + len(new) > num_rows:
                raise UsageError(
                    f"round {num_drawn + 1} needs memories of more clients than the {num_rows} of a run of"
                    f" {config.rounds} rounds; use --rounds {num_drawn + 1} or more"
                )
            row_of[new] = np.arange(num_used, num_used + len(new), dtype=np.int32)
            num_drawn, num_used = num_drawn + 1, num_used + len(new)
        return row_of[cohort_of(number)]

    return rows_of_round


def sampled_clients(config: Config, num_rounds: int) -> np.ndarray:
    """Returns int32 [n], the clients of the first rounds in the order of first sampling."""
    cohort_of = cohorts(config)
    return in_order(np.concatenate([np.zeros(0, np.int32), *map(cohort_of, range(num_rounds))]))


def in_order(clients: np.ndarray) -> np.ndarray:
    """Returns the different clients in the order of their first occurrence.

    >>> in_order(np.array([7, 3, 7, 5])).tolist()
    [7, 3, 5]
    """
    return clients[np.sort(np.unique(clients, return_index=True)[1])]


# --- states on the host -----------------------------------------------------------------------------------------------
def is_by_client(state: SimState) -> bool:
    """Returns whether the state has a row for every client, by number."""
    return isinstance(state.memory_clients, tuple)


def map_memories(function: Callable[[Any], Any], state: SimState) -> SimState:
    """Returns the state with a function applied to every array with a row for each client's memory."""
    return state._replace(**{name: jax.tree.map(function, getattr(state, name)) for name in MEMORIES})


def is_on_host(state: SimState) -> bool:
    """Returns whether the memories of a state are on the host, for the clients that were sampled."""
    return isinstance(state.memory_clients, np.ndarray)


def count_rows(state: SimState) -> int:
    """Returns the rows of a state whose number is not fixed, because its memories are on the host; else 0."""
    return len(state.memory_clients) if is_on_host(state) else 0


def with_count(state: SimState, count: int) -> SimState:
    """Returns a state whose memories on the host have zeros in `count` rows; others are returned unchanged."""
    if not is_on_host(state):
        return state
    zeros = map_memories(lambda leaf: np.zeros((count, *leaf.shape[1:]), leaf.dtype), state)
    return zeros._replace(memory_clients=np.zeros(count, np.int32))


def num_used(state: SimState, num_clients: int) -> int:
    """Returns the number of rows that clients use; they are the first ones."""
    return num_clients if is_by_client(state) else int((checkpoint.read(state.memory_clients) >= 0).sum())


def stored_form(state: SimState, num_clients: int, is_kept: bool = True) -> SimState:
    """Returns a copy of a state on the host, as checkpoints store it: with the rows that clients use.

    All processes must call it if they share the rows.

    Args:
        state: after a round.
        num_clients: N.
        is_kept: whether this process keeps the copy.
    """
    count = num_used(state, num_clients)
    memories = {name: memory_copies.to_host(getattr(state, name), count, is_kept) for name in MEMORIES}
    others = checkpoint.to_host(state._replace(**dict.fromkeys(MEMORIES, ())))
    owners = () if is_by_client(state) else others.memory_clients[:count]
    return others._replace(**memories, memory_clients=owners)


def host_template(state: SimState) -> SimState:
    """Returns the state before the first round with memories on the host, views of one row that take no memory."""

    def view(leaf: Any) -> np.ndarray:
        row = memory_copies.first_row(leaf)
        return np.broadcast_to(row, (len(leaf), *row.shape[1:]))

    return state if is_on_host(state) else map_memories(view, state)


def stored_shapes(state: SimState, leaves: Mapping[str, Any], num_clients: int) -> SimState:
    """Returns the shapes of a stored state, whose memories may have other rows than this one's.

    Args:
        state: before the first round of the run that continues.
        leaves: path of a stored leaf -> its shape and more, as in a checkpoint's seal.
        num_clients: N.
    """
    stored = leaves.get("state.memory_clients")
    return shapes_of_rows(state, stored[0][0] if stored else None, num_clients)


def shapes_of_rows(state: SimState, num_rows: int | None, num_clients: int, sharding: Any = None) -> SimState:
    """Returns the state with shapes for the memories of clients in other rows.

    Args:
        state: arrays or shapes, with any rows.
        num_rows: rows without padding; None for a row for every client.
        num_clients: N.
        sharding: of the rows over devices, to a multiple of which they are padded; None if each device holds all.
    """
    count = memory_rows.padded(num_clients if num_rows is None else num_rows, sharding)
    shapes = map_memories(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype), state)
    owners = () if num_rows is None else jax.ShapeDtypeStruct((count,), np.dtype(np.int32))
    return shapes._replace(memory_clients=owners)


def with_rows_of(state: SimState, stored: SimState, config: Config, num_rounds: int) -> SimState:
    """Returns a stored state with the rows of this run: those of all clients, of M, or as many as are used.

    Args:
        state: before the first round of the run that continues.
        stored: on the host.
        config: of the run.
        num_rounds: after which the state was stored.
    """
    owners, memories = stored.memory_clients, stored
    if is_by_client(stored) and is_by_client(state):
        owners = np.arange(config.clients)
    elif is_by_client(stored):
        owners = sampled_clients(config, num_rounds)
        memories = map_memories(lambda leaf: leaf[owners], stored)
    if is_on_host(state):
        return memories._replace(memory_clients=owners)
    rows = owners if is_by_client(state) else np.arange(len(owners))

    def placed(fresh: Any, leaf: np.ndarray) -> np.ndarray:
        if is_by_client(stored) and is_by_client(state) and len(fresh) == len(leaf):
            return leaf
        result = np.empty((len(fresh), *leaf.shape[1:]), leaf.dtype)
        result[:] = memory_copies.first_row(fresh)
        result[rows] = leaf
        return result

    fields = {name: jax.tree.map(placed, getattr(state, name), getattr(memories, name)) for name in MEMORIES}
    clients = () if is_by_client(state) else placed(state.memory_clients, owners)
    return stored._replace(**fields, memory_clients=clients)
