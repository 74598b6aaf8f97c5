"""Client states on the host: all clients sampled so far have a row there, and those of a chunk on the devices."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from fedvg_jax.core import tree
from fedvg_jax.core.types import Schedule, SimState, Tree
from fedvg_jax.host import processes
from fedvg_jax.runs.placement.client_states import (
    Federation,
    Placement,
    copied_rows,
    replicated,
    restored,
    rows_on_host,
    saved_clients,
    shapes_of_rows,
    with_client_states,
)
from fedvg_jax.runs.record import checkpoint


class Store(NamedTuple):
    """The states of all clients sampled so far, on the host; the arrays are changed in place."""

    row_of: np.ndarray
    """int32 [N], the row of each client; 0 before it is sampled"""
    clients: np.ndarray
    """int32 [n], the clients of rows 1..n, in the order of first sampling"""
    states: Tree
    """NumPy arrays [1 + most clients, ...]; row 0 is of a client not sampled yet. Rows take memory once they are
    written."""


def make(
    federation: Federation,
    max_rounds: int,
    fresh: Tree,
    num_rows: int,
    sharding: NamedSharding | None,
) -> Placement:
    """Returns the placement of client states on the host.

    Args:
        federation: of the run.
        max_rounds: see `Placement`.
        fresh: see `Placement`.
        num_rows: M, rows on the devices for the clients of a chunk, a multiple of the devices that divide them.
        sharding: of these rows over devices; None if each device stores all.
    """
    rows = shapes_of_rows(fresh, num_rows, sharding)

    def take(store: Store, state: SimState, clients: np.ndarray) -> SimState:
        copies = copied_rows(store.states, store.row_of[clients], num_rows)
        states = processes.place(copies, sharding)
        return with_client_states(state, jax.tree.map(checkpoint.typed_like, fresh, states))

    def read(store: Store, state: SimState, clients: np.ndarray) -> Tree:
        tensors = tree.take(store.states.local, store.row_of[clients])
        return processes.place(tensors, replicated(sharding))

    return Placement(
        is_on_host=True,
        max_rounds=max_rounds,
        fresh=fresh,
        first=first_state,
        shapes=lambda state: with_client_states(state, rows),
        number_rows=number_rows,
        open=functools.partial(open_store, federation, fresh),
        take=take,
        put=put,
        read=read,
        save=checkpoint.to_host,
        restore=restore,
    )


def first_state(one: SimState) -> SimState:
    """Returns the state before the first round, without any row."""
    no_rows = jax.tree.map(lambda leaf: leaf[:0], checkpoint.to_host(one.clients))
    return with_client_states(one, no_rows, np.zeros(0, np.int32))


def number_rows(planned: list[Schedule]) -> tuple[np.ndarray, list[Schedule]]:
    """Returns the clients of a chunk in the order of first sampling, and its schedules with their rows on the devices.

    >>> from fedvg_jax.engine import schedule
    >>> batches = 2 * [np.zeros((1, 4), np.int32)]
    >>> rounds = [schedule.pack(c, batches, [4, 4], num_lanes=1) for c in ([9, 4], [4, 6])]
    >>> clients, rounds = number_rows(rounds)
    >>> clients.tolist(), [r.state_rows.tolist() for r in rounds]
    ([9, 4, 6], [[0, 1], [1, 2]])
    """
    row_of: dict[int, int] = {}
    numbered = []
    for each in planned:
        rows = [row_of.setdefault(k, len(row_of)) for k in each.clients.tolist()]
        numbered.append(each._replace(state_rows=np.array(rows, np.int32)))
    return np.array(list(row_of), np.int32), numbered


def open_store(federation: Federation, fresh: Tree, state: SimState) -> tuple[Store, SimState]:
    """Returns a copy of the client states on the host, perhaps without any row, and the state without them."""
    clients = state.client_ids
    row_of = np.zeros(federation.num_clients, np.int32)
    row_of[clients] = np.arange(1, len(clients) + 1, dtype=np.int32)
    num_rows = 1 + max(federation.most_clients, len(clients))

    def allocated(initial: np.ndarray, stored: np.ndarray) -> np.ndarray:
        rows = np.empty((num_rows, *initial.shape[1:]), initial.dtype)
        rows[:1], rows[1 : 1 + len(clients)] = initial, stored
        return rows

    states = jax.tree.map(allocated, checkpoint.to_host(fresh), state.clients)
    return Store(row_of, clients, states), with_client_states(state, ())


def put(store: Store, state: SimState, clients: np.ndarray) -> tuple[Store, SimState]:
    """Returns the store with the states of a chunk's clients, and the state with the rows of all clients as views."""
    new, count = clients[store.row_of[clients] == 0], len(store.clients)
    store.row_of[new] = np.arange(count + 1, count + 1 + len(new), dtype=np.int32)
    rows, sampled = store.row_of[clients], np.concatenate([store.clients, new])

    def write(stored: np.ndarray, entries: np.ndarray) -> np.ndarray:
        stored[rows] = entries
        return stored[1 : 1 + len(sampled)]

    views = jax.tree.map(write, store.states, rows_on_host(state.clients, len(clients)))
    return store._replace(clients=sampled), with_client_states(state, views, sampled)


def restore(state: SimState, saved: SimState) -> SimState:
    """Returns a saved state with its client states as they are, on the host."""
    return with_client_states(restored(state, saved), saved.clients, saved_clients(saved))
