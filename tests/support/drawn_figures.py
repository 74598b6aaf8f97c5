"""A study for tests of figures, and what is drawn of it."""

import csv
import io
import tempfile
from pathlib import Path

from fedvg_jax.study.collect import collect
from fedvg_jax.study.figures import base
from support.run_folders import write_sweep

METHODS = ["fedavg", "fedprox", "fedvg", "fedprox+fedvg"]
NAMES = ("a/kernel", "a/bias", "b/kernel")


def accuracies(values):
    final = (
        0.6
        + 0.001 * METHODS.index(values["method"])
        + 0.1 * (values["alpha"] == 0.5)
        + 0.01 * values["seed"]
    )
    return (0.3, final - 0.1, final)


def make_study():
    """Returns four methods at two concentrations, with two seeds each."""
    axes = {"method": METHODS, "alpha": [0.05, 0.5], "seed": [0, 1]}
    with tempfile.TemporaryDirectory() as folder:
        return collect([write_sweep(Path(folder) / "s", axes, accuracies, layers=NAMES)])


def draw_one(figures, study, name):
    with base.drawing():
        return figures[name](study)


def rows(drawing):
    return list(csv.DictReader(io.StringIO(base.csv_text(drawing.numbers))))
