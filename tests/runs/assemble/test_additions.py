"""A named algorithm, weighting, model or data set is one entry of the settings' tables."""

import functools
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import fedvg_jax as fv
from fedvg_jax import commands
from fedvg_jax.config import ALGORITHMS, MODELS, WEIGHTINGS, method_title, methods, networks, presets
from fedvg_jax.core.types import Hyperparameter, UsageError
from fedvg_jax.data import datasets


def halved() -> fv.Algorithm:
    """FedAvg with gradients times a factor."""

    def correct(hyper, grads, params, anchor):
        return jax.tree.map(lambda g: hyper["factor"] * g, grads)

    return fv.algorithms.fedavg()._replace(correct=correct, defaults=(Hyperparameter("factor", 0.5, 0.0),))


@pytest.fixture
def added(monkeypatch):
    """Adds one of each."""
    monkeypatch.setitem(ALGORITHMS, "halved", methods.AlgorithmFacts("Halved", make=halved))
    monkeypatch.setitem(WEIGHTINGS, "even", methods.WeightingFacts(make=fv.weightings.uniform, takes_task=False))
    monkeypatch.setitem(MODELS, "single", networks.Network(functools.partial(fv.models.MLP, hidden=()), smallest=2))
    monkeypatch.setitem(presets.DATASETS, "small_digits", {"model": "single"})
    digits = fv.data.load("digits")
    few = digits._replace(name="small_digits", x=digits.x[:200], y=digits.y[:200], num_train=200)
    monkeypatch.setitem(datasets.BUILT_IN, "small_digits", lambda: few)


@pytest.mark.usefixtures("added")
def test_an_entry_of_a_table_runs_by_name():
    named = commands.parse(["--dataset", "small_digits", "--method", "halved+even"])
    assert (named.model, named.algorithm, named.weighting) == ("single", "halved", "even")
    named = replace(named, rounds=2, local_epochs=1, clients=4, min_samples=2, partition="iid")
    run = fv.run(named)
    assert len(run.records) == 2 and set(run.variables.params) == {"classifier"}
    expected = fv.run(replace(named, algorithm="fedavg", weighting="uniform", lr=named.lr / 2))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), run.variables, expected.variables)
    assert method_title("halved+even") == "Halved with even weights"


@pytest.mark.usefixtures("added")
def test_an_added_name_is_suggested_and_checked_like_the_others():
    for name, typed in {
        "algorithm": "halvd",
        "model": "singel",
        "weighting": "evn",
        "dataset": "smal_digits",
    }.items():
        with pytest.raises(UsageError, match=f"unknown {name} '{typed}'; did you mean"):
            commands.parse([f"--{name}", typed])


ENTRY = '''    @dataclass(frozen=True)
    class FedMine:
        """Gradients times a factor."""

        nu: float = setting(0.5, FROM_0, hyper="nu", also="shrinkage")
        """Factor of the gradients."""

    fedmine: FedMine = _algorithm(FedMine, "FedMine")

'''

FILE = """import jax

from fedvg_jax.algorithms.base import PLAIN
from fedvg_jax.config.methods import hyperparameters


def fedmine():
    def correct(hyper, grads, params, anchor):
        return jax.tree.map(lambda g: hyper["nu"] * g, grads)

    return PLAIN._replace(correct=correct, defaults=hyperparameters("fedmine"))
"""

RUN = """
from fedvg_jax import sim
import fedvg_jax as fv
from fedvg_jax.config import method_title

words = [["--help-all"], ["--fedmine.nu", "1"], ["--method", "fedmine", "--fedmine.nu", "-1"], ["--shrinkage", "1"]]
codes = [sim.main(argv) for argv in words]
shared = {"rounds": 1, "clients": 4, "local_epochs": 1, "model": "linear"}
mine = fv.run(fv.Config(method="fedmine", fedmine={"nu": 0.25}, **shared)).records
fedavg = fv.run(fv.Config(method="fedavg", lr=0.1 * 0.25, **shared)).records
print(codes, method_title("fedmine+fedvg"), abs(mine[0]["train_loss"] - fedavg[0]["train_loss"]) < 1e-6)
"""


def test_an_algorithm_with_a_hyperparameter_is_its_file_and_one_entry(tmp_path):
    """In a copy of the package: its flag has a help, a range, a use and suggestions, and it runs by name."""
    package = tmp_path / "fedvg_jax"
    shutil.copytree(Path(fv.__file__).parent, package)
    (package / "algorithms" / "fedmine.py").write_text(FILE)
    entries = package / "config" / "methods.py"
    before = "    @dataclass(frozen=True)\n    class FedProx:"
    assert before in entries.read_text()
    entries.write_text(entries.read_text().replace(before, ENTRY + before))
    done = subprocess.run([sys.executable, "-c", RUN], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith("[0, 2, 2, 2] FedMine with FedVG's weights True\n"), done.stderr
    assert re.search(r"FedMine:\n  --fedmine\.nu FLOAT +Factor of the gradients\. Allowed:", done.stdout)
    assert "--fedmine.nu is not used by --algorithm fedavg" in done.stderr
    assert "fedmine.nu must be >= 0; got -1" in done.stderr
    assert "did you mean --fedmine.nu?" in done.stderr
