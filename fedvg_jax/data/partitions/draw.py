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
from fedvg_jax.data.arrays import check_groups
from fedvg_jax.data.partitions import dirichlet, kinds
from fedvg_jax.data.partitions.client_rows import from_sizes, pack, sizes
from fedvg_jax.data.partitions.split import Partition, as_members, hold_out, random_stream, refuse_small, split_clients

VERSION = 2
"""Version of the rows drawn for given arguments; part of the names of cache entries."""


class Settings(NamedTuple):
    """What a drawn partition depends on besides labels and groups; see `draw_partition`."""

    kind: str
    num_clients: int
    alpha: float
    seed: int
    min_samples: int
    rule: str
    test_ratio: float
    val_ratio: float
    held_out: str
    shards_per_client: int
    classes_per_client: int


class DealInputs(NamedTuple):
    """What the rows are dealt by."""

    labels: np.ndarray
    """int [T]"""
    groups: np.ndarray | None
    """int [T]"""
    stream: Any
    """a `Stream`; of every kind except "official" a Generator"""
    progress: dirichlet.Progress | None


Deal = Callable[[Settings, DealInputs], Sequence[np.ndarray]]
"""Returns the rows of every client."""


def _deal_dirichlet(s: Settings, inputs: DealInputs) -> Sequence[np.ndarray]:
    minimum = s.min_samples if s.rule == "redraw" else 0
    draw: Any = dirichlet.official if isinstance(inputs.stream, np.random.RandomState) else dirichlet.bulk
    drawn = draw(inputs.labels, s.num_clients, s.alpha, inputs.stream, minimum, progress=inputs.progress)
    return drawn.rows if s.rule == "redraw" else dirichlet.top_up(drawn.rows, s.min_samples, inputs.stream)


def _deal_groups(s: Settings, inputs: DealInputs) -> Sequence[np.ndarray]:
    if inputs.groups is None:
        raise UsageError("partition group needs an array groups [T] in the .npz, or --columns group=NAME of hf:FOLDER")
    return kinds.by_group(inputs.groups, s.num_clients, inputs.stream)


KINDS: dict[str, Deal] = {
    "dirichlet": _deal_dirichlet,
    "official": _deal_dirichlet,
    "dirichlet_equal": lambda s, i: kinds.dirichlet_equal(i.labels, s.num_clients, s.alpha, i.stream),
    "balanced_client": lambda s, i: kinds.balanced_client(i.labels, s.num_clients, s.alpha, i.stream),
    "quantity": lambda s, i: kinds.quantity(
        i.labels, s.num_clients, s.alpha, i.stream, s.min_samples, s.rule, i.progress
    ),
    "iid": lambda s, i: kinds.iid(i.labels, s.num_clients, i.stream),
    "shards": lambda s, i: kinds.shards(i.labels, s.num_clients, s.shards_per_client, i.stream),
    "classes": lambda s, i: kinds.classes(i.labels, s.num_clients, s.classes_per_client, i.stream),
    "group": _deal_groups,
}
"""Kind of partition -> how it deals the rows."""


def draw_partition(
    labels: np.ndarray,
    *,
    kind: str = "dirichlet",
    num_clients: int,
    alpha: float,
    seed: int = 42,
    min_samples: int = 10,
    rule: str = "redraw",
    test_ratio: float = 0.25,
    val_ratio: float = 0.1,
    held_out: str = "client",
    shards_per_client: int = 2,
    classes_per_client: int = 2,
    groups: np.ndarray | None = None,
    cache_dir: Path | None = None,
    progress: dirichlet.Progress | None = None,
) -> Partition:
    """Returns the partition that these arguments name; equal arguments give equal rows.

    Args:
        labels: int [T], 0..C-1.
        kind: one of `KINDS`. "dirichlet" draws many candidates at a time; "official" replays the published random
            stream. Both have the same distribution.
        num_clients: N.
        alpha: Dirichlet concentration, > 0; small values give skewed clients.
        seed: in 0..2^32 - 1.
        min_samples: rows that every client has before its split.
        rule: "redraw" repeats the draw until the minimum is met, as published. "top_up" draws once and moves rows to
            clients that are too small. Kinds without random sizes raise a UsageError instead.
        test_ratio: part of each client's rows (of all rows, by `held_out`) for test, rounded down.
        val_ratio: the same for validation; the remaining rows are for training.
        held_out: "client" splits each client's rows, as published. "global" holds out random rows of the whole set,
            as the paper's text, and "stratified" does so with every class in proportion.
        shards_per_client: for the kind "shards".
        classes_per_client: for the kind "classes".
        groups: [T] integers or strings, for the kind "group".
        cache_dir: folder where partitions are kept; None keeps nothing.
        progress: called with (draws done, maximum of draws).

    Raises:
        UsageError: an argument is out of range, no draw meets the minimum, or the validation or test set is empty.

    >>> parts = draw_partition(np.arange(40) % 2, kind="iid", num_clients=2, alpha=1.0)
    >>> [len(rows) for part in parts for rows in part]
    [13, 13, 2, 2, 5, 5]
    """
    labels = _checked_labels(np.asarray(labels))
    settings = Settings(
        kind, num_clients, float(alpha), seed, min_samples, rule, test_ratio, val_ratio, held_out,
        shards_per_client, classes_per_client,
    )  # fmt: skip
    _check(settings, len(labels))
    groups = None if groups is None or kind != "group" else check_groups(np.asarray(groups), len(labels))
    name = cache.digest(VERSION, labels, groups, *settings)
    entry = None if cache_dir is None else Path(cache_dir) / f"partition-{name}.npz"
    partition = entry and _load(entry, len(labels))
    if partition is None:
        partition = _draw(settings, DealInputs(labels, groups, random_stream(kind, seed), progress))
        if entry is not None:
            cache.publish(entry, lambda draft: np.savez(draft, **as_members(partition)))  # pyright: ignore[reportArgumentType]
    _refuse_empty_part(partition, settings, len(labels))
    return partition


