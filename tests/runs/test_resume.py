"""A stopped run that is resumed gives the results of an uninterrupted one, bit for bit."""

import contextlib
import functools
import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from support import resolved, worlds
from support.cases import naming
from support.files import disk_of, one_line, usage_error
from support.small_sweeps import timeless

import fedvg_jax
from fedvg_jax import config, resolve
from fedvg_jax.config import Config
from fedvg_jax.config.options import effective
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.runs import loop, recording
from fedvg_jax.runs.assemble import simulation
from fedvg_jax.runs.record import checkpoint, folder as run_folder, history, stored

SMALL = Config(
    clients=7,
    alpha=1.0,
    min_samples=8,
    batch_size=4,
    local_epochs=1,
    lr=0.1,
    eval_every=2,
    rounds=6,
)


@functools.cache
def tiny() -> simulation.Simulation:
    """Returns a simulation of an algorithm with every state and a probe, on random images and with BatchNorm.

    What a checkpoint holds depends on the states of server, clients and model, and neither on the algorithm
    otherwise nor on the weighting, which has none.
    """
    return resolve.experiment.simulation(
        replace(SMALL, algorithm="elastic"),  # whose schedules have probes
        data=Arrays("random", *worlds.random_images(), tuple("abc"), 200),
        task=worlds.TASK,
        algorithm=worlds.full_algorithm(),
        weighting=fedvg_jax.weightings.fedvg,
    )


def simulate(out, callbacks=(), log=pytest.fail, **changes):
    """Runs the simulation with a run folder; `changes` are settings."""
    settings = run_folder.settings_to_resume(replace(tiny().config, out=out, **changes))
    return loop.run_simulation(resolved.written_as(tiny(), settings), callbacks=callbacks, log=log)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of an uninterrupted run with FedVG's weights, to be copied."""
    out = tmp_path_factory.mktemp("whole") / "run"
    simulate(out, checkpoint_every=1, keep=9)
    return out


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def left_at(run, number):
    """Returns the folder as a kill after round `number`'s checkpoint leaves it, with the records of later rounds."""
    (run / "summary.json").unlink(missing_ok=True)
    for path in stored.checkpoints(run):
        if int(path.name) > number:
            shutil.rmtree(path)
    return run


def leaves(run, number=6):
    """Returns shape, dtype and CRC-32 of every array of a checkpoint, without the seconds."""
    described = stored.about(stored.checkpoint_path(run, number))["leaves"]
    return {name: digest for name, digest in described.items() if name != "seconds"}


def names(run):
    return [path.name for path in stored.checkpoints(run)]


def numbers(run):
    """Returns the history without times."""
    return timeless(history.read(run))


