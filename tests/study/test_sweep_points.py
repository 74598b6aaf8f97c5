"""Axes and points of a sweep: names, merged combinations, files, refusals. No jax."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvg_jax import sim
from fedvg_jax.config import Config, flatten
from fedvg_jax.core.types import UsageError
from fedvg_jax.study import axes, sweep_points
from fedvg_jax.study.sweep_points import Layer, Sweep, make_points, name_of


def crossed(**settings):
    """A sweep over the given axes; a double underscore stands for a dot."""
    return Sweep(tuple(axes.cross({name.replace("__", "."): values for name, values in settings.items()}, "test")))


def names(sweep):
    return [point.name for point in make_points(sweep).points]


def test_zipped_settings_go_together():
    zipped = axes.zipped({"model": ["mlp", "tinycnn"], "lr": [0.2, 0.1]}, "test")
    points = make_points(Sweep((zipped, *crossed(seed=[0, 1]).axes))).points
    assert [(p.config.model, p.config.lr, p.config.seed) for p in points] == [
        ("mlp", 0.2, 0),
        ("mlp", 0.2, 1),
        ("tinycnn", 0.1, 0),
        ("tinycnn", 0.1, 1),
    ]


values = st.one_of(
    st.text(max_size=8),
    st.integers(-5, 2**40),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False, allow_infinity=False).filter(lambda v: not v.is_integer()),
)


@given(st.dictionaries(st.sampled_from(["alpha", "fedvg.norm", "seed"]), values), st.data())
def test_names_of_different_values_differ_and_are_safe_for_folders(one, data):
    other = data.draw(st.fixed_dictionaries({name: values for name in one}))
    is_same = list(map(repr, one.values())) == list(map(repr, other.values()))
    kinds = [(type(a), type(b)) for a, b in zip(one.values(), other.values(), strict=True)]
    if all(a is b for a, b in kinds):  # a setting has one type
        assert (name_of(one) == name_of(other)) == is_same
    assert set(name_of(one)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+()-=,%~")
    assert len(name_of(one)) <= sweep_points.MAX_NAME and name_of(one)[0] not in ".-"


def test_long_names_are_cut_and_stay_different():
    long = [name_of({"fedvg.include": "a" * 300 + end}) for end in "bc"]
    assert long[0] != long[1] and {len(name) for name in long} == {sweep_points.MAX_NAME}


def test_more_values_and_another_order_of_values_keep_the_names():
    few = names(crossed(alpha=[0.05, 0.5], seed=[0, 1]))
    assert set(few) < set(names(crossed(alpha=[1.0, 0.5, 0.05], seed="0:3")))


def test_numbers_of_a_setting_have_one_name_however_they_are_written():
    assert names(crossed(lr=[1, 0.5])) == names(crossed(lr=[1.0, 0.5])) == ["lr=1", "lr=0.5"]


def test_axis_of_one_value_is_not_in_the_names():
    assert names(crossed(alpha=[0.5], seed="0:2")) == ["seed=0", "seed=1"]
    assert names(crossed(alpha=[0.5])) == [sweep_points.ONLY]


def test_native_beside_a_method_is_the_weighting_of_the_method():
    points = make_points(crossed(method=["fedavg", "fedvg"], weighting=["native", "uniform"]))
    assert {p.name: p.config.weighting for p in points.points} == {
        "method=fedavg,weighting=native": "native",
        "method=fedavg,weighting=uniform": "uniform",
        "method=fedvg,weighting=native": "fedvg",
    }
    assert points.merged == {"method=fedvg,weighting=uniform": "method=fedavg,weighting=uniform"}


def test_repeated_value_is_one_point():
    sweep = crossed(seed=[0, 1, 0], lr=[1, 1.0])
    assert [len(axis.values) for axis in crossed(seed=[0, 1, 0]).axes] == [2]
    assert names(sweep) == ["seed=0,lr=1", "seed=1,lr=1"] and not make_points(sweep).merged


def test_partition_seed_follows_the_seed():
    points = make_points(crossed(seed=[3, 4], partition_seed="follow")).points
    assert [p.config.partition_seed for p in points] == [3, 4]
    points = make_points(Sweep(crossed(seed=[3, 4]).axes, (Layer({"partition_seed": "follow"}, "test"),))).points
    assert [(p.name, p.config.partition_seed) for p in points] == [("seed=3", 3), ("seed=4", 4)]


def test_only_drawn_partitions_follow_the_seed_by_default(tmp_path):
    """The rows of a file are the same for all seeds, and stay comparable by their digests."""
    default = Layer({"partition_seed": "follow"}, "sweep")
    file = Layer({"partition": "file", "partition_file": str(tmp_path / "rows.json")}, "test")
    asked = file._replace(settings={**file.settings, "partition_seed": "follow"})
    seeds = [
        [p.config.partition_seed for p in make_points(Sweep(crossed(seed=[3, 4]).axes, layers)).points]
        for layers in ((default,), (default, file), (default, asked))
    ]
    assert seeds == [[3, 4], [42, 42], [3, 4]]


@pytest.mark.parametrize(
    "words",
    [
        ["--method", "fedprox+fedvg", "--alpha", "0.5", "--seed", "3"],
        ["--method", "feddyn", "--fidelity", "official", "--weighting", "uniform", "--feddyn.alpha", "0.01"],
        ["--dataset", "cifar10", "--data-dir", "data", "--lr", "0.1", "--local-epochs", "1:3"],
    ],
    ids=["method", "fidelity", "preset"],
)
def test_point_has_the_settings_of_the_same_command_line_of_a_run(words):
    settings = {n[2:].replace("-", "_"): v for n, v in zip(words[::2], words[1::2], strict=True)}
    typed = {"alpha": float, "lr": float, "feddyn.alpha": float, "seed": int}
    point = make_points(crossed(**{n.replace(".", "__"): [typed.get(n, str)(v)] for n, v in settings.items()})).points[
        0
    ]
    assert dataclasses.replace(point.config, cache_dir=None) == dataclasses.replace(sim.parse(words), cache_dir=None)


def test_settings_of_a_config_stay_and_axes_override_them():
    start = Config(rounds=7, fedprox={"mu": 0.5}, alpha=2.0)
    points = make_points(crossed(alpha=[0.1, 1.0], algorithm=["fedprox"])._replace(start=start)).points
    assert [(p.config.rounds, p.config.fedprox.mu, p.config.alpha) for p in points] == [(7, 0.5, 0.1), (7, 0.5, 1.0)]


def test_numbers_of_numpy_name_the_same_points_as_python_numbers():
    given = {"alpha": np.array([0.1, 0.5]), ("lr", "seed"): [(np.float64(0.1), np.int64(3))]}
    plain = {"alpha": [0.1, 0.5], ("lr", "seed"): [(0.1, 3)]}
    assert make_points(Sweep(axes.parse_axes(given))) == make_points(Sweep(axes.parse_axes(plain)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["seed"], "axes must be a dict of settings with their values; got list"),
        ({3: [1]}, "unknown setting '3'"),
        ({("lr", "seed"): 3}, "the values of lr, seed must be tuples of 2"),
    ],
)
def test_axes_of_another_type_are_refused_in_one_line(given, message):
    with pytest.raises(UsageError, match=message):
        axes.parse_axes(given)


REFUSED = {
    "unknown setting": ({"lrr": [1]}, "unknown setting 'lrr'; did you mean 'lr'?"),
    "unknown method": ({"method": ["fedavgg", "fedavg"]}, "unknown method 'fedavgg'; did you mean 'fedavg'?"),
    "value out of range": ({"alpha": [0.1, 0.0]}, "point alpha=0: alpha must be > 0"),
    "value of another type": ({"lr": [0.1, "x"]}, "lr must be a float; got 'x'"),
    "no value": ({"alpha": []}, "alpha has no value"),
    "folder of a run": ({"out": ["a", "b"]}, "out cannot be a setting of a sweep's points"),
    "unused by all": ({"fedprox.mu": [0.1, 1.0]}, "--fedprox.mu is not used by --algorithm fedavg"),
    "backward range": ({"seed": "5:0"}, "a range is START:STOP"),
    "wide range": ({"seed": "0:99999999"}, "has 99,999,999 seeds; give a range of at most 100,000"),
    "too many": ({"seed": "0:1000", "partition_seed": "0:1000"}, "cross to 1,000,000 points"),
    "contradiction": (
        {"batch_size": [1, 2], "single_rows": ["skipped"]},
        "point batch_size=1: batch_size must be >= 2 with single_rows skipped",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_axes_are_refused_in_one_line_before_any_run(case):
    settings, message = REFUSED[case]
    with pytest.raises(UsageError) as caught:  # noqa: PT012  either line may refuse
        sweep = Sweep(tuple(axes.cross(settings, "test")), (Layer({}, "test"),))
        make_points(sweep)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_zipped_lists_of_different_lengths_are_refused():
    with pytest.raises(UsageError, match="equally many values; got alpha 2, lr 1"):
        axes.zipped({"alpha": [0.1, 1.0], "lr": [0.1]}, "test")


def test_method_that_contradicts_the_config_is_refused():
    with pytest.raises(UsageError, match=r"the config has fedprox.mu 0.5, and a shorthand"):
        make_points(crossed(method=["fedprox"])._replace(start=Config(fedprox={"mu": 0.5})))


FILE = """
title = "A title"
rounds = 200
partition_seed = "follow"
[fedvg]
norm = "l2"
[axes]
method = ["fedavg", "fedvg"]
seed = "0:5"
[[zip]]
dataset = ["cifar10", "cifar100"]
lr = [0.1, 0.2]
[tiny]
rounds = 3
dataset = "digits"
lr = 0.2
zip = []
[tiny.axes]
seed = "0:2"
"""


def test_file_has_settings_axes_and_a_tiny_size(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(FILE)
    full, tiny = (axes.read_file(path, scale) for scale in ("full", "tiny"))
    assert full.title == tiny.title == "A title"
    assert full.settings == {"rounds": 200, "partition_seed": "follow", "fedvg.norm": "l2"}
    assert [axis.names for axis in full.axes] == [("dataset", "lr"), ("method",), ("seed",)]
    assert tiny.settings == full.settings | {"rounds": 3, "dataset": "digits", "lr": 0.2}
    assert [(axis.names, len(axis.values)) for axis in tiny.axes] == [(("method",), 2), (("seed",), 2)]
    points = make_points(Sweep(full.axes, (Layer(full.settings, "file"),))).points
    assert len(points) == 20 and {p.config.clients for p in points} == {100}  # the preset of CIFAR
    assert flatten(points[-1].config)["fedvg.norm"] == "l2" and points[-1].config.partition_seed == 4


def test_tiny_size_keeps_zipped_axes_of_which_it_has_no_setting(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text("[[zip]]\nlr = [0.1, 0.2]\nbatch_size = [8, 16]\n[tiny]\nrounds = 3\n")
    assert [axis.names for axis in axes.read_file(path, "tiny").axes] == [("lr", "batch_size")]


@pytest.mark.parametrize(
    ("text", "scale", "message"),
    [
        ("[axes]\nlrr = [1]", "full", "unknown setting 'lrr'"),
        ("zip = 3", "full", r"zip must be tables \[\[zip\]\]"),
        ("title = 3", "full", "title must be a text"),
        ("[axes]\nlr = []", "full", "lr has no value"),
        ("axes = 3", "full", r"axes must be a table \[axes\] of settings with their values; got 3"),
        ("tune = 'lr'", "full", r"tune must be a table \[tune\] of settings with their values; got 'lr'"),
        ("rounds = 3", "tiny", r"has no table \[tiny\]"),
        ("rounds = 3", "huge", "unknown scale 'huge'"),
        ("[axes]\nlr = [0.1]\n[[zip]]\nlr = [0.1]", "full", "lr is on two axes"),
    ],
)
def test_file_that_is_no_sweep_is_refused_in_one_line(tmp_path, text, scale, message):
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        axes.read_file(path, scale)


def test_several_values_of_a_file_belong_into_its_table_of_axes(tmp_path):
    for line in ('method = ["fedavg", "fedvg"]', "rounds = [1, 2]"):
        file = tmp_path / "sweep.toml"
        file.write_text(line + "\n")
        with pytest.raises(UsageError, match=f"{line.split()[0]} has several values; put them in the table \\[axes\\]"):
            axes.read_file(file)
