"""A sweep's trials equal runs alone; stops, failures and other processes change none of them."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console
from support.small_sweeps import BASE, histories, timeless

import fedvg_jax
from fedvg_jax import resolve
from fedvg_jax.config import Config, flatten
from fedvg_jax.config.uses import HOST, plain
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files
from fedvg_jax.runs.record import folder as run_folder
from fedvg_jax.study import executors, report, sweep_folder, sweep_trials, sweeps, trial_runs
from fedvg_jax.study.sweep_folder import Failure
from fedvg_jax.study.sweep_trials import Trial

AXES = {("alpha", "seed"): [(0.5, 0), (5.0, 1)]}

CONFIG = dataclasses.replace(BASE, model="linear")
ONE_ROUND = dataclasses.replace(CONFIG, rounds=1)


def open_sweep(out, swept=AXES, config=CONFIG):
    """The trials of a sweep in a folder made for them."""
    sweep = sweep_trials.Sweep(sweep_trials.parse_axes(swept), start=config)
    trials = sweep_trials.make_trials(sweep)
    sweep_folder.open_folder(out, sweep_folder.document(sweep, trials))
    return trials


def compute(trials, out, **listeners):
    """The results of trials that this process computes."""
    with executors.opened(None, 1) as slots:
        work = sweeps.Work(trial_runs.Recipe(), slots=slots)
        return sweeps.compute(trials, out, work, sweeps.Listeners(**listeners))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(folder, results) of a sweep that nothing disturbed."""
    out = tmp_path_factory.mktemp("sweeps") / "whole"
    return out, fedvg_jax.run_sweep(CONFIG, AXES, out)


def test_trial_of_a_sweep_equals_the_run_alone(whole):
    for result in whole[1]:
        alone = fedvg_jax.run(dataclasses.replace(CONFIG, **result.values))
        assert timeless(alone.records) == timeless(result.result.records)
        timed = {"compile_seconds", "run_seconds"}
        assert {n: v for n, v in alone.summary.items() if n not in timed} == {
            n: v for n, v in result.result.summary.items() if n not in timed
        }


def test_sweep_without_a_folder_has_the_same_results(whole):
    assert histories(fedvg_jax.run_sweep(CONFIG, AXES)) == histories(whole[1])


class Watched:
    """Settings that list the names of those that are read."""

    def __init__(self, config):
        self._config, self.names = config, set()

    def __getattr__(self, name):
        self.names.add(name)
        return getattr(self._config, name)


def test_trials_share_a_data_set_only_if_nothing_differs_that_it_is_read_with():
    reading, key = (Watched(dataclasses.replace(CONFIG, max_rows=600)) for _ in range(2))
    resolve.data.load_data(reading)
    trial_runs.data_key(key)
    assert {"dataset", "max_rows"} <= reading.names <= key.names


def test_trials_with_other_rows_equal_the_runs_alone():
    for result in fedvg_jax.run_sweep(ONE_ROUND, {"max_rows": [600, 900]}):
        alone = fedvg_jax.run(dataclasses.replace(ONE_ROUND, **result.values))
        assert timeless(alone.records) == timeless(result.result.records)


def test_every_seed_draws_its_own_partition_unless_the_partitions_seed_is_given(whole):
    assert len({(r.result.folder / "partition.json").read_text() for r in whole[1]}) == len(
        whole[1]
    )
    short = dataclasses.replace(CONFIG, rounds=1)
    for seed in (7, 42):
        kept = dataclasses.replace(short, partition_seed=seed)
        alone = timeless(fedvg_jax.run(dataclasses.replace(kept, seed=1)).records)
        for config, axes in (
            (kept, {"seed": [1]}),
            (short, {"seed": [1], "partition_seed": [seed]}),
        ):
            assert [*histories(fedvg_jax.run_sweep(config, axes)).values()] == [alone]
        assert alone != timeless(fedvg_jax.run(dataclasses.replace(short, seed=1)).records)


def written(out):
    """History or failure of a trial -> when it was written."""
    return {
        path: path.stat().st_mtime_ns
        for name in ("history.jsonl", "failure.json")
        for path in out.rglob(name)
    }


def test_finished_trials_are_listed_verify_and_are_not_computed_again(whole):
    out, results = whole
    before = written(out)
    content = json.loads((out / "sweep.json").read_text())
    assert content["axes"] == [{"alpha": [0.5, 5.0], "seed": [0, 1]}]
    assert [(p["name"], p["values"]) for p in content["trials"]] == [
        (r.name, r.values) for r in results
    ]
    for trial, result in zip(content["trials"], results, strict=True):
        recorded = {
            name: value for name, value in flatten(result.result.config).items() if name not in HOST
        }
        assert plain(recorded) == {**content["base"], **trial["settings"]}
    assert histories(fedvg_jax.run_sweep(CONFIG, AXES, out)) == histories(results)
    assert written(out) == before


class Killed(BaseException):
    """Ends a sweep as a kill does: nothing more is written."""


