"""The rows that each device gets for a chunk of rounds are those that its clients train on."""

import numpy as np

from fedvg_jax.engine import schedule as schedules
from fedvg_jax.runs.placement import pool_rows

ROWS, BATCH = 600, 8


def partition(seed, num_clients=30):
    """Clients of very unequal sizes; some have no row."""
    stream = np.random.default_rng(seed)
    cuts = np.sort(stream.integers(0, ROWS, num_clients - 1) ** 2 // ROWS)
    return np.split(stream.permutation(ROWS).astype(np.int32), cuts)


def round_of(rows, number, num_devices, lanes_together=2, epochs=(1, 1), **changes):
    settings = {"seed": 3, "cohort_size": 12, "batch_size": BATCH, "capacity": 2000, "local_epochs": epochs}
    lanes = {"num_lanes": num_devices * lanes_together, "lanes_together": lanes_together}
    return schedules.make(number, rows, **settings | lanes | changes)


def used_rows(schedule, num_devices, lanes_together=2):
    devices = pool_rows.minibatch_devices(schedule, lanes_together)
    table = schedule.rows[: len(devices)]
    return table, devices, pool_rows.rows_by_device(table, devices, num_devices)


def test_renumbered_minibatches_hold_the_same_rows():
    schedule = round_of(partition(0), 0, 2, block_size=5, probe_ratio=0.5)
    table, devices, rows = used_rows(schedule, 2)
    renumbered = pool_rows.renumber(table, devices, rows)
    for minibatch, device, numbers in zip(table, devices, renumbered, strict=True):
        assert np.array_equal(numbers < 0, minibatch < 0)
        assert np.array_equal(rows[device][numbers[numbers >= 0]], minibatch[minibatch >= 0])


def test_a_client_trains_on_the_device_of_all_its_lanes():
    schedule = round_of(partition(1), 0, 4)
    devices, plan = pool_rows.client_devices(schedule.plan, 2), schedule.plan
    for segment, lane in zip(*np.nonzero(plan.reset | plan.finish), strict=True):
        assert devices[plan.client[segment, lane]] == lane // 2
    assert set(devices[schedule.num_steps > 0]) == {0, 1, 2, 3}


def test_rounds_fit_until_their_different_rows_exceed_the_capacity():
    rounds = [round_of(partition(2), number, 2) for number in range(4)]
    union = [set(), set()]
    for count, schedule in enumerate(rounds, 1):
        for of_device, rows in zip(union, used_rows(schedule, 2)[2], strict=True):
            of_device |= set(rows.tolist())
        most = max(map(len, union))
        assert pool_rows.num_fitting(rounds[:count], 2, most) == count
        assert pool_rows.num_fitting(rounds[:count], 2, most - 1) < count