def contents(run):
    """Returns the bytes of all files of a folder, without its lock."""
    files = (path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    return {path: path.read_bytes() for path in files}


def assert_same(one, other):
    """History, final state (server, states, statistics) and best model, in every bit."""
    assert numbers(one) == numbers(other) and leaves(one) == leaves(other)


# --- the law


def test_stopped_and_resumed_run_equals_an_uninterrupted_one(tmp_path):
    """Stopped by a signal after round 3, which is at no evaluation."""

    def stop():
        time.sleep(0.5)  # longer than the second segment takes
        signal.raise_signal(signal.SIGINT)

    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    simulate(straight)
    first = simulate(stopped, callbacks=[at(3, stop)], log=lambda line: None)
    assert first.summary["stopped_by"] == "SIGINT" and first.summary["rounds"] == 3
    result = simulate(stopped, resume=str(stopped))
    assert_same(stopped, straight)
    assert result.summary["resumed_from"] == 3 and result.summary["rounds"] == 6
    for part in (first, result):
        assert part.summary["run_seconds"] > 0.5  # both have the first segment
    paths = " ".join(leaves(straight))
    for part in ("state.server", "state.clients", "state.variables.stats", "best.params"):
        assert part in paths


def test_length_of_chunks_changes_no_bit(whole, tmp_path):
    """Single rounds, as in `whole`; chunks up to evaluations; up to checkpoints; and up to the end."""
    last, often, none = (tmp_path / name for name in ("last", "often", "none"))
    simulate(last)
    assert_same(last, whole)
    simulate(often, checkpoint_every=5)
    assert_same(often, whole)
    assert names(often) == ["000005", "000006"]
    simulate(none, keep=0)
    assert numbers(none) == numbers(whole) and not (none / "checkpoints").exists()


# --- damaged folders


def test_unfinished_run_without_checkpoint_starts_again_with_one_line(whole, run):
    logged = []
    result = simulate(left_at(run, 0), resume=str(run), log=logged.append)
    assert len(logged) == 1 and "starts again with round 1" in logged[0]
    assert_same(run, whole)
    assert result.summary["resumed_from"] == 0


def assert_refused(run, *parts, **changes):
    """A resume ends in one line with these parts, and changes no file."""
    before = contents(run)
    with usage_error(*parts):
        simulate(run, resume=str(run), log=lambda line: None, **changes)
    assert contents(run) == before


def flip(path):
    """Changes one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("history.jsonl", flip),
        ("history.jsonl", lambda path: os.truncate(path, path.stat().st_size // 2)),
        ("history.jsonl", Path.unlink),
        ("manifest.json", Path.unlink),
    ],
)
def test_a_changed_history_or_a_lost_manifest_is_refused(run, name, damage):
    damage(left_at(run, 4) / name)
    assert_refused(run, name)


def test_lines_behind_the_newest_checkpoint_are_computed_again(whole, run):
    """A power failure may leave any bytes there; those up to a checkpoint were flushed before its digests."""
    left_at(run, 4)
    path = run / "history.jsonl"
    lines = path.read_bytes().splitlines(True)
    path.write_bytes(b"".join(lines[:4]) + bytes(300) + b"\n" + lines[5][:-40])
    simulate(run, resume=str(run), log=pytest.fail)
    assert_same(run, whole)


def test_files_of_a_user_beside_checkpoints_stay_and_change_no_run(whole, run):
    """A copy of a checkpoint with the number of a later round, and a file."""
    folder = left_at(run, 4) / "checkpoints"
    shutil.copytree(folder / "000004", folder / "000099")
    (folder / "notes.txt").write_text("of a user")
    before = contents(folder / "000099") | {folder / "notes.txt": b"of a user"}
    simulate(run, resume=str(run), keep=1)
    assert_same(run, whole)
    assert names(run) == ["000006"] and before.items() <= contents(run).items()


def test_a_damaged_checkpoint_is_left_for_the_one_before(whole, run):
    """Else its digests, of a longer history, would refuse a run that is killed before it is there again."""
    shutil.rmtree(left_at(run, 6) / "checkpoints" / "000006" / "state")

    def killed(record, state):
        raise MemoryError

    for _ in range(2):
        with pytest.raises(MemoryError):
            simulate(run, resume=str(run), callbacks=[killed], log=lambda line: None)
    assert names(run)[-1] == "000005"
    simulate(run, resume=str(run))
    assert_same(run, whole)


def test_a_new_run_starts_from_the_model_of_a_checkpoint_or_of_a_run(run):
    for path in (run / "checkpoints" / "000003", left_at(run, 4)):
        settings, init = replace(tiny().config, init=path), tiny().task.init
        started = resolve.model.make_variables(settings, init)
        expected = checkpoint.final_variables(path)
        jax.tree.map(np.testing.assert_array_equal, tuple(started), tuple(expected))

    def other(key):
        return init(key)._replace(params={"w": np.zeros(3)})

    for path in (run, run / "checkpoints" / "000004"):
        message = "holds no global model (checkpoint 000004: other shapes: "
        with usage_error(message, "use the settings of its model"):
            resolve.model.make_variables(replace(settings, init=path), other)


def test_objects_from_python_are_named_in_the_manifest_and_needed_to_resume(run):
    manifest = json.loads((run / "manifest.json").read_text())
    assert list(manifest["custom"]) == ["algorithm", "data", "task", "weighting"]
    assert manifest["custom"]["weighting"] == "fedvg"
    settings = replace(tiny().config, out=run, resume=str(run))
    for names, text in (("", "none"), ("task", "task")):
        other = resolved.written_as(tiny(), settings, dict.fromkeys(names.split(), ""))
        message = f"{run} ran with other objects from Python (algorithm, task, weighting -> {text})"
        with usage_error(message), recording.open_run_folder(other, pytest.fail):
            pass


def test_other_data_are_refused(run):
    left_at(run, 6)
    path = run / "manifest.json"
    manifest = json.loads(path.read_text())
    for source, message in (("data", "other data"), ("partition", "other partition")):
        path.write_text(json.dumps(manifest | {source: "0" * 32}))
        assert_refused(run, message, rounds=7)


# --- events during a run


def at(number, do):
    return lambda record, state: do() if record["round"] == number else None


def test_folder_in_use_is_refused(tmp_path):
    def second():
        with usage_error(f"in use by process {os.getpid()} on"):
            simulate(tmp_path / "run", resume=str(tmp_path / "run"))

    simulate(tmp_path / "run", callbacks=[at(2, second)])


def test_full_disk_is_one_line_and_the_run_resumes_when_there_is_room(whole, tmp_path):
    """After round 3 only a part of a file can be written."""
    out = tmp_path / "run"
    with contextlib.ExitStack() as stack:
        stack.enter_context(one_line(r"run folder .*--resume "))
        simulate(
            out, callbacks=[at(3, lambda: stack.enter_context(disk_of(3000)))], checkpoint_every=1
        )
    assert len(history.read(out)) in (3, 4)  # the checkpoint of round 3 is written beside round 4
    simulate(out, resume=str(out), log=print)
    assert_same(out, whole)


def test_a_callback_ends_a_run_that_is_then_finished(tmp_path):
    def stop(record, state):
        if record["round"] == 3:
            raise fedvg_jax.StopRun("enough")

    run = tmp_path / "run"
    first = simulate(run, callbacks=[stop])
    assert len(first.records) == 3 and first.best_variables is not None
    # the last round is evaluated
    assert ["test_loss" in record for record in first.records] == [False, True, True]
    assert first.summary["stopped_early"] == "callback: enough"
    assert first.summary["stopped_by"] is None
    before = contents(run)
    again = simulate(run, resume=str(run))
    assert contents(run) == before and again.records == history.read(run)
    assert len(simulate(run, resume=str(run), rounds=7).records) == 7


def test_ctrl_c_raises_from_run_after_a_checkpoint(tmp_path):
    """So a loop over runs ends."""
    settings = replace(SMALL, model="linear", out=tmp_path / "run")
    stop = functools.partial(signal.raise_signal, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="after round 2"):
        fedvg_jax.run(settings, callbacks=[at(2, stop)])
    assert stored.newest_round(tmp_path / "run") == 2


# --- choosing the run to resume


@pytest.fixture
def unfinished(tmp_path, monkeypatch):
    """The run folders runs/a and runs/b in the working directory, with two rounds each; b is newer."""
    monkeypatch.chdir(tmp_path)
    for i, name in enumerate("ab"):
        folder = Path("runs", name)
        folder.mkdir(parents=True)
        run_folder.write_settings(folder, SMALL)
        history.append(folder, [{"round": 1}, {"round": 2}])
        os.utime(folder / "config.json", (i, i))


def test_auto_resumes_the_newest_run_of_equal_settings_or_starts_one(unfinished):
    auto = replace(SMALL, resume="auto")
    newest = run_folder.settings_to_resume(auto)
    assert newest.out == Path("runs/b") and newest.resume == "runs/b"
    run_folder.write_settings(newest.out, replace(SMALL, lr=0.9))
    assert run_folder.settings_to_resume(auto).out == Path("runs/a")
    # other settings, both runs further, and other data
    for changes in ({"lr": 0.5}, {"rounds": 1}, {"data_dir": Path("elsewhere")}):
        changed = replace(SMALL, **changes)
        assert run_folder.settings_to_resume(replace(changed, resume="auto")) == changed
    with one_line("resume auto finds no run below runs/"):
        fedvg_jax.run(replace(auto, lr=0.5))
    with one_line(r"lr 0\.9 -> 0\.1"):
        run_folder.settings_to_resume(replace(auto, out=newest.out))


def test_changed_setting_that_affects_results_is_refused_by_name(unfinished):
    for name in sorted(config.flatten(Config())):
        with naming(name):
            value = effective(SMALL)[name]
            is_number = bool({int, float} & {*config.SETTINGS[name].types})
            other = not value if type(value) is bool else "other"
            other = (value or 0) + 1 if is_number else other
            changed = config.apply(SMALL, {name: other}, "test")
            changed = replace(changed, resume="runs/a", out=None)
            if name in run_folder.RESUMABLE_CHANGES:
                assert run_folder.settings_to_resume(changed).out == Path("runs/a")
            else:
                with usage_error(f"{name} {value} -> {other}"):
                    run_folder.settings_to_resume(changed)


# --- finished without a checkpoint


def test_finished_run_without_checkpoints_reports_its_result_again(tmp_path):
    out = tmp_path / "run"
    first = simulate(out, keep=0)
    before = contents(out)
    again = simulate(out, keep=0, resume=str(out))
    assert (again.records, again.summary) == (first.records, first.summary)
    assert contents(out) == before
    with one_line(r"holds no global model.*--keep 1"):
        again.variables  # noqa: B018
