"""Objects from Python in sweeps: compared between calls, checked before the first run, with axes of their own."""

import dataclasses
import json
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from support import linear
from support.small_sweeps import timeless

import fedvg_jax as fv
from fedvg_jax.core.types import Hyperparameter
from fedvg_jax.data import user_data
from fedvg_jax.runs.record import provenance
from fedvg_jax.study import sweep_folder, sweep_points, sweeps, workers
from fedvg_jax.views import tracking

CONFIG = fv.Config(clients=4, rounds=1, model="linear")


def tempered(task):
    """Weights n_k^T, normalised."""
    rule = fv.weightings.by_scalar(lambda hyper, client, data: client.num_samples.astype(float) ** hyper["T"])
    return rule._replace(defaults=(Hyperparameter("T", 1.0, 0.0, 4.0),))


def test_processes_of_a_call_compute_the_results_of_runs_alone(tmp_path, monkeypatch):
    """Here this process waits for the other one, which computes all; both tune."""
    monkeypatch.setattr(sweeps, "_compute_or_skip", lambda work, point: sweep_folder.is_done(work.out, point))
    given = {"tune": {"lr": [0.1, 0.2]}, "tune_seeds": [7], "data": arrays()}
    results = fv.run_sweep(CONFIG, {"seed": [0, 1]}, tmp_path / "s", jobs=2, **given)
    monkeypatch.undo()
    alone = fv.run_sweep(CONFIG, {"seed": [0, 1]}, tmp_path / "alone", **given)
    assert [timeless(r.result.records) for r in results] == [timeless(r.result.records) for r in alone]


def test_processes_are_started_for_unfinished_points_only(tmp_path, monkeypatch):
    fv.run_sweep(CONFIG, {"lr": [0.1, 0.2]}, tmp_path / "s")
    counted = []
    monkeypatch.setattr(workers, "num_processes", lambda jobs, points, machine: counted.append(len(points)) or 1)
    fv.run_sweep(CONFIG, {"lr": [0.1, 0.2, 0.3]}, tmp_path / "s", jobs="auto")
    assert counted == [1]


def arrays(factor=1):
    rng = np.random.default_rng(0)
    return rng.integers(0, 255, (200, 8, 8, 1), dtype=np.uint8), factor * (np.arange(200) % 2)


def test_declared_hyperparameters_are_axes_whose_points_equal_runs_alone(tmp_path):
    results = fv.run_sweep(CONFIG, {"seed": [0], "hyper.T": [0.5, 2.0]}, tmp_path / "s", weighting=tempered)
    assert [(r.name, r.values) for r in results] == [
        ("hyper.T=0.5", {"seed": 0, "hyper.T": 0.5}),
        ("hyper.T=2", {"seed": 0, "hyper.T": 2.0}),
    ]
    for result in results:
        alone = fv.run(CONFIG, weighting=tempered, hyper={"T": result.values["hyper.T"]})
        assert result.result.records[0]["weights"] == alone.records[0]["weights"]
    assert results[0].result.records[0]["weights"] != results[1].result.records[0]["weights"]


def test_folder_of_an_axis_with_one_value_is_refused_for_another_value(tmp_path):
    fv.run_sweep(CONFIG, {"seed": [0], "hyper.T": [0.0]}, tmp_path / "s", weighting=tempered)
    for axes in ({"hyper.T": [4.0]}, {"hyper.T": [4.0, 4.0]}, {}):
        with pytest.raises(fv.UsageError, match="holds another sweep: hyper is of other code or values"):
            fv.run_sweep(CONFIG, {"seed": [0], **axes}, tmp_path / "s", weighting=tempered)
    again = fv.run_sweep(CONFIG, {"seed": [0]}, tmp_path / "s", weighting=tempered, hyper={"T": np.float32(0.0)})
    assert again[0].result.summary["parts"] == 1


def test_values_on_axes_of_hyperparameters_are_those_of_a_list_of_python_numbers():
    for values in ([np.float32(0.5), np.float64(2)], np.array([0.5, 2]), jnp.array([0.5, 2]), [0.5, 2, 2.0]):
        (axis,) = sweep_points.parse_axes({"hyper.T": values})
        assert json.dumps(axis.as_json()) in ('{"hyper.T": [0.5, 2.0]}', '{"hyper.T": [0.5, 2]}')


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


