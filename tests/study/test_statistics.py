"""Intervals and tests of paired runs, by hand-derived values."""

import math

import numpy as np
import pytest

pytest.importorskip("scipy", reason="reports need the report extra")

from scipy import stats

from fedvg_jax.study import statistics


def test_equal_runs_have_no_effect_and_no_evidence():
    values = {(seed, 0): 1.0 for seed in range(6)}
    result = statistics.compare(values, values)
    assert (result.mean, *result.t_interval, result.t_p) == (0, 0, 0, 1)


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_pairs_have_no_interval(n):
    values = {(seed, 0): 1.0 for seed in range(n)}
    result = statistics.compare({**values, (7, 0): 3.0}, {**values, (8, 0): 3.0})
    assert result.n == n and all(map(math.isnan, (*result.t_interval, result.t_p)))


def test_holm_is_the_step_down_of_bonferroni():
    """Sorted p times the number of tests left, never falling: 0.01 x 3, 0.03 x 2, 0.04 x 1 -> 0.06."""
    assert statistics.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert statistics.holm([0.9, 0.8]) == [1.0, 1.0]


def by_seed(values):
    return {(seed, 0): value for seed, value in enumerate(values)}


def test_comparisons_are_those_of_scipy():
    ours, theirs = np.random.default_rng(0).normal(size=(2, 8))
    result = statistics.compare(by_seed(ours), by_seed(theirs))
    test = stats.ttest_rel(ours, theirs)
    assert result.t_p == pytest.approx(test.pvalue)
    assert result.t_interval == pytest.approx(tuple(test.confidence_interval(0.95)))


def test_differences_that_are_equal_up_to_rounding_have_no_p_value():
    """0.6 - 0.5 and 0.7 - 0.6 differ in the last bit."""
    values = 0.1 * np.arange(5, 9)
    result = statistics.compare(by_seed(values + 0.1), by_seed(values))
    assert math.isnan(result.t_p) and result.t_interval == pytest.approx((0.1, 0.1))
