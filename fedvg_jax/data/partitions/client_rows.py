"""The result of every partition: the rows of every client, for training, validation and test.

The rows of all clients are one array, with the place where each client's begin: four bytes a client. A Python list of a
million arrays takes 100 MB for the objects alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError

Stream = np.random.Generator | np.random.RandomState


class ClientRows(Sequence):
    """A sequence of int arrays, one per client, which are views of one array.

    Attributes:
        rows: int [T], the rows of client 0, then the rows of client 1, and so on.
        begin: int [N + 1], where each client's rows begin, and where the last client's end.

    >>> clients = ClientRows(np.array([5, 3, 4]), np.array([0, 2, 2, 3]))
    >>> len(clients), [rows.tolist() for rows in clients], sizes(clients).tolist()
    (3, [[5, 3], [], [4]], [2, 0, 1])
    """

    __slots__ = ("begin", "rows")

    def __init__(self, rows: np.ndarray, begin: np.ndarray):
        self.rows, self.begin = rows, begin

    def __len__(self) -> int:
        return len(self.begin) - 1

    def __getitem__(self, client: Any) -> Any:
        place = range(len(self))[client]
        if isinstance(place, range):
            return [self[k] for k in place]
        return self.rows[self.begin[place] : self.begin[place + 1]]


def from_sizes(rows: np.ndarray, counts: np.ndarray | Sequence[int]) -> ClientRows:
    """Divides the rows, in order, among clients with `counts` rows each."""
    return ClientRows(rows, np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))


def pack(clients: Iterable[np.ndarray]) -> ClientRows:
    """Returns one int32 array per client as `ClientRows`."""
    if isinstance(clients, ClientRows):
        return clients
    lists = list(clients)
    rows = np.concatenate([np.zeros(0, np.int32), *lists]).astype(np.int32)
    return from_sizes(rows, [len(rows_of_client) for rows_of_client in lists])


def sizes(clients: Sequence[np.ndarray]) -> np.ndarray:
    """Returns int64 [N], the number of rows of every client."""
    return np.diff(pack(clients).begin).astype(np.int64)


def joined(clients: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the rows of all clients, client after client."""
    return pack(clients).rows


class Partition(NamedTuple):
    """Rows of the pool, one int32 array per client. No row occurs twice; a drawn partition holds every row."""

    train: Sequence[np.ndarray]
    val: Sequence[np.ndarray]
    """One array per client, or a single array if the rows were held out before the division among clients."""
    test: Sequence[np.ndarray]
    """As `val`."""


def checked(
    parts: Sequence[Sequence[Any]], num_samples: int, num_clients: int, source: object
) -> list[list[np.ndarray]]:
    """Returns the rows of every client in every part, as int64 arrays.

    Args:
        parts: the rows of every client; beside the first part, one array may stand for all clients.
        num_samples: T, rows of the pool.
        num_clients: N.
        source: its name in errors.

    Raises:
        UsageError: there are not `num_clients` clients, or a row is out of range or duplicated.
        ValueError: rows are not integers [n].
    """
    arrays = [list(map(_as_rows, part)) for part in parts]
    first, *others = map(len, arrays)
    if first != num_clients or {*others} - {num_clients, 1}:
        raise UsageError(
            f"{source}: holds rows of {first} clients, clients is {num_clients}; make them equal"
        )
    every = np.concatenate([rows for part in arrays for rows in part])
    values, counts = np.unique(every, return_counts=True)
    wrong = values[(counts > 1) | (values < 0) | (values >= num_samples)]
    if wrong.size:
        raise UsageError(
            f"{source}: row {wrong[0]} must be in 0..{num_samples - 1} and occur once; correct or remove it"
        )
    return arrays


def _as_rows(rows: Any) -> np.ndarray:
    """Returns the rows of a client as an array; raises ValueError for others than integers [n]."""
    array = np.asarray(rows)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"rows of a client must be integers [n], got {array.dtype} {array.shape}")
    return array.astype(np.int64)


