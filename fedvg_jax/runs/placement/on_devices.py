"""Client states on the devices: row k is client k's, and the last rows may be padding.

One device stores all rows. Several store an equal part of them each, and may belong to several processes.
"""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax.sharding import NamedSharding

from fedvg_jax.core import tree
from fedvg_jax.core.types import SimState, Tree
from fedvg_jax.host import processes
from fedvg_jax.runs.placement.client_states import (
    Placement,
    padded,
    replicated,
    restored,
    rows_on_host,
    saved_clients,
    with_client_states,
)
from fedvg_jax.runs.record import checkpoint


def make(
    num_clients: int, max_rounds: int, fresh: Tree, sharding: NamedSharding | None
) -> Placement:
    """Returns the placement of client states on the devices.

    Args:
        num_clients: N.
        max_rounds: see `Placement`.
        fresh: see `Placement`.
        sharding: of the rows over devices; None for one device.
    """
    num_rows = padded(num_clients, sharding.mesh.size) if sharding else num_clients
    take = jax.jit(tree.take, out_shardings=replicated(sharding))
    return Placement(
        is_on_host=False,
        max_rounds=max_rounds,
        fresh=fresh,
        first=functools.partial(first_state, num_rows, sharding),
        shapes=lambda state: state,
        number_rows=lambda planned: (np.zeros(0, np.int32), planned),
        open=lambda state: ((), state),
        take=lambda store, state, clients: state,
        put=lambda store, state, clients: (store, state),
        read=lambda store, state, clients: take(state.clients.local, clients),
        save=functools.partial(save, num_clients),
        restore=functools.partial(restore, fresh),
    )


def first_state(num_rows: int, sharding: NamedSharding | None, one: SimState) -> SimState:
    """Returns the state before the first round; each device makes the rows that it stores, which are equal.

    Args:
        num_rows: M.
        sharding: of the rows over devices; None for one device.
        one: with the state of one client, leaves [1, ...].
    """
    if not jax.tree.leaves(one.clients):
        return one
    repeat = jax.jit(_repeated, static_argnums=1, out_shardings=sharding)
    return with_client_states(one, repeat(one.clients, num_rows))


def _repeated(one: Tree, num_rows: int) -> Tree:
    return tree.repeat(tree.take(one, 0), num_rows)


def save(num_clients: int, state: SimState) -> SimState:
    """Returns a copy of the state on the host, without the padding."""
    others = checkpoint.to_host(state._replace(clients=()))
    rows = rows_on_host(state.clients, num_clients)
    # copies, which no later round overwrites
    return with_client_states(others, jax.tree.map(np.array, rows))


def restore(fresh: Tree, state: SimState, saved: SimState) -> SimState:
    """Returns a saved state on the devices; clients without a saved row have the state `fresh`, leaves [1, ...]."""
    clients = saved_clients(saved)

    def placed(leaf: jax.Array, initial: np.ndarray, stored: np.ndarray) -> jax.Array:
        rows = np.repeat(initial, len(leaf), 0)
        rows[clients] = stored
        return checkpoint.typed_like(leaf, processes.place(rows, leaf.sharding))

    initial = checkpoint.to_host(fresh)
    states = jax.tree.map(placed, state.clients, initial, saved.clients)
    return with_client_states(restored(state, saved), states)
