"""Which rows of the pool each client holds, split into its training, validation and test rows.

The published protocol: Dirichlet over ALL samples, then 65 / 10 / 25 inside each client. The shared validation set
D_val and the pooled test set are the clients' parts in client order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import cache
from fedvg_jax.data.partitions import by_group, dirichlet, equal_size, label_limits, quantity

Stream = np.random.Generator | np.random.RandomState

VERSION = 2
"""Of the outcome for given arguments; part of the names of cache entries."""

_DOMAIN = int.from_bytes(b"partition")
"""Keeps this stream apart from others that begin with the same seed."""


class Partition(NamedTuple):
    """Rows of the pool, one int32 array per client; no row twice. A drawn one has every row."""

    train: list[np.ndarray]
    val: list[np.ndarray]
    """of each client; a single array where they were held out before there were clients"""
    test: list[np.ndarray]
    """as `val`"""


class Spec(NamedTuple):
    """What a drawn partition depends on besides labels and groups; see `make`."""

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


class Cards(NamedTuple):
    """What a rule deals from."""

    labels: np.ndarray
    """[T] int"""
    groups: np.ndarray | None
    stream: Stream
    progress: dirichlet.Progress | None


def _dirichlet(draw: Callable) -> Callable[[Spec, Cards], list[np.ndarray]]:
    def deal(s: Spec, c: Cards) -> list[np.ndarray]:
        if s.rule == "redraw":
            return draw(c.labels, s.num_clients, s.alpha, c.stream, s.min_samples, progress=c.progress).rows
        return dirichlet.top_up(draw(c.labels, s.num_clients, s.alpha, c.stream, 0).rows, s.min_samples, c.stream)

    return deal


KINDS: dict[str, Callable[[Spec, Cards], list[np.ndarray]]] = {
    "dirichlet": _dirichlet(dirichlet.bulk),
    "official": _dirichlet(dirichlet.official),
    "dirichlet_equal": lambda s, c: equal_size.dirichlet_equal(c.labels, s.num_clients, s.alpha, c.stream),
    "balanced_client": lambda s, c: equal_size.balanced_client(c.labels, s.num_clients, s.alpha, c.stream),
    "quantity": lambda s, c: quantity.quantity(
        c.labels, s.num_clients, s.alpha, c.stream, s.min_samples, s.rule, c.progress
    ),
    "iid": lambda s, c: quantity.iid(c.labels, s.num_clients, c.stream),
    "shards": lambda s, c: label_limits.shards(c.labels, s.num_clients, s.shards_per_client, c.stream),
    "classes": lambda s, c: label_limits.classes(c.labels, s.num_clients, s.classes_per_client, c.stream),
    "group": lambda s, c: by_group.by_group(c.groups, s.num_clients, c.stream),
}
"""kind -> the rows of every client"""


def make(
    labels: np.ndarray,
    *,
    kind: str = "dirichlet",
    num_clients: int,
    alpha: float,
    seed: int = 42,
    min_samples: int = 10,
    rule: Literal["redraw", "top_up"] = "redraw",
    test_ratio: float = 0.25,
    val_ratio: float = 0.1,
    held_out: Literal["client", "global", "stratified"] = "client",
    shards_per_client: int = 2,
    classes_per_client: int = 2,
    groups: np.ndarray | None = None,
    cache_dir: Path | None = None,
    progress: dirichlet.Progress | None = None,
) -> Partition:
    """The partition these arguments name; the same ones always give the same rows.

    Args:
        labels: [T] int, 0..C-1.
        kind: one of `KINDS`; "dirichlet" draws in bulk, "official" replays the published random stream, of the same
            distribution.
        alpha: Dirichlet concentration, > 0.
        min_samples: rows every client has before its split.
        rule: "redraw" repeats until the minimum is met, as published; "top_up" draws once and repairs. Kinds that are
            not drawn by size raise instead.
        test_ratio, val_ratio: parts of each client's rows (or of all, by `held_out`), rounded down; the rest is for
            training.
        held_out: where the split takes place: inside each "client", as published; or before there are clients, of the
            whole set, at random ("global", as the paper's text) or with every class in proportion ("stratified").
        shards_per_client, classes_per_client: of the kinds of these names.
        groups: [T] int, for the kind "group".
        cache_dir: where partitions are kept; None keeps nothing.
        progress: called with (draws done, most draws).

    Raises:
        UsageError: an argument out of range, a minimum no draw met, or a validation or test set without a row.
    """
    labels = _labels(np.asarray(labels))
    spec = Spec(
        kind, num_clients, float(alpha), seed, min_samples, rule, test_ratio, val_ratio, held_out,
        shards_per_client, classes_per_client,
    )  # fmt: skip
    _check(spec, len(labels), groups)
    name = cache.digest(VERSION, labels, groups if kind == "group" else None, *spec)
    entry = None if cache_dir is None else Path(cache_dir) / f"partition-{name}.npz"
    partition = entry and _load(entry, len(labels))
    if partition is None:
        partition = _draw(spec, Cards(labels, groups, stream(kind, seed), progress))
        if entry is not None:
            cache.publish(entry, lambda draft: save(partition, draft))
    for part, ratio, rows in (("validation", val_ratio, partition.val), ("test", test_ratio, partition.test)):
        if ratio > 0 and not any(map(len, rows)):
            raise UsageError(
                f"{part} ratio {ratio} of {len(labels)} samples over {num_clients} clients leaves none for {part}: "
                "use a larger ratio, fewer clients or a larger --min-samples"
            )
    return partition


def _labels(labels: np.ndarray) -> np.ndarray:
    if labels.size and (labels.ndim != 1 or labels.dtype.kind not in "iu"):
        raise UsageError(f"partition needs labels, integers [T]; got {labels.dtype} {list(labels.shape)}")
    if labels.size and not (labels.min() >= 0 and labels.max() < 2**31):
        raise UsageError(f"partition needs labels 0..{2**31 - 1}; got {labels.min()}..{labels.max()}")
    return labels.astype(np.int32)


def stream(kind: str, seed: int) -> Stream:
    """The random stream a partition consumes from its first draw to its last client's split."""
    return np.random.RandomState(seed) if kind == "official" else np.random.default_rng([seed, _DOMAIN])


def split(rows: list[np.ndarray], test_ratio: float, val_ratio: float, stream: Stream) -> Partition:
    """Each client's rows, shuffled in client order and cut into test, validation and training rows.

    With n rows: floor(test_ratio n) for test, floor(val_ratio n) for validation, the rest for training. Not stratified.
    """
    return Partition(*map(list, zip(*(_split(mine, test_ratio, val_ratio, stream) for mine in rows), strict=True)))


def _split(rows: np.ndarray, test_ratio: float, val_ratio: float, stream: Stream) -> tuple[np.ndarray, ...]:
    mine = rows.copy()
    stream.shuffle(mine)
    num_test, num_val = int(test_ratio * len(mine)), int(val_ratio * len(mine))
    test, val, train = np.split(mine.astype(np.int32), [num_test, num_test + num_val])
    return train, val, test


def hold_out(
    labels: np.ndarray, test_ratio: float, val_ratio: float, stratified: bool, stream: Stream
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rest, validation, test) rows of the whole set: floor(test_ratio T) for test, floor(val_ratio T) for validation.

    Random rows, or `stratified`: every class in proportion.
    """
    order = quantity.proportional_order(labels, stream) if stratified else stream.permutation(len(labels))
    num_test, num_val = int(test_ratio * len(labels)), int(val_ratio * len(labels))
    test, val, rest = np.split(order.astype(np.int32), [num_test, num_test + num_val])
    return np.sort(rest), val, test


def refuse_small(rows: Sequence[np.ndarray], min_samples: int, source: object) -> None:
    """UsageError for the first client below the minimum."""
    sizes = np.array([len(mine) for mine in rows])
    if sizes.min() < min_samples:
        raise UsageError(
            f"{source}: client {sizes.argmin()} holds {sizes.min()} samples, and --min-samples is {min_samples}:"
            " use fewer clients or a smaller minimum"
        )


def _draw(spec: Spec, cards: Cards) -> Partition:
    if spec.held_out == "client":
        rows = KINDS[spec.kind](spec, cards)
        refuse_small(rows, spec.min_samples, f"partition {spec.kind}")
        return split(rows, spec.test_ratio, spec.val_ratio, cards.stream)
    stratified = spec.held_out == "stratified"
    rest, val, test = hold_out(cards.labels, spec.test_ratio, spec.val_ratio, stratified, cards.stream)
    groups = None if cards.groups is None else cards.groups[rest]
    rows = KINDS[spec.kind](spec, cards._replace(labels=cards.labels[rest], groups=groups))
    refuse_small(rows, spec.min_samples, f"partition {spec.kind}")
    return Partition([rest[cards.stream.permutation(mine)] for mine in rows], [val], [test])


def _check(spec: Spec, num_samples: int, groups: np.ndarray | None) -> None:
    held_out = spec.test_ratio + spec.val_ratio
    shares = (min(1, max(0, ratio)) for ratio in (spec.test_ratio, spec.val_ratio))
    left = num_samples - (spec.held_out != "client") * sum(int(share * num_samples) for share in shares)
    kinds = ", ".join(KINDS)
    problems = {
        f"partition must be one of {kinds}, got {spec.kind!r}": spec.kind not in KINDS,
        f"min_samples_rule must be redraw or top_up, got {spec.rule!r}": spec.rule not in ("redraw", "top_up"),
        f"split must be client, global or stratified, got {spec.held_out!r}": (
            spec.held_out not in ("client", "global", "stratified")
        ),
        f"alpha must be > 0 and at most 1e30, got {spec.alpha:g}": not 0 < spec.alpha <= 1e30,
        f"partition seed must be 0..{2**32 - 1}, got {spec.seed}": not 0 <= spec.seed < 2**32,
        f"clients must be >= 1, got {spec.num_clients}": spec.num_clients < 1,
        f"min_samples must be >= 1, got {spec.min_samples}": spec.min_samples < 1,
        f"shards_per_client must be >= 1, got {spec.shards_per_client}": spec.shards_per_client < 1,
        f"classes_per_client must be >= 1, got {spec.classes_per_client}": spec.classes_per_client < 1,
        f"test ratio must be >= 0 and below 1, got {spec.test_ratio}": not 0 <= spec.test_ratio < 1,
        f"validation ratio must be >= 0 and below 1, got {spec.val_ratio}": not 0 <= spec.val_ratio < 1,
        f"test ratio {spec.test_ratio} + validation ratio {spec.val_ratio} must be below 1": not held_out < 1,
        f"{spec.num_clients} clients of at least {spec.min_samples} samples need {spec.num_clients * spec.min_samples},"
        f" the dataset has {left}: use fewer clients or a smaller --min-samples": (
            spec.num_clients * spec.min_samples > left
        ),
        "partition balanced_client needs at least 2 clients, got 1": (
            spec.kind == "balanced_client" and spec.num_clients < 2
        ),
        "partition group needs a groups column, and this dataset has none: add an array `groups` [T] to its .npz": (
            spec.kind == "group" and groups is None
        ),
    }
    for problem, found in problems.items():
        if found:
            raise UsageError(problem)


def save(partition: Partition, file: Path) -> None:
    """Rows of all clients, one after the other, and how many are each client's; `rows.read` reads it too."""
    joined = {name: np.concatenate(rows) for name, rows in partition._asdict().items()}
    sizes = {f"{name}_sizes": np.array(list(map(len, rows)), np.int64) for name, rows in partition._asdict().items()}
    np.savez(file, **joined, **sizes)


def _load(file: Path, num_samples: int) -> Partition | None:
    """The partition of an entry; None if it is missing, damaged, or not a disjoint cover of the rows."""
    try:
        with file.open("rb") as source, np.load(source, allow_pickle=False) as archive:
            joined = [archive[field] for field in Partition._fields]
            ends = [np.cumsum(archive[f"{field}_sizes"]) for field in Partition._fields]
    except Exception:  # a damaged archive raises what its first bad byte leads to
        return None
    if not np.array_equal(np.sort(np.concatenate(joined)), np.arange(num_samples)):
        return None
    return Partition(*(np.split(rows, end[:-1]) for rows, end in zip(joined, ends, strict=True)))
