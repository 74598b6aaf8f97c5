"""Intervals and tests of paired runs, by hand-derived values."""

import itertools
import math

import numpy as np
import pytest

pytest.importorskip("scipy", reason="reports need the report extra")

from scipy import stats

from fedvg_jax.study import statistics


def test_exact_test_enumerates_all_signs_with_and_without_ties():
    """p is the share of the 2^n sign patterns whose rank sum is at least as large; tied ranks are means."""
    for differences in ([3.0, -1.0, 2.0, 5.0], [2.0, -2.0, 2.0, 4.0, 0.0], [1.0, 1.0, 1.0]):
        values = np.array([d for d in differences if d])
        ranks = np.array(
            [1 + (abs(values) < v).sum() + ((abs(values) == v).sum() - 1) / 2 for v in abs(values)]
        )
        patterns = [
            ranks @ np.array(signs) for signs in itertools.product((0, 1), repeat=len(values))
        ]
        observed = ranks[values > 0].sum()
        expected = np.mean([pattern >= observed for pattern in patterns])
        assert statistics.wilcoxon(np.array(differences), "greater") == pytest.approx(expected)
        most = ranks.sum() / 2 + abs(observed - ranks.sum() / 2)
        both = np.mean([p >= most or p <= ranks.sum() - most for p in patterns])
        assert statistics.wilcoxon(np.array(differences)) == pytest.approx(both)


def test_equal_runs_have_no_effect_and_no_evidence():
    values = {(seed, 0): 1.0 for seed in range(6)}
    result = statistics.compare(values, values)
    assert (result.mean, *result.t_interval) == (0, 0, 0)
    assert result.t_p == result.wilcoxon_p == 1


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_pairs_have_no_interval(n):
    values = {(seed, 0): 1.0 for seed in range(n)}
    result = statistics.compare({**values, (7, 0): 3.0}, {**values, (8, 0): 3.0})
    assert result.n == n and all(map(math.isnan, (*result.t_interval, result.t_p)))


def test_holm_is_the_step_down_of_bonferroni():
    """Sorted p times the number of tests left, never falling: 0.01 x 3, 0.03 x 2, 0.04 x 1 -> 0.06."""
    assert statistics.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])


def test_the_signed_rank_test_ranks_the_differences_as_they_are():
    """One result of 1e9 leaves the other differences their ranks."""
    rng = np.random.default_rng(0)
    ours = {(seed, 0): float(value) for seed, value in enumerate([*rng.normal(1, 1, 7), 1e9])}
    theirs = {(seed, 0): float(value) for seed, value in enumerate(rng.normal(0, 1, 8))}
    differences = [ours[key] - theirs[key] for key in ours]
    assert statistics.compare(ours, theirs).wilcoxon_p == stats.wilcoxon(differences).pvalue
    assert statistics.compare(ours, theirs).mean == np.mean(differences)


def test_differences_that_are_equal_up_to_rounding_have_no_p_value():
    """0.6 - 0.5 and 0.7 - 0.6 differ in the last bit."""
    ours, theirs = ({(seed, 0): 0.1 * seed + lead for seed in range(5, 9)} for lead in (0.1, 0.0))
    result = statistics.compare(ours, theirs)
    assert math.isnan(result.t_p) and result.t_interval == pytest.approx((0.1, 0.1))
