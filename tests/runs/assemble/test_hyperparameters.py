"""Declared hyperparameters of built-in algorithms and weightings, and their merging with the config."""

import dataclasses

import jax
import numpy as np
import pytest
from support import worlds
from support.files import one_line

import fedvg_jax
from fedvg_jax import algorithms, config, resolve, weightings
from fedvg_jax.core.types import Hyperparameter
from fedvg_jax.resolve.method import checked, make_hyper


def test_declared_defaults_equal_the_config_s():
    hyper = resolve.method.scalars(config.Config())
    bundles = [worlds.algorithm(name) for name in config.ALGORITHMS]
    bundles += [weighting_of(name) for name in config.WEIGHTINGS]
    for bundle in bundles:
        for parameter in bundle.hyperparameters:
            value = np.float32(checked(parameter, parameter.value))
            assert hyper[parameter.name] == value and parameter.doc


def weighting_of(name):
    return worlds.weighting(name, worlds.algorithm("fedavg"))


@pytest.mark.parametrize("name", config.WEIGHTINGS)
def test_settings_declare_what_a_weighting_reads(name):
    declared = weighting_of(name).hyperparameters
    assert {*declared} == {*config.WEIGHTINGS[name].hyperparameters}


@pytest.mark.parametrize(
    ("algorithm", "weighting"),
    [*((name, "uniform") for name in config.ALGORITHMS)]
    + [("fedavg", name) for name in config.WEIGHTINGS if name not in ("uniform", "val_accuracy")],
)
def test_a_round_reads_only_lr_and_declared_hyperparameters(algorithm, weighting):
    bundle = worlds.algorithm(algorithm)
    rule = worlds.weighting(weighting, bundle)
    names = {parameter.name for parameter in (*bundle.hyperparameters, *rule.hyperparameters)}
    hyper = {name: value for name, value in worlds.hyper().items() if name in {"lr", *names}}
    world, task = worlds.uneven(), worlds.QUADRATIC
    if bundle.loss:
        world, task = worlds.small(), worlds.TASK
    step = worlds.round_step(world, bundle, rule, task)
    state = worlds.state(world, bundle, task)
    jax.eval_shape(step, state, world.schedule(0, 2, probe_ratio=0.5), world.data(), hyper)


@pytest.mark.parametrize(("name", "value"), [("fedprox.mu", 0.5), ("fedavgm.lr", 0.25)])
def test_a_declared_parameter_of_settings_has_their_value_where_they_name_its_owner(name, value):
    """Otherwise the settings of a run would list it as unused."""
    owner = name.partition(".")[0]
    algorithm = config.ALGORITHMS[owner].make()._replace(native_weighting="uniform")
    (parameter,) = (each for each in algorithm.hyperparameters if each.name == name)
    settings = config.apply(config.Config(), {name: value}, "test")
    named = dataclasses.replace(settings, algorithm=owner)
    for chosen, expected in ((settings, parameter.value), (named, value)):
        parts = chosen, algorithm, weightings.uniform()
        assert make_hyper(*parts)[0][name] == np.float32(expected)
        assert make_hyper(*parts, {name: 0.75}, [name])[0][name] == 0.75


@pytest.mark.parametrize(
    "name",
    ["dp.noise_multiplier", "dp.clip", "clip_norm", "attack_scale", "tuning.lr", "lr", "momentum"],
)
def test_what_a_round_reads_beside_them_is_not_declared_by_an_algorithm_or_a_weighting(name):
    """Otherwise dp_noise would be another number than epsilon is computed of."""
    algorithm, uniform = algorithms.fedavg(), weightings.uniform()
    own = (Hyperparameter(name, 0.5),)
    with one_line(f"'{name}'"):
        make_hyper(config.Config(), algorithm._replace(hyperparameters=own), uniform)
    with one_line(f"'{name}'"):
        make_hyper(config.Config(), algorithm, uniform._replace(hyperparameters=own))


def test_resuming_with_other_values_of_declared_hyperparameters_is_refused(tmp_path):
    own = algorithms.fedavg()._replace(hyperparameters=(Hyperparameter("boost", 2.0),))
    settings = config.Config(clients=4, rounds=1, out=tmp_path / "run")
    fedvg_jax.run(settings, algorithm=own, hyper={"boost": 3.0})
    longer = dataclasses.replace(settings, rounds=2, resume=str(settings.out))
    with one_line(r"boost=3\.0 -> boost=2\.0"):
        fedvg_jax.run(longer, algorithm=own)
    assert len(fedvg_jax.run(longer, algorithm=own, hyper={"boost": 3.0}).records) == 2
