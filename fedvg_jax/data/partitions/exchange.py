"""Partitions in files and Python arrays: read, fully checked, and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.arrays import reading
from fedvg_jax.data.partitions import client_rows
from fedvg_jax.data.partitions.client_rows import Partition
from fedvg_jax.data.readers import npz
from fedvg_jax.host import files

LAYOUT = (
    ".npz: `train`, `val`, `test` rows and `train_sizes`, .. [N], as fedvg_jax.data.write_partition writes them;"
    " .json: a list of the rows of each client, which are then split"
)
"""Layouts of a file. Rows count from 0 in the pool, training set first. Rows may be left out."""

NUM_ROWS = "num_rows"
"""Member of a file: T, rows of the pool that it divides."""

_MEMBERS = frozenset(
    {NUM_ROWS, *Partition._fields, *(f"{name}_sizes" for name in Partition._fields)}
)

Rows = Sequence[np.ndarray]


def read(file: Path, num_samples: int | None = None) -> Partition | Rows:
    """Reads a partition, or the rows of each client that are yet to be split; not checked.

    Args:
        file: an .npz or .json file with `LAYOUT`.
        num_samples: T, rows of the pool, which a file may name; None skips this check.

    Raises:
        UsageError: the file cannot be read, or does not hold `LAYOUT`.
    """
    with reading(file, "a partition", f"it must hold {LAYOUT}"):
        if file.suffix == ".json":
            return [
                np.array(rows, dtype=None if rows else np.int32) for rows in files.read_json(file)
            ]
        members = npz.read(file, _MEMBERS)
        num_rows = members.get(NUM_ROWS)
        if None not in (num_rows, num_samples) and num_rows != num_samples:
            raise UsageError(
                f"{file}: divides {num_rows} rows, and the data set has {num_samples}; use the data set and max_rows"
                " that it was made with"
            )
        return Partition(*(_part(members, name) for name in Partition._fields))


def check(
    partition: Partition | tuple | Rows,
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
    with reading(source, "a partition", "give (train, val, test), or a list of each client's rows"):
        train, val, test = partition if is_split else (partition, [], [])
        parts = Partition(
            *([_rows(rows, num_samples, source) for rows in part] for part in (train, val, test))
        )
    for name, part in parts._asdict().items():
        allowed = (num_clients,) if name == "train" else (num_clients, 1) if is_split else (0,)
        if len(part) not in allowed:
            raise UsageError(
                f"{source}: {name} holds {len(part)} clients, clients is {num_clients}; make them equal"
            )
    _refuse_overlap(parts, source)
    parts = Partition(*map(client_rows.pack, parts))
    if is_split:
        return parts
    client_rows.refuse_small(parts.train, min_samples, source)
    return client_rows.split_clients(
        parts.train, test_ratio, val_ratio, client_rows.random_stream("file", seed)
    )


def _part(members: Mapping[str, np.ndarray], name: str) -> Rows:
    rows, sizes = members[name], members[f"{name}_sizes"].astype(np.int64, casting="safe")
    if sizes.ndim != 1 or sizes.min() < 0 or sizes.max() > len(rows) or sizes.sum() != len(rows):
        raise ValueError(
            f"{name}_sizes must be numbers [N] that add up to {len(rows)}, the rows of {name}"
        )
    return client_rows.from_sizes(rows, sizes)


def _rows(rows: object, num_samples: int, source: object) -> np.ndarray:
    array = np.asarray(rows)
    if array.ndim != 1 or not (array.dtype.kind in "iu" or not array.size):
        raise UsageError(
            f"{source}: a client's rows must be integers [n], got {array.dtype} {list(array.shape)}"
        )
    if array.size and not (array.min() >= 0 and array.max() < num_samples):
        raise UsageError(
            f"{source}: rows must be 0..{num_samples - 1}, got {array.min()}..{array.max()}"
        )
    return array.astype(np.int64)


def _refuse_overlap(parts: Partition, source: object) -> None:
    values, counts = np.unique(
        np.concatenate([rows for part in parts for rows in part]), return_counts=True
    )
    if (counts > 1).any():
        row = values[counts.argmax()]
        raise UsageError(f"{source}: row {row} occurs {counts.max()} times; give it once only")


def write(file: Path, partition: Partition, num_samples: int | None = None) -> None:
    """Writes the training, validation and test rows of every client, atomically.

    Args:
        file: ends in .npz; an existing file is replaced.
        partition: the rows.
        num_samples: T, rows of the pool, so that the file is refused for another pool.

    Raises:
        UsageError: the file cannot be written.
    """
    count = {} if num_samples is None else {NUM_ROWS: num_samples}
    target = files.export_target(file, "write_partition")
    with (
        files.writing(file, "write_partition"),
        files.drafting(target) as draft,
        draft.open("wb") as stream,
    ):
        np.savez(stream, **client_rows.as_members(partition), **count)  # pyright: ignore[reportArgumentType]
