"""Rows of clients, packed into one array plus four bytes per client for each part of a partition."""

import numpy as np
import pytest

from fedvg_jax.data.partitions import client_rows
from fedvg_jax.data.partitions.draw import draw_partition
from fedvg_jax.engine import schedule

LISTS = [np.array([5, 3]), np.array([], int), np.array([4, 9, 1])]


def test_packed_rows_equal_the_lists():
    packed = client_rows.pack(LISTS)
    assert len(packed) == 3 and [rows.tolist() for rows in packed] == [rows.tolist() for rows in LISTS]
    assert packed[-1].tolist() == [4, 9, 1] and [rows.tolist() for rows in packed[1:]] == [[], [4, 9, 1]]
    assert client_rows.sizes(packed).tolist() == client_rows.sizes(LISTS).tolist() == [2, 0, 3]
    assert client_rows.joined(packed).tolist() == client_rows.joined(LISTS).tolist()
    assert client_rows.pack(packed) is packed and len(client_rows.pack([])) == 0
    with pytest.raises(IndexError):
        packed[3]


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
def test_partition_takes_12_bytes_per_client_besides_its_rows(kind):
    parts = draw_partition(np.arange(2000) % 4, kind=kind, num_clients=40, alpha=10.0)
    assert sum(part.begin.nbytes for part in parts) == 12 * 41
    assert sum(part.rows.nbytes for part in parts) == 4 * 2000


def test_capacity_of_a_small_cohort_is_bounded_by_the_largest_client():
    settings = {"pool_size": 12_000_000, "cohort_size": 1000, "local_epochs": 5, "batch_size": 16}
    assert schedule.capacity(**settings) == 5 * (750_000 + 1001)
    assert schedule.capacity(**settings, largest=8) == 2**14  # 5 x 1000 = 5000 minibatches; a MiB of rows at least
    assert schedule.capacity(**settings, largest=20) == 2**14  # 10,000 minibatches
    small = {"pool_size": 60_000, "cohort_size": 10, "local_epochs": 5, "batch_size": 32}
    assert schedule.capacity(**small, largest=2) == schedule.capacity(**small), "small programs depend on `largest`"
