"""Rows of clients' memories that are divided among devices: each of D devices holds M / D of the M rows.

A round takes the rows of its cohort and puts them back, so devices exchange K rows and never all M.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fedvg_jax.core import hardware as hw
from fedvg_jax.core import tree
from fedvg_jax.core.types import Tree


def take(memories: Tree, rows: Array, sharding: NamedSharding | None = None) -> Tree:
    """Returns rows of every leaf; on several devices, each device gets all of them.

    Each device contributes the rows that it holds, and zeros for the others. The sum is exact to the bit.

    Args:
        memories: leaves [M, ...].
        rows: int32 [K], in 0..M - 1.
        sharding: of axis M over devices; None if each device holds all rows.

    Returns:
        Leaves [K, ...].

    >>> take({"c": jnp.array([1.0, 2.0, 3.0])}, jnp.array([2, 0]))["c"].tolist()
    [3.0, 1.0]
    """
    if sharding is None or not jax.tree.leaves(memories):
        return tree.take(memories, rows)
    axis = sharding.spec[0]

    def take_on_device(own: Tree, rows: Array) -> Tree:
        places, is_own = _own_places(own, rows, axis)
        return jax.tree.map(lambda leaf: _taken(leaf, jnp.where(is_own, places, 0), is_own, axis), own)

    specs = {"in_specs": (P(axis), P()), "out_specs": P()}
    return jax.shard_map(take_on_device, mesh=sharding.mesh, **specs, check_vma=False)(memories, rows)


def put(memories: Tree, rows: Array, entries: Tree, sharding: NamedSharding | None = None) -> Tree:
    """Returns the memories with `entries` at `rows`; writes past the end are dropped.

    Each device writes the rows that it holds, without communication.

    Args:
        memories: leaves [M, ...].
        rows: int32 [K].
        entries: leaves [K, ...], on every device.
        sharding: of axis M over devices; None if each device holds all rows.

    >>> put(jnp.zeros(3), jnp.array([2, 5]), jnp.array([7.0, 8.0])).tolist()
    [0.0, 0.0, 7.0]
    """
    if sharding is None or not jax.tree.leaves(memories):
        return tree.put(memories, rows, entries)
    axis = sharding.spec[0]

    def put_on_device(own: Tree, rows: Array, entries: Tree) -> Tree:
        places, is_own = _own_places(own, rows, axis)
        return tree.put(own, jnp.where(is_own, places, _num_rows(own)), entries)

    specs = {"in_specs": (P(axis), P(), P()), "out_specs": P(axis)}
    return jax.shard_map(put_on_device, mesh=sharding.mesh, **specs, check_vma=False)(memories, rows, entries)


def spread(one: Tree, num_rows: int, sharding: NamedSharding) -> Tree:
    """Returns M rows, all equal to one; each device makes those that it holds.

    Args:
        one: leaves [1, ...].
        num_rows: M, a multiple of the devices.
        sharding: of axis M over devices.
    """
    return _spreading(num_rows, sharding)(one) if jax.tree.leaves(one) else one


def padded(num_rows: int, sharding: NamedSharding | None) -> int:
    """Returns the number of rows up to a multiple of the devices that hold them."""
    return num_rows if sharding is None else num_rows + -num_rows % sharding.mesh.size


def num_parts(sharding: NamedSharding | None, hardware: hw.Hardware) -> int:
    """Returns how many memories the rows are divided among: those of devices, or of hosts for devices of CPUs.

    Args:
        sharding: of the rows; None if each device holds all.
        hardware: that the devices are of.

    >>> num_parts(None, hw.Hardware("gpu", "NVIDIA H100", num_devices=8, cores=16, memory_bytes=None))
    1
    """
    if sharding is None:
        return 1
    return hardware.num_processes if hardware.is_cpu else sharding.mesh.size


@functools.cache  # one program for all runs of these sizes
def _spreading(num_rows: int, sharding: NamedSharding) -> Any:
    def repeated(one: Tree) -> Tree:
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_rows, *leaf.shape[1:])), one)

    return jax.jit(repeated, out_shardings=sharding)


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
    if jnp.issubdtype(dtype, jnp.bool_):
        return lax.psum(entries.astype(jnp.uint8), axis) != 0
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return lax.complex(_total(entries.real, axis), _total(entries.imag, axis))
    return _total_of_bits(entries, axis) if jnp.issubdtype(dtype, jnp.floating) else lax.psum(entries, axis)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _total_of_bits(entries: Array, axis: Any) -> Array:
    """Returns the sum of the bits as integers: -0.0 + 0.0 is 0.0, and a sum may change the bits of a NaN."""
    bits = lax.bitcast_convert_type(entries, jnp.dtype(f"uint{8 * entries.dtype.itemsize}"))
    return lax.bitcast_convert_type(lax.psum(bits, axis), entries.dtype)


@_total_of_bits.defjvp
def _total_of_bits_jvp(axis: Any, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return _total_of_bits(primals[0], axis), lax.psum(tangents[0], axis)
