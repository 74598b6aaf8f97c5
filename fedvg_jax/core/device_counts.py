"""How many devices share a cohort, and how many of them score one client. No jax."""

from __future__ import annotations

import math


def num_parts(num_devices: int, num_clients: int) -> int:
    """Returns P, how many devices score one client together: as many as divide D and leave one for each client.

    Args:
        num_devices: D.
        num_clients: K.

    >>> [num_parts(devices, 4) for devices in (1, 4, 7, 8, 12, 16, 18)]
    [1, 1, 1, 2, 3, 4, 3]
    """
    most = max(1, num_devices // num_clients)
    return next(parts for parts in range(most, 0, -1) if num_devices % parts == 0)


def most_devices(num_devices: int, num_clients: int, num_processes: int = 1) -> int | None:
    """Returns the fewest of D devices that give a client as many devices as possible; None if that is one each.

    Args:
        num_devices: D.
        num_clients: K.
        num_processes: processes that have equally many of the devices.

    >>> most_devices(16, 5), most_devices(32, 5, num_processes=4), most_devices(7, 4)
    (15, 20, None)
    """
    for parts in range(num_devices // num_clients, 1, -1):
        unit = math.lcm(parts, num_processes)
        count = unit * -(-parts * num_clients // unit)
        if count <= num_devices:
            return count
    return None
