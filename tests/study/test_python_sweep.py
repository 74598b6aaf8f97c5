"""Objects from Python in sweeps: compared between calls, checked before the first run, with axes of their own."""

import dataclasses
import json
import threading

import numpy as np
import pytest
from support.files import one_line
from support.small_sweeps import power, tempered, timeless

import fedvg_jax as fv
from fedvg_jax.data import user_data
from fedvg_jax.resolve.custom import Custom, digests_of
from fedvg_jax.study.collect import collect
from fedvg_jax.study.sweep_trials import Trial
from fedvg_jax.study.trial_runs import Recipe

CONFIG = fv.Config(clients=4, rounds=1, model="linear", eval_every=1)


def test_declared_hyperparameters_are_axes_whose_trials_equal_runs_alone(tmp_path):
    """A sweep is extended by more values, and refused without those that it has."""

    def run(**axes):
        return fv.run_sweep(CONFIG, axes, tmp_path / "s", weighting=tempered)

    results = run(seed=[0], **{"hyper.T": [0.5, 2.0]})
    assert [(r.name, r.values) for r in results] == [
        ("seed=0,hyper.T=0.5", {"seed": 0, "hyper.T": 0.5}),
        ("seed=0,hyper.T=2", {"seed": 0, "hyper.T": 2.0}),
    ]
    for result in results:
        alone = fv.run(CONFIG, weighting=tempered, hyper={"T": result.values["hyper.T"]})
        assert result.result.records[0]["weights"] == alone.records[0]["weights"]
    assert results[0].result.records[0]["weights"] != results[1].result.records[0]["weights"]
    for axes in ({"hyper.T": [0.5]}, {}):
        with one_line(r"holds another sweep; .* no trial seed=0,hyper\.T"):
            run(seed=[0], **axes)
    more = run(seed=[0, 1], **{"hyper.T": [2.0, 0.5]})
    assert len(more) == 4 and all(result.result.summary["resumed_from"] is None for result in more)


def test_a_hyperparameter_of_an_axis_wins_over_the_given_one():
    given = Custom(hyper={"T": 1.0, "eps": 0.5})
    trial = Trial("", {"seed": 0, "hyper.T": 2.0}, CONFIG)
    assert Recipe(given).custom_of(trial).hyper == {"T": 2.0, "eps": 0.5}


def test_a_finished_trial_without_its_history_is_refused(tmp_path):
    fv.run_sweep(CONFIG, {"seed": [0, 1]}, tmp_path)
    (tmp_path / "trials" / "seed=1" / "history.jsonl").unlink()
    with one_line("seed=1/history.jsonl is missing"):
        fv.run_sweep(CONFIG, {"seed": [0, 1]}, tmp_path)


def test_results_of_a_changed_object_are_refused(tmp_path):
    def run(exponent, **axes):
        axes = {"weighting": {"mine": power(exponent)}, "seed": [0], **axes}
        return fv.run_sweep(CONFIG, axes, tmp_path)

    before = run(0.5)
    assert timeless(run(0.5)[0].result.records) == timeless(before[0].result.records)
    for seeds in ([0], [0, 1]):
        with one_line(r"^weighting mine is not the one.*seed=0 "):
            run(2.0, seed=seeds)


def test_objects_beside_those_of_an_axis_extend_a_sweep(tmp_path):
    objects = {"a": power(0.5), "b": power(2.0), "fedvg": "fedvg"}
    for names in (["a"], ["b", "fedvg", "a"]):
        axes = {"weighting": {name: objects[name] for name in names}, "seed": [0]}
        results = fv.run_sweep(CONFIG, axes, tmp_path)
        assert all(result.result.summary["resumed_from"] is None for result in results)
        assert len(results) == len(names)


def test_metrics_of_finished_trials_are_those_of_the_call(tmp_path):
    def run(**metrics):
        (result,) = fv.run_sweep(CONFIG, {"seed": [0]}, tmp_path, metrics=metrics)
        return result.result.records[-1]

    assert run(one=lambda model, data: 1.0)["one"] == 1.0
    for metrics in ({}, {"one": lambda model, data: 2.0}):
        with one_line(r"^metric one is not the one"):
            run(**metrics)


