"""Memories of clients on several devices: divided among them by client, and exchanged for the cohort of a round."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from fedvg_jax.core import memory_rows
from fedvg_jax.core.types import Executor, Schedule, SimState
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.engine.cohort_blocks import RunningCohort

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


def take(state: SimState, schedule: Schedule, sharding: NamedSharding) -> tuple[SimState, Schedule]:
    """Returns the state with the memories of the cohort only, row k for position k, and its schedule.

    Args:
        state: leaves of memories [M, ...].
        schedule: of the round.
        sharding: of axis M over devices.
    """
    rows = schedules.memory_rows(schedule)
    clients, optimisers = memory_rows.take((state.clients, state.optimisers), rows, sharding)
    in_order = jnp.arange(len(schedule.clients), dtype=jnp.int32)
    return state._replace(clients=clients, optimisers=optimisers), schedule._replace(memory_rows=in_order)


def put(cohort: RunningCohort, state: SimState, schedule: Schedule, sharding: NamedSharding) -> RunningCohort:
    """Returns the cohort with the memories of all clients after the round.

    Args:
        cohort: its memories are those of `take`, after the round.
        state: before the round, leaves of memories [M, ...].
        schedule: of the round.
        sharding: of axis M over devices.
    """
    before, entries = (state.clients, state.optimisers), (cohort.client_memories, cohort.optimiser_memories)
    memories = memory_rows.put(before, schedules.memory_rows(schedule), entries, sharding)
    return cohort._replace(client_memories=memories[0], optimiser_memories=memories[1])
