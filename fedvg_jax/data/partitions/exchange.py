"""Partitions in files and Python arrays: read, fully checked, and written."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.arrays import quiet_libraries
from fedvg_jax.data.partitions.client_rows import pack
from fedvg_jax.data.partitions.split import Partition, as_members, random_stream, refuse_small, split_clients
from fedvg_jax.data.readers import npz
from fedvg_jax.host import files

LAYOUT = (
    ".npz: `train`, `val`, `test` rows with `train_sizes`, .. [N]; or the rows of client k as `k`."
    ' .json: a list of N lists of rows, or {"0": rows, "1": ..}; or {"train": either of these, "val": .., "test": ..}.'
    " With training, validation and test rows, `num_rows` may be T, the rows of the pool"
)
"""Layouts of a file. Rows count from 0 in the pool, training set first. Rows may be left out.

Rows by the number of the client are what the partitioners of flwr-datasets and FedLab hold, as dicts of lists or
arrays.
"""

NUM_ROWS = "num_rows"
"""Member of a file: T, rows of the pool that it divides."""

_MEMBERS = frozenset({NUM_ROWS, *Partition._fields, *(f"{name}_sizes" for name in Partition._fields)})

_MAX_ROW = np.iinfo(np.int64).max

Rows = Sequence[np.ndarray]


def read(file: Path, num_samples: int | None = None) -> Partition | Rows:
    """Reads a partition, or the rows of each client that are yet to be split; not checked.

    Args:
        file: an .npz or .json file with `LAYOUT`.
        num_samples: T, rows of the pool, which a file may name; None skips this check.

    Raises:
        UsageError: the file cannot be read, or does not hold `LAYOUT`.
    """
    try:
        with quiet_libraries():
            members = _members(file)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {files.reason(error)}; it must hold {LAYOUT}") from None
    except UsageError as error:
        raise UsageError(f"{error}; it must hold {LAYOUT}") from None
    try:
        return _parse(members, num_samples)
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{file}: not a partition ({' '.join(str(error).split())}); it must hold {LAYOUT}") from None


def _members(file: Path) -> Any:
    """Returns the value of a .json file, or the arrays of an .npz file whose names a layout has."""
    if file.suffix == ".json":
        return files.read_json(file)
    files.refuse_special(file)
    return npz.read(file, _MEMBERS.union(name for name in npz.member_names(file) if _is_number(name)))


def check(
    given: Partition | tuple | Rows,
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
        given: a `Partition` or a tuple (train, val, test), whose clients may have no rows; or a list of the rows of
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
    is_split = isinstance(given, tuple)
    try:
        if isinstance(given, Mapping):
            raise TypeError("its clients have no order")
        train, val, test = given if is_split else (given, [], [])
        parts = Partition(*([_rows(rows, num_samples, source) for rows in part] for part in (train, val, test)))
    except UsageError:
        raise
    except (TypeError, ValueError):
        raise UsageError(f"{source}: must be (train, val, test), or a list of each client's rows") from None
    for name, part in parts._asdict().items():
        allowed = (num_clients,) if name == "train" else (num_clients, 1) if is_split else (0,)
        if len(part) not in allowed:
            raise UsageError(f"{source}: {name} holds {len(part)} clients, clients is {num_clients}; make them equal")
    _refuse_overlap(parts, num_samples, source)
    parts = Partition(*map(pack, parts))
    if is_split:
        return parts
    refuse_small(parts.train, min_samples, source)
    return split_clients(parts.train, test_ratio, val_ratio, random_stream("file", seed))


def _parse(members: Any, num_samples: int | None = None) -> Partition | Rows:
    if isinstance(members, list):
        return _lists(members)
    if not isinstance(members, Mapping):
        raise TypeError(f"a list or an object is needed, got {type(members).__name__}")
    if members and all(_is_number(name) for name in members):
        return _by_number(members)
    num_rows = members.get(NUM_ROWS)
    if num_rows is not None and num_samples is not None and num_rows != num_samples:
        raise ValueError(
            f"it divides {num_rows} rows, and the data set has {num_samples}; use the data set and max_rows that it was"
            " made with"
        )
    return Partition(*(_part(members, name) for name in Partition._fields))


def _is_number(name: str) -> bool:
    return name.isdecimal() and name.isascii() and len(name) < 10


def _by_number(clients: Mapping[str, Any]) -> list[np.ndarray]:
    """Returns the rows of clients 0..N-1, given by the number of the client as text."""
    expected = [str(k) for k in range(len(clients))]
    if missing := [name for name in expected if name not in clients]:
        raise ValueError(f"client {missing[0]} of {len(clients)} is missing; they count from 0")
    return [rows if isinstance(rows, np.ndarray) else _lists([rows])[0] for rows in map(clients.get, expected)]


def _lists(clients: list) -> list[np.ndarray]:
    if not all(isinstance(rows, list) for rows in clients):
        raise TypeError("a client's rows must be a list")
    return [np.array(rows, dtype=None if rows else np.int32) for rows in clients]


def _part(members: Mapping[str, Any], name: str) -> list[np.ndarray]:
    missing = [key for key in (name, f"{name}_sizes") if key not in members]
    if name in missing or (missing and not isinstance(members[name], (list, dict))):
        raise ValueError(f"no {missing[0]}")
    if isinstance(members[name], list):
        return _lists(members[name])
    if isinstance(members[name], dict):
        return _by_number(members[name])
    sizes, total = np.asarray(members[f"{name}_sizes"]), len(members[name])
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or not (sizes.min() >= 0 and sizes.max() <= total):
        raise ValueError(f"{name}_sizes must be numbers [N] of 0..{total}")
    ends = np.cumsum(sizes.astype(np.int64))
    if ends[-1] != total:
        raise ValueError(f"{name}_sizes add up to {ends[-1]}, but {name} has {total} rows")
    return np.split(members[name], ends[:-1])


def _rows(rows: Any, num_samples: int, source: object) -> np.ndarray:
    array = np.asarray(rows)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or not array.size):
        raise UsageError(f"{source}: a client's rows must be integers [n], got {array.dtype} {list(array.shape)}")
    if array.max(initial=0) > _MAX_ROW:  # an int64 would wrap
        raise UsageError(f"{source}: rows must be 0..{num_samples - 1}, got {array.min()}..{array.max()}")
    return array.astype(np.int64)


def _refuse_overlap(parts: Partition, num_samples: int, source: object) -> None:
    rows = np.concatenate([rows for part in parts for rows in part])
    if len(rows) and not (rows.min() >= 0 and rows.max() < num_samples):
        raise UsageError(f"{source}: rows must be 0..{num_samples - 1}, got {rows.min()}..{rows.max()}")
    values, counts = np.unique(rows, return_counts=True)
    if (counts > 1).any():
        row = values[counts.argmax()]
        raise UsageError(f"{source}: row {row} occurs {counts.max()} times; give it once only")


def write(file: Path, partition: Partition, num_samples: int | None = None) -> None:
    """Writes the training, validation and test rows of every client, atomically.

    Args:
        file: ends in .npz or .json; an existing file is replaced.
        partition: the rows.
        num_samples: T, rows of the pool, so that the file is refused for another pool.

    Raises:
        UsageError: the file cannot be written.
    """
    count = {} if num_samples is None else {NUM_ROWS: num_samples}
    if file.suffix == ".npz":
        buffer = io.BytesIO()
        np.savez(buffer, **as_members(partition), **count)  # pyright: ignore[reportArgumentType]
        content = buffer.getvalue()
    else:
        parts = {name: [rows.tolist() for rows in part] for name, part in partition._asdict().items()}
        content = json.dumps(parts | count).encode()
    with files.writing(file, "--export-partition"):
        files.replace_bytes(files.export_target(file, "export_partition"), [content])
