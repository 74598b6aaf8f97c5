"""Which rows of the pool each client holds, split into its training, validation and test rows.

The published protocol: Dirichlet over ALL samples, then 65 / 10 / 25 inside each client. The shared validation set
D_val and the pooled test set are the clients' parts in client order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedvg_jax.data import cache, dirichlet
from fedvg_jax.types import UsageError

Stream = np.random.Generator | np.random.RandomState

VERSION = 1
"""Of the outcome for given arguments; part of the names of cache entries."""

_DOMAIN = int.from_bytes(b"partition")
"""Keeps this stream apart from others that begin with the same seed."""


class Partition(NamedTuple):
    """Rows of the pool, one int32 array per client; all together every row exactly once."""

    train: list[np.ndarray]
    val: list[np.ndarray]
    test: list[np.ndarray]


def make(
    labels: np.ndarray,
    *,
    kind: Literal["dirichlet", "official"] = "dirichlet",
    num_clients: int,
    alpha: float,
    seed: int = 42,
    min_samples: int = 10,
    rule: Literal["redraw", "top_up"] = "redraw",
    test_ratio: float = 0.25,
    val_ratio: float = 0.1,
    cache_dir: Path | None = None,
    progress: dirichlet.Progress | None = None,
) -> Partition:
    """The partition these arguments name; the same ones always give the same rows.

    Args:
        labels: [T] int, 0..C-1.
        kind: "dirichlet" draws in bulk, "official" replays the published random stream; the distribution is the same.
        alpha: Dirichlet concentration, > 0.
        min_samples: rows every client has before its split.
        rule: "redraw" repeats until the minimum is met, as published; "top_up" draws once and repairs.
        test_ratio, val_ratio: parts of each client's rows, rounded down; the rest is for training.
        cache_dir: where partitions are kept; None keeps nothing.
        progress: called with (draws done, most draws).

    Raises:
        UsageError: an argument out of range, a minimum no draw met, or a validation or test set without a row.
    """
    labels = np.asarray(labels, np.int32)
    _check(len(labels), kind, num_clients, alpha, seed, min_samples, rule, test_ratio, val_ratio)
    name = cache.digest(
        VERSION, labels, kind, num_clients, float(alpha), seed, min_samples, rule, test_ratio, val_ratio
    )
    entry = None if cache_dir is None else Path(cache_dir) / f"partition-{name}.npz"
    partition = entry and _load(entry, len(labels))
    if partition is None:
        random = stream(kind, seed)
        rows = _draw(labels, kind, num_clients, alpha, min_samples, rule, random, progress)
        partition = split(rows, test_ratio, val_ratio, random)
        if entry is not None:
            cache.publish(entry, lambda draft: _save(partition, draft))
    for part, ratio, rows in (("validation", val_ratio, partition.val), ("test", test_ratio, partition.test)):
        if ratio > 0 and not any(map(len, rows)):
            raise UsageError(
                f"{part} ratio {ratio} of {len(labels)} samples over {num_clients} clients leaves none for {part}: "
                "use a larger ratio, fewer clients or a larger --min-samples"
            )
    return partition


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


def _draw(
    labels: np.ndarray,
    kind: str,
    num_clients: int,
    alpha: float,
    min_samples: int,
    rule: str,
    random: Stream,
    progress: dirichlet.Progress | None,
) -> list[np.ndarray]:
    draw = dirichlet.official if kind == "official" else dirichlet.bulk
    if rule == "redraw":
        return draw(labels, num_clients, alpha, random, min_samples, progress=progress).rows
    return dirichlet.top_up(draw(labels, num_clients, alpha, random, 0).rows, min_samples, random)


def _check(
    num_samples: int,
    kind: str,
    num_clients: int,
    alpha: float,
    seed: int,
    min_samples: int,
    rule: str,
    test_ratio: float,
    val_ratio: float,
) -> None:
    problems = {
        f"partition must be dirichlet or official, got {kind!r}": kind not in ("dirichlet", "official"),
        f"min_samples_rule must be redraw or top_up, got {rule!r}": rule not in ("redraw", "top_up"),
        f"alpha must be > 0 and at most 1e30, got {alpha}": not 0 < alpha <= 1e30,
        f"partition seed must be 0..{2**32 - 1}, got {seed}": not 0 <= seed < 2**32,
        f"clients must be >= 1, got {num_clients}": num_clients < 1,
        f"min_samples must be >= 1, got {min_samples}": min_samples < 1,
        f"test ratio must be >= 0 and below 1, got {test_ratio}": not 0 <= test_ratio < 1,
        f"validation ratio must be >= 0 and below 1, got {val_ratio}": not 0 <= val_ratio < 1,
        f"test ratio {test_ratio} + validation ratio {val_ratio} must be below 1": not test_ratio + val_ratio < 1,
        f"{num_clients} clients of at least {min_samples} samples need {num_clients * min_samples}, the dataset has "
        f"{num_samples}: use fewer clients or a smaller --min-samples": num_clients * min_samples > num_samples,
    }
    for problem, found in problems.items():
        if found:
            raise UsageError(problem)


def _save(partition: Partition, file: Path) -> None:
    """Three arrays of rows, and how many of each are each client's."""
    joined = {field: np.concatenate(parts) for field, parts in partition._asdict().items()}
    sizes = np.array([[len(part) for part in parts] for parts in partition], np.int64)
    np.savez(file, sizes=sizes, **joined)


def _load(file: Path, num_samples: int) -> Partition | None:
    """The partition of an entry; None if it is missing, damaged, or not a disjoint cover of the rows."""
    try:
        with file.open("rb") as source, np.load(source, allow_pickle=False) as archive:
            joined = [archive[field] for field in Partition._fields]
            ends = np.cumsum(archive["sizes"], 1)
    except Exception:  # a damaged archive raises what its first bad byte leads to
        return None
    if not np.array_equal(np.sort(np.concatenate(joined)), np.arange(num_samples)):
        return None
    return Partition(*(np.split(rows, end[:-1]) for rows, end in zip(joined, ends, strict=True)))
