"""The study of the validation set's size: laws of the reliability of weights, and a table against SciPy."""

import functools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import fedvg_jax as fv
from benchmarks import machine
from benchmarks.studies import validation_size as study

RESULTS = machine.RESULTS / "validation_size"


def weights(seed):
    drawn = np.random.default_rng(seed).uniform(0.5, 1.5, (400, 10))
    return drawn / drawn.sum(1, keepdims=True)


def test_two_equal_sets_agree_and_independent_noise_does_not():
    first = weights(0)
    second = weights(1)
    np.testing.assert_allclose(study.agreement(first, first), (1, 0, 1), atol=1e-12)
    rank, variation, signal = study.agreement(first, second)
    assert max(abs(rank), abs(signal)) < 3 / np.sqrt(400 * 9) and variation > 0.1


def test_share_of_signal_is_that_of_the_variance():
    stream = np.random.default_rng(2)
    signal = stream.normal(size=(200, 200))
    first, second = (signal + np.sqrt(3) * stream.normal(size=signal.shape) for _ in range(2))
    assert study.agreement(first, second)[2] == pytest.approx(1 / 4, abs=4 / np.sqrt(200 * 199))


def test_rows_for_half_of_the_variance_follow_one_over_n():
    sizes = (10, 30, 100, 300, 1000)
    assert study.rows_for_half(sizes, [n / (n + 100) for n in sizes]) == pytest.approx(100)


def test_paired_sets_change_no_weight_and_score_disjoint_rows():
    config = fv.Config(clients=4, join_ratio=1.0, rounds=1, alpha=1.0, model="linear")
    (plain,), (record,) = (
        fv.run(config, weighting=weighting).records
        for weighting in (None, functools.partial(study.paired, sizes=(80,)))
    )
    # another program, which may round the last digit differently
    for name in ("weights", "scores"):
        np.testing.assert_allclose(record[name], plain[name], rtol=1e-5)
    scores = np.array(record["pair_80"])
    assert scores.shape == (4, 2) and (scores[:, 0] != scores[:, 1]).all()


def test_runs_of_other_partitions_are_no_pairs():
    runs = pd.DataFrame({
        "part": 3 * ["all"] + 3 * ["size"],
        "set": 3 * ["all"] + 3 * ["10"],
        "seed": 2 * [0, 1, 2],
        "partition_seed": [0, 1, 2, 0, 1, 1],
        "final": 2 * [50.0, 51.0, 52.0],
    })  # fmt: skip
    runs = runs.assign(weighting="fedvg", alpha=0.1, at_best_val=0.0)
    assert study.contrasts(runs).n.tolist() == [2]


def test_half_of_the_variance_is_signal_at_the_rows_that_the_page_says():
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    for alpha, of_alpha in pd.read_csv(RESULTS / "reliability.csv").groupby("alpha"):
        rows = [
            study.rows_for_half([*run.rows], [*run.signal]) for _, run in of_alpha.groupby("seed")
        ]
        assert len(rows) == 10
        low, high = stats.ttest_1samp(rows, 0).confidence_interval(0.95)
        assert f"{np.mean(rows):.1f} rows ({low:.1f} to {high:.1f}) at alpha {alpha}" in page


def test_contrasts_of_the_first_family_are_those_of_scipy_with_holms_correction():
    """V1 to V4, from the runs; Holm's p values by their definition."""
    runs, listed = (
        pd.read_csv(RESULTS / f"{name}.csv", dtype={"set": str}) for name in ("runs", "contrasts")
    )
    listed = listed[listed.contrast.str.startswith("V")].reset_index()
    cells = runs.pivot_table(["final", "at_best_val"], "seed", ["weighting", "set", "alpha"])
    p_values = []
    for line in listed.itertuples():
        ours, theirs = {
            "V1": (("final", "fedvg", "all"), ("final", "fedvg", line.set)),
            "V2": (("final", "fedvg", line.set), ("final", "permuted(fedvg)", line.set)),
            "V3": (("final", "fedvg", line.set), ("final", "uniform", "all")),
            "V4": (("final", "fedvg", line.set), ("at_best_val", "samples", line.set)),
        }[line.contrast]
        gains = cells[*ours, line.alpha] - cells[*theirs, line.alpha]
        test = stats.ttest_1samp(gains, 0)
        expected = (len(gains), gains.mean(), *test.confidence_interval(0.95))
        shown = (line.n, line.mean, line.low, line.high)
        np.testing.assert_allclose(shown, expected, rtol=1e-5, atol=1e-6)
        p_values.append(test.pvalue)
    order = np.argsort(p_values)
    corrected = np.sort(p_values) * np.arange(len(order), 0, -1)
    corrected = np.maximum.accumulate(corrected).clip(max=1)
    np.testing.assert_allclose(listed.p[order], corrected, rtol=1e-4)
