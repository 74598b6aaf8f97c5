"""The feature study: its committed contrasts against SciPy by hand, and the outcomes of benchmarks/results/protocol."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from support.run_folders import write_run

from benchmarks.studies import uses


def finals(folder, alpha, method):
    """Returns the accuracies in the final round in the order of the seeds, from the file's lines."""
    names = [method, f"{method}, norm l1, granularity modelwise"]
    runs = pd.read_csv(uses.RESULTS / folder / "runs.csv", dtype={"alpha": str, "seed": str})
    of_method = runs[(runs.alpha == alpha) & runs.method.isin(names)]
    return of_method.sort_values("seed").final.to_numpy()


@pytest.mark.parametrize("folder", uses.SETS)
def test_primary_contrasts_are_those_of_scipy_with_holms_correction(folder):
    expected = {}
    for name, control in uses.CONTROLS.items():
        for alpha in uses.ALPHAS:
            gains = finals(folder, alpha, "fedvg") - finals(folder, alpha, control)
            test = stats.ttest_1samp(gains, 0)
            expected[name, alpha] = (gains.mean(), *test.confidence_interval(0.95), test.pvalue)
    contrasts = uses.primary(uses.read(folder))
    ordered = sorted(expected, key=lambda key: expected[key][3])
    largest = 0.0
    for i, key in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - i) * expected[key][3]))
        # results have nine digits, and a report rounds their differences, so that equal ones tie
        np.testing.assert_allclose(
            contrasts[key][1:], (*expected[key][:3], largest), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(
    ("contrast", "outcome"),
    [
        (uses.Contrast(10, 0.5, 0.1, 0.9, 0.049), "support"),
        (uses.Contrast(10, 0.49, 0.3, 0.7, 0.001), "undecided"),
        (uses.Contrast(10, 2.0, 0.1, 3.9, 0.05), "undecided"),
        (uses.Contrast(10, 0.2, -0.1, 0.49, 0.2), "refutation"),
        (uses.Contrast(10, -3.0, -4.0, -2.0, 0.001), "refutation"),
        (uses.Contrast(10, 0.2, -0.2, 0.5, 0.2), "undecided"),
    ],
)
def test_outcomes_are_those_of_the_protocol(contrast, outcome):
    assert contrast.outcome == outcome


def test_collected_values_are_those_of_their_own_runs(tmp_path, monkeypatch):
    """Alphas are whole numbers; the first run has no final result."""
    expected = {}
    for alpha, method, seed in itertools.product((1.0, 10.0), ("fedavg", "fedvg"), (0, 1)):
        fields = {"test_balanced_accuracy": 0.1 + 0.01 * len(expected)}
        if not expected:
            fields["test_accuracy"] = None
        expected[alpha, method, seed] = 100 * fields["test_balanced_accuracy"]
        folder = tmp_path / "runs" / f"{method}{alpha}{seed}"
        write_run(folder, (0.5,), method=method, alpha=alpha, seed=seed, fields={1: fields})
    uses.collect(tmp_path / "runs", tmp_path / "collected", "command", "commit")
    shown = pd.read_csv(tmp_path / "collected" / "runs.csv")
    balanced = shown.set_index(["alpha", "method", "seed"]).balanced
    assert balanced.to_dict() == pytest.approx(expected)
    monkeypatch.setattr(uses, "RESULTS", tmp_path)
    values = uses.read("collected")
    assert values["1"].count().to_dict() == {"fedavg": 1, "fedvg": 2, uses.CHOSEN: 1}
