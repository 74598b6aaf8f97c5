"""The rows of every client as one array and the place where each client's begin: four bytes a client.

A Python list of a million arrays takes 100 MB for the objects alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np


class ClientRows(Sequence):
    """A sequence of int arrays, one per client, which are views of one array.

    Attributes:
        rows: int [T], the rows of client 0, then those of client 1, and so on.
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

    @overload
    def __getitem__(self, client: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, client: slice) -> list[np.ndarray]: ...
    def __getitem__(self, client: Any) -> Any:
        if isinstance(client, slice):
            return [self[k] for k in range(*client.indices(len(self)))]
        if not -len(self) <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        k = int(client) % len(self)
        return self.rows[self.begin[k] : self.begin[k + 1]]


def from_sizes(rows: np.ndarray, counts: np.ndarray | Sequence[int]) -> ClientRows:
    """Returns the rows as those of clients with `counts` rows each, in order."""
    return ClientRows(rows, _begins(np.asarray(counts, np.int64)))


def pack(lists: Iterable[np.ndarray]) -> ClientRows:
    """Returns one int32 array per client as `ClientRows`."""
    if isinstance(lists, ClientRows):
        return lists
    lists = list(lists)
    rows = np.concatenate(lists).astype(np.int32, copy=False) if lists else np.zeros(0, np.int32)
    return from_sizes(rows, [len(own) for own in lists])


def sizes(clients: Sequence[np.ndarray]) -> np.ndarray:
    """Returns int64 [N], the number of rows of every client."""
    if isinstance(clients, ClientRows):
        return np.diff(clients.begin).astype(np.int64)
    return np.array([len(rows) for rows in clients], np.int64)


def joined(clients: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the rows of all clients, client after client."""
    return clients.rows if isinstance(clients, ClientRows) else np.concatenate(clients)


def _begins(counts: np.ndarray) -> np.ndarray:
    ends = np.cumsum(counts)
    dtype = np.int32 if not len(ends) or ends[-1] < 2**31 else np.int64
    return np.concatenate([np.zeros(1, dtype), ends.astype(dtype)])
