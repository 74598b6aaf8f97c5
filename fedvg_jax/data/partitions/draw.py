"""Draws a partition of the pool's rows among clients, by the name of its kind (`KINDS`).

The published protocol: a Dirichlet partition of all rows, then a 65 / 10 / 25 split of each client's rows. The shared
validation set D_val and the pooled test set are the clients' parts in the order of the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import cache
from fedvg_jax.data.images import Progress
from fedvg_jax.data.partitions import client_rows, dirichlet, exchange, kinds
from fedvg_jax.data.partitions.client_rows import Partition

VERSION = 2
"""Version of the rows drawn for given arguments; part of the names of cache entries."""


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
    shards_per_client: int = 2
    classes_per_client: int = 2


Deal = Callable[[Settings, np.ndarray, Any, Progress | None], Sequence[np.ndarray]]
"""(settings, labels [T] or groups [T], `Stream`, progress) -> the rows of every client"""


def _deal_dirichlet(
    s: Settings, labels: np.ndarray, stream: Any, progress: Progress | None
) -> Sequence[np.ndarray]:
    minimum = s.min_samples if s.rule == "redraw" else 0
    draw: Any = dirichlet.official if s.kind == "official" else dirichlet.bulk
    rows = draw(labels, s.num_clients, s.alpha, stream, minimum, progress=progress)
    return rows if s.rule == "redraw" else dirichlet.top_up(rows, s.min_samples, stream)


def _deal_quantity(
    s: Settings, labels: np.ndarray, stream: Any, progress: Progress | None
) -> Sequence[np.ndarray]:
    of_one_class = _deal_dirichlet(s, np.zeros_like(labels), stream, progress)
    return kinds.of_sizes(labels, client_rows.sizes(of_one_class), stream)


KINDS: dict[str, Deal] = {
    "dirichlet": _deal_dirichlet,
    "official": _deal_dirichlet,
    "dirichlet_equal": lambda s, labels, stream, _: kinds.dirichlet_equal(
        labels, s.num_clients, s.alpha, stream
    ),
    "balanced_client": lambda s, labels, stream, _: kinds.balanced_client(
        labels, s.num_clients, s.alpha, stream
    ),
    "quantity": _deal_quantity,
    "iid": lambda s, labels, stream, _: kinds.iid(labels, s.num_clients, stream),
    "shards": lambda s, labels, stream, _: kinds.shards(
        labels, s.num_clients, s.shards_per_client, stream
    ),
    "classes": lambda s, labels, stream, _: kinds.classes(
        labels, s.num_clients, s.classes_per_client, stream
    ),
    "group": lambda s, groups, stream, _: kinds.by_group(groups, s.num_clients, stream),
}
"""Kind of partition -> the rows of every client."""


def draw_partition(
    labels: np.ndarray,
    *,
    groups: np.ndarray | None = None,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Partition:
    """Returns the partition that these arguments name; equal arguments give equal rows.

    Args:
        labels: int [T], 0..C-1.
        groups: [T] integers or strings, for the kind "group" and for whole groups that are held out.
        cache_dir: folder where partitions are kept; None keeps nothing.
        progress: called with (draws done, maximum of draws).
        settings: fields of `Settings`.

    Raises:
        UsageError: no draw meets the minimum, or there are no groups.

    >>> parts = draw_partition(np.arange(40) % 2, kind="iid", num_clients=2)
    >>> [len(rows) for part in parts for rows in part]
    [13, 13, 2, 2, 5, 5]
    """
    s, labels = Settings(**settings), np.asarray(labels, np.int32)
    uses_groups = "group" in (s.kind, s.held_out)
    if uses_groups and groups is None:
        setting = "partition" if s.kind == "group" else "holdout"
        raise UsageError(
            f"{setting} group needs an array groups [T] in the .npz, --group of csv or hf:FOLDER, --group-pattern of"
            " folder, or from Python data=fedvg_jax.Arrays(..., groups=...)"
        )
    groups = np.asarray(groups) if uses_groups else None
    _refuse_too_few_rows(s, len(labels))
    if cache_dir is None:
        return _draw(s, labels, groups, progress)
    entry = Path(cache_dir) / f"partition-{cache.digest(VERSION, labels, groups, *s)}.npz"
    try:
        partition: Any = exchange.read(entry)
    except UsageError:  # missing, or damaged
        partition = _draw(s, labels, groups, progress)
        cache.publish(entry, lambda draft: np.savez(draft, **client_rows.as_members(partition)))  # pyright: ignore[reportArgumentType]
    return partition


def _draw(
    s: Settings, labels: np.ndarray, groups: np.ndarray | None, progress: Progress | None
) -> Partition:
    stream: Any = client_rows.random_stream(s.kind, s.seed)
    ratios, dealt_by = (
        (s.test_ratio, s.val_ratio),
        np.asarray(groups if s.kind == "group" else labels),
    )
    if s.held_out == "client":
        return client_rows.split_clients(_deal(s, dealt_by, stream, progress), *ratios, stream)
    remaining, val, test = client_rows.hold_out(s.held_out, labels, groups, *ratios, stream)
    rows = _deal(s, dealt_by[remaining], stream, progress)
    return Partition(
        client_rows.pack(remaining[stream.permutation(client)] for client in rows), [val], [test]
    )


def _deal(
    s: Settings, dealt_by: np.ndarray, stream: Any, progress: Progress | None
) -> Sequence[np.ndarray]:
    """Returns the rows of every client, each with the minimum or more."""
    rows = KINDS[s.kind](s, dealt_by, stream, progress)
    client_rows.refuse_small(rows, s.min_samples, f"partition {s.kind}")
    return rows


def _refuse_too_few_rows(s: Settings, num_samples: int) -> None:
    held_out = sum(int(ratio * num_samples) for ratio in (s.test_ratio, s.val_ratio)) * (
        s.held_out != "client"
    )
    needed, left = s.num_clients * s.min_samples, num_samples - held_out
    if needed > left:
        raise UsageError(
            f"{s.num_clients} clients of at least {s.min_samples} samples need {needed}, the dataset has {left}:"
            " use fewer clients or a smaller --min-samples"
        )
