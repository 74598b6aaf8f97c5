"""The result of every partition: the rows of every client, and their split into training, validation and test rows.

The rows of all clients are one array, with the place where each client's begin: four bytes a client. A Python list of a
million arrays takes 100 MB for the objects alone.

The published protocol splits each client's rows 65 / 10 / 25. Three alternatives hold validation and test rows out of
the whole data set before it is divided among clients (`hold_out`).

Statistics of a partition: samples and classes of every client.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError


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
        if isinstance(client, slice):
            return [self[k] for k in range(*client.indices(len(self)))]
        if not -len(self) <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        k = int(client) % len(self)
        return self.rows[self.begin[k] : self.begin[k + 1]]


def from_sizes(rows: np.ndarray, counts: np.ndarray | Sequence[int]) -> ClientRows:
    """Divides the rows, in order, among clients with `counts` rows each."""
    ends = np.cumsum(np.asarray(counts, np.int64))
    dtype = np.int32 if not len(ends) or ends[-1] < 2**31 else np.int64
    return ClientRows(rows, np.concatenate([np.zeros(1, dtype), ends.astype(dtype)]))


def pack(lists: Iterable[np.ndarray]) -> ClientRows:
    """Returns one int32 array per client as `ClientRows`."""
    if isinstance(lists, ClientRows):
        return lists
    lists = list(lists)
    rows = np.concatenate(lists).astype(np.int32, copy=False) if lists else np.zeros(0, np.int32)
    return from_sizes(rows, [len(rows_of_client) for rows_of_client in lists])


def sizes(clients: Sequence[np.ndarray]) -> np.ndarray:
    """Returns int64 [N], the number of rows of every client."""
    if isinstance(clients, ClientRows):
        return np.diff(clients.begin).astype(np.int64)
    return np.array([len(rows) for rows in clients], np.int64)


def joined(clients: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the rows of all clients, client after client."""
    return clients.rows if isinstance(clients, ClientRows) else np.concatenate(clients)


# --- training, validation and test rows

Stream = np.random.Generator | np.random.RandomState

_DOMAIN = int.from_bytes(b"partition")
"""Separates this stream from others that are seeded with the same number."""


class Partition(NamedTuple):
    """Rows of the pool, one int32 array per client. No row occurs twice; a drawn partition holds every row."""

    train: Sequence[np.ndarray]
    val: Sequence[np.ndarray]
    """One array per client, or a single array if the rows were held out before the division among clients."""
    test: Sequence[np.ndarray]
    """As `val`."""


def random_stream(kind: str, seed: int) -> Stream:
    """Returns the stream that a partition consumes, from its first draw to the split of its last client."""
    return (
        np.random.RandomState(seed)
        if kind == "official"
        else np.random.default_rng([seed, _DOMAIN])
    )


def split_clients(
    rows: Sequence[np.ndarray], test_ratio: float, val_ratio: float, stream: Stream
) -> Partition:
    """Splits each client's rows at random, client after client; not stratified.

    Of n rows, floor(test_ratio n) are for test, floor(val_ratio n) for validation and the others for training.

    Args:
        rows: one int array per client.
        test_ratio: in [0, 1).
        val_ratio: in [0, 1).
        stream: consumed.

    >>> parts = split_clients([np.arange(10)], 0.25, 0.1, np.random.default_rng(0))
    >>> [len(rows) for part in parts for rows in part]
    [7, 1, 2]
    """
    counts = sizes(rows)
    num_test, num_val = ((ratio * counts).astype(np.int64) for ratio in (test_ratio, val_ratio))
    parts = [
        from_sizes(np.empty(n.sum(), np.int32), n)
        for n in (counts - num_test - num_val, num_val, num_test)
    ]
    for k, client_rows in enumerate(rows):
        shuffled = client_rows.copy()
        stream.shuffle(shuffled)
        test, val, train = np.split(shuffled, [num_test[k], num_test[k] + num_val[k]])
        for part, chosen in zip(parts, (train, val, test), strict=True):
            part[k][:] = chosen
    return Partition(*parts)


def hold_out(
    how: str,
    labels: np.ndarray,
    groups: np.ndarray | None,
    test_ratio: float,
    val_ratio: float,
    stream: Stream,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Holds floor(test_ratio T) test rows and floor(val_ratio T) validation rows out of the whole data set.

    Args:
        how: "global", uniformly random rows; "stratified", every class in proportion; "group", whole groups, see
            `hold_out_groups`.
        labels: int [T].
        groups: [T], for whole groups.
        test_ratio: in [0, 1).
        val_ratio: in [0, 1).
        stream: consumed.

    Returns:
        int32 (remaining, validation, test) rows.
    """
    num_test, num_val = int(test_ratio * len(labels)), int(val_ratio * len(labels))
    if how == "group":
        assert groups is not None, "they are required before"
        test, val, remaining = hold_out_groups(groups, num_test, num_val, stream)
    else:
        order = (
            proportional_order(labels, stream)
            if how == "stratified"
            else stream.permutation(len(labels))
        )
        test, val, remaining = np.split(order.astype(np.int32), [num_test, num_test + num_val])
    return np.sort(remaining), val, test


def hold_out_groups(
    groups: np.ndarray, num_test: int, num_val: int, stream: Stream
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
    room, part_of = [num_test, num_val, len(groups)], [0] * len(counts)
    for group in stream.permutation(len(counts)).tolist():
        part_of[group] = next(part for part in range(3) if counts[group] <= room[part])
        room[part_of[group]] -= counts[group]
    order = stream.permutation(len(groups)).astype(np.int32)
    test, val, remaining = (order[np.array(part_of)[member][order] == part] for part in range(3))
    return test, val, remaining


def proportional_order(
    labels: np.ndarray, stream: np.random.Generator | np.random.RandomState
) -> np.ndarray:
    """Returns all rows in a random order in which every contiguous range has the pool's labels in proportion.

    Row j of the n_c shuffled rows of class c has the sort key (j + u_c) / n_c, with u_c uniform in [0, 1).

    Args:
        labels: int [T].
        stream: consumed.
    """
    order = stream.permutation(len(labels))
    shuffled = np.asarray(labels)[order]
    by_class = np.argsort(shuffled, kind="stable")
    _, first, inverse, counts = np.unique(
        shuffled[by_class], return_index=True, return_inverse=True, return_counts=True
    )
    key = (np.arange(len(labels)) - first[inverse] + stream.random(len(counts))[inverse]) / counts[
        inverse
    ]
    return order[by_class[np.argsort(key, kind="stable")]]


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
    num_clients = len(parts.train)
    about: dict[str, Any] = {"clients": num_clients, "class_names": list(class_names)}
    if num_clients > MAX_LISTED:
        return about
    prefixes = ("", "val_", "test_")
    for prefix, part in zip(prefixes, parts, strict=True):
        about[f"{prefix}samples"] = sizes(part).tolist()
    if class_names and labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer):
        width = len(class_names)
        about["counts"] = [
            np.bincount(labels[rows], minlength=width).tolist() for rows in parts.train
        ]
    return about