def test_killed_sweep_has_the_histories_and_the_report_of_an_undisturbed_one(tmp_path):
    """Also of a trial that is resumed from a checkpoint; without the seconds, which differ from run to run."""
    swept = dataclasses.replace(CONFIG, checkpoint_every=2)
    changed = {"seed": [0, 1]}
    folders = [tmp_path / name / "sweep" for name in ("undisturbed", "killed")]
    for seed, number in ((0, 1), (1, 4)):  # before the first checkpoint of a trial, and after it

        def kill(trial, records, seed=seed, number=number):
            if (trial.config.seed, records[-1]["round"]) == (seed, number):
                raise Killed

        trials = open_sweep(folders[1], changed, swept)
        with pytest.raises(Killed):
            compute(trials, folders[1], on_records=kill)
    results = [fedvg_jax.run_sweep(swept, changed, folder) for folder in folders]
    assert [r.result.summary["resumed_from"] for r in results[1]] == [None, 2]
    assert histories(results[1]) == histories(results[0])
    if missing := report.missing_packages():
        pytest.skip(f"reports need {', '.join(missing)}")
    written = [report_bytes(folder) for folder in folders]
    assert list(written[0]) == list(written[1])
    assert [name for name in written[0] if written[0][name] != written[1][name]] == []


def report_bytes(sweep):
    """File of a sweep's report -> its bytes; the tables of costs and of runs, and the page, have seconds."""
    written = report.write([sweep], figures=["curves"], command="report")
    timed = ("cost", "runs", "report")
    return {
        path.relative_to(sweep): path.read_bytes()
        for path in written.paths
        if path.stem not in timed
    }


def test_stop_signal_ends_the_sweep_after_the_present_chunk_and_it_can_go_on(whole, tmp_path):
    def stop(trial, records):
        signal.raise_signal(signal.SIGTERM)

    out = tmp_path / "out"
    with pytest.raises(executors.Stopped) as stopped:
        compute(open_sweep(out), out, on_records=stop)
    assert (stopped.value.signal, stopped.value.results) == ("SIGTERM", {})
    assert len(fedvg_jax.History.load(out / "trials" / whole[1][0].name).records) == 1
    assert histories(fedvg_jax.run_sweep(CONFIG, AXES, out)) == histories(whole[1])


def test_waiting_process_takes_over_the_trial_of_one_that_ends(tmp_path, monkeypatch):
    out = tmp_path / "out"
    trials = open_sweep(out, config=ONE_ROUND)
    folder = sweep_folder.trial_folder(out, trials[0].name)
    folder.mkdir()
    other = files.claimed(folder / sweep_folder.CLAIM)
    other.__enter__()
    monkeypatch.setattr(time, "sleep", lambda seconds: other.__exit__(None, None, None))
    assert list(compute(trials, out)) == [trials[1].name, trials[0].name]


def test_diverged_trial_is_recorded_stops_nothing_and_is_not_tried_again(tmp_path):
    out, changed = tmp_path / "out", {"lr": [1e30, 0.2]}
    results = fedvg_jax.run_sweep(CONFIG, changed, out)
    kinds = [r.result.kind if isinstance(r.result, Failure) else "" for r in results]
    assert kinds == ["diverged", ""] and results[0].values["lr"] == 1e30
    failure = results[0].result
    folder = out / "trials" / results[0].name
    assert "use a smaller --lr" in failure.reason and "\n" not in failure.reason
    assert json.loads((folder / "failure.json").read_text()) == failure._asdict()
    assert len(fedvg_jax.History.load(folder).records) == failure.round
    before = written(out)
    assert (
        fedvg_jax.run_sweep(CONFIG, changed, out)[0].result.kind == "diverged"
        and written(out) == before
    )


def test_failed_trial_is_recorded_stops_nothing_and_is_tried_again(tmp_path):
    """A metric of the user's own fails in the first evaluation of all, and never again."""
    out, marker = tmp_path / "out", str(tmp_path / "marker")

    def fail_once(variables, data):
        if not os.path.exists(marker):
            Path(marker).touch()
            raise OSError(28, "No space left on device")
        return 0.5

    given = {"metrics": {"mine": fail_once}}
    results = fedvg_jax.run_sweep(CONFIG, AXES, out, **given)
    assert [isinstance(r.result, Failure) for r in results] == [True, False]
    folder = out / "trials" / results[0].name
    assert (folder / "config.json").exists()
    for failure in (results[0].result, sweep_folder.read_failure(folder)):
        assert failure[0] == "failed" and "No space left on device" in failure[2]
        assert "in fail_once" in failure.traceback, "where an own function failed"
    assert histories(fedvg_jax.run_sweep(CONFIG, AXES, out, **given)) == histories(
        fedvg_jax.run_sweep(CONFIG, AXES, **given)
    )
    assert not (folder / "failure.json").exists()


