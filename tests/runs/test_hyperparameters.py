"""Declared hyperparameters of built-in algorithms and weightings, and their merging with the config."""

import dataclasses

import jax
import numpy as np
import programs
import pytest
import worlds

import fedvg_jax
from fedvg_jax import algorithms, config, weightings
from fedvg_jax.core.types import Hyperparameter, UsageError
from fedvg_jax.runs import chunks, contracts, registry, simulation
from fedvg_jax.runs.hyperparameters import checked, merge_hyperparameters

WORLD = worlds.uneven()


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_declared_defaults_of_an_algorithm_equal_the_config_s(name):
    hyper = registry.make_hyper(config.Config(algorithm=name))
    for parameter in worlds.algorithm(name).defaults:
        assert hyper[parameter.name] == np.float32(checked(parameter, parameter.value)) and parameter.doc


@pytest.mark.parametrize("name", config.WEIGHTINGS)
def test_declared_defaults_of_a_weighting_equal_the_config_s(name):
    hyper = registry.make_hyper(config.Config())
    for parameter in worlds.weighting(name, worlds.algorithm("fedavg")).defaults:
        assert hyper[parameter.name] == np.float32(checked(parameter, parameter.value)) and parameter.doc


@pytest.mark.parametrize(
    ("algorithm", "weighting"),
    [*((name, "uniform") for name in registry.ALGORITHMS)]
    + [("fedavg", name) for name in config.WEIGHTINGS if name not in ("native", "uniform", "val_accuracy")],
)
def test_a_round_reads_only_lr_and_declared_hyperparameters(algorithm, weighting):
    bundle, rule = worlds.algorithm(algorithm), worlds.weighting(weighting, worlds.algorithm(algorithm))
    names = {"lr", *(parameter.name for parameter in (*bundle.defaults, *rule.defaults))}
    hyper = {name: value for name, value in worlds.hyper().items() if name in names}
    world, task = (worlds.small(), worlds.TASK) if bundle.loss else (WORLD, worlds.QUADRATIC)
    step = worlds.round_step(world, bundle, rule, task)
    state = worlds.state(world, bundle, task)
    jax.eval_shape(step, state, world.schedule(0, 2, probe_ratio=0.5), world.data(), hyper)


def test_a_built_in_algorithm_passed_as_an_object_takes_the_config_s_field():
    settings = dataclasses.replace(config.Config(), fedprox=config.FedProx(mu=0.5), fedavgm=config.FedAvgM(lr=0.25))
    for algorithm, name, value in ((algorithms.fedprox(), "mu", 0.5), (algorithms.fedavgm(), "server_lr", 0.25)):
        assert merge_hyperparameters(settings, algorithm, weightings.uniform())[name] == value
        given = merge_hyperparameters(settings, algorithm, weightings.uniform(), {name: 0.75}, (algorithm,))
        assert given[name] == 0.75


def test_a_declaration_of_the_user_s_own_replaces_a_field_of_the_same_name():
    own = algorithms.fedavg()._replace(defaults=(Hyperparameter("mu", 2.0),))
    assert merge_hyperparameters(config.Config(), own, weightings.uniform(), own=(own,))["mu"] == 2


def test_hyperparameters_of_local_training_are_not_declared_again():
    own = algorithms.fedavg()._replace(defaults=(Hyperparameter("momentum", 0.5),))
    with pytest.raises(UsageError, match="'momentum' is one of local training"):
        merge_hyperparameters(config.Config(), own, weightings.uniform())


def test_a_weighting_given_as_a_function_receives_the_task_of_the_run(monkeypatch):
    monkeypatch.setattr(contracts, "check_weighting", lambda *_: None)  # compiles; test_contracts.py has its laws
    received = []

    def by_loss(task):
        received.append(task)
        return weightings.val_loss(task)

    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (200, *worlds.IMAGE), np.uint8), rng.integers(0, worlds.CLASSES, 200, np.int32)
    settings = config.Config(clients=4, rounds=1, alpha=10.0)
    made = simulation.simulation(settings, data=data, task=worlds.TASK, weighting=by_loss)
    assert received == [made.task]


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda task: None, "weighting(task) returned NoneType"),
        ("fedvg", "weighting is a str; expected a function of (task)"),
    ],
)
def test_a_weighting_of_another_type_is_refused(factory, message):
    with pytest.raises(UsageError) as error:
        contracts.weighting_of(factory, worlds.TASK)
    assert str(error.value).startswith(message)


def test_resuming_with_other_values_of_declared_hyperparameters_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "compile_programs", programs.trace_only)
    own = algorithms.fedavg()._replace(defaults=(Hyperparameter("boost", 2.0),))
    settings = config.Config(clients=4, rounds=1, out=tmp_path / "run")
    fedvg_jax.run(settings, algorithm=own, hyper={"boost": 3.0})
    longer = dataclasses.replace(settings, rounds=2, resume=str(settings.out))
    with pytest.raises(UsageError, match=r"ran with boost=3.0, not boost=2.0; pass the same"):
        fedvg_jax.run(longer, algorithm=own)
    manifest = tmp_path / "run" / "manifest.json"
    manifest.rename(tmp_path / "moved")
    with pytest.raises(UsageError, match=r"manifest.json is missing"):
        fedvg_jax.run(longer, algorithm=own, hyper={"boost": 2.5})
    (tmp_path / "moved").rename(manifest)
    assert len(fedvg_jax.run(longer, algorithm=own, hyper={"boost": 3.0}).records) == 2
