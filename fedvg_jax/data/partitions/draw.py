"""Draws a partition of the pool's rows among clients, by a partitioner.

The published protocol: a Dirichlet partition of all rows, then a 65 / 10 / 25 split of each client's rows. The shared
validation set D_val and the pooled test set are the clients' parts in the order of the clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.arrays import reading
from fedvg_jax.data.partitions import client_rows, kinds, partitioners
from fedvg_jax.data.partitions.client_rows import ClientRows, Partition
from fedvg_jax.data.partitions.partitioners import Partitioner, Stream


class Settings(NamedTuple):
    """What a drawn partition depends on besides its partitioner, labels and groups, as in the settings of a run."""

    num_clients: int = 20
    """N"""
    alpha: float = 0.05
    """Dirichlet concentration; small values give skewed clients."""
    seed: int = 42
    min_samples: int = 10
    """Rows that every client has before its split."""
    min_samples_rule: str = "redraw"
    """"redraw" or "top_up", for partitioners that draw sizes; others raise a UsageError for a client that is too
    small."""
    test_ratio: float = 0.25
    """Part of each client's rows (of all rows, by `holdout`) for test, rounded down."""
    val_ratio: float = 0.1
    """The same for validation; the remaining rows are for training."""
    holdout: str = "client"
    """"client" splits each client's rows, as published. Three hold rows of the whole set out before it is divided:
    "global", random ones, as in the paper's text; "stratified", with every class in proportion; "group", whole
    groups."""


def draw_partition(
    labels: np.ndarray,
    partitioner: Partitioner | None = None,
    *,
    groups: np.ndarray | None = None,
    **settings: Any,
) -> Partition:
    """Returns the partition that these arguments describe; equal arguments give equal rows.

    Args:
        labels: int [T], 0..C-1.
        partitioner: divides the rows; `partitioners.dirichlet` by default.
        groups: [T] integers or strings, for the partitioner `group` and for whole groups that are held out.
        settings: fields of `Settings`.

    Raises:
        UsageError: no draw meets the minimum, a custom partitioner breaks its contract, or there are no groups.

    >>> parts = draw_partition(np.arange(40) % 2, partitioners.iid(), num_clients=2)
    >>> [len(rows) for part in parts for rows in part]
    [13, 13, 2, 2, 5, 5]
    """
    s, labels = Settings(**settings), np.asarray(labels, np.int32)
    partitioner = partitioner or partitioners.dirichlet()
    by_groups = partitioner.reads == "groups"
    if groups is None and (by_groups or s.holdout == "group"):
        raise UsageError(
            "partition group and holdout group need an array groups [T] in the .npz, --group of csv or hf:FOLDER,"
            " --group-pattern of folder, or from Python data=fedvg_jax.Arrays(..., groups=...)"
        )
    stream: Any = partitioner.stream(s.seed)
    divided_by = np.asarray(groups if by_groups else labels)
    if s.holdout == "client":
        rows = _divide(partitioner, s, divided_by, stream)
        return split_clients(rows, s.test_ratio, s.val_ratio, stream)
    num_test, num_val = int(s.test_ratio * len(labels)), int(s.val_ratio * len(labels))
    if s.holdout == "group":
        test, val, others = hold_out_groups(np.asarray(groups), num_test, num_val, stream)
    else:
        if s.holdout == "stratified":
            order = kinds.proportional_order(labels, stream)
        else:
            order = stream.permutation(len(labels))
        test, val, others = np.split(order.astype(np.int32), [num_test, num_test + num_val])
    remaining = np.sort(others)
    rows = _divide(partitioner, s, divided_by[remaining], stream)
    train = [remaining[stream.permutation(client)] for client in rows]
    return Partition(*map(client_rows.pack, (train, [val], [test])))


def _divide(
    partitioner: Partitioner, s: Settings, divided_by: np.ndarray, stream: Any
) -> ClientRows:
    """Returns the rows of every client, each with the minimum or more."""
    needed = s.num_clients * s.min_samples
    if needed > len(divided_by):
        raise UsageError(
            f"{s.num_clients} clients of at least {s.min_samples} samples need {needed}, the dataset has"
            f" {len(divided_by)}: use fewer clients or a smaller --min-samples"
        )
    arguments = {name: getattr(s, name) for name in partitioner.uses}
    source = f"partition {partitioner.text or 'of a custom partitioner'}"
    with reading(source, "rows of clients", "return the rows of each client, integers [n]"):
        rows = partitioner.divide(divided_by, s.num_clients, stream, **arguments)
        if not partitioner.text:
            (rows,) = client_rows.checked([rows], len(divided_by), s.num_clients, source)
    packed = client_rows.pack(rows)
    client_rows.refuse_small(packed, s.min_samples, source)
    return packed


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

    >>> parts = split_clients(client_rows.pack([np.arange(10)]), 0.25, 0.1, np.random.default_rng(0))
    >>> [len(rows) for part in parts for rows in part]
    [7, 1, 2]
    """
    counts, shuffled = client_rows.sizes(clients), clients.rows.astype(np.int32)
    for rows in ClientRows(shuffled, clients.begin):
        stream.shuffle(rows)
    num_test, num_val = ((ratio * counts).astype(int) for ratio in (test_ratio, val_ratio))
    owner = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(owner)) - clients.begin[owner]
    is_test, is_train = place < num_test[owner], place >= (num_test + num_val)[owner]
    return Partition(
        client_rows.from_sizes(shuffled[is_train], counts - num_test - num_val),
        client_rows.from_sizes(shuffled[~(is_test | is_train)], num_val),
        client_rows.from_sizes(shuffled[is_test], num_test),
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
