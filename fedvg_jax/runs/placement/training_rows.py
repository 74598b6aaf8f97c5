"""Which rows of the pool the devices need for a chunk of rounds, and the schedules with numbers of those rows only.

NumPy only. Every process computes the same result, from the schedules alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedvg_jax.core.types import Plan, Schedule
from fedvg_jax.engine import lane_plan


def minibatch_devices(schedule: Schedule, lanes_together: int) -> np.ndarray:
    """Returns int64 [F'], the device of each minibatch that the schedule of one round uses, in the order of its table.

    A client trains on the device of its lanes. Its probe runs where the executor maps its position in the cohort.

    Args:
        schedule: of one round.
        lanes_together: lanes of one device.

    >>> from fedvg_jax.engine import schedule as schedules
    >>> one, two = np.zeros((1, 4), np.int32), np.zeros((2, 4), np.int32)
    >>> schedule = schedules.pack([7, 3], [one, two], [4, 8], num_lanes=2, capacity=3)
    >>> minibatch_devices(schedule, 1).tolist()
    [1, 0, 0]
    """
    num_clients, size = len(schedule.clients), lane_plan.block_size(schedule.plan)
    num_devices = schedule.plan.client.shape[-1] // lanes_together
    trained = client_devices(schedule.plan, lanes_together)[:num_clients]
    probed = np.arange(num_clients) % size // -(-size // num_devices)
    by_part = np.stack([trained, probed], 1).ravel()
    return np.repeat(by_part, np.stack([schedule.num_steps, schedule.probe_steps], 1).ravel())


def client_devices(plan: Plan, lanes_together: int) -> np.ndarray:
    """Returns int64 [K], the device of each client of a plan; 0 for clients without steps.

    Args:
        plan: of a cohort, or the stacked plans of its cohort blocks; then dummy clients are included.
        lanes_together: lanes of one device.
    """
    size = lane_plan.block_size(plan)
    is_load, client = (leaf.reshape(-1, *leaf.shape[-2:]) for leaf in (plan.reset, plan.client))
    block, segment, lane = np.nonzero(is_load)
    devices = np.zeros(len(is_load) * size, np.int64)
    devices[block * size + client[block, segment, lane]] = lane // lanes_together
    return devices


def rows_by_device(table: np.ndarray, devices: np.ndarray, num_devices: int) -> list[np.ndarray]:
    """Returns for each device the different rows of its minibatches, ascending.

    Args:
        table: int32 [F', B] minibatches, -1 for padding.
        devices: [F'] the device of each.
        num_devices: D.
    """
    unique = (np.unique(table[devices == d]) for d in range(num_devices))
    return [rows[np.searchsorted(rows, 0) :] for rows in unique]


def renumber(table: np.ndarray, devices: np.ndarray, rows: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the minibatches with positions in their device's `rows` in place of rows of the pool.

    Args:
        table: int32 [F', B] minibatches, -1 for padding.
        devices: [F'] the device of each.
        rows: of each device, ascending; they include all of its minibatches.

    >>> table, devices = np.array([[7, 3], [9, -1], [7, 9]]), np.array([0, 0, 1])
    >>> renumber(table, devices, rows_by_device(table, devices, 2)).tolist()
    [[1, 0], [2, -1], [0, 1]]
    """
    result = np.full(table.shape, -1, np.int32)
    for d, of_device in enumerate(rows):
        own = table[devices == d]
        result[devices == d] = np.where(own < 0, -1, np.searchsorted(of_device, own))
    return result


def num_fitting(rounds: Sequence[Schedule], lanes_together: int, capacity: int) -> int:
    """Returns how many of the rounds, from the first on, need at most `capacity` different rows on every device."""
    num_devices = rounds[0].plan.client.shape[-1] // lanes_together
    needed = [np.zeros(0, np.int32)] * num_devices
    for number, schedule in enumerate(rounds):
        devices = minibatch_devices(schedule, lanes_together)
        new = rows_by_device(schedule.rows[: len(devices)], devices, num_devices)
        needed = [np.union1d(*pair) for pair in zip(needed, new, strict=True)]
        if max(map(len, needed)) > capacity:
            return number
    return len(rounds)


def most_rows_of_round(
    sizes: np.ndarray,
    cohort_size: int,
    *,
    batch_size: int,
    local_epochs: tuple[int, int],
    num_devices: int = 1,
    block_size: int | None = None,
    probe_ratio: float = 0.0,
    single_batches: bool = False,
) -> int:
    """Returns a bound on the different rows that a device needs for any round.

    On one device these are at most the rows of the K largest clients. Of D devices, each has at most S / D + m of a
    cohort block's S local steps, where m is the longest client's (LPT), so with E_1 to E_2 epochs of minibatches of B
    rows, a device has at most

        B (E_2 / E_1) (sum_k ceil(n_k / B) / D + sum_b max_k ceil(n_k / B))

    rows to train on, and the rows of the probes that it runs.

    Args:
        sizes: [N] training rows of every client.
        cohort_size: K.
        batch_size: B.
        local_epochs: E_1 and E_2, fewest and most.
        num_devices: D.
        block_size: H, clients of a cohort block; None for the whole cohort.
        probe_ratio: share of a client's rows that the algorithm's probe reads.
        single_batches: whether a local epoch is one minibatch.

    >>> settings = {"batch_size": 10, "local_epochs": (1, 1)}
    >>> sizes = np.array([100, 10, 20, 30, 20, 20])
    >>> [most_rows_of_round(sizes, 4, num_devices=d, **settings) for d in (1, 2)]
    [170, 170]
    >>> most_rows_of_round(np.full(100, 50), 40, num_devices=4, **settings)
    550
    """
    largest = np.sort(np.asarray(sizes, np.int64))[::-1][:cohort_size]
    of_all = int(largest.sum())
    if num_devices == 1:
        return of_all
    fewest, most = local_epochs
    size = block_size or cohort_size
    num_blocks = -(-cohort_size // size)
    batches = np.minimum(1, largest) if single_batches else -(-largest // batch_size)
    steps = -(-int(batches.sum()) // num_devices) + int(batches[:num_blocks].sum())
    trained = batch_size * steps * (most if single_batches else -(-most // fewest))
    probed = int((probe_ratio * largest[: num_blocks * -(-size // num_devices)]).sum())
    return min(of_all, trained + probed)
