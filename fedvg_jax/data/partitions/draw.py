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
from fedvg_jax.data.partitions.client_rows import Partition


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


Deal = Callable[[np.ndarray, Settings, Any], Sequence[np.ndarray]]
"""(labels [T] or groups [T], settings, `Stream`) -> the rows of every client"""


def _dirichlet(labels: np.ndarray, s: Settings, stream: Any) -> Sequence[np.ndarray]:
    draw: Any = dirichlet.official if s.kind == "official" else dirichlet.bulk
    if s.rule == "redraw":
        return draw(labels, s.num_clients, s.alpha, stream, s.min_samples)
    rows = draw(labels, s.num_clients, s.alpha, stream, 0)
    return dirichlet.top_up(rows, s.min_samples, stream)


def _quantity(labels: np.ndarray, s: Settings, stream: Any) -> Sequence[np.ndarray]:
    of_one_class = _dirichlet(np.zeros_like(labels), s, stream)
    return kinds.of_sizes(labels, client_rows.sizes(of_one_class), stream)


KINDS: dict[str, Deal] = {
    "dirichlet": _dirichlet,
    "official": _dirichlet,
    "dirichlet_equal": lambda labels, s, stream: kinds.dirichlet_equal(
        labels, s.num_clients, s.alpha, stream
    ),
    "balanced_client": lambda labels, s, stream: kinds.balanced_client(
        labels, s.num_clients, s.alpha, stream
    ),
    "quantity": _quantity,
    "iid": lambda labels, s, stream: kinds.iid(labels, s.num_clients, stream),
    "shards": lambda labels, s, stream: kinds.shards(labels, s.num_clients, s.shards, stream),
    "group": lambda groups, s, stream: kinds.by_group(groups, s.num_clients, stream),
}
"""Kind of partition -> the rows of every client."""


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
    stream: Any = client_rows.random_stream(s.kind, s.seed)
    dealt_by = np.asarray(groups if s.kind == "group" else labels)
    ratios = s.test_ratio, s.val_ratio
    if s.held_out == "client":
        return client_rows.split_clients(_deal(s, dealt_by, stream), *ratios, stream)
    remaining, val, test = client_rows.hold_out(s.held_out, labels, groups, *ratios, stream)
    rows = _deal(s, dealt_by[remaining], stream)
    train = client_rows.pack(remaining[stream.permutation(client)] for client in rows)
    return Partition(train, [val], [test])


def _deal(s: Settings, dealt_by: np.ndarray, stream: Any) -> Sequence[np.ndarray]:
    """Returns the rows of every client, each with the minimum or more."""
    needed = s.num_clients * s.min_samples
    if needed > len(dealt_by):
        raise UsageError(
            f"{s.num_clients} clients of at least {s.min_samples} samples need {needed}, the dataset has"
            f" {len(dealt_by)}: use fewer clients or a smaller --min-samples"
        )
    rows = KINDS[s.kind](dealt_by, s, stream)
    client_rows.refuse_small(rows, s.min_samples, f"partition {s.kind}")
    return rows
