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
from fedvg_jax.core.types import Executor, SimState, Tree
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.engine.round_steps import RoundInputs


def placement(executor: Executor) -> Any:
    """Returns the shardings of a state, a prefix of its pytree; None for one device."""
    if executor.rows is None:
        return executor.placement
    return SimState(*(len(SimState._fields) * [executor.placement]))._replace(clients=executor.rows)


def sharding_of(executor: Executor, state: SimState) -> NamedSharding | None:
    """Returns how devices divide the memories of a state among them; None where each device holds all.

    The rows of a run are a multiple of the devices. Other numbers of rows, as in a loop of one's own, are not divided.
    """
    leaves = jax.tree.leaves(state.clients)
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
    return inputs._replace(
        state=state._replace(clients=take_rows(state.clients, schedules.memory_rows(schedule), sharding)),
        schedule=schedule._replace(memory_rows=inputs.positions),
    )


def put(after: SimState, inputs: RoundInputs, sharding: NamedSharding | None) -> SimState:
    """Returns the state after the round with the memories of all clients.

    Args:
        after: its memories are those of the inputs that `take` returned, after the round.
        inputs: of the round, as `take` got them.
        sharding: as in `take`.
    """
    if sharding is None:
        return after
    rows = schedules.memory_rows(inputs.schedule)
    return after._replace(clients=put_rows(inputs.state.clients, rows, after.clients, sharding))


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
