"""Partitions in files and Python arrays."""

import json

import numpy as np
import pytest
from support.files import same_partition

from fedvg_jax import data
from fedvg_jax.data.partitions import exchange

LABELS = np.arange(60) % 4
GIVEN = [[0, 3, 5, 6, 7, 8], [1, 2, 9, 10]]
"""Rows of two clients, of twelve."""


def check(given, **changes):
    settings = {"num_samples": 12, "num_clients": 2, "source": "here", "test_ratio": 0.34, "val_ratio": 0.25}
    return exchange.check(given, **settings | changes)


@pytest.mark.parametrize("held_out", ["client", "global"])
def test_written_parts_are_read_as_the_same_partition(tmp_path, held_out):
    partition = data.draw_partition(LABELS, num_clients=3, alpha=1.0, min_samples=8, held_out=held_out)
    exchange.write(tmp_path / "rows.npz", partition, len(LABELS))
    actual = check(exchange.read(tmp_path / "rows.npz", len(LABELS)), num_samples=len(LABELS), num_clients=3)
    assert same_partition(actual, partition)
    assert {rows.dtype for part in actual for rows in part} == {np.dtype(np.int32)}


def test_rows_by_client_are_read_and_split(tmp_path):
    file, parts = tmp_path / "list.json", check([np.array(client_rows) for client_rows in GIVEN])
    assert [list(map(len, part)) for part in (parts.test, parts.val)] == [[2, 1], [1, 1]]
    assert [sorted(np.concatenate(own).tolist()) for own in zip(*parts, strict=True)] == GIVEN
    file.write_text(json.dumps(GIVEN))
    assert same_partition(check(exchange.read(file)), parts)


def test_given_parts_are_taken_as_they_are():
    given = ([[0, 1], [2]], [[3], []], [[4], [5]])
    parts = check(given, test_ratio=0.6, val_ratio=0.3, min_samples=100, seed=7)
    assert [[rows.tolist() for rows in part] for part in parts] == [list(part) for part in given]
