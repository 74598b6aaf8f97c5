"""Dirichlet partitions: bulk draws compared with published ones, extreme alphas, topping up, and bounds."""

import warnings

import numpy as np
import pytest
from files import usage_error

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


def test_success_bound_exceeds_the_frequency_of_success():
    """For few and many clients per class and small to large alphas; minimum 1."""
    stream, draws = np.random.default_rng(0), 4000
    for classes, num_clients in ((3, 5), (6, 4)):
        counts = np.full(classes, 30)
        for alpha in (1e-6, 1e-3, 0.03):
            successes, _ = dirichlet._bulk(stream, counts, num_clients, alpha, 1, draws)
            bound = dirichlet.success_bound(counts, num_clients, alpha)
            assert len(successes) / draws <= bound + 4 * np.sqrt(bound / draws)


@pytest.mark.parametrize(("kind", "rule"), [("dirichlet", dirichlet.bulk), ("official", dirichlet.official)])
def test_alpha_too_small_for_the_number_of_clients_is_refused_without_a_draw(kind, rule):
    stream = split.random_stream(kind, 0)
    with usage_error("Dirichlet alpha 1e-300", "20 clients", "larger alpha", "top_up"):
        rule(LABELS, 20, 1e-300, stream)
    assert stream.random() == split.random_stream(kind, 0).random()
    assert draw.draw_partition(LABELS, num_clients=8, alpha=1e-300, rule="top_up").train