def test_results_before_the_first_trial_are_none_of_a_changed_object(tmp_path):
    """An object that failed in every trial may be repaired under its name."""

    def broken(task):
        raise ValueError("not yet")

    with pytest.raises(ValueError, match="not yet"):
        fv.run_sweep(CONFIG, {"weighting": {"mine": broken}}, tmp_path)
    (result,) = fv.run_sweep(CONFIG, {"weighting": {"mine": power(1.0)}}, tmp_path)
    assert result.result.records


def test_resumed_run_names_what_cannot_be_compared(tmp_path):
    lock = threading.Lock()
    metrics = {"m": lambda model, data: float(lock.locked())}
    fv.run(dataclasses.replace(CONFIG, out=tmp_path / "run"), metrics=metrics)
    with one_line(r"other metric m .* holds a lock"):
        fv.run(dataclasses.replace(CONFIG, resume=str(tmp_path / "run"), rounds=2), metrics=metrics)


@pytest.mark.parametrize("argument", ["weighting", "metrics"])
def test_resumed_run_has_the_functions_that_it_began_with(tmp_path, argument):
    metrics = [{"m": lambda model, data, value=value: value} for value in (1.0, 2.0)]
    first, other = {"weighting": [power(0.5), power(2.0)], "metrics": metrics}[argument]
    config = dataclasses.replace(CONFIG, out=tmp_path / "run")
    fv.run(config, **{argument: first})
    longer = dataclasses.replace(config, out=None, resume=str(tmp_path / "run"), rounds=2)
    more = {argument: first, "metrics": {**metrics[0], "new": lambda model, data: 1.0}}
    for given in ({argument: other}, more):
        with one_line(r" (weighting|metric (m|new))"):
            fv.run(longer, **given)
    assert len(fv.run(longer, **{argument: first}).records) == 2


def arrays(factor=1):
    rng = np.random.default_rng(0)
    return rng.integers(0, 255, (200, 8, 8, 1), dtype=np.uint8), factor * (np.arange(200) % 2)


def test_other_objects_have_another_identity():
    rows = [np.arange(50), np.arange(50, 100)]
    base = Custom(data=arrays(), partition=rows, weighting=tempered, hyper={"T": 1.0})
    others = {"data": arrays(2), "partition": rows[::-1], "hyper": {"T": 2.0}}
    of_base = digests_of(base, {})
    known = user_data.as_arrays(arrays())
    equal = base._replace(data=known, hyper={"T": np.float32(1)})
    assert of_base == digests_of(equal, {})
    others |= {"weighting": fv.weightings.uniform()}
    for name, other in others.items():
        replaced = digests_of(base._replace(**{name: other}), {})
        assert [n for n, digest in replaced.items() if digest != of_base[n]] == [name]


def test_data_sets_that_the_settings_name_are_no_object_of_a_run(tmp_path):
    """Their manifests name no given data; with two of them the report would refuse the runs as one study."""
    pytest.importorskip("scipy", reason="reports need the report extra")
    config = dataclasses.replace(CONFIG, alpha=10.0)
    fv.run_sweep(config, {"dataset": ["digits", "breast_cancer"]}, tmp_path)
    manifests = [json.loads(path.read_text()) for path in tmp_path.rglob("manifest.json")]
    assert len(manifests) == 2 and not any("data" in manifest["custom"] for manifest in manifests)
    assert len(collect([tmp_path]).conditions) == 2


def test_own_weightings_by_name_are_an_axis_whose_trials_equal_runs_alone_and_methods_of_one_report(
    tmp_path,
):
    """Settings that only a named weighting uses multiply its trials alone. Names stand as they are written."""
    pytest.importorskip("scipy", reason="reports need the report extra")
    own = {"Root": power(0.5), "by square": power(2.0)}
    axes = {"weighting": {**own, "x": "fedvg"}, "fedvg.norm": ["l1", "l2"], "seed": [0]}
    results = {r.name: r.result for r in fv.run_sweep(CONFIG, axes, tmp_path / "s")}
    assert list(results) == [
        f"weighting={name},seed=0"
        for name in ("Root", "by%20square", "x,fedvg.norm=l1", "x,fedvg.norm=l2")
    ]
    for name, weighting in own.items():
        alone = fv.run(CONFIG, weighting=weighting)
        trial = results[f"weighting={name.replace(' ', '%20')},seed=0"]
        assert trial.records[0]["weights"] == alone.records[0]["weights"]
    methods = ("Root", "by square", "x, fedvg.norm l1", "x, fedvg.norm l2")
    assert collect([tmp_path / "s"]).methods == methods
