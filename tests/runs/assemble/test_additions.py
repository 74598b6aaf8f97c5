"""A named algorithm, weighting, model or data set is one entry of the settings' names and one of a registry."""

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
from fedvg_jax.config import options, presets
from fedvg_jax.core.types import Hyperparameter, UsageError
from fedvg_jax.data import datasets
from fedvg_jax.runs.assemble import registry
from fedvg_jax.views.labels import method_label


def halved() -> fv.Algorithm:
    """FedAvg with gradients times a factor."""

    def correct(hyper, grads, params, anchor):
        return jax.tree.map(lambda g: hyper["factor"] * g, grads)

    return fv.algorithms.fedavg()._replace(correct=correct, defaults=(Hyperparameter("factor", 0.5, 0.0),))


@pytest.fixture
def added(monkeypatch):
    """Adds one of each."""
    monkeypatch.setitem(options.ALGORITHMS, "halved", options.AlgorithmFacts("Halved"))
    monkeypatch.setitem(registry.ALGORITHMS, "halved", lambda config: halved())
    monkeypatch.setitem(options.WEIGHTINGS, "even", True)
    monkeypatch.setitem(registry.WEIGHTINGS, "even", lambda *_: fv.weightings.uniform())
    monkeypatch.setitem(options.MODELS, "single", options.Network(smallest=2))
    monkeypatch.setitem(registry.MODELS, "single", registry.Model(functools.partial(fv.models.MLP, hidden=())))
    monkeypatch.setitem(presets.DATASETS, "small_digits", {"model": "single"})
    digits = fv.data.load("digits")
    few = digits._replace(name="small_digits", x=digits.x[:200], y=digits.y[:200], num_train=200)
    monkeypatch.setitem(datasets.BUILT_IN, "small_digits", lambda: few)


@pytest.mark.usefixtures("added")
def test_an_entry_of_the_names_and_one_of_the_registry_run_by_name():
    named = commands.parse(["--dataset", "small_digits", "--method", "halved+even"])
    assert (named.model, named.algorithm, named.weighting) == ("single", "halved", "even")
    named = replace(named, rounds=2, local_epochs=1, clients=4, min_samples=2, partition="iid")
    run = fv.run(named)
    assert len(run.records) == 2 and set(run.variables.params) == {"classifier"}
    expected = fv.run(replace(named, algorithm="fedavg", weighting="uniform", lr=named.lr / 2))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), run.variables, expected.variables)
    assert method_label("halved+even") == "Halved + even"


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


OPTIONS = '''@dataclass(frozen=True)
class FedMine:
    """FedMine: gradients times a factor."""

    nu: float = setting(0.5, FROM_0, hyper="nu", also="shrinkage")
    """Factor of the gradients."""


'''


def test_an_option_of_an_algorithm_is_declared_once(tmp_path):
    """In a copy of the package; the flag has a help, a range, a use and suggestions."""
    package = tmp_path / "fedvg_jax"
    shutil.copytree(Path(fv.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    file = package / "config" / "options.py"
    facts = '"fedavg": AlgorithmFacts("FedAvg"),'
    text = file.read_text().replace(facts, f'{facts}\n    "fedmine": AlgorithmFacts("FedMine"),', 1)
    text = text.replace("@dataclass(frozen=True)\nclass Config:", f"{OPTIONS}@dataclass(frozen=True)\nclass Config:")
    text = text.replace("    fedprox: FedProx", '    fedmine: FedMine = _of(FedMine, "fedmine")\n    fedprox: FedProx')
    file.write_text(text)
    words = [
        ["--help-all"],
        ["--fedmine.nu", "1"],
        ["--method", "fedmine", "--fedmine.nu", "-1"],
        ["--shrinkage", "1"],
    ]
    code = f"from fedvg_jax import sim; print([sim.main(words) for words in {words}])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith("[0, 2, 2, 2]\n"), done.stderr
    assert re.search(r"FedMine:\n  --fedmine\.nu FLOAT +Factor of the gradients\. Allowed:", done.stdout)
    assert "--fedmine.nu is not used by --algorithm fedavg" in done.stderr
    assert "fedmine.nu must be >= 0; got -1" in done.stderr
    assert "did you mean --fedmine.nu?" in done.stderr
