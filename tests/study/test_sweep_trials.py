"""Axes and trials of a sweep: names, merged combinations, files, refusals. No jax."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedvg_jax import commands, sweep as sweep_command
from fedvg_jax.config import Config, flatten
from fedvg_jax.config.options import partition_seed
from fedvg_jax.study import sweep_trials
from fedvg_jax.study.sweep_trials import Layer, Sweep, make_trials, name_of, parse_axes


def crossed(**settings):
    """A sweep over the given axes."""
    return Sweep((Layer(parse_axes(settings)),))


def names(sweep):
    return [trial.name for trial in make_trials(sweep)]


def of_line(line):
    """The trials of a command line."""
    return sweep_command.read_command_line([*line.split(), "--out", "out"]).plan.trials


values = st.one_of(
    st.text(max_size=8),
    st.integers(-5, 2**40),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False, allow_infinity=False).filter(lambda v: not v.is_integer()),
)


@settings(max_examples=20)
@given(st.dictionaries(st.sampled_from(["alpha", "fedvg.norm", "seed"]), values), st.data())
def test_names_of_different_values_differ_and_are_safe_for_folders(one, data):
    other = data.draw(st.fixed_dictionaries({name: values for name in one}))
    is_same = list(map(repr, one.values())) == list(map(repr, other.values()))
    if [*map(type, one.values())] == [*map(type, other.values())]:  # a setting has one type
        assert (name_of(one) == name_of(other)) == is_same
    assert set(name_of(one)) <= set(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+()-=,%~"
    )
    assert len(name_of(one)) <= sweep_trials.MAX_NAME and name_of(one)[0] not in ".-"


def test_name_of_a_trial_does_not_change_with_more_values_on_an_axis():
    """However often a value is given, and however its number is written."""
    assert names(crossed(alpha=[0.5], seed="0:2")) == ["alpha=0.5,seed=0", "alpha=0.5,seed=1"]
    more = crossed(alpha=[0.5, 5], seed="0:3")
    assert {*names(crossed(alpha=[0.5], seed="0:2"))} < {*names(more)}
    assert names(crossed(seed=[0, 1, 0], lr=[1, 1.0])) == ["seed=0,lr=1", "seed=1,lr=1"]
    for value in (0.25, np.float32(0.25), np.array(0.25)):
        assert sweep_trials.parse_axes({"lr": value})[0].values == ((0.25,),)
    hyper = sweep_trials.parse_axes({"hyper.T": np.array([0.5, 2])})[0].values
    assert hyper == ((0.5,), (2.0,)) and all(type(value) is float for (value,) in hyper)
    assert names(crossed()) == [sweep_trials.ONLY]


def test_native_beside_a_method_is_the_weighting_of_the_method():
    trials = make_trials(crossed(method=["fedavg", "fedvg"], weighting=["native", "uniform"]))
    assert {p.name: p.config.weighting for p in trials} == {
        "method=fedavg,weighting=native": "native",
        "method=fedavg,weighting=uniform": "uniform",
        "method=fedvg,weighting=native": "fedvg",
        "method=fedvg,weighting=uniform": "uniform",
    }


@pytest.mark.parametrize(
    ("methods", "text"),
    [
        ("fedprox", 'method = "fedprox"'),
        ("fedprox scaffold", '[axes]\nmethod = ["fedprox", "scaffold"]'),
    ],
    ids=["file", "axis"],
)
def test_settings_of_a_file_win_beside_its_own_methods(tmp_path, methods, text):
    """As they do on a command line, whether there is one method or several."""
    path = tmp_path / "s.toml"
    path.write_text(f'weighting = "uniform"\nfedprox.mu = 0.5\n{text}')
    of_file = of_line(f"--config {path}")
    given = of_line(f"--method {methods} --weighting uniform --fedprox.mu 0.5")
    assert [trial.config for trial in of_file] == [trial.config for trial in given]
    (trial,) = of_line(f"--config {path} --method fedprox --fedprox.mu 0.3")
    assert (trial.config.weighting, trial.config.fedprox.mu) == ("native", 0.3)


@pytest.mark.parametrize(
    ("settings", "start", "seeds"),
    [
        ({}, None, [3, 4]),
        ({"partition_seed": 42}, None, [42, 42]),
        ({"fidelity": "official"}, None, [42, 42]),
        ({}, Config(partition_seed=42), [42, 42]),
    ],
    ids=["seed alone", "given", "published", "given in a config"],
)
def test_every_seed_of_a_sweep_draws_its_partition_unless_it_has_a_seed(settings, start, seeds):
    (layer,) = crossed(seed=[3, 4]).layers
    trials = make_trials(Sweep((layer._replace(settings=settings),), start))
    assert [partition_seed(trial.config) for trial in trials] == seeds


@pytest.mark.parametrize(
    "line",
    [
        "--method feddyn --fidelity official --feddyn.alpha 0.01",
        "--dataset cifar10 --data-dir data --lr 0.1 --local-epochs 1:3",
    ],
)
def test_trial_has_the_settings_of_the_same_command_line_of_a_run(line):
    (trial,) = of_line(f"{line} --keep {Config().keep}")
    assert trial.config == commands.parse(line.split())


FILE = """
title = "A title"
rounds = 200
[fedvg]
norm = "l2"
[axes]
method = ["fedavg", "fedvg"]
seed = "0:5"
[[zip]]
dataset = ["cifar10", "cifar100"]
lr = [0.1, 0.2]
"""


def test_file_has_settings_and_axes(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(FILE)
    file = sweep_trials.read_file(path)
    assert file.title == "A title" and file.layer.settings == {"rounds": 200, "fedvg.norm": "l2"}
    assert [axis.names for axis in file.layer.axes] == [("dataset", "lr"), ("method",), ("seed",)]
    trials = make_trials(Sweep((file.layer,)))
    assert len(trials) == 20 and {p.config.clients for p in trials} == {100}  # the preset of CIFAR
    last = trials[-1].config
    assert flatten(last)["fedvg.norm"] == "l2" and partition_seed(last) == 4
