"""Objects from Python in sweeps: compared between calls, checked before the first run, with axes of their own."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from support.files import usage_error

import fedvg_jax as fv
from fedvg_jax.core.types import Hyperparameter
from fedvg_jax.data import user_data
from fedvg_jax.runs.record import provenance
from fedvg_jax.study import sweep_points

CONFIG = fv.Config(clients=4, rounds=1, model="linear")


def tempered(task):
    """Weights n_k^T, normalised."""
    rule = fv.weightings.by_scalar(lambda hyper, client, data: client.num_samples.astype(float) ** hyper["T"])
    return rule._replace(defaults=(Hyperparameter("T", 1.0, 0.0, 4.0),))


def arrays(factor=1):
    rng = np.random.default_rng(0)
    return rng.integers(0, 255, (200, 8, 8, 1), dtype=np.uint8), factor * (np.arange(200) % 2)


def test_declared_hyperparameters_are_axes_whose_points_equal_runs_alone(tmp_path):
    results = fv.run_sweep(CONFIG, {"seed": [0], "hyper.T": [0.5, 2.0]}, tmp_path / "s", weighting=tempered)
    assert [(r.name, r.values) for r in results] == [
        ("hyper.T=0.5", {"seed": 0, "hyper.T": 0.5}),
        ("hyper.T=2", {"seed": 0, "hyper.T": 2.0}),
    ]
    config = dataclasses.replace(CONFIG, partition_seed=0)
    for result in results:
        alone = fv.run(config, weighting=tempered, hyper={"T": result.values["hyper.T"]})
        assert result.result.records[0]["weights"] == alone.records[0]["weights"]
    assert results[0].result.records[0]["weights"] != results[1].result.records[0]["weights"]


def test_folder_of_an_axis_with_one_value_is_refused_for_another_value(tmp_path):
    fv.run_sweep(CONFIG, {"seed": [0], "hyper.T": [0.0]}, tmp_path / "s", weighting=tempered)
    for axes in ({"hyper.T": [4.0]}, {"hyper.T": [4.0, 4.0]}, {}):
        with pytest.raises(fv.UsageError, match="holds a sweep with another value of hyper; name another folder"):
            fv.run_sweep(CONFIG, {"seed": [0], **axes}, tmp_path / "s", weighting=tempered)
    again = fv.run_sweep(CONFIG, {"seed": [0]}, tmp_path / "s", weighting=tempered, hyper={"T": np.float32(0.0)})
    assert again[0].result.summary["parts"] == 1


def test_values_on_axes_of_hyperparameters_are_those_of_a_list_of_python_numbers():
    for values in ([np.float32(0.5), np.float64(2)], np.array([0.5, 2]), jnp.array([0.5, 2]), [0.5, 2, 2.0]):
        (axis,) = sweep_points.parse_axes({"hyper.T": values})
        assert json.dumps(axis.as_json()) in ('{"hyper.T": [0.5, 2.0]}', '{"hyper.T": [0.5, 2]}')


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes": {"hyper.T": [1.0, 9.0]}, "weighting": tempered}, "hyperparameter 'T' must be in [0, 4]; got 9.0"),
        ({"axes": {"hyper.U": [1.0]}, "weighting": tempered}, "unknown hyperparameter 'U'"),
        ({"axes": {"hyper.T": 1.0}, "weighting": tempered}, "hyper.T must be a list of numbers; got 1.0"),
        ({"axes": {"weighting": ["samples", "uniform"]}, "weighting": tempered}, "has no effect beside weighting="),
        ({"axes": {"fedvg.norm": ["l1", "l2"]}, "weighting": tempered}, "fedvg.norm has no effect beside weighting="),
        ({"axes": {"alpha": [0.1, 1.0]}, "partition": [np.arange(50)] * 4}, "has no effect beside partition="),
        ({"axes": {"val_ratio": [0.1, 0.2]}, "partition": ([], [], [])}, "val_ratio has no effect beside partition="),
        ({"partition": [np.arange(50)] * 4}, "row 0 occurs 4 times"),
    ],
    ids=["range", "unknown", "number", "weighting", "norm", "partition", "ratio", "rows"],
)
def test_objects_that_cannot_work_are_refused_before_the_first_run(changes, message):
    with usage_error(message):
        fv.run_sweep(CONFIG, **changes)


def test_other_objects_have_another_description_in_the_folder_of_a_sweep():
    def given(**objects):
        return provenance.describe(objects)

    rows = [np.arange(50), np.arange(50, 100)]
    base = {"data": arrays(), "partition": rows, "weighting": tempered, "hyper": {"T": 1.0}}
    others = {"data": arrays(2), "partition": rows[::-1], "weighting": fv.weightings.uniform(), "hyper": {"T": 2.0}}
    assert given(**base) == given(**{**base, "task": None})
    known = user_data.as_arrays(arrays())
    for changed in (
        known._replace(class_names=tuple(reversed(known.class_names))),
        known._replace(groups=np.zeros(len(known.y), np.int32)),
    ):
        assert given(data=changed) != given(data=known)
    for name, other in others.items():
        assert {n for n, text in given(**{**base, name: other}).items() if given(**base)[n] != text} == {name}
