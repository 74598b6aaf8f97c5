"""A named algorithm, weighting, model or data set is one entry of the settings' tables."""

import functools
from dataclasses import replace

import jax
import numpy as np
import pytest

import fedvg_jax as fv
from fedvg_jax import commands
from fedvg_jax.config import ALGORITHMS, MODELS, WEIGHTINGS, method_title, methods, networks, presets
from fedvg_jax.core.types import Hyperparameter
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
