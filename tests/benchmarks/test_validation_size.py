"""The study of the validation set's size: laws of the reliability of weights, and a table against SciPy."""

import csv
import functools
import itertools

import numpy as np
import pytest
from scipy import stats

import fedvg_jax as fv
from benchmarks.studies import validation_size as study


def weights(stream, rounds=400, clients=10):
    drawn = stream.uniform(0.5, 1.5, (rounds, clients))
    return drawn / drawn.sum(1, keepdims=True)


def test_two_equal_sets_agree_and_independent_noise_does_not():
    first, second = (weights(np.random.default_rng(seed)) for seed in (0, 1))
    np.testing.assert_allclose(study.agreement(first, first), (1, 0, 1), atol=1e-12)
    rank, variation, signal = study.agreement(first, second)
    assert max(abs(rank), abs(signal)) < 3 / np.sqrt(400 * 9) and variation > 0.1


def test_share_of_signal_is_that_of_the_variance():
    stream = np.random.default_rng(2)
    signal = stream.normal(size=(4000, 10))
    first, second = (signal + np.sqrt(3) * stream.normal(size=signal.shape) for _ in range(2))
    assert study.agreement(first, second)[2] == pytest.approx(1 / 4, abs=4 / np.sqrt(4000 * 9))


def test_rows_for_half_of_the_variance_follow_one_over_n():
    sizes = (10, 30, 100, 300, 1000)
    assert study.rows_for_half(sizes, [n / (n + 100) for n in sizes]) == pytest.approx(100)


def test_paired_sets_change_no_weight_and_score_disjoint_rows():
    config = fv.Config(clients=4, join_ratio=1.0, rounds=1, alpha=1.0, model="linear")
    (plain,), (record,) = (
        fv.run(config, weighting=weighting).records
        for weighting in (None, functools.partial(study.paired, sizes=(20, 80)))
    )
    for name in ("weights", "scores"):  # another program, which may round the last digit differently
        np.testing.assert_allclose(record[name], plain[name], rtol=1e-5)
    small, large = (np.array(record[f"pair_{n}"]) for n in (20, 80))
    assert large.shape == (4, 2) and (small[:, 0] != small[:, 1]).all()


def rows_of(name):
    with (study.RESULTS / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_contrasts_with_all_rows_are_those_of_scipy_with_holms_correction():
    runs = sorted((run for run in rows_of("runs") if run["part"] == "all"), key=lambda run: int(run["seed"]))
    controls = {"V2": ("permuted(fedvg)", "final"), "V3": ("uniform", "final"), "V4": ("samples", "at_best_val")}

    def values(method, column, alpha):
        return np.array([float(run[column]) for run in runs if (run["method"], run["alpha"]) == (method, alpha)])

    family = [row for row in rows_of("contrasts") if row["contrast"].startswith("V")]
    listed = [row for row in family if row["rows"] == "0"]
    assert {(row["contrast"], row["alpha"]) for row in listed} == set(itertools.product(controls, ("0.05", "0.1")))
    for row in listed:
        ours, theirs = values("fedvg", "final", row["alpha"]), values(*controls[row["contrast"]], row["alpha"])
        test = stats.ttest_rel(ours, theirs)
        expected = (len(ours), (ours - theirs).mean(), *test.confidence_interval(0.95))
        found = [float(row[name]) for name in ("n", "mean", "low", "high")]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        corrected = [(len(family) - i) * p for i, p in enumerate(sorted(map(uncorrected, family)))]
        rank = sorted(map(uncorrected, family)).index(uncorrected(row))
        np.testing.assert_allclose(float(row["p"]), min(1, max(corrected[: rank + 1])), rtol=1e-4)


def uncorrected(row):
    """Returns the p value of a contrast from its mean, interval and number of pairs."""
    n, mean, high = (float(row[name]) for name in ("n", "mean", "high"))
    error = (high - mean) / stats.t.ppf(0.975, n - 1)
    return 2 * stats.t.sf(abs(mean) / error, n - 1)
