"""Intervals and tests of paired runs, by hand-derived values; the paper's own pattern of significance."""

import functools
import itertools
import math

import numpy as np
import pytest

pytest.importorskip("scipy", reason="reports need the report extra")

from fedvg_jax import paper
from fedvg_jax.study import statistics

ALPHAS = (100, 10, 1, 0.1, 0.05)
OTHERS = ("FedAvg", "FedAvgM", "FedProx", "Scaffold", "FedDyn", "Elastic")


@functools.cache
def cells():
    return [cell for cell in paper.cells() if cell.table.startswith("results")]


def pair_differences(method: str, alpha: float) -> np.ndarray:
    """FedVG minus a method in the paper's tables, one per data set and model."""
    results = [cell for cell in cells() if cell.alpha == alpha]
    mean = {(cell.dataset, cell.model, cell.method): cell.mean for cell in results}
    pairs = sorted({(cell.dataset, cell.model) for cell in results})
    return np.array([mean[*pair, "FedVG"] - mean[*pair, method] for pair in pairs])


def significant(alternative: str) -> dict[str, set[float]]:
    tests = itertools.product(OTHERS, ALPHAS)
    p = {(m, a): statistics.wilcoxon(pair_differences(m, a), alternative) for m, a in tests}
    return {method: {alpha for alpha in ALPHAS if p[method, alpha] < 0.05} for method in OTHERS}


def test_one_sided_tests_over_the_pairs_give_the_papers_pattern_of_significance():
    assert significant("greater") == {
        "FedDyn": set(ALPHAS),
        "Elastic": {10, 1},
        "Scaffold": {0.1, 0.05},
        "FedAvgM": {0.1, 0.05},
        "FedAvg": {0.05},
        "FedProx": {0.05},
    }


def test_exact_test_enumerates_all_signs_with_and_without_ties():
    """p is the share of the 2^n sign patterns whose rank sum is at least as large; tied ranks are means."""
    for differences in ([3.0, -1.0, 2.0, 5.0], [2.0, -2.0, 2.0, 4.0, 0.0], [1.0, 1.0, 1.0]):
        values = np.array([d for d in differences if d])
        ranks = np.array([1 + (abs(values) < v).sum() + ((abs(values) == v).sum() - 1) / 2 for v in abs(values)])
        patterns = [ranks @ np.array(signs) for signs in itertools.product((0, 1), repeat=len(values))]
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
    assert result.t_p == result.wilcoxon_p == result.greater_p == 1


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_pairs_have_no_interval(n):
    values = {(seed, 0): 1.0 for seed in range(n)}
    result = statistics.compare({**values, (7, 0): 3.0}, {**values, (8, 0): 3.0})
    assert result.n == n and all(map(math.isnan, (*result.t_interval, result.t_p)))


def test_holm_is_the_step_down_of_bonferroni():
    """Sorted p times the number of tests left, never falling: 0.01 x 3, 0.03 x 2, 0.04 x 1 -> 0.06."""
    assert statistics.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])


def test_warning_names_the_number_of_pairs_that_suffices():
    """Two-sided p of n pairs is at least 2^(1-n): 1/16 for 5. Times 30 tests: 30/512 for 10, 30/1024 for 11."""
    assert "6 pairs or more" in statistics.warning(5, 1) and not statistics.warning(6, 1)
    assert "11 pairs or more" in statistics.warning(10, 30) and not statistics.warning(11, 30)
