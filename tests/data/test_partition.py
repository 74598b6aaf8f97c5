"""Partitions: invariants, the recorded sizes of the published random stream, errors, and the cache."""

import re

import numpy as np
import pytest

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.partitions import dirichlet, draw, split

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [300, 200, 120, 80]))
CIFAR = np.repeat(np.arange(10), 6000)
KINDS = ("dirichlet", "official")


def make(labels=LABELS, **changes):
    return draw.draw_partition(labels, **({"num_clients": 8, "alpha": 0.5, "seed": 42} | changes))


def sizes(parts):
    return np.sum([[len(rows) for rows in part] for part in parts], 0)


def same(a, b):
    return all(np.array_equal(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ["redraw", "top_up"])
@pytest.mark.parametrize(("num_clients", "alpha"), [(6, 0.3), (20, 0.7)])
def test_partition_is_a_disjoint_cover_with_the_minimum_and_published_rounding(kind, rule, num_clients, alpha):
    parts = make(kind=kind, rule=rule, num_clients=num_clients, alpha=alpha)
    every = np.concatenate([rows for part in parts for rows in part])
    assert every.dtype == np.int32 and np.array_equal(np.sort(every), np.arange(len(LABELS)))
    assert [len(part) for part in parts] == [num_clients] * 3
    for n, train, val, test in zip(sizes(parts), *parts, strict=True):
        assert n >= 10 and (len(test), len(val)) == (int(0.25 * n), int(0.1 * n)) and len(train) > 0


GOLDEN = [
    (100, 1, [605, 595, 600, 612, 597], (556, 655), (39076, 5957, 14967)),
    (10, 1, [616, 653, 554, 693, 668], (430, 808), (39081, 5955, 14964)),
    (1, 1, [463, 563, 527, 462, 641], (186, 1119), (39089, 5950, 14961)),
    (0.1, 8, [669, 207, 551, 748, 287], (14, 3091), (39092, 5954, 14954)),
    pytest.param(0.05, 10_826, [768, 580, 182, 2287, 251], (10, 4666), (39081, 5957, 14962), marks=pytest.mark.slow),
]
"""Recorded from the official code: CIFAR-10's label counts, 100 clients, seed 42, validation ratio 0.1."""


@pytest.mark.parametrize(("alpha", "attempts", "first", "extremes", "totals"), GOLDEN)
def test_official_stream_gives_recorded_sizes(alpha, attempts, first, extremes, totals):
    stream = split.random_stream("official", 42)
    drawn = dirichlet.official(CIFAR, 100, alpha, stream)
    parts = split.split_clients(drawn.rows, 0.25, 0.1, stream)
    got = sizes(parts)
    assert drawn.attempts == attempts and got[:5].tolist() == first and (got.min(), got.max()) == extremes
    assert tuple(sum(map(len, part)) for part in parts) == totals
    if alpha >= 0.1:
        assert same(parts, make(CIFAR, kind="official", num_clients=100, alpha=alpha))


def published(labels, num_clients, alpha, seed, minimum=10):
    """Draws a partition with NumPy's global stream by the rule that the paper describes: (train, val, test) rows."""
    np.random.seed(seed)
    members = [np.flatnonzero(labels == label) for label in range(labels.max() + 1)]
    smallest = 0
    while smallest < minimum:
        clients = [[] for _ in range(num_clients)]
        for rows in members:
            np.random.shuffle(rows)
            shares = np.random.dirichlet([alpha] * num_clients)
            ends = (np.cumsum(shares) * len(rows)).astype(int)[:-1]
            for client, piece in zip(clients, np.split(rows, ends), strict=True):
                client.extend(piece.tolist())
        smallest = min(map(len, clients))
    parts = []
    for rows in clients:
        np.random.shuffle(rows)
        num_test, num_val = int(0.25 * len(rows)), int(0.1 * len(rows))
        parts.append((rows[num_test + num_val :], rows[num_test : num_test + num_val], rows[:num_test]))
    return tuple(zip(*parts, strict=True))


@pytest.mark.parametrize(("num_clients", "alpha", "seed"), [(8, 0.2, 0), (20, 5.0, 1)])
def test_official_stream_gives_the_published_rows(num_clients, alpha, seed):
    state = np.random.get_state()
    expected = published(LABELS, num_clients, alpha, seed)
    np.random.set_state(state)
    assert same(expected, make(kind="official", num_clients=num_clients, alpha=alpha, seed=seed))


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"alpha": 0}, ["alpha must be > 0", "0"]),
        ({"num_clients": 71}, ["71 clients", "10 samples need 710", "700", "fewer clients"]),
        ({"seed": -1}, ["seed must be 0..4294967295", "-1"]),
        ({"kind": "dirichle"}, ["one of dirichlet, official", "group", "'dirichle'"]),
        ({"val_ratio": 1.0}, ["validation ratio must be", "1.0"]),
        ({"test_ratio": 0.5, "val_ratio": 0.5}, ["0.5 + validation ratio 0.5", "below 1"]),
        ({"val_ratio": 0.001}, ["0.001", "8 clients", "validation"]),
        ({"kind": "official", "alpha": 1e-9}, ["1e-09", "too small"]),
    ],
)
def test_invalid_argument_is_refused_in_one_line(changes, parts):
    with pytest.raises(UsageError, match=r"\A[^\n]*" + r"[^\n]*".join(map(re.escape, parts)) + r"[^\n]*\Z"):
        make(**changes)


def test_partition_is_cached_and_a_damaged_entry_is_rebuilt(tmp_path, monkeypatch):
    first = make(cache_dir=tmp_path)
    (entry,) = tmp_path.iterdir()
    intact = entry.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(draw, "_draw", None)
        assert same(first, make(cache_dir=tmp_path))
    for damaged in (b"", intact[: len(intact) // 2], intact[:300] + b"\x55" + intact[301:]):
        entry.write_bytes(damaged)
        assert same(first, make(cache_dir=tmp_path)) and len(entry.read_bytes()) == len(intact)
    np.savez(entry, sizes=np.ones((3, 8), int), train=np.arange(8), val=np.arange(8), test=np.arange(8))
    assert same(first, make(cache_dir=tmp_path))
    for change in ({"seed": 1}, {"alpha": 0.4}, {"kind": "official"}, {"labels": np.sort(LABELS)}, {"val_ratio": 0.2}):
        make(cache_dir=tmp_path, **change)
    assert len(list(tmp_path.iterdir())) == 6
