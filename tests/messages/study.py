"""Mistakes in sweeps, their tuning, their command line and their files."""

import os
import threading
from unittest import mock

import numpy as np
from support.small_sweeps import tempered

import fedvg_jax as fv
from fedvg_jax import sweep as sweep_command
from fedvg_jax.study import executors, sweep_trials
from fedvg_jax.study.sweep_trials import Layer, Sweep
from messages import scratch

CONFIG = fv.Config(clients=4, rounds=1, model="linear")


def axes(**settings):
    """Returns the call that makes the trials of these axes; a double underscore stands for a dot."""
    named = {name.replace("__", "."): values for name, values in settings.items()}
    return lambda: sweep_trials.make_trials(Sweep((Layer(sweep_trials.parse_axes(named)),)))


def file(text):
    """Returns the call that reads a sweep's file."""

    def use(path):
        path.write_text(text)
        sweep_command.read_command_line(["--config", str(path)])

    return scratch(use)


def words(*words):
    """Returns the call that reads a command line."""
    return lambda: sweep_command.read_command_line(words)


def command(*words):
    """Returns the call of a command, which sets variables of the environment."""

    def call():
        with mock.patch.dict(os.environ):
            sweep_command.run(sweep_command.read_command_line(words))

    return call


def with_lock(lock):
    """A weighting that no other process can get."""
    return lambda task: fv.weightings.uniform() if lock else None


def metric_with_lock(lock):
    """A metric that no other process can get."""
    return lambda model, data: float(bool(lock))


def run_sweep(axes, config=CONFIG, **given):
    """Returns the call of a sweep."""
    return lambda: fv.run_sweep(config, axes, **given)


def method(**parts):
    """Returns the call of a sweep over one method."""
    return run_sweep({"method": {"mine": fv.Method(**parts)}})


