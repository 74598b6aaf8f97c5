"""Memories of clients on several devices: divided among them by client, and exchanged for the cohort of a round."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import NamedSharding

from fedvg_jax.core import memory_rows
from fedvg_jax.core.types import Executor, SimState
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.engine.round_steps import RoundInputs

MEMORIES = ("clients", "optimisers")
"""Fields of a state with a row for each client that has memories."""


def placement(executor: Executor) -> Any:
    """Returns the shardings of a state, a prefix of its pytree; None for one device."""
    if executor.rows is None:
        return executor.placement
    fields: dict[str, Any] = {n: executor.rows if n in MEMORIES else executor.placement for n in SimState._fields}
    return SimState(**fields)


def sharding_of(executor: Executor, state: SimState) -> NamedSharding | None:
    """Returns how devices divide the memories of a state among them; None where each device holds all.

    The rows of a run are a multiple of the devices. Other numbers of rows, as in a loop of one's own, are not divided.
    """
    leaves = jax.tree.leaves([getattr(state, name) for name in MEMORIES])
    if executor.rows is None or not leaves or leaves[0].shape[0] % executor.rows.mesh.size:
        return None
    return executor.rows


def take(inputs: RoundInputs, sharding: NamedSharding | None) -> RoundInputs:
    """Returns a round's inputs with the memories of the cohort only, row k for position k, on every device.

    Args:
        inputs: its state has memories with leaves [M, ...].
        sharding: of axis M over devices; None if each device holds all rows, and the inputs stay as they are.
    """
    if sharding is None:
        return inputs
    state, schedule = inputs.state, inputs.schedule
    rows = schedules.memory_rows(schedule)
    clients, optimisers = memory_rows.take((state.clients, state.optimisers), rows, sharding)
    return inputs._replace(
        state=state._replace(clients=clients, optimisers=optimisers),
        schedule=schedule._replace(memory_rows=inputs.positions),
    )


def put(after: SimState, inputs: RoundInputs, sharding: NamedSharding | None) -> SimState:
    """Returns the state after the round with the memories of all clients, and the clients of their rows.

    Args:
        after: its memories are those of the inputs that `take` returned, after the round.
        inputs: of the round, as `take` got them.
        sharding: as in `take`.
    """
    before, rows = inputs.state, schedules.memory_rows(inputs.schedule)
    if sharding is not None:
        entries = (after.clients, after.optimisers)
        clients, optimisers = memory_rows.put((before.clients, before.optimisers), rows, entries, sharding)
        after = after._replace(clients=clients, optimisers=optimisers)
    if inputs.schedule.memory_rows is None:  # row k is client k's
        return after
    return after._replace(memory_clients=before.memory_clients.at[rows].set(inputs.schedule.clients))
