"""Trials on executors: equal results on all of them, processes that die, and shards."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pickle
import signal
import sys
import time
from concurrent import futures
from pathlib import Path
from unittest import mock

import loky
import pytest
from support.files import one_line
from support.programs import compilations
from support.small_sweeps import BASE, histories, root

import fedvg_jax as fv
from fedvg_jax.config import Config
from fedvg_jax.host import hardware
from fedvg_jax.study import executors, sweep_folder, trial_runs
from fedvg_jax.study.sweep_trials import Layer, Sweep, Trial, make_trials, parse_axes

MACHINE = hardware.Hardware("cpu", "", num_devices=4, cores=4, memory_bytes=64 * 2**30)

CONFIG = dataclasses.replace(BASE, model="linear", rounds=2)


CUSTOM = {"weighting": {"root": root, "uniform": "uniform"}, "seed": [0, 1]}
METRICS = {"half": lambda model, data: 0.5}


def computed(out=None, **where):
    """Histories of a sweep with a custom weighting and a metric."""
    return histories(fv.run_sweep(CONFIG, CUSTOM, out, metrics=METRICS, **where))


@pytest.fixture(scope="module")
def alone():
    return computed()


def test_histories_of_processes_of_this_machine_equal_those_of_one(alone):
    """With custom functions of a module that the processes import, in memory."""
    assert computed(jobs=2) == alone


def test_histories_on_executors_of_the_standard_library_equal_those_of_one_process(alone, tmp_path):
    with futures.ThreadPoolExecutor(2) as threads:
        assert computed(executor=threads) == alone
    assert computed(tmp_path / "s", executor=spawned) == alone


def spawned():
    """Returns an executor, as `executor=` takes it."""
    context = multiprocessing.get_context("spawn")
    arguments = sorted(os.sched_getaffinity(0)), os.getpid()
    return futures.ProcessPoolExecutor(2, context, executors.start_process, arguments)


def test_histories_on_dask_equal_those_of_one_process(alone, tmp_path):
    distributed = pytest.importorskip("distributed", reason="needs the dask extra")
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        assert computed(tmp_path / "s", executor=client.get_executor()) == alone


def test_the_second_trial_of_a_program_in_a_process_compiles_nothing():
    trials = make_trials(Sweep((Layer(parse_axes({"seed": [0, 1]})),), CONFIG))
    sent = trial_runs.pack(trial_runs.Recipe(metrics={"half": fv.Metric(METRICS["half"])}))
    trial_runs.compute_sent(sent, trials[0], None)
    with compilations() as compiled:
        second = pickle.loads(trial_runs.compute_sent(sent, trials[1], None))
    assert second.result.records and not compiled


def test_objects_of_one_name_on_two_axes_have_other_programs():
    axes = ("weighting", "algorithm", "method")
    recipe = trial_runs.Recipe(named={axis: {} for axis in axes})
    trials = [Trial("", {axis: "x"}, Config()) for axis in axes]
    assert len({trial_runs.program_key(recipe, trial) for trial in trials}) == 3


# --- processes that die


def answer(name, folder):
    """Returns the name of a trial; "once" kills its process the first time, "always" every time."""
    marker = Path(folder, name)
    if name == "always" or (name == "once" and not marker.exists()):
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return name


def compute_on(slots, names, submit):
    """Returns (name -> its result, or exception; lines) of trials that are only names."""
    ends, lines = {}, []

    def end(trial, result):
        ends[trial.name] = result
        return False

    trials = {"program": [Trial(name, {}, Config()) for name in names]}
    executors.compute(trials, slots, submit, end, lines.append)
    return ends, lines


def answering(folder):
    """Returns a function that submits `answer`."""
    return lambda executor, trial: executor.submit(answer, trial.name, str(folder))


NAMES = ("a", "once", "b", "always", "c", "d")


@pytest.mark.parametrize(
    "opened",
    [
        lambda: executors.opened(None, 2),
        lambda: executors.opened(lambda: loky.ProcessPoolExecutor(2), 1),
    ],
    ids=["processes of this machine", "a pool that breaks as a whole"],
)
def test_trials_of_a_killed_process_are_computed_again_and_one_that_kills_two_fails(
    opened, tmp_path
):
    with opened() as slots:
        ends, lines = compute_on(slots, NAMES, answering(tmp_path))
    failure = ends.pop("always")
    assert ends == {name: name for name in NAMES if name != "always"}
    assert isinstance(failure, RuntimeError) and lines and not any("\n" in line for line in lines)


def test_an_executor_that_breaks_and_cannot_be_made_anew_is_one_line(tmp_path):
    with (
        loky.ProcessPoolExecutor(1) as pool,
        executors.opened(pool, 1) as slots,
        one_line("the executor broke"),
    ):
        compute_on(slots, ["always"], answering(tmp_path))


def test_an_executor_that_broke_once_gets_as_many_trials_as_before_again():
    counts = []

    def submit(executor, trial):
        counts.append(1 + len(slots[0].pending))
        if counts == [1, 2, 3, 4]:
            raise futures.BrokenExecutor("a node is lost")
        return executor.submit(time.sleep, 0.1)

    with executors.opened(lambda: futures.ThreadPoolExecutor(4), 1) as slots:
        slots[0].width = 4
        ends, _ = compute_on(slots, map(str, range(40)), submit)
    assert len(ends) == 40 and {*ends.values()} == {None}
    assert counts[4:6] == [1, 2] and max(counts[6:]) == 4


def of_submit(submit):
    """Returns an executor with a function of no argument for submit."""

    class Executor(futures.Executor):
        def submit(self, function, /, *arguments):
            return submit()

    return Executor()


def of_result(result):
    """Returns an executor whose futures have a result."""
    future = futures.Future()
    future.set_result(result)
    return of_submit(lambda: future)


def of_error(error):
    """Returns an executor that takes nothing."""
    return of_submit(mock.Mock(side_effect=error))


def shut_down():
    """Returns an executor that takes nothing any more."""
    executor = futures.ThreadPoolExecutor(1)
    executor.shutdown()
    return executor


def forking():
    """Returns an executor whose processes are copies of this one."""
    return futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork"))


@pytest.mark.parametrize(
    ("executor", "name"),
    [
        (futures.Executor, "executor.submit"),
        (lambda argument: argument, "function of executor"),
        (of_error(RuntimeError("queue is full")), "executor.submit.*queue is full"),
        (of_submit(lambda: None), "executor.submit.*None"),
        (of_result(3), "result of executor, 3"),
        (of_result(b"3"), "result of executor"),
        (shut_down(), "after shutdown"),
        (forking, 'mp_context=multiprocessing.get_context\\("spawn"\\)'),
        (lambda: of_error(futures.BrokenExecutor("lost")), "lost"),
    ],
)
def test_an_executor_that_cannot_compute_is_one_line(executor, name):
    with one_line(name):
        for result in fv.run_sweep(CONFIG, {"seed": [0, 1]}, executor=executor):
            raise fv.UsageError(result.result.reason)


def test_an_executor_without_shutdown_loses_no_result(alone):
    class Executor:
        submit = executors.Here.submit

    assert computed(executor=Executor) == alone


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_trial_that_exits_fails_and_stops_nothing(jobs):
    def leave(model, data):
        sys.exit(3)

    results = fv.run_sweep(CONFIG, {"seed": [0, 1]}, metrics={"m": leave}, jobs=jobs)
    assert [result.result.reason for result in results] == ["SystemExit: 3"] * 2


def test_a_trial_whose_folder_cannot_be_made_fails_and_stops_nothing(tmp_path):
    """As on a full disk: nothing of it is written."""
    axes = {"seed": [0, 1]}
    sweep = Sweep((Layer(parse_axes(axes)),), CONFIG)
    trials = {trial.name: trial for trial in make_trials(sweep)}
    sweep_folder.open_folder(tmp_path, sweep_folder.Stored("", sweep.names, trials))
    (tmp_path / "trials").mkdir()
    sweep_folder.trial_folder(tmp_path, "seed=0").touch()
    first, second = fv.run_sweep(CONFIG, axes, tmp_path)
    assert isinstance(first.result, fv.Failure) and "seed=0" in first.result.reason
    assert second.result.summary["rounds"] == 2


# --- how many processes, and which part


@pytest.mark.parametrize(
    ("changes", "count", "machine", "jobs"),
    [
        ({}, 30, MACHINE, 4),
        ({}, 3, MACHINE, 1),
        ({}, 30, None, 1),
        ({"model": "lenet5"}, 30, MACHINE, 1),
    ],
)
def test_auto_starts_a_process_per_core_where_trials_use_one_device(
    changes, count, machine, jobs, monkeypatch
):
    monkeypatch.setattr(hardware, "without_jax", lambda: machine)
    trials = [Trial("", {}, Config(**changes))] * count
    assert executors.num_processes("auto", trials) == jobs


def test_processes_have_the_cores_in_parts_and_as_many_devices_as_one_alone(monkeypatch):
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.setenv("XLA_FLAGS", "")
    assert executors.environment(2)["JAX_NUM_CPU_DEVICES"] == str(hardware.num_cores())
    cores = sorted(os.sched_getaffinity(0))
    with executors.opened(None, 3) as slots:
        parts = [slot.executor.submit(os.sched_getaffinity, 0).result() for slot in slots]
    assert parts == [{*cores[i::3]} or {cores[i % len(cores)]} for i in range(3)]


def test_shards_compute_every_trial_once(tmp_path):
    for number in (1, 2):
        fv.run_sweep(CONFIG, {"seed": "0:3"}, tmp_path, shard=f"{number}/2")
    runs = {path.name: fv.History.load(path) for path in tmp_path.glob("trials/*")}
    assert {*runs} == {"seed=0", "seed=1", "seed=2"}
    assert all(run.summary["resumed_from"] is None for run in runs.values())


def test_trials_of_other_shards_are_missing_in_a_comparison(tmp_path):
    pytest.importorskip("pandas", reason="needs the report extra")
    config = dataclasses.replace(CONFIG, weighting=Config().weighting)
    axes = {"method": ["fedavg", "fedvg"], "seed": [0, 1]}
    results = fv.run_sweep(config, axes, tmp_path, shard="1/2")
    assert len(results) == 2
    with one_line("no run folder yet"):
        fv.compare(results)
    results = fv.run_sweep(config, axes, tmp_path, shard="2/2")
    assert len(fv.compare(results).tables["runs"]) == 4
    assert len(fv.compare(results[:2]).tables["runs"]) == 2


def array(number, count, first, last):
    """Returns the variables of a task of a job array of Slurm."""
    values = {"ID": number, "COUNT": count, "MIN": first, "MAX": last}
    return {f"SLURM_ARRAY_TASK_{name}": value for name, value in values.items()}


@pytest.mark.parametrize(
    ("numbers", "shard"), [("7 4 5 8", "3/4"), ("0 4 0 3", "1/4"), ("1 1 1 1", "1/1")]
)
def test_the_shard_of_a_task_is_its_position_in_the_array(numbers, shard):
    environ = array(*numbers.split())
    assert executors.default_shard(environ) == shard
    with one_line("--shard"):
        executors.default_shard(environ | {"SLURM_ARRAY_TASK_MAX": "9"})


@pytest.mark.parametrize("name", ["ID", "COUNT", "MIN", "MAX"])
@pytest.mark.parametrize("text", ["", "first"])
def test_a_task_of_an_array_with_a_missing_number_has_no_part(name, text):
    with one_line(f"SLURM_ARRAY_TASK_{name}.*--shard"):
        executors.default_shard(array("1", "1", "1", "1") | {f"SLURM_ARRAY_TASK_{name}": text})