TRACKED = fv.Config(clients=4, alpha=10.0, rounds=1, local_epochs=1, weighting="samples", keep=0, devices="1")


def sweep(axes, config=TRACKED, **arguments):
    return fv.run_sweep(config, axes, **linear.GIVEN, **arguments)


def test_failed_trackers_are_logged_with_the_names_of_their_points(monkeypatch, caplog):
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "fedvg_jax.views.tracking.wandb_run", None)
    results = sweep({"seed": "0:2"}, track="wandb")
    lines = [record.getMessage() for record in caplog.records]
    assert [result.name for result in results] == ["seed=0", "seed=1"]
    assert [line.partition(": ")[0] for line in lines] == ["seed=0", "seed=1"]
    assert all("tracker wandb failed, and the run continues without it" in line for line in lines)


@pytest.mark.usefixtures("traced")
def test_data_sets_that_the_settings_name_are_no_object_of_a_run(tmp_path):
    """Their manifests name no given data; with two of them the report would refuse the runs as one study."""
    pytest.importorskip("scipy", reason="reports need the report extra")
    from fedvg_jax.study.collect import collect

    config = dataclasses.replace(TRACKED, model="linear")
    fv.run_sweep(config, {"dataset": ["digits", "breast_cancer"]}, tmp_path / "s")
    manifests = [json.loads(path.read_text()) for path in (tmp_path / "s").rglob("manifest.json")]
    assert len(manifests) == 2 and not any("data" in manifest["given"] for manifest in manifests)
    assert len(collect([tmp_path / "s"]).scenarios) == 2


def root(task):
    """Weights proportional to the roots of the sample counts."""
    return fv.weightings.by_scalar(lambda hyper, client, data: client.num_samples.astype(float) ** 0.5)


def square(task):
    """Weights proportional to the squares of the sample counts."""
    return fv.weightings.by_scalar(lambda hyper, client, data: client.num_samples.astype(float) ** 2)


def test_own_weightings_by_name_are_an_axis_whose_points_equal_runs_alone_and_methods_of_one_report(tmp_path):
    """Settings that only a named weighting uses multiply its points alone. Names stand as they are written."""
    pytest.importorskip("scipy", reason="reports need the report extra")
    from fedvg_jax.study.collect import collect

    axes = {"weighting": {"Root": root, "by square": square, "x": "FedVG"}, "fedvg.norm": ["l1", "l2"], "seed": [0]}
    config = dataclasses.replace(CONFIG, eval_every=1)
    results = {r.name: r.result for r in fv.run_sweep(config, axes, tmp_path / "s")}
    assert list(results) == [
        "weighting=Root", "weighting=by%20square", "weighting=fedvg,fedvg.norm=l1", "weighting=fedvg,fedvg.norm=l2"
    ]  # fmt: skip
    for name, weighting in {"Root": root, "by%20square": square}.items():
        alone = fv.run(dataclasses.replace(config, out=tmp_path / name), weighting=weighting)
        assert results[f"weighting={name}"].records[0]["weights"] == alone.records[0]["weights"]
    assert collect([tmp_path / "s"]).methods == ("Root", "by square", "fedvg, norm l1", "fedvg, norm l2")
    assert {"Root", "by square", "fedvg, norm l1"} < {*collect([tmp_path / "s" / "points"]).methods}
    assert set(collect([tmp_path / name for name in ("Root", "by%20square")]).methods) == {"root", "square"}
    (tmp_path / "s" / "points" / "weighting=Root" / "config.json").unlink()
    assert collect([tmp_path / "s"], partial=True).cell("Root", ()).missing
    with pytest.raises(fv.UsageError, match="holds another sweep: weighting Root is of other code or values"):
        fv.run_sweep(dataclasses.replace(CONFIG, eval_every=1), {**axes, "weighting": {"Root": square}}, tmp_path / "s")


def test_functions_of_a_list_have_their_own_names_on_the_axis():
    axes, objects = sweep_points.named_objects({"weighting": [root, "fedvg", square], "seed": "0:2"})
    assert axes == {"weighting": ["root", "fedvg", "square"], "seed": "0:2"}
    assert objects == {"weighting": {"root": root, "square": square}}
    assert sweep_points.named_objects({"weighting": root})[1] == {"weighting": {"root": root}}
