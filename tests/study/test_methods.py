"""Methods as bundles with names, tuning by any metric, and reports over several tuned sweeps."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.files import one_line
from support.run_folders import problems
from support.small_sweeps import tempered, timeless

import fedvg_jax as fv
from fedvg_jax.study.collect import collect

CONFIG = fv.Config(model="linear", rounds=1, clients=6, local_epochs=1, eval_every=1)


METHODS = {
    "mine": fv.Method(algorithm=fv.algorithms.scaffold(), weighting=tempered, hyper={"T": 0.5}),
    "calm": fv.Method(weighting="uniform", settings={"lr": 0.02}),
    "fedavg": "fedavg",
}


def test_methods_of_one_axis_equal_runs_alone_and_are_methods_of_one_report(tmp_path):
    results = fv.run_sweep(CONFIG, {"method": METHODS, "seed": [0]}, tmp_path / "s")
    mine, calm, fedavg = (result.result.records for result in results)
    alone = [
        fv.run(CONFIG, algorithm=fv.algorithms.scaffold(), weighting=tempered, hyper={"T": 0.5}),
        fv.run(dataclasses.replace(CONFIG, weighting="uniform", lr=0.02)),
        fv.run(dataclasses.replace(CONFIG, algorithm="fedavg", weighting="samples")),
    ]
    assert [timeless(run.records) for run in alone] == [*map(timeless, (mine, calm, fedavg))]
    assert [result.name for result in results] == [f"method={name},seed=0" for name in METHODS]
    pytest.importorskip("scipy", reason="reports need the report extra")
    assert collect([tmp_path / "s"]).methods == ("mine", "calm", "fedavg")
    assert {"mine", "calm"} <= {*collect([tmp_path / "s" / "trials"], partial=True).methods}
    (tmp_path / "s" / "trials" / "method=mine,seed=0" / "config.json").unlink()
    study = collect([tmp_path / "s"], partial=True)
    assert problems(study.group("mine", ()), "missing")


def nearly_sorted(labels, num_clients, stream):
    return np.array_split(np.argsort(labels + 2 * stream.random(len(labels))), num_clients)


def test_partitioners_on_an_axis_divide_rows_as_in_runs_alone(tmp_path):
    custom = fv.partitioners.Partitioner(nearly_sorted)
    partitions = {"mine": custom, "two": fv.partitioners.shards(2), "even": "iid"}
    axes = {"partition": partitions, "seed": [0, 1]}
    mine, again, two, _, even, _ = fv.run_sweep(CONFIG, axes, tmp_path)
    alone = [
        (mine, fv.run(CONFIG, partition=custom)),
        (two, fv.run(dataclasses.replace(CONFIG, partition="shards:2"))),
        (even, fv.run(dataclasses.replace(CONFIG, partition="iid"))),
    ]
    for trial, run in alone:
        assert timeless(trial.result.records) == timeless(run.records)
    assert again.result.records[0]["num_samples"] != mine.result.records[0]["num_samples"]
    axes["partition"] = {**partitions, "mine": fv.partitioners.Partitioner(np.array_split)}
    with one_line("mine"):
        fv.run_sweep(CONFIG, axes, tmp_path)
    with one_line("partition even must be a Partitioner"):
        fv.run_sweep(CONFIG, {"partition": {"even": nearly_sorted}})


def test_a_name_on_two_axes_means_two_objects():
    rule, algorithm = fv.weightings.uniform(), fv.algorithms.fedavgm()
    axes = {
        "weighting": {"x": rule, "samples": "samples"},
        "algorithm": {"x": algorithm, "fedavg": "fedavg"},
    }
    samples = dataclasses.replace(CONFIG, weighting="samples")
    by_name = {each.name: each.result.records for each in fv.run_sweep(samples, axes)}
    alone = {
        "weighting=x,algorithm=fedavg": fv.run(CONFIG, weighting=rule),
        "weighting=samples,algorithm=x": fv.run(samples, algorithm=algorithm),
    }
    for name, history in alone.items():
        assert timeless(by_name[name]) == timeless(history.records)


@pytest.mark.parametrize("method", [METHODS["mine"], METHODS["calm"]], ids=["object", "text"])
def test_a_part_of_a_method_that_is_an_axis_is_refused(method):
    axes = {"method": {"named": method}, "weighting": ["uniform", "samples"]}
    with one_line("weighting is an axis"):
        fv.run_sweep(CONFIG, axes)


def test_an_object_of_a_method_reads_traced_settings_of_others():
    """As of the package's hyperparameters, which `hyper` has by the names of their settings."""
    pulled = fv.algorithms.fedavg()._replace(correct=pull)
    methods = {
        "mine": fv.Method(algorithm=pulled, weighting="samples", settings={"fedprox.mu": 0.5}),
        "theirs": fv.Method(algorithm="fedprox", weighting="samples", settings={"fedprox.mu": 0.5}),
    }
    mine, theirs = fv.run_sweep(CONFIG, {"method": methods})
    losses = [each.result.records[-1]["train_loss"] for each in (mine, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def pull(hyper, grads, params, anchor):
    return jax.tree.map(
        lambda g, p, start: g + hyper["fedprox.mu"] * (p - start), grads, params, anchor.params
    )


def test_methods_of_unequal_rounds_are_compared_by_what_reaches_a_target_alone():
    pytest.importorskip("scipy", reason="reports need the report extra")
    methods = {"long": fv.Method(settings={"rounds": 2}), "fedavg": "fedavg"}
    config = dataclasses.replace(CONFIG, clock={"step": 1.0})
    results = fv.run_sweep(config, {"method": methods, "seed": "0:2"})
    with one_line("rounds 2 in .*; rounds 1 in "):
        fv.compare(results)
    with one_line("rounds 2 in .*; rounds 1 in "):
        fv.compare(results, partial=True)
    assert fv.compare(results, metric="time_to_target", target=0.01).finding


def test_hyperparameters_of_a_package_s_algorithm_in_a_method_are_its_settings():
    method = fv.Method(algorithm=fv.algorithms.scaffold(), hyper={"scaffold.eta_g": 0.5})
    (trial,) = fv.run_sweep(CONFIG, {"method": {"mine": method}})
    assert trial.config.scaffold.eta_g == 0.5 and trial.result.config.algorithm == "scaffold"


def test_several_settings_cannot_be_tuned_as_one(tmp_path):
    with one_line("momentum"):
        fv.run_sweep(CONFIG, {}, tmp_path, tune={("lr", "momentum"): [(0.1, 0.9)]})


def test_a_changed_object_of_a_method_is_refused(tmp_path):
    fv.run_sweep(CONFIG, {"method": {"mine": METHODS["mine"]}}, tmp_path)
    other = METHODS["mine"]._replace(hyper={"T": 2.0})
    with one_line("method mine is not the one"):
        fv.run_sweep(CONFIG, {"method": {"mine": other}}, tmp_path)


def test_methods_are_tuned_one_by_one_by_a_metric_of_the_call(tmp_path):
    """The metric on D_val prefers small models, and so the smallest learning rate."""

    def size(model, data):
        return sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(model.params))

    metrics = {"size": fv.Metric(size, better="lower", rows="val")}
    fv.run_sweep(
        CONFIG,
        {"method": METHODS},
        tmp_path,
        metrics=metrics,
        tune={"lr": [0.5, 1e-4]},
        tune_seeds=[7],
        tune_metric="size",
    )
    chosen = json.loads((tmp_path / "sweep.json").read_text())["tuning"]["chosen"]
    assert {name: choice["values"] for name, choice in chosen.items()} == {
        f"method={name}": {"lr": 1e-4} for name in METHODS
    }


@pytest.mark.parametrize(
    "metric", [lambda model, data: 0.0, fv.Metric(lambda model, data: 0.0, rows="val")]
)
def test_a_metric_that_cannot_choose_is_refused(metric, tmp_path):
    with one_line(r'better="lower", rows="val"'):
        fv.run_sweep(
            CONFIG, {}, tmp_path, metrics={"m": metric}, tune={"lr": [0.1]}, tune_metric="m"
        )


def test_settings_of_a_named_method_belong_to_its_name_in_a_report_of_several_sweeps(tmp_path):
    pytest.importorskip("scipy", reason="reports need the report extra")
    calm = fv.Method(
        algorithm="fedavg",
        weighting="uniform",
        aggregate=first_client,
        settings={"momentum": 0.5},
    )
    swept = {"a": {"method": ["fedavg"]}, "b": {"method": {"calm": calm, "prox": "fedprox"}}}
    for name, axes in swept.items():
        fv.run_sweep(CONFIG, axes | {"seed": "0:2"}, tmp_path / name)
    for last in ("", "trials"):
        study = collect([tmp_path / "a" / last, tmp_path / "b" / last])
        assert study.methods == ("fedavg", "calm", "prox") and study.conditions == ((),)
    other = dataclasses.replace(CONFIG, momentum=0.1)
    fv.run_sweep(other, {"method": ["fedavg"], "seed": "0:2"}, tmp_path / "c")
    with one_line("momentum 0.1"):
        collect([tmp_path / "b", tmp_path / "c"])


def first_client(hyper, model, clients, weights):
    return jax.tree.map(lambda leaf: leaf[0], clients)


def test_robust_rules_from_python_are_values_of_axes():
    rules = {"trimmed": fv.robust.trimmed_mean(0.3), "named": "trimmed_mean:0.3"}
    config = fv.Config(clients=8, rounds=2, model="linear", weighting="uniform", alpha=10.0)
    results = fv.run_sweep(config, {"robust": rules})
    assert [each.values for each in results] == [{"robust": "trimmed"}, {"robust": "named"}]
    custom, named = (timeless(each.result.records) for each in results)
    assert custom == named
