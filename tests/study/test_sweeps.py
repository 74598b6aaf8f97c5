"""A sweep's trials equal runs alone; stops, failures and other processes change none of them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.files import one_line
from support.small_sweeps import BASE, histories, timeless

import fedvg_jax
from fedvg_jax import resolve
from fedvg_jax.config import flatten
from fedvg_jax.config.checks import HOST, plain
from fedvg_jax.host import files
from fedvg_jax.runs.record import folder as run_folder
from fedvg_jax.study import executors, report, sweep_folder, sweep_trials, sweeps, trial_runs
from fedvg_jax.study.sweep_folder import Failure
from fedvg_jax.study.sweep_trials import Layer, Sweep
from fedvg_jax.views import output

AXES = {("alpha", "seed"): [(0.5, 0), (5.0, 1)]}

CONFIG = dataclasses.replace(BASE, model="linear")


def open_sweep(out, swept=AXES, config=CONFIG):
    """The trials of a sweep in a folder made for them."""
    sweep = Sweep((Layer(sweep_trials.parse_axes(swept)),), config)
    trials = sweep_trials.make_trials(sweep)
    stored = sweep_folder.Stored("", sweep.names, {trial.name: trial for trial in trials})
    sweep_folder.open_folder(out, stored)
    return trials


def compute(trials, out):
    """The results of trials that this process computes."""
    with executors.opened(None, 1) as slots:
        return sweeps.compute(trials, out, sweeps.Work(trial_runs.Recipe(), slots=slots))


@pytest.fixture
def watch(monkeypatch):
    """Calls a function with the settings and the records of every chunk of rounds."""
    run = output.run_simulation

    def watch(hook):
        def watched(sim, on_progress, **listeners):
            def report(records):
                on_progress(records)
                hook(sim.config, records)

            return run(sim, on_progress=report, **listeners)

        monkeypatch.setattr(output, "run_simulation", watched)

    return watch


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(folder, results) of a sweep that nothing disturbed."""
    out = tmp_path_factory.mktemp("sweeps") / "whole"
    return out, fedvg_jax.run_sweep(CONFIG, AXES, out)


def test_trial_of_a_sweep_equals_the_run_alone_also_without_a_folder(whole):
    timed = {"compile_seconds", "run_seconds"}
    for result in whole[1]:
        alone = fedvg_jax.run(dataclasses.replace(CONFIG, **result.values))
        assert timeless(alone.records) == timeless(result.result.records)
        changed = dict(alone.summary.items() ^ result.result.summary.items())
        assert changed.keys() <= timed
    assert histories(fedvg_jax.run_sweep(CONFIG, AXES)) == histories(whole[1])


class Watched:
    """Settings that list the names of those that are read."""

    def __init__(self, config):
        self._config, self.names = config, set()

    def __getattr__(self, name):
        self.names.add(name)
        return getattr(self._config, name)


def test_trials_share_a_data_set_only_if_nothing_differs_that_it_is_read_with():
    limited = dataclasses.replace(CONFIG, rounds=1, max_rows=600)
    reading, key = Watched(limited), Watched(limited)
    resolve.data.load_data(reading)
    trial_runs.data_key(key)
    assert {"dataset", "max_rows"} <= reading.names <= key.names
    for result in fedvg_jax.run_sweep(limited, {"max_rows": [600, 900]}):
        alone = fedvg_jax.run(dataclasses.replace(limited, **result.values))
        assert timeless(alone.records) == timeless(result.result.records)


def written(out):
    """History or failure of a trial -> when it was written."""
    paths = [*out.rglob("history.jsonl"), *out.rglob("failure.json")]
    return {path: path.stat().st_mtime_ns for path in paths}


def test_finished_trials_are_listed_verify_and_are_not_computed_again(whole):
    out, results = whole
    before = written(out)
    content = json.loads((out / "sweep.json").read_text())
    assert content["axes"] == ["alpha", "seed"]
    for trial, result in zip(content["trials"], results, strict=True):
        assert (trial["name"], trial["values"]) == (result.name, result.values)
        flat = flatten(result.result.config)
        assert trial["config"] == plain({n: v for n, v in flat.items() if n not in HOST})
    assert histories(fedvg_jax.run_sweep(CONFIG, AXES, out)) == histories(results)
    assert written(out) == before


class Killed(BaseException):
    """Ends a sweep as a kill does: nothing more is written."""


def test_killed_sweep_has_the_histories_and_the_report_of_an_undisturbed_one(
    tmp_path, watch, monkeypatch
):
    """Also of a trial that is resumed from a checkpoint; without the seconds, which differ from run to run."""
    swept = dataclasses.replace(CONFIG, checkpoint_every=2)
    changed = {"seed": [0, 1]}
    folders = [tmp_path / name / "sweep" for name in ("undisturbed", "killed")]
    for kill_at in ((0, 1), (1, 4)):  # before the first checkpoint of a trial, and after it

        def kill(config, records, kill_at=kill_at):
            if (config.seed, records[-1]["round"]) == kill_at:
                raise Killed

        watch(kill)
        with pytest.raises(Killed):
            compute(open_sweep(folders[1], changed, swept), folders[1])
    monkeypatch.undo()
    results = [fedvg_jax.run_sweep(swept, changed, folder) for folder in folders]
    assert [r.result.summary["resumed_from"] for r in results[1]] == [None, 2]
    assert histories(results[1]) == histories(results[0])
    for package in report.EXTRA:
        pytest.importorskip(package)
    written = [report_bytes(folder) for folder in folders]
    assert list(written[0]) == list(written[1])
    assert [name for name in written[0] if written[0][name] != written[1][name]] == []


