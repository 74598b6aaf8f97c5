"""Client states of a run: the operations of a placement, and what the placements share.

The client state is what an algorithm or a weighting remembers of a client between rounds. A run stores the states of
all clients in one of two places:

- `on_devices`: the devices store a row for every client; row k is client k's. Several devices store an equal part of
  the rows each, so their number is padded to a multiple of the devices.
- `on_host`: the host stores the rows of all clients sampled so far, in the order of first sampling, and the devices
  those of a chunk's clients, which they may divide. All shapes on the devices are fixed before the first round.

A run chooses one where it is assembled. What is saved has no padding and does not depend on the number of
devices, and each place continues from what any other has saved.

Rounds take rows on the devices themselves (`engine.executors`). Where other processes store some of the rows, every
process gets all rows of one tensor at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

from fedvg_jax.core.types import Schedule, SimState, Tree
from fedvg_jax.host import hardware as hw
from fedvg_jax.runs.record import checkpoint


class Federation(NamedTuple):
    """The numbers that decide how many clients a run samples."""

    num_clients: int
    """N"""
    cohort_size: int
    """K"""
    rounds: int

    @property
    def most_clients(self) -> int:
        """A bound on the clients that the rounds of a run sample, and one round after them."""
        return min(self.num_clients, (self.rounds + 1) * self.cohort_size)


class Placement(NamedTuple):
    """Where a run stores the states of its clients, as the operations of that place.

    A state on the devices has leaves [M, ...] for its clients: a row for each of N clients and padding, or on the host
    rows for n clients of a chunk and padding. The store holds the rows that are not in the state; it is () where the
    devices store all. All processes must call `put`, `read` and `save`.
    """

    is_on_host: bool
    """whether the host stores all client states, and the devices only those of a chunk's clients"""
    max_rounds: int
    """rounds of a chunk; their clients always fit the rows on the devices"""
    fresh: Tree
    """the state of a client that was not sampled yet, leaves [1, ...] on the devices"""
    first: Callable[[SimState], SimState]
    """state with one client, leaves [1, ...] -> the state before the first round: N rows and padding, all equal; on the
    host without any row"""
    shapes: Callable[[SimState], SimState]
    """state before the first round -> the state of a chunk, [M, ...], with shapes for the rows that `take` adds"""
    number_rows: Callable[[list[Schedule]], tuple[np.ndarray, list[Schedule]]]
    """schedules of a chunk -> (int32 [n] clients with rows to take, in the order of first sampling; the schedules with
    these rows)"""
    open: Callable[[SimState], tuple[Tree, SimState]]
    """state before the first round or of a checkpoint -> (store, the state without what the store holds)"""
    take: Callable[[Tree, SimState, np.ndarray], SimState]
    """(store, state, clients [n]) -> the state with the rows of a chunk, [M, ...]"""
    put: Callable[[Tree, SimState, np.ndarray], tuple[Tree, SimState]]
    """(store, state after a chunk, clients [n]) -> (store with the chunk's rows, the state with the rows of all clients
    that were sampled, on the host as views of the store). The arrays of the store are changed."""
    read: Callable[[Tree, SimState, np.ndarray], Tree]
    """(store, state, int32 [n] any clients) -> their local tensors or personal models, leaves [n, ...] on every device;
    the initial ones for a client that was not sampled yet"""
    save: Callable[[SimState], SimState]
    """state of `put` -> a copy on the host, as checkpoints store it: with the rows of clients, without padding"""
    restore: Callable[[SimState, SimState], SimState]
    """(state before the first round, saved state of any placement) -> the saved state, stored as the other one is"""


# --- states -----------------------------------------------------------------------------------------------------------
def with_client_states(state: SimState, states: Tree, clients: Tree = ()) -> SimState:
    """Returns the state with other client states, a row for each of `clients`."""
    return state._replace(clients=states, client_ids=clients)


def padded(num_rows: int, num_devices: int) -> int:
    """Returns the number of rows up to a multiple of the devices that store them."""
    return num_rows + -num_rows % num_devices


def replicated(sharding: NamedSharding | None) -> NamedSharding | None:
    """Returns the sharding of arrays that each of the devices has; None for one device."""
    return sharding and NamedSharding(sharding.mesh, P())


# --- rows -------------------------------------------------------------------------------------------------------------
def rows_on_host(states: Tree, count: int) -> Tree:
    """Returns the first rows on the host, NumPy arrays [n, ...], which may share the memory of a CPU device.

    All processes must call it if they share the rows.

    Args:
        states: leaves [M, ...] on the devices; typed keys become their key data.
        count: n, rows to read.
    """

    def read_leaf(leaf: Any) -> np.ndarray:
        leaf = checkpoint.untyped(leaf)
        if not leaf.is_fully_addressable:  # a leaf at a time has all of its rows on every device
            leaf = jax.jit(lambda rows: rows, out_shardings=replicated(leaf.sharding))(leaf)
            leaf = leaf.addressable_data(0)
        return np.asarray(leaf)[:count]

    return jax.tree.map(read_leaf, states)


