"""Memories of clients on several devices: divided among them by client, and exchanged for the cohort of a round.

Each of D devices holds M / D of the M rows. A round takes the rows of its cohort and puts them back, so devices
exchange K rows and never all M.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fedvg_jax.core import tree
from fedvg_jax.core.types import Executor, Schedule, SimState, Tree
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
    clients, optimisers = take_rows((state.clients, state.optimisers), rows, sharding)
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
    memories = put_rows(before, schedules.memory_rows(schedule), entries, sharding)
    return cohort._replace(client_memories=memories[0], optimiser_memories=memories[1])


def take_rows(memories: Tree, rows: Array, sharding: NamedSharding) -> Tree:
    """Returns rows of every leaf, on every device.

    Each device contributes the rows that it holds, and zeros for the others. The sum is exact to the bit.

    Args:
        memories: leaves [M, ...].
        rows: int32 [K], in 0..M - 1.
        sharding: of axis M over devices.

    Returns:
        Leaves [K, ...].
    """
    axis = sharding.spec[0]

    def take_on_device(own: Tree, rows: Array) -> Tree:
        places, is_own = _own_places(own, rows, axis)
        return jax.tree.map(lambda leaf: _taken(leaf, jnp.where(is_own, places, 0), is_own, axis), own)

    specs = {"in_specs": (P(axis), P()), "out_specs": P()}
    return jax.shard_map(take_on_device, mesh=sharding.mesh, **specs, check_vma=False)(memories, rows)


def put_rows(memories: Tree, rows: Array, entries: Tree, sharding: NamedSharding) -> Tree:
    """Returns the memories with `entries` at `rows`; writes past the end are dropped.

    Each device writes the rows that it holds, without communication.

    Args:
        memories: leaves [M, ...].
        rows: int32 [K].
        entries: leaves [K, ...], on every device.
        sharding: of axis M over devices.
    """
    axis = sharding.spec[0]

    def put_on_device(own: Tree, rows: Array, entries: Tree) -> Tree:
        places, is_own = _own_places(own, rows, axis)
        return tree.put(own, jnp.where(is_own, places, _num_rows(own)), entries)

    specs = {"in_specs": (P(axis), P(), P()), "out_specs": P(axis)}
    return jax.shard_map(put_on_device, mesh=sharding.mesh, **specs, check_vma=False)(memories, rows, entries)


def _num_rows(own: Tree) -> int:
    return jax.tree.leaves(own)[0].shape[0]


def _own_places(own: Tree, rows: Array, axis: Any) -> tuple[Array, Array]:
    """Returns where rows are among those of this device, int32 [K], and whether they are, bool [K]."""
    count = _num_rows(own)
    places = rows - lax.axis_index(axis) * count
    return places, (places >= 0) & (places < count)


def _taken(leaf: Array, places: Array, is_own: Array, axis: Any) -> Array:
    """Returns the entries of a leaf that the devices hold together."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = _taken(jax.random.key_data(leaf), places, is_own, axis)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    entries = leaf[places]
    return _total(tree.where(is_own, entries, jnp.zeros_like(entries)), axis)


def _total(entries: Array, axis: Any) -> Array:
    """Returns the sum over devices of entries of which at most one device's are not zero, to the bit."""
    dtype = entries.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return lax.complex(_total(entries.real, axis), _total(entries.imag, axis))
    if jnp.issubdtype(dtype, jnp.floating):
        return _total_of_bits(entries, axis)
    return lax.psum(entries, axis).astype(dtype)  # of booleans, psum counts


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _total_of_bits(entries: Array, axis: Any) -> Array:
    """Returns the sum of the bits as integers: -0.0 + 0.0 is 0.0, and a sum may change the bits of a NaN."""
    bits = lax.bitcast_convert_type(entries, jnp.dtype(f"uint{8 * entries.dtype.itemsize}"))
    return lax.bitcast_convert_type(lax.psum(bits, axis), entries.dtype)


@_total_of_bits.defjvp
def _total_of_bits_jvp(axis: Any, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return _total_of_bits(primals[0], axis), lax.psum(tangents[0], axis)