def report_bytes(sweep):
    """File of a sweep's report -> its bytes; the tables of means and of runs, and the page, have seconds."""
    written = report.write([sweep], "report", sweep / "report")
    timed = ("means", "runs", "report")
    return {
        path.relative_to(sweep): path.read_bytes()
        for path in written.paths
        if path.stem not in timed
    }


def test_stop_signal_ends_the_sweep_after_the_present_chunk_and_it_can_go_on(
    whole, tmp_path, watch, monkeypatch
):
    watch(lambda config, records: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(executors.Stopped, match="SIGTERM"):
        compute(open_sweep(tmp_path), tmp_path)
    monkeypatch.undo()
    assert len(fedvg_jax.History.load(tmp_path / "trials" / whole[1][0].name).records) == 1
    assert histories(fedvg_jax.run_sweep(CONFIG, AXES, tmp_path)) == histories(whole[1])


def test_waiting_process_takes_over_the_trial_of_one_that_ends(tmp_path, monkeypatch):
    trials = open_sweep(tmp_path, config=dataclasses.replace(CONFIG, rounds=1))
    folder = sweep_folder.trial_folder(tmp_path, trials[0].name)
    folder.mkdir(parents=True)
    other = files.claimed(folder / sweep_folder.CLAIM)
    other.__enter__()
    monkeypatch.setattr(time, "sleep", lambda seconds: other.__exit__(None, None, None))
    assert list(compute(trials, tmp_path)) == [trials[1].name, trials[0].name]


def test_diverged_trial_is_recorded_stops_nothing_and_is_not_tried_again(tmp_path):
    changed = {"lr": [1e30, 0.2]}
    (failure, other) = (r.result for r in fedvg_jax.run_sweep(CONFIG, changed, tmp_path))
    assert failure.kind == "diverged" and other.records
    assert "use a smaller --lr" in failure.reason and "\n" not in failure.reason
    folder = tmp_path / "trials" / "lr=1e+30"
    assert json.loads((folder / "failure.json").read_text()) == failure._asdict()
    assert len(fedvg_jax.History.load(folder).records) == failure.round
    before = written(tmp_path)
    again = fedvg_jax.run_sweep(CONFIG, changed, tmp_path)
    assert again[0].result.kind == "diverged" and written(tmp_path) == before


def test_failed_trial_is_recorded_stops_nothing_and_is_tried_again(tmp_path):
    """A metric of the user's own fails in the first evaluation of all, and never again."""
    out, marker = tmp_path / "out", str(tmp_path / "marker")

    def fail_once(variables, data):
        if not os.path.exists(marker):
            Path(marker).touch()
            raise OSError(28, "No space left on device")
        return 0.5

    given = {"metrics": {"mine": fail_once}}
    failure, other = (r.result for r in fedvg_jax.run_sweep(CONFIG, AXES, out, **given))
    assert isinstance(failure, Failure) and other.records
    assert failure.kind == "failed" and "No space left on device" in failure.reason
    assert "in fail_once" in failure.traceback, "where an own function failed"
    again = fedvg_jax.run_sweep(CONFIG, AXES, out, **given)
    assert histories(again) == histories(fedvg_jax.run_sweep(CONFIG, AXES, **given))
    assert not list(out.rglob("failure.json"))


def test_folder_of_another_sweep_is_refused_and_stays_as_it_is(whole, tmp_path):
    out, _ = whole
    before = (out / "sweep.json").read_bytes()
    faster = dataclasses.replace(CONFIG, lr=0.3)
    for config, axes, named in (
        (CONFIG, {"alpha": [0.1, 0.2]}, "alpha=0.5,seed=0"),
        (faster, AXES, r"lr 0.1 -> 0.3"),
    ):
        with one_line(f"holds another sweep; .*{named}"):
            fedvg_jax.run_sweep(config, axes, out)
    assert (out / "sweep.json").read_bytes() == before
    (tmp_path / "notes.txt").touch()
    with one_line("is taken and holds no sweep"):
        fedvg_jax.run_sweep(CONFIG, AXES, tmp_path)


def test_a_kill_while_a_folder_is_made_leaves_one_that_opens(tmp_path, monkeypatch):
    def kill(*arguments):
        raise Killed

    monkeypatch.setattr(os, "replace", kill)
    with pytest.raises(Killed):
        open_sweep(tmp_path / "out")
    monkeypatch.undo()
    assert open_sweep(tmp_path / "out")


def test_sweeps_that_start_in_one_new_folder_at_once_are_told_apart(tmp_path, monkeypatch):
    """The second one finds the folder in the state just before sweep.json is written."""
    replace, is_writing = os.replace, threading.Event()

    def slow_replace(*arguments):
        is_writing.set()
        time.sleep(0.2)
        replace(*arguments)

    monkeypatch.setattr(os, "replace", slow_replace)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(open_sweep, tmp_path)
        is_writing.wait()
        with one_line("holds another sweep"):
            open_sweep(tmp_path, {"seed": [7]})
        assert first.result()
    assert len(sweep_folder.read(tmp_path).trials) == 2


def test_the_folder_of_a_sweep_is_named_as_such(tmp_path):
    (tmp_path / "sweep.json").write_text("{}")
    with one_line(r"is a sweep; name the folders of its runs, .*trials/\*"):
        run_folder.read_config(tmp_path)


def test_a_trial_that_is_started_anew_keeps_files_of_the_user(tmp_path):
    for name in ("config.json", "history.jsonl", ".claim", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "checkpoints").mkdir()
    sweep_folder.clear(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".claim", "notes.txt"}