def shapes_of_rows(arrays: Tree, num_rows: int, sharding: NamedSharding | None = None) -> Tree:
    """Returns the shapes of rows in the dtypes that devices have, [R, ...].

    Args:
        arrays: leaves with any number of rows.
        num_rows: R.
        sharding: of the rows.
    """

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        shape, dtype = (num_rows, *leaf.shape[1:]), jax.typeof(leaf).dtype
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    return jax.tree.map(shape, arrays)


def copied_rows(arrays: Tree, rows: np.ndarray, num_rows: int) -> Tree:
    """Returns copies of rows in the dtypes that devices have, [R, ...], zeros after the last of them.

    Args:
        arrays: NumPy arrays or memory maps.
        rows: int [n].
        num_rows: R, at least n.
    """

    def copied(leaf: np.ndarray) -> np.ndarray:
        result = np.zeros((num_rows, *leaf.shape[1:]), jax.dtypes.canonicalize_dtype(leaf.dtype))
        np.take(leaf, rows, 0, out=result[: len(rows)], mode="clip")
        return result

    return jax.tree.map(copied, arrays)


# --- checkpoints ------------------------------------------------------------------------------------------------------
def saved_shapes(state: SimState, leaves: Mapping[str, np.ndarray]) -> SimState:
    """Returns the shapes of a saved state, with its numbers of client states and of versions of the model.

    Args:
        state: before the first round of the run that continues.
        leaves: saved leaves by path.
    """

    def with_entries_of(prefix: str, entries: Tree) -> Tree:
        saved = (leaf for path, leaf in leaves.items() if f"{path}.".startswith(f"{prefix}."))
        return shapes_of_rows(entries, len(next(saved, ())))

    return state._replace(
        clients=with_entries_of("state.clients", state.clients),
        client_ids=leaves.get("state.client_ids", ()),
        versions=with_entries_of("state.versions", state.versions),
    )


def saved_clients(saved: SimState) -> np.ndarray:
    """Returns the client of each saved row, int32; without `client_ids`, row k is client k's."""
    if len(saved.client_ids):
        return saved.client_ids
    num_rows = len(next(iter(jax.tree.leaves(saved.clients)), ()))
    return np.arange(num_rows, dtype=np.int32)


def restored(state: SimState, saved: SimState) -> SimState:
    """Returns a saved state without client states, on the devices as the state before the first round is.

    It has as many slots for versions of the model as this one: a longer run may need more.
    """

    def resized(leaf: jax.Array, stored: np.ndarray) -> np.ndarray:
        return np.resize(stored, leaf.shape)

    saved = saved._replace(versions=jax.tree.map(resized, state.versions, saved.versions))
    return checkpoint.place_like(with_client_states(state, ()), with_client_states(saved, ()))


# --- which placement a run has; it depends on sizes, never on the seed

DENSE_BYTES = 2**26
"""Bytes up to which the devices store the states of all clients."""

CHUNK_BYTES = 2**26
"""Bytes of the states of a chunk's clients, where the host stores them; the states of one cohort may take more."""


def stays_on_host(
    placement: str, federation: Federation, client_bytes: int, num_devices: int
) -> bool:
    """Returns whether the host stores the client states.

    By default it does if they are large, and the run samples some clients only or they fill the devices.

    Args:
        placement: "auto", "device" or "host".
        federation: of the run.
        client_bytes: of one client's state.
        num_devices: that would divide the states.
    """
    if placement != "auto":
        return client_bytes > 0 and placement == "host"
    num_bytes = federation.num_clients * client_bytes
    is_sparse = federation.most_clients < federation.num_clients
    return num_bytes > DENSE_BYTES and (
        is_sparse or hw.auto_pool(2 * (num_bytes // num_devices)) == "host"
    )


def fit_chunk(
    federation: Federation, max_rounds: int, client_bytes: int, num_devices: int
) -> tuple[int, int]:
    """Returns the rows on the devices where the host stores all client states, and the rounds whose clients fit them.

    Args:
        federation: of the run.
        max_rounds: R, the most rounds of a chunk.
        client_bytes: of one client's state.
        num_devices: that divide the rows.

    >>> fit_chunk(Federation(num_clients=10**6, cohort_size=1000, rounds=50), 64, 2**18, num_devices=1)
    (1024, 1)
    """
    count, size = federation.num_clients, federation.cohort_size
    clients_per_chunk = max(size, min(size * max_rounds, CHUNK_BYTES // client_bytes))
    num_rows = padded(min(count, round_up(clients_per_chunk)), num_devices)
    fits_all = num_rows >= count
    return num_rows, max_rounds if fits_all else min(max_rounds, num_rows // size)


def round_up(number: int) -> int:
    """Returns the number rounded up to four significant bits, so that other partitions have the same shapes.

    >>> [round_up(number) for number in (7, 17, 1000, 1025)]
    [7, 18, 1024, 1152]
    """
    unit = 1 << max(0, number.bit_length() - 4)
    return -(-number // unit) * unit