def refuse_small(rows: Sequence[np.ndarray], min_samples: int, source: object) -> None:
    """Raises a UsageError that names the smallest client if it has fewer than `min_samples` rows."""
    counts = sizes(rows)
    if counts.min() < min_samples:
        raise UsageError(
            f"{source}: client {counts.argmin()} has {counts.min()} samples, fewer than --min-samples {min_samples}:"
            " use fewer clients or a smaller --min-samples"
        )


MAX_LISTED = 100_000
"""Clients up to which the statistics list every client."""


def describe(labels: np.ndarray, class_names: Sequence[str], parts: Partition) -> dict[str, Any]:
    """Returns rows and label counts of every client, as JSON values.

    Beyond `MAX_LISTED` clients there are no lists of all clients, which would take hundreds of megabytes.

    Args:
        labels: [T]. For labels that are not integers, or without class names (regression), only sizes are counted.
        class_names: [C], or empty.
        parts: the partition.
    """
    about: dict[str, Any] = {"clients": len(parts.train), "class_names": [*class_names]}
    if len(parts.train) > MAX_LISTED:
        return about
    for prefix, part in zip(("", "val_", "test_"), parts, strict=True):
        about[f"{prefix}samples"] = sizes(part).tolist()
    if class_names and labels.ndim == 1 and labels.dtype.kind in "iu":
        counts = [np.bincount(labels[rows], minlength=len(class_names)) for rows in parts.train]
        about["counts"] = np.array(counts).tolist()
    return about


# --- training, validation and test rows


def split_clients(
    clients: ClientRows, test_ratio: float, val_ratio: float, stream: Stream
) -> Partition:
    """Splits each client's rows at random, client after client; not stratified.

    Of n rows, floor(test_ratio n) are for test, floor(val_ratio n) for validation and the others for training.

    Args:
        clients: the rows of every client.
        test_ratio: in [0, 1).
        val_ratio: in [0, 1).
        stream: consumed.

    >>> parts = split_clients(pack([np.arange(10)]), 0.25, 0.1, np.random.default_rng(0))
    >>> [len(rows) for part in parts for rows in part]
    [7, 1, 2]
    """
    counts, shuffled = sizes(clients), clients.rows.astype(np.int32)
    for rows in ClientRows(shuffled, clients.begin):
        stream.shuffle(rows)
    num_test, num_val = ((ratio * counts).astype(int) for ratio in (test_ratio, val_ratio))
    owner = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(owner)) - clients.begin[owner]
    is_test, is_train = place < num_test[owner], place >= (num_test + num_val)[owner]
    return Partition(
        from_sizes(shuffled[is_train], counts - num_test - num_val),
        from_sizes(shuffled[~(is_test | is_train)], num_val),
        from_sizes(shuffled[is_test], num_test),
    )


def hold_out_groups(
    groups: np.ndarray, num_test: int, num_val: int, stream: np.random.Generator
) -> Sequence[np.ndarray]:
    """Holds whole groups out: in random order, each joins the test rows where it still fits, or the validation rows.

    Args:
        groups: [T], integers or strings.
        num_test: most test rows.
        num_val: most validation rows.
        stream: consumed.

    Returns:
        int32 (test, validation, remaining) rows, each in random order; no group is in two of them.

    >>> test, val, remaining = hold_out_groups(np.array([5, 5, 7, 7, 7, 7]), 2, 0, np.random.default_rng(0))
    >>> sorted(test.tolist()), val.tolist(), sorted(remaining.tolist())
    ([0, 1], [], [2, 3, 4, 5])
    """
    _, member, counts = np.unique(groups, return_inverse=True, return_counts=True)
    left = np.array([num_test, num_val, len(groups)])
    part_of = np.zeros(len(counts), int)
    for group in stream.permutation(len(counts)):
        part = np.argmax(counts[group] <= left)
        part_of[group] = part
        left[part] -= counts[group]
    order = stream.permutation(len(groups)).astype(np.int32)
    part_of_row = part_of[member][order]
    return [order[part_of_row == part] for part in range(3)]
