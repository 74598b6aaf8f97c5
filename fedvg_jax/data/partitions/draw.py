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
    """What a drawn partition depends on besides labels and groups. Ranges are those of the settings of a run."""

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


class DealInputs(NamedTuple):
    """What the rows are dealt by."""

    labels: np.ndarray
    """int [T]"""
    groups: np.ndarray | None
    """int [T]"""
    stream: Any
    """a `Stream`; of every kind except "official" a Generator"""
    progress: Progress | None


def _deal_dirichlet(s: Settings, inputs: DealInputs) -> Sequence[np.ndarray]:
    minimum = s.min_samples if s.rule == "redraw" else 0
    draw: Any = dirichlet.official if s.kind == "official" else dirichlet.bulk
    rows = draw(inputs.labels, s.num_clients, s.alpha, inputs.stream, minimum, progress=inputs.progress)
    return rows if s.rule == "redraw" else dirichlet.top_up(rows, s.min_samples, inputs.stream)


def _deal_quantity(s: Settings, inputs: DealInputs) -> Sequence[np.ndarray]:
    of_one_class = _deal_dirichlet(s, inputs._replace(labels=np.zeros_like(inputs.labels)))
    return kinds.of_sizes(inputs.labels, client_rows.sizes(of_one_class), inputs.stream)


KINDS: dict[str, Callable[[Settings, DealInputs], Sequence[np.ndarray]]] = {
    "dirichlet": _deal_dirichlet,
    "official": _deal_dirichlet,
    "dirichlet_equal": lambda s, i: kinds.dirichlet_equal(i.labels, s.num_clients, s.alpha, i.stream),
    "balanced_client": lambda s, i: kinds.balanced_client(i.labels, s.num_clients, s.alpha, i.stream),
    "quantity": _deal_quantity,
    "iid": lambda s, i: kinds.iid(i.labels, s.num_clients, i.stream),
    "shards": lambda s, i: kinds.shards(i.labels, s.num_clients, s.shards_per_client, i.stream),
    "classes": lambda s, i: kinds.classes(i.labels, s.num_clients, s.classes_per_client, i.stream),
    "group": lambda s, i: kinds.by_group(np.asarray(i.groups), s.num_clients, i.stream),
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
        raise UsageError(f"{setting} group needs an array groups [T] in the .npz, or --columns group=NAME of hf:FOLDER")
    groups = np.asarray(groups) if uses_groups else None
    _refuse_too_few_rows(s, len(labels))
    inputs = DealInputs(labels, groups, client_rows.random_stream(s.kind, s.seed), progress)
    if cache_dir is None:
        partition = _draw(s, inputs)
    else:
        entry = Path(cache_dir) / f"partition-{cache.digest(VERSION, labels, groups, *s)}.npz"
        try:
            partition: Any = exchange.read(entry)
        except UsageError:  # missing, or damaged
            partition = _draw(s, inputs)
            cache.publish(entry, lambda draft: np.savez(draft, **client_rows.as_members(partition)))  # pyright: ignore[reportArgumentType]
    return partition


def _draw(settings: Settings, inputs: DealInputs) -> Partition:
    deal, ratios, source = KINDS[settings.kind], (settings.test_ratio, settings.val_ratio), f"partition {settings.kind}"
    if settings.held_out == "client":
        rows = deal(settings, inputs)
        client_rows.refuse_small(rows, settings.min_samples, source)
        return client_rows.split_clients(rows, *ratios, inputs.stream)
    remaining, val, test = client_rows.hold_out(settings.held_out, inputs.labels, inputs.groups, *ratios, inputs.stream)
    groups = None if inputs.groups is None else inputs.groups[remaining]
    rows = deal(settings, inputs._replace(labels=inputs.labels[remaining], groups=groups))
    client_rows.refuse_small(rows, settings.min_samples, source)
    train = client_rows.pack(remaining[inputs.stream.permutation(own)] for own in rows)
    return Partition(train, [val], [test])


def _refuse_too_few_rows(s: Settings, num_samples: int) -> None:
    held_out = sum(int(ratio * num_samples) for ratio in (s.test_ratio, s.val_ratio)) * (s.held_out != "client")
    needed, left = s.num_clients * s.min_samples, num_samples - held_out
    if needed > left:
        raise UsageError(
            f"{s.num_clients} clients of at least {s.min_samples} samples need {needed}, the dataset has {left}:"
            " use fewer clients or a smaller --min-samples"
        )
