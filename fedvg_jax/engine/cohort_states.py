"""Client states on several devices: divided among them by client, and exchanged for the cohort of a round.

Each of D devices holds M / D of the M rows. A round takes the rows of its cohort and puts them back, so devices
exchange K rows and never all M.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec as P

from fedvg_jax.core import tree
from fedvg_jax.core.types import Executor, SimState, Tree
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.engine.round_steps import RoundInputs


def placement(executor: Executor) -> Any:
    """Returns the shardings of a state, a prefix of its pytree; None for one device."""
    if executor.rows is None:
        return executor.placement
    return SimState(*(len(SimState._fields) * [executor.placement]))._replace(clients=executor.rows)


def sharding_of(executor: Executor, state: SimState) -> NamedSharding | None:
    """Returns how devices divide the client states of a run's state among them; None where each device holds all.

    The rows of a run are a multiple of the devices. States with other row counts, as in custom loops, are not sharded.
    """
    leaves = jax.tree.leaves(state.clients)
    if executor.rows is None or not leaves or leaves[0].shape[0] % executor.rows.mesh.size:
        return None
    return executor.rows


def take(inputs: RoundInputs, sharding: NamedSharding | None) -> RoundInputs:
    """Returns a round's inputs with the client states of the cohort only, row k for position k, on every device.

    Args:
        inputs: its state has client states with leaves [M, ...].
        sharding: of axis M over devices; None if each device holds all rows, and the inputs stay as they are.
    """
    if sharding is None:
        return inputs
    state, schedule = inputs.state, inputs.schedule
    return inputs._replace(
        state=state._replace(
            clients=take_rows(state.clients, schedules.state_rows(schedule), sharding)
        ),
        schedule=schedule._replace(state_rows=inputs.positions),
    )


def put(after: SimState, inputs: RoundInputs, sharding: NamedSharding | None) -> SimState:
    """Returns the state after the round with the states of all clients.

    Args:
        after: has the states that `take` returned, as they are after the round.
        inputs: of the round, as `take` got them.
        sharding: as in `take`.
    """
    if sharding is None:
        return after
    rows = schedules.state_rows(inputs.schedule)
    return after._replace(clients=put_rows(inputs.state.clients, rows, after.clients, sharding))


def take_rows(states: Tree, rows: Array, sharding: NamedSharding) -> Tree:
    """Returns rows of every leaf, [K, ...], on every device.

    XLA adds up what each device has of them, and zeros for the others: devices exchange K rows.

    Args:
        states: leaves [M, ...].
        rows: int32 [K], in 0..M - 1.
        sharding: of axis M over devices.
    """
    return lax.with_sharding_constraint(tree.take(states, rows), NamedSharding(sharding.mesh, P()))


def put_rows(states: Tree, rows: Array, entries: Tree, sharding: NamedSharding) -> Tree:
    """Returns the states with `entries` at `rows`; writes past the end are dropped.

    Each device writes the rows that it holds, without communication.

    Args:
        states: leaves [M, ...].
        rows: int32 [K].
        entries: leaves [K, ...], on every device.
        sharding: of axis M over devices.
    """
    return lax.with_sharding_constraint(tree.put(states, rows, entries), sharding)