def _draw(settings: Settings, inputs: DealInputs) -> Partition:
    deal, ratios, source = KINDS[settings.kind], (settings.test_ratio, settings.val_ratio), f"partition {settings.kind}"
    if settings.held_out == "client":
        rows = deal(settings, inputs)
        refuse_small(rows, settings.min_samples, source)
        return split_clients(rows, *ratios, inputs.stream)
    is_stratified = settings.held_out == "stratified"
    remaining, val, test = hold_out(inputs.labels, *ratios, is_stratified, inputs.stream)
    groups = None if inputs.groups is None else inputs.groups[remaining]
    rows = deal(settings, inputs._replace(labels=inputs.labels[remaining], groups=groups))
    refuse_small(rows, settings.min_samples, source)
    train = pack(remaining[inputs.stream.permutation(own)] for own in rows)
    return Partition(train, [val], [test])


def _checked_labels(labels: np.ndarray) -> np.ndarray:
    """Returns int32 [T] labels."""
    if labels.size and (labels.ndim != 1 or labels.dtype.kind not in "iu"):
        raise UsageError(f"partition needs labels, integers [T]; got {labels.dtype} {list(labels.shape)}")
    if labels.size and not (labels.min() >= 0 and labels.max() < 2**31):
        raise UsageError(f"partition needs labels 0..{2**31 - 1}; got {labels.min()}..{labels.max()}")
    return labels.astype(np.int32)


def _check(s: Settings, num_samples: int) -> None:
    """Raises a UsageError for the first setting that is out of range."""
    sum_of_ratios = s.test_ratio + s.val_ratio
    clipped = (min(1, max(0, ratio)) for ratio in (s.test_ratio, s.val_ratio))
    left = num_samples - (s.held_out != "client") * sum(int(ratio * num_samples) for ratio in clipped)
    problems = {
        f"partition must be one of {', '.join(KINDS)}, got {s.kind!r}": s.kind not in KINDS,
        f"min_samples_rule must be redraw or top_up, got {s.rule!r}": s.rule not in ("redraw", "top_up"),
        f"split must be client, global or stratified, got {s.held_out!r}": (
            s.held_out not in ("client", "global", "stratified")
        ),
        f"alpha must be > 0 and at most 1e30, got {s.alpha:g}": not 0 < s.alpha <= 1e30,
        f"partition seed must be 0..{2**32 - 1}, got {s.seed}": not 0 <= s.seed < 2**32,
        f"clients must be >= 1, got {s.num_clients}": s.num_clients < 1,
        f"min_samples must be >= 1, got {s.min_samples}": s.min_samples < 1,
        f"shards_per_client must be >= 1, got {s.shards_per_client}": s.shards_per_client < 1,
        f"classes_per_client must be >= 1, got {s.classes_per_client}": s.classes_per_client < 1,
        f"test ratio must be >= 0 and below 1, got {s.test_ratio}": not 0 <= s.test_ratio < 1,
        f"validation ratio must be >= 0 and below 1, got {s.val_ratio}": not 0 <= s.val_ratio < 1,
        f"test ratio {s.test_ratio} + validation ratio {s.val_ratio} must be below 1": not sum_of_ratios < 1,
        f"{s.num_clients} clients of at least {s.min_samples} samples need {s.num_clients * s.min_samples},"
        f" the dataset has {left}: use fewer clients or a smaller --min-samples": s.num_clients * s.min_samples > left,
        "partition balanced_client needs at least 2 clients, got 1": s.kind == "balanced_client" and s.num_clients < 2,
    }
    for message, is_violated in problems.items():
        if is_violated:
            raise UsageError(message)


def _refuse_empty_part(partition: Partition, s: Settings, num_samples: int) -> None:
    """Raises a UsageError if the validation or test set is requested and empty."""
    parts = ("validation", s.val_ratio, partition.val), ("test", s.test_ratio, partition.test)
    for name, ratio, rows in parts:
        if ratio > 0 and not sizes(rows).any():
            raise UsageError(
                f"{name} ratio {ratio} of {num_samples} samples over {s.num_clients} clients leaves no {name} row: "
                f"use a larger ratio{', fewer clients or a larger --min-samples' if s.held_out == 'client' else ''}"
            )


def _load(file: Path, num_samples: int) -> Partition | None:
    """Returns the partition of a cache entry, or None if it is missing, damaged or no disjoint cover of the rows."""
    try:
        with file.open("rb") as source, np.load(source, allow_pickle=False) as archive:
            rows = [archive[field] for field in Partition._fields]
            counts = [archive[f"{field}_sizes"] for field in Partition._fields]
    except Exception:  # a damaged archive raises what its first bad byte leads to
        return None
    if not np.array_equal(np.sort(np.concatenate(rows)), np.arange(num_samples)):
        return None
    return Partition(*map(from_sizes, rows, counts))
