"""Dirichlet partitions: bulk draws compared with published ones, extreme alphas, topping up, and bounds."""

import warnings

import numpy as np
import pytest

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.partitions import dirichlet, draw, split

pytestmark = pytest.mark.quick

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [300, 200, 120, 80]))


def test_bulk_draws_have_the_published_distribution_of_sizes():
    """Means and mean squares of the sorted sizes, and of single clients' sizes, agree within 4.5 standard errors.

    Over the 20 comparisons, chance alone exceeds this about once in 6,000 choices of seeds."""
    labels = np.repeat(np.arange(3), 60)

    def sample(kind, rule):
        def one(seed):
            rows = rule(labels, 9, 0.3, split.random_stream(kind, seed), 2).rows
            size = np.array([len(client_rows) for client_rows in rows], float)
            return np.concatenate([np.sort(size), np.sort(size) ** 2, size[[0, -1]]])

        return np.array([one(seed) for seed in range(300)])

    bulk, official = sample("dirichlet", dirichlet.bulk), sample("official", dirichlet.official)
    error = np.sqrt((bulk.var(0) + official.var(0)) / len(bulk)) + 1e-9
    assert np.all(np.abs(bulk.mean(0) - official.mean(0)) < 4.5 * error)


@pytest.mark.parametrize("alpha", [1e-300, 1e-3, 1e8])
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
