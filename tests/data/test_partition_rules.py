"""Dirichlet partitions: bulk draws compared with published ones, extreme alphas, topping up, and bounds."""

import warnings

import numpy as np
import pytest

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.partitions import dirichlet, draw, split

pytestmark = pytest.mark.quick

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [300, 200, 120, 80]))


@pytest.mark.parametrize(("num_clients", "alpha", "minimum"), [(9, 0.3, 2), (7, 2.0, 0)])
def test_bulk_draws_have_the_published_distribution_of_sizes(num_clients, alpha, minimum):
    """Means and mean squares of the sorted sizes, and of single clients' sizes, agree within 4.5 standard errors.

    Over the 40 comparisons of a run, chance alone exceeds this about once in 3,000 choices of seeds."""
    labels = np.repeat(np.arange(3), 60)

    def sample(kind, rule):
        def one(seed):
            rows = rule(labels, num_clients, alpha, split.random_stream(kind, seed), minimum).rows
            size = np.array([len(client_rows) for client_rows in rows], float)
            return np.concatenate([np.sort(size), np.sort(size) ** 2, size[[0, -1]]])

        return np.array([one(seed) for seed in range(500)])

    bulk, official = sample("dirichlet", dirichlet.bulk), sample("official", dirichlet.official)
    error = np.sqrt((bulk.var(0) + official.var(0)) / len(bulk)) + 1e-9
    assert np.all(np.abs(bulk.mean(0) - official.mean(0)) < 4.5 * error)


def test_bulk_draws_succeed_as_often_as_published_ones():
    """Attempts are geometric: the mean of n has standard error sqrt(1 - p) / (p sqrt(n)), with p = 1 / mean."""
    labels, n = np.repeat(np.arange(3), 40), 300
    attempts = [
        [rule(labels, 8, 0.5, split.random_stream(kind, seed), 5).attempts for seed in range(n)]
        for kind, rule in (("dirichlet", dirichlet.bulk), ("official", dirichlet.official))
    ]
    bulk, official = np.mean(attempts, 1)
    assert min(bulk, official) > 2 and abs(bulk - official) < 4.5 * np.hypot(bulk, official) / np.sqrt(n)


@pytest.mark.parametrize("alpha", [1e-300, 1e-30, 1e-7, 1e-3, 1e8])
def test_extreme_alphas_give_no_nan_and_no_warning(alpha):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts = draw.draw_partition(LABELS, num_clients=8, alpha=alpha, rule="top_up")
    size = np.sum([[len(rows) for rows in part] for part in parts], 0)
    assert size.sum() == len(LABELS) and size.min() >= 10
    if alpha < 1e-2:  # each of 4 labels belongs to one client, so at least 4 of 8 are topped up
        assert np.sum(size == 10) >= 4
    if alpha > 1e6:
        assert np.ptp(size) <= 8  # one row per label and client by truncation, and a little noise


@pytest.mark.parametrize(("kind", "rule"), [("dirichlet", dirichlet.bulk), ("official", dirichlet.official)])
def test_clients_get_random_rows_of_a_label_in_one_attempt(kind, rule):
    drawn = rule(np.zeros(1000, int), 4, 100.0, split.random_stream(kind, 0))
    assert drawn.attempts == 1
    for rows in drawn.rows:  # standard error of the mean of n of 0..999: at most 1000 / sqrt(12 n)
        assert abs(rows.mean() - 499.5) < 4.5 * 1000 / np.sqrt(12 * len(rows))


@pytest.mark.parametrize("minimum", [1, 6, 20])
def test_each_row_of_top_up_comes_from_the_largest_client_at_that_moment(minimum):
    for seed in range(5):
        sizes = np.random.default_rng(seed).integers(0, 60, 12)
        sizes[0] += max(0, 12 * minimum - sizes.sum())  # as many rows as needed
        rows = np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
        stream = np.random.default_rng(seed)
        piles = [stream.permutation(client_rows).tolist() for client_rows in rows]
        for pile in piles:
            while len(pile) < minimum:
                pile.append(max(piles, key=len).pop())  # of equal ones the first
        result = dirichlet.top_up(rows, minimum, np.random.default_rng(seed))
        assert [client_rows.tolist() for client_rows in result] == piles


@pytest.mark.parametrize(("kind", "rule"), [("dirichlet", dirichlet.bulk), ("official", dirichlet.official)])
def test_error_of_an_unmet_minimum_names_every_remedy(kind, rule):
    with pytest.raises(UsageError, match=r"500 draws.*0\.05.*60 clients.*10 samples.*fewer.*larger.*smaller.*top_up"):
        rule(LABELS, 60, 0.05, split.random_stream(kind, 0), 10, 500)


def test_progress_ends_at_the_maximum_of_draws():
    reports = []
    stream = split.random_stream("dirichlet", 0)
    with pytest.raises(UsageError):
        dirichlet.bulk(LABELS, 60, 0.05, stream, 10, 5000, lambda *args: reports.append(args))
    assert reports[-1] == (5000, 5000) and reports == sorted(reports)
