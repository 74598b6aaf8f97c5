"""Client states that several devices divide: row k is client k's, and the last rows may be padding.

Each device stores an equal part of the rows. The devices may belong to several processes.
"""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax.sharding import NamedSharding

from fedvg_jax.core import tree
from fedvg_jax.core.types import SimState, Tree
from fedvg_jax.runs.placement import on_device
from fedvg_jax.runs.placement.client_states import (
    Placement,
    padded,
    replicated,
    rows_on_host,
    with_client_states,
)
from fedvg_jax.runs.record import checkpoint


def make(num_clients: int, max_rounds: int, fresh: Tree, sharding: NamedSharding) -> Placement:
    """Returns the placement of client states that devices divide.

    Args:
        num_clients: N.
        max_rounds: see `Placement`.
        fresh: see `Placement`.
        sharding: of the rows over the devices.
    """
    num_rows = padded(num_clients, sharding.mesh.size)
    exchange = jax.jit(tree.take, out_shardings=replicated(sharding))
    return on_device.make(num_clients, max_rounds, fresh)._replace(
        first=functools.partial(on_device.first_state, num_rows, sharding),
        read=lambda store, state, clients: exchange(state.clients.local, clients),
        save=functools.partial(save, num_clients),
    )


def save(num_clients: int, state: SimState) -> SimState:
    """Returns a copy of the state on the host, without the padding."""
    others = checkpoint.to_host(state._replace(clients=()))
    rows = rows_on_host(state.clients, num_clients)
    # copies, which no later round overwrites
    return with_client_states(others, jax.tree.map(np.array, rows))
