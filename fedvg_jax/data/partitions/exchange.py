"""Partitions in files and Python arrays: read, fully checked, and written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedvg_jax.data.arrays import reading
from fedvg_jax.data.partitions import client_rows
from fedvg_jax.data.partitions.client_rows import Partition
from fedvg_jax.data.partitions.partitioners import default_stream
from fedvg_jax.host import files

LAYOUT = (
    "a JSON object with lists of rows of each client, `train`, `val` and `test`, as write_partition writes it; or a"
    " list of the rows of each client, which are then split"
)
"""Layouts of a file. Rows count from 0 in the pool, training set first. Rows may be left out."""

Rows = Sequence[Any]
"""The rows of every client, integers [n] each"""


def read(file: Path) -> tuple | Rows:
    """Reads a partition, or the rows of each client that are yet to be split; not checked.

    Args:
        file: a .json file with `LAYOUT`.

    Raises:
        UsageError: the file cannot be read, or does not hold `LAYOUT`.
    """
    with reading(file, "a partition", f"it must hold {LAYOUT}"):
        content = files.read_json(file)
        is_list = isinstance(content, list)
        return content if is_list else tuple(content[name] for name in Partition._fields)


def check(
    partition: tuple | Rows,
    *,
    num_samples: int,
    num_clients: int,
    source: object,
    min_samples: int = 1,
    test_ratio: float = 0.25,
    val_ratio: float = 0.1,
    seed: int = 42,
) -> Partition:
    """Returns a checked partition in canonical dtype; lists of each client's rows are split by `split_clients`.

    Args:
        partition: a `Partition` or a tuple (train, val, test), where clients may have no rows; or a list of the rows of
            every client, at least `min_samples` each.
        num_samples: T, rows of the pool.
        num_clients: N.
        source: its name in errors.
        min_samples: rows of every client before the split; this and the next three are for a list only.
        test_ratio: part of each client's rows for test, rounded down.
        val_ratio: the same for validation.
        seed: of the split.

    Raises:
        UsageError: rows are not integers, out of range or duplicated; or there are not `num_clients` clients.

    >>> parts = check([[0, 1, 2, 3], [4, 5, 6, 7]], num_samples=8, num_clients=2, source="example")
    >>> [len(rows) for rows in parts.train], [len(rows) for rows in parts.test]
    ([3, 3], [1, 1])
    """
    is_split = isinstance(partition, tuple)
    remedy = "give (train, val, test), a list of each client's rows, or a Partitioner"
    with reading(source, "a partition", remedy):
        parts = Partition(*partition) if is_split else [partition]
        parts = client_rows.checked(parts, num_samples, num_clients, source)
    if is_split:
        return Partition(*map(client_rows.pack, parts))
    train = client_rows.pack(*parts)
    client_rows.refuse_small(train, min_samples, source)
    return client_rows.split_clients(train, test_ratio, val_ratio, default_stream(seed))


def write(file: Path, partition: Partition) -> None:
    """Writes the training, validation and test rows of every client as JSON, atomically.

    Args:
        file: an existing file is replaced.
        partition: the rows.

    Raises:
        UsageError: the file cannot be written.
    """
    content = {}
    for name, part in partition._asdict().items():
        content[name] = [rows.tolist() for rows in part]
    target = files.export_target(file, "write_partition")
    with files.writing(file, "write_partition"):
        files.replace(target, json.dumps(content))
