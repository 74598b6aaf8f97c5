"""Which placement the client states of a run have. It depends on sizes, never on the seed."""

from __future__ import annotations

from jax.sharding import NamedSharding

from fedvg_jax.core import tree
from fedvg_jax.core.types import Tree
from fedvg_jax.host import hardware as hw
from fedvg_jax.runs.placement import on_devices, on_host
from fedvg_jax.runs.placement.client_states import Federation, Placement, padded

DENSE_BYTES = 2**26
"""Bytes up to which the devices store the states of all clients."""

CHUNK_BYTES = 2**26
"""Bytes of the states of a chunk's clients, where the host stores them; the states of one cohort may take more."""


def choose(
    placement: str,
    federation: Federation,
    fresh: Tree,
    max_rounds: int,
    sharding: NamedSharding | None,
) -> Placement:
    """Returns the operations of the place where a run stores its client states.

    Args:
        placement: "auto", "device" or "host".
        federation: of the run.
        fresh: the state of a client that was not sampled yet, leaves [1, ...] on the devices.
        max_rounds: R, the most rounds of a chunk.
        sharding: of the rows over devices; None if each device stores all.
    """
    client_bytes, num_devices = tree.num_bytes(fresh), sharding.mesh.size if sharding else 1
    if stays_on_host(placement, federation, client_bytes, num_devices):
        num_rows, fitting = fit_chunk(federation, client_bytes, max_rounds, num_devices)
        return on_host.make(federation, fitting, fresh, num_rows, sharding)
    return on_devices.make(federation.num_clients, max_rounds, fresh, sharding)


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
    federation: Federation, client_bytes: int, max_rounds: int, num_devices: int
) -> tuple[int, int]:
    """Returns the rows on the devices where the host stores all client states, and the rounds whose clients fit them.

    Args:
        federation: of the run.
        client_bytes: of one client's state.
        max_rounds: R, the most rounds of a chunk.
        num_devices: that divide the rows.

    >>> fit_chunk(Federation(num_clients=10**6, cohort_size=1000, rounds=50), 2**18, 64, num_devices=1)
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