def test_processes_of_a_command_try_a_failing_trial_once_and_the_next_command_again(tmp_path):
    """Also a process that waits for the trial while another one computes it."""
    out, tried = tmp_path / "out", []
    trials = open_sweep(out)
    for trial in trials:  # a folder where a file is to be written
        (sweep_folder.trial_folder(out, trial.name) / "history.jsonl").mkdir(parents=True)
    for number in range(1, 3):
        sweep_folder.clear_failures(out, trials)  # as the command does before it starts workers
        for _ in range(2):  # workers, of which the second finds what the first has recorded
            compute(trials, out, on_end=lambda trial, failure: tried.append(failure.kind))
        assert tried == ["failed"] * len(trials) * number


def test_folder_of_another_sweep_is_refused_and_stays_as_it_is(whole, tmp_path):
    out, _ = whole
    before = (out / "sweep.json").read_bytes()
    more = {("alpha", "seed"): [(0.5, 0), (5.0, 2), (5.0, 1)]}
    faster = dataclasses.replace(CONFIG, lr=0.3)
    for config, axes, named in (
        (CONFIG, {"alpha": [0.1, 0.2]}, "alpha=0.5,seed=0"),
        (faster, more, r"lr 0.1 -> 0.3"),
    ):
        with pytest.raises(UsageError, match=f"holds another sweep: .*{named}"):
            fedvg_jax.run_sweep(config, axes, out)
    assert (out / "sweep.json").read_bytes() == before
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match="is taken and holds no sweep"):
        fedvg_jax.run_sweep(CONFIG, AXES, tmp_path)


def test_processes_take_the_programs_that_no_process_has_begun_first(tmp_path):
    """So that few programs are compiled twice; and the trials of others where they are free."""
    out, computed = tmp_path / "out", []
    trials = open_sweep(out, {"weighting": ["uniform", "samples"], "seed": [0, 1]}, ONE_ROUND)
    sweep_folder.trial_folder(out, trials[0].name).mkdir()
    compute(trials, out, on_end=lambda trial, result: computed.append(trial.name))
    assert computed == [trials[i].name for i in (2, 3, 0, 1)]


def test_a_kill_while_a_folder_is_made_leaves_one_that_opens(tmp_path, monkeypatch):
    def kill(*arguments):
        raise Killed

    monkeypatch.setattr(os, "replace", kill)
    with pytest.raises(Killed):
        open_sweep(tmp_path / "out")
    monkeypatch.undo()
    open_sweep(tmp_path / "out")
    assert (tmp_path / "out" / "trials").is_dir()


@pytest.mark.parametrize("swept", [AXES, {"seed": [7]}], ids=["the same", "another"])
def test_sweeps_that_start_in_one_new_folder_at_once_share_it_or_are_told_apart(
    tmp_path, monkeypatch, swept
):
    """The second one finds the folder in the state just before sweep.json is written."""
    replace, is_writing = os.replace, threading.Event()

    def slow_replace(*arguments):
        is_writing.set()
        time.sleep(0.2)
        replace(*arguments)

    monkeypatch.setattr(os, "replace", slow_replace)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(open_sweep, tmp_path / "out")
        is_writing.wait()
        if swept is AXES:
            open_sweep(tmp_path / "out", swept)
        else:
            with pytest.raises(UsageError, match="holds another sweep"):
                open_sweep(tmp_path / "out", swept)
        assert first.result()
    assert len(sweep_folder.read(tmp_path / "out").trials) == 2


def test_the_folder_of_a_sweep_is_named_as_such(tmp_path):
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(UsageError, match=r"is a sweep; name the folders of its runs, .*trials/\*"):
        run_folder.read_config(tmp_path)


def test_time_left_is_that_of_the_trials_left_at_the_pace_of_those_that_ended_here_and_elsewhere(
    tmp_path, monkeypatch
):
    """Eight trials, of which one was done before; two end in 100 s, and so the other five in 250 s."""
    now, text = [0.0], io.StringIO()
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    trials = [Trial(f"seed={i}", {"seed": i}, Config(seed=i, rounds=10)) for i in range(8)]

    def end_elsewhere(trial):
        folder = sweep_folder.trial_folder(tmp_path, trial.name)
        folder.mkdir(parents=True)
        sweep_folder.write_failure(folder, trial.config, Failure("diverged", 3, "not finite"))

    end_elsewhere(trials[0])
    with sweeps.sweep_progress(Console(file=text, width=200), trials, tmp_path) as listeners:
        now[0] = 100.0
        end_elsewhere(trials[2])
        listeners.on_end(trials[1], Failure("diverged", 3, "not finite"))
    assert text.getvalue() == "3/8  seed=1: diverged in round 3 (not finite), about 4 min left\n"


def test_a_trial_that_is_started_anew_keeps_files_of_the_user(tmp_path):
    for name in (
        "config.json",
        "history.jsonl",
        "failure.json",
        ".claim",
        "notes.txt",
    ):
        (tmp_path / name).touch()
    (tmp_path / "checkpoints").mkdir()
    sweep_folder.clear(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".claim", "notes.txt"}
