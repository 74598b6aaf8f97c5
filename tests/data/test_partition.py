"""Dirichlet partitions: the published random stream, bulk draws, topping up, errors, and the cache."""

import json
import warnings

import numpy as np
import pytest
from support.files import same_partition

from fedvg_jax.data.partitions import client_rows, exchange, label_skew, partitioners
from fedvg_jax.engine import schedule

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [300, 200, 120, 80]))
CIFAR = np.repeat(np.arange(10), 6000)


def make(labels=LABELS, partitioner=None, **changes):
    settings = {"num_clients": 8, "alpha": 0.5} | changes
    return partitioners.draw_partition(labels, partitioner, **settings)


def sizes(parts):
    return np.sum([list(map(len, part)) for part in parts], 0)


GOLDEN = [
    (100, [605, 595, 600, 612, 597], (556, 655), (39076, 5957, 14967)),
    (10, [616, 653, 554, 693, 668], (430, 808), (39081, 5955, 14964)),
    (1, [463, 563, 527, 462, 641], (186, 1119), (39089, 5950, 14961)),
    (0.1, [669, 207, 551, 748, 287], (14, 3091), (39092, 5954, 14954)),
    pytest.param(
        0.05, [768, 580, 182, 2287, 251], (10, 4666), (39081, 5957, 14962), marks=pytest.mark.slow
    ),
]
"""Recorded from the official code: CIFAR-10's label counts, 100 clients, seed 42, validation ratio 0.1."""


@pytest.mark.parametrize(("alpha", "first", "extremes", "totals"), GOLDEN)
def test_official_stream_gives_recorded_sizes(alpha, first, extremes, totals):
    published = partitioners.official()
    stream = published.stream(42)
    rows = client_rows.pack(label_skew.official(CIFAR, 100, stream, alpha))
    parts = client_rows.split_clients(rows, 0.25, 0.1, stream)
    got = sizes(parts)
    assert got[:5].tolist() == first and (got.min(), got.max()) == extremes
    assert tuple(sum(map(len, part)) for part in parts) == totals
    if alpha >= 0.1:
        assert same_partition(parts, make(CIFAR, published, num_clients=100, alpha=alpha))


def test_bulk_draws_have_the_published_distribution_of_sizes():
    """Means and mean squares of the sorted sizes, and of single clients' sizes, agree within 4.5 standard errors.

    Over the 20 comparisons, chance alone exceeds this about once in 6,000 choices of seeds."""
    labels = np.repeat(np.arange(3), 60)

    def sample(draws, stream):
        def one(seed):
            rows = draws(labels, 9, stream(seed), 0.3, 2)
            size = np.array([len(client_rows) for client_rows in rows], float)
            return np.concatenate([np.sort(size), np.sort(size) ** 2, size[[0, -1]]])

        return np.array([one(seed) for seed in range(300)])

    bulk = sample(label_skew.bulk, np.random.default_rng)
    official = sample(label_skew.official, np.random.RandomState)
    error = np.sqrt((bulk.var(0) + official.var(0)) / len(bulk)) + 1e-9
    assert np.all(np.abs(bulk.mean(0) - official.mean(0)) < 4.5 * error)


@pytest.mark.parametrize("alpha", [1e-300, 1e-3, 1e8])
def test_extreme_alphas_give_no_nan_and_no_warning(alpha):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts = make(alpha=alpha, min_samples_rule="top_up")
    size = sizes(parts)
    assert size.sum() == len(LABELS) and size.min() >= 10
    if alpha < 1e-2:  # each of 4 labels belongs to one client, so at least 4 of 8 are topped up
        assert np.sum(size == 10) >= 4
    if alpha > 1e6:
        assert np.ptp(size) <= 8  # one row per label and client by truncation, and a little noise