CASES = [
    ("unknown setting", axes(lrr=[1]), "lrr"),
    ("no value", axes(alpha=[]), "alpha"),
    ("folder of a run", axes(out=["a", "b"]), "out"),
    ("unused by all", axes(fedprox__mu=[0.1, 1.0]), "fedprox.mu"),
    (
        "a trial that cannot work",
        axes(batch_size=[1, 2], reference=["single-rows"]),
        "trial batch_size=1",
    ),
    ("zip that is no table", file("zip = 3"), "zip"),
    ("zip of two lengths", file("[[zip]]\nlr = [0.1]\nalpha = [1.0, 2.0]"), "alpha"),
    ("two axes of one setting", file("[axes]\nlr = [0.1]\n[[zip]]\nlr = [0.1]"), "lr"),
    ("unknown flag", words("--lrr", "1", "2"), "--lrr"),
    ("value out of range", words("--alpha", "0.1", "0"), "trial alpha=0"),
    ("numbers with commas", words("--alpha", "0.05,0.5"), "--alpha"),
    ("tuned axis", words("--lr", "0.1", "0.2", "--tune", "lr", "0.3"), "lr"),
    (
        "seeds of the trials",
        words("--tune", "lr", "0.1", "--seed", "0:3", "--tune-seeds", "2:4"),
        "seed 2",
    ),
    ("tuned method", words("--tune", "method", "fedavg", "fedprox"), "method"),
    (
        "tuned signal",
        words("--fedvg.mode", "train", "eval", "--tune", "fedvg.signal", "gradient", "delta"),
        "fedvg.signal",
    ),
    (
        "an own one of an axis out of range",
        run_sweep({"weighting": {"a": tempered, "b": tempered}, "hyper.T": [1.0, 9.0]}),
        "'T'",
    ),
    ("settings that are none", method(settings=3), "settings"),
    ("hyperparameters that are none", method(weighting=tempered, hyper=3), "hyper"),
    *(
        (f"{name} of a method", method(settings={name: value}), name)
        for name, value in {"dataset": "iris", "alpha": 1.0, "seed": 1, "partition_seed": 1}.items()
    ),
    ("a partition of a shorthand", method(settings={"fidelity": "official"}), "partition"),
    ("two weightings", method(weighting=tempered, settings={"weighting": "fedvg"}), "weighting"),
    (
        "a method beside an algorithm",
        method(algorithm=fv.algorithms.fedprox(), settings={"method": "scaffold"}),
        "algorithm",
    ),
    (
        "two values of one hyperparameter",
        method(
            algorithm=fv.algorithms.fedprox(),
            hyper={"fedprox.mu": 1.0},
            settings={"fedprox.mu": 2.0},
        ),
        "fedprox.mu",
    ),
    (
        "a setting of another algorithm",
        method(algorithm="fedavg", settings={"fedprox.mu": 3.0}),
        "fedprox.mu",
    ),
    (
        "a setting that an object replaces",
        method(weighting=tempered, settings={"fedvg.norm": "l2"}),
        "fedvg.norm",
    ),
    ("unknown hyperparameter", run_sweep({"hyper.U": [1.0]}, weighting=tempered), "'U'"),
    (
        "setting of another weighting",
        run_sweep({"fedvg.norm": ["l1", "l2"]}, weighting=tempered),
        "fedvg.norm",
    ),
    (
        "an object without a name",
        run_sweep({"weighting": [tempered]}),
        "weighting",
    ),
    (
        "an object for a process",
        run_sweep({"weighting": {"a": with_lock(threading.Lock())}}, jobs=2),
        "weighting a cannot be sent to other processes (cannot pickle '_thread.lock'",
    ),
    (
        "an argument for a process",
        run_sweep({"seed": [0]}, jobs=2, weighting=with_lock(threading.Lock())),
        "weighting cannot be sent",
    ),
    (
        "a metric for a process",
        run_sweep({"seed": [0]}, jobs=2, metrics={"mae": metric_with_lock(threading.Lock())}),
        "mae cannot be sent",
    ),
    ("a function that returns no executor", run_sweep({"seed": [0]}, executor=dict), "executor"),
    ("processes beside an executor", run_sweep({"seed": [0]}, jobs=2, executor=dict), "jobs"),
    ("no shard", run_sweep({"seed": [0]}, shard="3/2"), "shard"),
    ("jobs beside --executor", words("--executor", "a:b", "--jobs", "2"), "--executor"),
    ("no module of an executor", lambda: executors.named("no_module:f"), "--executor"),
    ("a number for a shard", run_sweep({"seed": [0]}, shard=1), "shard"),
    ("a shard of many digits", run_sweep({"seed": [0]}, shard="1/" + "9" * 5000), "shard"),
    ("an empty shard", run_sweep({"seed": [0]}, shard=""), "shard"),
    ("an empty --shard", words("--seed", "0:2", "--shard", ""), "shard"),
    ("an empty --executor", command("--executor", "", "--out", "nowhere"), "--executor"),
    ("a number to tune", run_sweep({"seed": [0]}, out="x", tune=3), "tune"),
    ("tuning in memory", run_sweep({}, tune={"lr": [0.1]}), "out"),
    ("no tuning seeds", run_sweep({}, out="x", tune={"lr": [0.1]}, tune_seeds=[]), "seed"),
    (
        "a tuning seed 0 that trials have",
        run_sweep({"seed": [0]}, out="x", tune={"lr": [0.1]}, tune_seeds=0),
        "seed 0",
    ),
    (
        "a number as the metric of tuning",
        run_sweep({}, out="x", tune={"lr": [0.1]}, tune_metric=3),
        "tune_metric 3",
    ),
    (
        "a tuned hyperparameter of an object",
        run_sweep({}, out="x", tune={"hyper.T": [0.1]}, weighting=tempered),
        "hyper.T",
    ),
    (
        "a tuned part of a method",
        run_sweep(
            {"method": {"mine": fv.Method(weighting=tempered)}},
            out="x",
            tune={"weighting": ["uniform", "samples"]},
        ),
        "weighting",
    ),
    ("a number as an axis", run_sweep({3: [1]}), "'3'"),
    ("a method without a name", run_sweep({"method": fv.Method(weighting=tempered)}), "method"),
    ("a number as the name of a metric", run_sweep({}, metrics={3: float}), "3"),
    (
        "an algorithm for all beside methods with others",
        run_sweep({"method": ["scaffold", "fedavg"]}, algorithm=fv.algorithms.fedavg()),
        "algorithm= is for all trials, and method=scaffold has another",
    ),
    (
        "a weighting for all beside others",
        run_sweep({"weighting": {"mine": tempered}}, weighting=fv.weightings.uniform()),
        "weighting= is for all trials, and weighting=mine has another",
    ),
    (
        "an own weighting for all beside others",
        run_sweep({"weighting": {"mine": tempered}}, weighting=with_lock(1)),
        "weighting",
    ),
    (
        "an own algorithm for all beside methods",
        run_sweep(
            {"method": {"mine": fv.Method(weighting=tempered)}},
            algorithm=fv.algorithms.fedavg()._replace(native_weighting="uniform"),
        ),
        "into each fv.Method",
    ),
    ("no number of processes", run_sweep({"seed": [0]}, jobs="all", out="x"), "jobs"),
    ("an object of the name of a setting", run_sweep({"weighting": {"FedVG": tempered}}), "FedVG"),
    (
        "alpha of a given partition",
        run_sweep({"alpha": [0.1, 1.0]}, partition=np.split(np.arange(200), 4)),
        "alpha",
    ),
    ("rank that no layer has", run_sweep({"lora": [0, 2, 99]}), "trial lora=2"),
    (
        "missing data",
        run_sweep({("dataset", "data_dir"): [("digits", None), ("stl10", "nowhere")]}),
        "nowhere",
    ),
    (
        "tracker without a folder",
        run_sweep({"seed": "0:2"}, fv.Config(track="tensorboard")),
        "track",
    ),
]
