"""Draws a partition of the pool's rows among clients, by the name of its kind (`KINDS`).

The published protocol: a Dirichlet partition of all rows, then a 65 / 10 / 25 split of each client's rows. The shared
validation set D_val and the pooled test set are the clients' parts in the order of the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.partitions import client_rows, dirichlet, kinds
from fedvg_jax.data.partitions.client_rows import ClientRows, Partition

Stream = np.random.Generator | np.random.RandomState

_DOMAIN = int.from_bytes(b"partition")
"""Separates this stream from others that are seeded with the same number."""


class Settings(NamedTuple):
    """What a drawn partition depends on besides labels and groups. Ranges are as in the settings of a run."""

    kind: str = "dirichlet"
    """One of `KINDS`. "dirichlet" draws many candidates at a time; "official" replays the published random stream. Both
    have the same distribution."""
    num_clients: int = 20
    """N"""
    alpha: float = 0.05
    """Dirichlet concentration; small values give skewed clients."""
    seed: int = 42
    min_samples: int = 10
    """Rows that every client has before its split."""
    rule: str = "redraw"
    """"redraw" repeats the draw until the minimum is met, as published. "top_up" draws once and moves rows to clients
    that are too small. Kinds without random sizes raise a UsageError instead."""
    test_ratio: float = 0.25
    """Part of each client's rows (of all rows, by `held_out`) for test, rounded down."""
    val_ratio: float = 0.1
    """The same for validation; the remaining rows are for training."""
    held_out: str = "client"
    """"client" splits each client's rows, as published. Three hold rows of the whole set out before it is divided:
    "global", random ones, as in the paper's text; "stratified", with every class in proportion; "group", whole
    groups."""
    shards: int = 2
    """Shards of a client."""


def _dirichlet(labels: np.ndarray, s: Settings, stream: Any) -> Sequence[np.ndarray]:
    draw: Any = dirichlet.official if s.kind == "official" else dirichlet.bulk
    if s.rule == "redraw":
        return draw(labels, s.num_clients, s.alpha, stream, s.min_samples)
    rows = draw(labels, s.num_clients, s.alpha, stream, 0)
    return dirichlet.top_up(rows, s.min_samples, stream)


def _quantity(labels: np.ndarray, s: Settings, stream: Any) -> Sequence[np.ndarray]:
    """Draws sizes n ~ T Dirichlet(alpha 1_K); every client has the pool's labels in proportion.

    With q_c the pool's share of class c of C, a client of n rows holds n q_c rows of c, within 2 (1 + C q_c).

    Source: Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022.
    """
    of_one_class = _dirichlet(np.zeros_like(labels), s, stream)
    order = kinds.proportional_order(labels, stream)
    return client_rows.from_sizes(order, client_rows.sizes(of_one_class))


def _iid(labels: np.ndarray, s: Settings, stream: Any) -> Sequence[np.ndarray]:
    """Shuffles the rows and cuts them into clients; their sizes differ by at most 1.

    Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
    """
    return np.array_split(stream.permutation(len(labels)), s.num_clients)


KINDS: dict[str, Callable[[np.ndarray, Settings, Any], Sequence[np.ndarray]]] = {
    "dirichlet": _dirichlet,
    "official": _dirichlet,
    "dirichlet_equal": lambda labels, s, stream: kinds.dirichlet_equal(
        labels, s.num_clients, s.alpha, stream
    ),
    "balanced_client": lambda labels, s, stream: kinds.balanced_client(
        labels, s.num_clients, s.alpha, stream
    ),
    "quantity": _quantity,
    "iid": _iid,
    "shards": lambda labels, s, stream: kinds.shards(labels, s.num_clients, s.shards, stream),
    "group": lambda groups, s, stream: kinds.by_group(groups, s.num_clients, stream),
}
"""Kind of partition -> function (labels [T] or groups [T], settings, `Stream`) -> the rows of every client."""


def draw_partition(
    labels: np.ndarray, *, groups: np.ndarray | None = None, **settings: Any
) -> Partition:
    """Returns the partition that these arguments name; equal arguments give equal rows.

    Args:
        labels: int [T], 0..C-1.
        groups: [T] integers or strings, for the kind "group" and for whole groups that are held out.
        settings: fields of `Settings`.

    Raises:
        UsageError: no draw meets the minimum, or there are no groups.

    >>> parts = draw_partition(np.arange(40) % 2, kind="iid", num_clients=2)
    >>> [len(rows) for part in parts for rows in part]
    [13, 13, 2, 2, 5, 5]
    """
    s, labels = Settings(**settings), np.asarray(labels, np.int32)
    if groups is None and "group" in (s.kind, s.held_out):
        setting = "partition" if s.kind == "group" else "holdout"
        raise UsageError(
            f"{setting} group needs an array groups [T] in the .npz, --group of csv or hf:FOLDER, --group-pattern of"
            " folder, or from Python data=fedvg_jax.Arrays(..., groups=...)"
        )
    stream: Any = random_stream(s.kind, s.seed)
    dealt_by = np.asarray(groups if s.kind == "group" else labels)
    if s.held_out == "client":
        return split_clients(_deal(s, dealt_by, stream), s.test_ratio, s.val_ratio, stream)
    test, val, others = _hold_out(s, labels, groups, stream)
    remaining = np.sort(others)
    rows = _deal(s, dealt_by[remaining], stream)
    train = [remaining[stream.permutation(client)] for client in rows]
    return Partition(*map(client_rows.pack, (train, [val], [test])))


def random_stream(kind: str, seed: int) -> Stream:
    """Returns the stream that a partition consumes, from its first draw to the split of its last client."""
    if kind == "official":
        return np.random.RandomState(seed)
    return np.random.default_rng([seed, _DOMAIN])


def _deal(s: Settings, dealt_by: np.ndarray, stream: Any) -> ClientRows:
    """Returns the rows of every client, each with the minimum or more."""
    needed = s.num_clients * s.min_samples
    if needed > len(dealt_by):
        raise UsageError(
            f"{s.num_clients} clients of at least {s.min_samples} samples need {needed}, the dataset has"
            f" {len(dealt_by)}: use fewer clients or a smaller --min-samples"
        )
    rows = client_rows.pack(KINDS[s.kind](dealt_by, s, stream))
    client_rows.refuse_small(rows, s.min_samples, f"partition {s.kind}")
    return rows


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


def _hold_out(
    s: Settings, labels: np.ndarray, groups: np.ndarray | None, stream: Any
) -> Sequence[np.ndarray]:
    """Holds floor(test_ratio T) test rows and floor(val_ratio T) validation rows out of the whole data set.

    Returns:
        int32 (test, validation, remaining) rows.
    """
    num_test, num_val = int(s.test_ratio * len(labels)), int(s.val_ratio * len(labels))
    if s.held_out == "group":
        return hold_out_groups(np.asarray(groups), num_test, num_val, stream)
    if s.held_out == "stratified":
        order = kinds.proportional_order(labels, stream)
    else:
        order = stream.permutation(len(labels))
    return np.split(order.astype(np.int32), [num_test, num_test + num_val])


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
        part = next(part for part in range(3) if counts[group] <= left[part])
        part_of[group] = part
        left[part] -= counts[group]
    order = stream.permutation(len(groups)).astype(np.int32)
    part_of_row = part_of[member][order]
    return [order[part_of_row == part] for part in range(3)]