def test_each_row_of_top_up_comes_from_the_largest_client_at_that_moment():
    for seed, minimum in enumerate((1, 6, 20)):
        sizes = np.random.default_rng(seed).integers(0, 60, 12)
        sizes[0] += max(0, 12 * minimum - sizes.sum())  # as many rows as needed
        rows = np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
        stream = np.random.default_rng(seed)
        piles = [stream.permutation(client_rows).tolist() for client_rows in rows]
        for pile in piles:
            while len(pile) < minimum:
                pile.append(max(piles, key=len).pop())  # of equal ones the first
        result = label_skew.top_up(rows, minimum, np.random.default_rng(seed))
        assert [client_rows.tolist() for client_rows in result] == piles


# --- rows of clients, packed into one array plus four bytes per client for each part of a partition


def test_packed_rows_equal_the_lists():
    lists = [np.array([5, 3]), np.array([], int), np.array([4, 9, 1])]
    packed = client_rows.pack(lists)
    for mine, own in zip(packed, lists, strict=True):
        np.testing.assert_array_equal(mine, own)
    assert packed[-1].tolist() == [4, 9, 1] and len(packed[1:]) == 2
    assert client_rows.sizes(packed).tolist() == client_rows.sizes(lists).tolist() == [2, 0, 3]
    assert client_rows.joined(packed).tolist() == client_rows.joined(lists).tolist()
    assert client_rows.pack(packed) is packed and len(client_rows.pack([])) == 0
    with pytest.raises(IndexError):
        packed[3]


def test_partition_takes_12_bytes_per_client_besides_its_rows():
    parts = make(np.arange(2000) % 4, num_clients=40, alpha=10.0)
    assert sum(part.begin.nbytes for part in parts) == 12 * 41
    assert sum(part.rows.nbytes for part in parts) == 4 * 2000


def test_capacity_of_a_small_cohort_is_bounded_by_the_largest_client():
    settings = {"pool_size": 12_000_000, "cohort_size": 1000, "local_epochs": 5, "batch_size": 16}
    assert schedule.capacity(**settings) == 5 * (750_000 + 1001)
    # 5 x 1000 = 5000 minibatches; a MiB of rows at least
    assert schedule.capacity(**settings, largest=8) == 2**14
    assert schedule.capacity(**settings, largest=20) == 2**14  # 10,000 minibatches
    small = {"pool_size": 60_000, "cohort_size": 10, "local_epochs": 5, "batch_size": 32}
    assert schedule.capacity(**small, largest=2) == schedule.capacity(**small), (
        "small programs depend on `largest`"
    )


# --- partitions in files and Python arrays


SIXTY = np.arange(60) % 4
GIVEN = [[0, 3, 5, 6, 7, 8], [1, 2, 9, 10]]
"""Rows of two clients, of twelve."""


def check(given, **changes):
    settings = {
        "num_samples": 12,
        "num_clients": 2,
        "source": "here",
        "test_ratio": 0.34,
        "val_ratio": 0.25,
    }
    return exchange.check(given, **settings | changes)


@pytest.mark.parametrize("holdout", ["client", "global"])
def test_written_parts_are_read_as_the_same_partition(tmp_path, holdout):
    partition = make(SIXTY, num_clients=3, alpha=1.0, min_samples=8, holdout=holdout)
    exchange.write(tmp_path / "rows.json", partition)
    actual = check(exchange.read(tmp_path / "rows.json"), num_samples=60, num_clients=3)
    assert same_partition(actual, partition)
    assert {rows.dtype for part in actual for rows in part} == {np.dtype(np.int32)}


def test_rows_by_client_are_read_and_split(tmp_path):
    file, parts = tmp_path / "list.json", check([np.array(client_rows) for client_rows in GIVEN])
    assert [list(map(len, part)) for part in (parts.test, parts.val)] == [[2, 1], [1, 1]]
    assert [sorted(np.concatenate(own).tolist()) for own in zip(*parts, strict=True)] == GIVEN
    file.write_text(json.dumps(GIVEN))
    assert same_partition(check(exchange.read(file)), parts)


def test_given_parts_are_taken_as_they_are():
    given = ([[0, 1], [2]], [[3], []], [[4], [5]])
    parts = check(given, test_ratio=0.6, val_ratio=0.3, min_samples=100, seed=7)
    for part, expected in zip(parts, given, strict=True):
        assert [rows.tolist() for rows in part] == expected
