"""`python -m fedvg_jax.sweep`: its command line, its table, restarts, exit codes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types

import programs
import pytest
from processes import started

import fedvg_jax
from fedvg_jax import sweep
from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs import chunks, loop
from fedvg_jax.runs.record.history import History
from fedvg_jax.study import report, sweep_arguments, sweep_folder, sweeps, workers
from fedvg_jax.views import dry_run

SHORT = {"--weighting": "uniform", "--rounds": "2", "--clients": "6", "--local-epochs": "1", "--eval-every": "2"}
SHORT |= {"--jobs": "1"}


def short(*words):
    """The words of a command, with those of `SHORT` that it does not give itself."""
    return [word for flag, value in SHORT.items() if flag not in words for word in (flag, value)] + list(words)


def read(*words):
    return sweep_arguments.read_command_line([*words, "--out", "runs/x"])


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(cache, tmp_path, capsys, monkeypatch):
    """Runs the command in this process without its report; returns (exit code, standard output, standard error)."""
    monkeypatch.setenv("FEDVG_CACHE_DIR", str(cache))
    monkeypatch.setattr(report, "write", lambda dirs, out: types.SimpleNamespace(paths=[*dirs, out / "report.html"]))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        code = sweep.main(short(*words, "--out", str(tmp_path / "out")))
        return code, *capsys.readouterr()

    return run


def test_several_values_make_an_axis_and_one_value_is_shared():
    command = read("--alpha", "0.05", "0.5", "--seed", "0:3", "--lr=0.1", "--fedvg.per-element")
    assert [axis.names for axis in command.sweep.axes] == [("alpha",), ("seed",)]
    assert [p.values for p in command.points.points][:4] == [
        {"alpha": 0.05, "seed": 0},
        {"alpha": 0.05, "seed": 1},
        {"alpha": 0.05, "seed": 2},
        {"alpha": 0.5, "seed": 0},
    ]
    assert {(p.config.lr, p.config.fedvg.per_element, p.config.keep) for p in command.points.points} == {(0.1, True, 1)}


def test_partition_seed_follows_and_ranges_join_numbers():
    points = read("--seed", "0:2", "7", "--partition-seed", "follow").points.points
    assert [(p.config.seed, p.config.partition_seed) for p in points] == [(0, 0), (1, 1), (7, 7)]


def test_every_seed_draws_its_own_partition_unless_the_partitions_seed_is_given(tmp_path):
    def seeds(*words):
        return {p.name: (p.config.seed, p.config.partition_seed) for p in read(*words).points.points}

    assert seeds("--seed", "3:5") == {"seed=3": (3, 3), "seed=4": (4, 4)}
    assert seeds("--seed", "3") == {"point": (3, 3)}
    assert seeds("--lr", "0.1") == {"point": (0, 42)}  # the same as the run
    assert seeds("--seed", "3:5", "--partition-seed", "42") == {"seed=3": (3, 42), "seed=4": (4, 42)}
    assert set(seeds("--seed", "3:5", "--partition-seed", "0:2").values()) == {(3, 0), (3, 1), (4, 0), (4, 1)}
    file = tmp_path / "s.toml"
    file.write_text("partition_seed = 42\n[axes]\nseed = '3:5'\n")
    assert set(seeds("--config", str(file)).values()) == {(3, 42), (4, 42)}
    assert set(seeds("--config", str(file), "--partition-seed", "follow").values()) == {(3, 3), (4, 4)}


def test_partitions_of_tuning_runs_are_drawn_with_the_seeds_of_tuning():
    grid = read("--seed", "0:2", "--tune", "lr", "0.1", "0.2").grid
    assert {(p.config.seed, p.config.partition_seed) for p in grid.points.points} == {(1000, 1000), (1001, 1001)}
    grid = read("--seed", "0:2", "--partition-seed", "42", "--tune", "lr", "0.1", "0.2").grid
    assert {p.config.partition_seed for p in grid.points.points} == {42}


def test_a_sweep_whose_seeds_share_a_partition_says_so_in_its_first_lines():
    line = "all seeds share one partition (--partition-seed 42)"
    assert line in sweep.opening_lines(read("--seed", "0:2", "--partition-seed", "42"))[1]
    for words in (["--seed", "0:2"], ["--seed", "0"], ["--seed", "0:2", "--partition-seed", "0:2"]):
        assert not any("share one partition" in text for text in sweep.opening_lines(read(*words)))


def test_a_folder_of_seeds_that_share_a_partition_is_not_extended_by_seeds_that_do_not(run, tmp_path):
    assert run("--seed", "0:2", "--partition-seed", "42", "--rounds", "1")[0] == 0
    code, _, err = run("--seed", "0:3", "--rounds", "1")
    assert code == 2 and err.count("\n") == 1 and "ran with other settings: partition_seed 42 -> 0" in err
    assert run("--seed", "0:3", "--partition-seed", "42", "--rounds", "1")[0] == 0


def test_a_table_prints_methods_as_papers_do(run):
    code, out, _ = run(
        "--method", "uniform", "fedprox+val_loss", "--weighting", "native", "--seed", "0", "--rounds", "1"
    )
    assert code == 0 and "│ uniform " in out and "│ FedProx + val_loss " in out


def test_command_line_replaces_settings_and_axes_of_the_file(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text("rounds = 9\nlr = 0.5\n[axes]\nalpha = [1.0, 2.0]\nseed = '0:4'\n")
    command = read("--config", str(path), "--seed", "0:2", "--alpha", "3", "--rounds", "5")
    assert [p.name for p in command.points.points] == ["seed=0", "seed=1"]
    assert {(p.config.alpha, p.config.rounds, p.config.lr) for p in command.points.points} == {(3.0, 5, 0.5)}


def test_zipped_setting_of_a_file_is_not_replaced(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text("[[zip]]\nalpha = [1.0, 2.0]\nlr = [0.1, 0.2]\n")
    with pytest.raises(UsageError, match="--alpha is zipped with alpha, lr in the file"):
        read("--config", str(path), "--alpha", "3")


REFUSED = {
    "unknown flag": (["--lrr", "1", "2"], "unknown argument --lrr; did you mean --lr?"),
    "no flag": (["fedavg"], "unknown argument fedavg"),
    "no number": (["--lr", "0.1", "x"], "--lr must be a number; got 'x'"),
    "no value": (["--alpha"], "--alpha needs a value"),
    "no name": (["--method"], "--method needs a name; allowed: fedavg"),
    "out of range": (["--alpha", "0.1", "0"], "point alpha=0: alpha must be > 0"),
    "resume": (["--resume", "runs/x"], "a sweep continues when its command is given again"),
    "records as an axis": (
        ["--record", "confusion", "calibration"],
        "record changes no result, so it is no axis; for all of them give one value: confusion,calibration",
    ),
    "cache per point": (["--cache-dir", "a", "b"], "cache_dir is a setting of the whole process"),
    "scale without a file": (["--scale", "tiny"], "give the file with --config"),
    "missing file": (["--config", "no.toml"], "cannot read the config file no.toml"),
    "unused": (["--fedprox.mu", "0.1"], "--fedprox.mu is not used by --algorithm fedavg"),
    "no jobs": (["--jobs", "0"], "--jobs must be auto or a number >= 1; got 0"),
    "no shard": (["--shard", "3/2"], "--shard must be I/N with I from 1 to N"),
    "no executor": (["--executor", "sge"], "unknown executor 'sge'; allowed: processes, submitit"),
    "options without submitit": (["--slurm", "partition=x"], "--slurm is for --executor submitit"),
    "no option": (["--executor", "submitit", "--slurm", "partition"], "--slurm takes NAME=VALUE"),
    "tuned axis": (["--lr", "0.1", "0.2", "--tune", "lr", "0.3"], "lr is an axis of the sweep and tuned"),
    "tuned and set": (["--lr", "0.3", "--tune", "lr", "0.1"], "lr has a value and is tuned"),
    "flag given twice": (
        ["--seed", "0:2", "--seed", "3:5"],
        "--seed is given twice; give it once, with all its values",
    ),
    "tuned twice": (["--tune", "lr", "0.1", "--tune", "lr", "0.2"], "--tune lr is given twice"),
    "tuned nothing": (["--tune"], "--tune needs a setting and the values to try"),
    "tuned nothing at first": (["--tune", "--seed", "0:2"], "--tune needs a setting and the values to try"),
    "tuned without values": (["--tune", "lr"], "--tune lr has no values"),
    "tuned method": (["--tune", "method", "fedavg", "fedvg"], "method cannot be tuned; make it an axis"),
    "tuned and unused": (["--tune", "fedprox.mu", "0.1"], "--fedprox.mu is not used by --algorithm fedavg"),
    "seeds of no tuning": (["--tune-seeds", "0:2"], "need settings to tune"),
    "seeds of the points": (["--tune", "lr", "0.1", "--seed", "0:3", "--tune-seeds", "2:4"], "seed 2 is a seed of the"),
    "the seed of the points": (["--tune", "lr", "0.1", "--tune-seeds", "0:2"], "seed 0 is a seed of the tuning runs"),
    "methods with commas": (["--method", "fedavg,fedprox"], "unknown method 'fedavg,fedprox'; several values are for"),
    "numbers with commas": (["--alpha", "0.05,0.5"], "separated by spaces: 0.05 0.5"),
    "seeds with commas": (["--seed", "0,1"], "separated by spaces: 0 1"),
    "words for jobs": (["--jobs", "many"], "--jobs must be auto or a number >= 1; got many"),
    "no folder": (["--out="], "--out takes one value; got none"),
    "no cache": (["--cache-dir="], "--cache-dir must not be empty"),
    "missing data": (["--dataset", "stl10", "--data-dir", "no"], "no: no such folder"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_mistakes_are_one_line_and_exit_code_2_before_anything_is_written(case, capsys, tmp_path):
    words, message = REFUSED[case]
    out = [] if "--out=" in words else ["--out", str(tmp_path / "out")]
    assert sweep.main([*words, *out]) == 2
    shown = capsys.readouterr()
    assert message in shown.err and shown.err.count("\n") == 1 and not (tmp_path / "out").exists()


def test_sweep_prints_its_points_a_table_and_its_folder_and_continues(run, tmp_path):
    code, out, err = run("--seed", "0:2")
    assert (code, err) == (0, "")
    assert "sweep of 2 points: seed (2)" in out and "2/2  seed=1: test accuracy" in out
    assert "n = 2 runs per cell" in out and str(tmp_path / "out") in out
    code, again, _ = run("--seed", "0:2")
    assert code == 0 and "1/2" not in again and "n = 2 runs per cell" in again
    assert f"report: {tmp_path / 'out' / 'report' / 'report.html'}" in again


def test_progress_counts_the_points_of_other_processes(run, tmp_path, monkeypatch):
    assert run("--seed", "1")[0] == 0
    (tmp_path / "out").rename(tmp_path / "other")
    simulate = loop.run_simulation

    def beside_another(sim, **arguments):  # which finishes seed 1 meanwhile
        target = tmp_path / "out" / "points" / "seed=1"
        if not target.exists():
            (tmp_path / "other" / "points" / "point").rename(target)
        return simulate(sim, **arguments)

    monkeypatch.setattr(loop, "run_simulation", beside_another)
    code, out, _ = run("--seed", "0:2")
    assert code == 0 and "2/2  seed=0: test accuracy" in out and "seed=1" not in out and "n = 2 runs" in out


def test_dry_run_lists_points_and_programs_and_writes_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr(dry_run, "SECONDS", 0.001)
    monkeypatch.setattr(dry_run, "REPEATS", 1)
    code, out, _ = run("--seed", "0:3", "--dry-run")
    assert code == 0 and "program 1: 3 points" in out and "3 points, 1 program: about" in out
    assert [line for line in out.splitlines() if line.startswith("  seed=")] == [f"  seed={seed}" for seed in range(3)]
    assert not (tmp_path / "out").exists()


def test_dry_run_lists_only_the_unfinished_points_of_its_shard(run, monkeypatch):
    monkeypatch.setattr(sweep, "_estimate", lambda group: (60.0 * len(group), 0.0))
    monkeypatch.setattr(sweep_folder, "is_done", lambda out, point: point.name == "seed=1")
    code, out, _ = run("--seed", "0:6", "--shard", "1/2", "--dry-run")
    assert code == 0 and [line for line in out.splitlines() if line.startswith("  ")] == ["  seed=0", "  seed=2"]
    assert "2 points, 1 program: about 2 min" in out and "; 1 of 3 points finished" in out
    monkeypatch.setattr(sweep_folder, "is_done", lambda out, point: True)
    code, out, _ = run("--seed", "0:6", "--dry-run")
    assert code == 0 and "nothing to compute; 6 of 6 points finished" in out


@pytest.mark.parametrize(
    "words",
    [
        *(["--local-epochs", "1", "3"], ["--eval-every", "1", "3"], ["--rounds", "2", "6"]),
        ["--algorithm", "scaffold", "--scaffold.steps", "single", "epochs"],
        ["--algorithm", "elastic", "--elastic.ratio", "0.1", "0.9"],
        ["--val-ratio", "0.1", "0.3"],
    ],
    ids=" ".join,
)
def test_estimate_of_a_program_is_the_sum_over_its_points(words, cache, monkeypatch):
    """Points of one program may differ in local steps and evaluations."""
    monkeypatch.setattr(chunks, "compile_programs", programs.trace_only)
    monkeypatch.setattr(dry_run, "_measure_rates", lambda sim, compiled, groups: dry_run.Rates(1, 1, 1, 0, groups))
    points = read(*short("--cache-dir", str(cache), *words)).points.points
    assert len(sweeps.by_program(points)) == 1
    first, second = (sweep._estimate([point])[0] for point in points)
    assert first != second and sweep._estimate(points)[0] == pytest.approx(first + second)


def test_sweep_without_a_report_says_why_and_succeeds(run, monkeypatch):
    monkeypatch.setattr(report, "EXTRA", ("scipy",))
    monkeypatch.setattr(report.importlib.util, "find_spec", lambda name: None)
    code, out, err = run("--alpha", "0.5")
    assert (code, err) == (0, "") and "no report: reports need scipy; pip install 'fedvg_jax[report]'" in out


def test_report_is_written_after_one_that_another_process_began_earlier(run, tmp_path):
    """That one may lack runs that have ended since."""
    (tmp_path / "out").mkdir()
    other = contextlib.ExitStack()
    other.enter_context(files.claimed(tmp_path / "out" / ".report"))

    def end_later():
        while not list((tmp_path / "out").glob("points/seed=1/summary.json")):
            time.sleep(0.05)
        time.sleep(1)
        other.close()

    thread = threading.Thread(target=end_later)
    thread.start()
    code, out, err = run("--seed", "0:2")
    thread.join()
    assert (code, err) == (0, "") and f"report: {tmp_path / 'out' / 'report' / 'report.html'}" in out


def test_runs_that_no_report_can_be_made_of_are_an_error(run, monkeypatch):
    def write(dirs, out):
        raise UsageError("alpha=0.5: manifest.json is damaged")

    monkeypatch.setattr(report, "write", write)
    code, out, err = run("--alpha", "0.5")
    assert (code, err) == (2, "error: alpha=0.5: manifest.json is damaged\n") and "no report" in out


def test_part_of_a_sweep_says_which_command_writes_the_report(run, tmp_path):
    code, out, err = run("--seed", "0:2", "--shard", "1/2")
    assert (code, err) == (0, "") and "the report is written by the command without --shard" in out


def test_help_all_has_the_options_of_a_run_too(capsys):
    assert sweep.main(["--help-all"]) == 0
    text = capsys.readouterr().out
    assert "--shard" in text and "--scaffold.steps" in text


def test_diverged_points_are_in_the_table_and_failed_ones_in_the_exit_code(run, monkeypatch):
    code, out, err = run("--lr", "0.2", "1e30", "--seed", "0")
    assert (code, err) == (0, "") and "– ‡" in out and "‡ lr=1e+30: diverged in round 1" in out
    simulate = loop.run_simulation

    def fail(sim, **arguments):
        if sim.config.lr == 0.3:
            raise OSError(28, "No space left on device")
        return simulate(sim, **arguments)

    monkeypatch.setattr(loop, "run_simulation", fail)
    code, out, err = run("--lr", "0.2", "1e30", "0.3", "--seed", "0")
    assert code == 2 and err.count("\n") == 1 and "1 point failed, such as lr=0.3" in err


def test_shards_compute_all_points_once_between_them(run, monkeypatch):
    computed, simulate = [], loop.run_simulation
    monkeypatch.setattr(
        loop, "run_simulation", lambda sim, **given: computed.append(sim.config.seed) or simulate(sim, **given)
    )
    first, second = (run("--seed", "0:2", "--shard", f"{i}/2") for i in (1, 2))
    assert (first[0], second[0], computed) == (0, 0, [0, 1])
    assert "† seed=1: no run folder yet" in first[1] and "n = 2 runs per cell" in second[1]


def test_shard_reports_failures_of_its_own_points_only(run, monkeypatch):
    simulate = loop.run_simulation

    def fail(sim, **arguments):
        if sim.config.seed == 1:
            raise OSError(28, "No space left on device")
        return simulate(sim, **arguments)

    monkeypatch.setattr(loop, "run_simulation", fail)
    second, first = (run("--seed", "0:2", "--shard", f"{i}/2") for i in (2, 1))
    assert (second[0], first[0]) == (2, 0) and "1 point failed, such as seed=1: " in second[2]


@pytest.mark.parametrize("shard", [[], ["--shard", "1/2"]], ids=["", "shard"])
@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "failed"])
def test_sweep_chooses_nothing_without_all_tuning_runs_and_continues(run, tmp_path, monkeypatch, shard, is_lost):
    """Workers that a signal kills leave their points unfinished, and their command with nothing else to do."""
    words = ["--seed", "0", "--tune", "lr", "1e-6", "0.2", "--tune-seeds", "7", *shard]
    simulate, run_local = loop.run_simulation, workers.run_local

    def fail(sim, **arguments):
        if sim.config.lr == 0.2:
            raise OSError(28, "No space left on device")
        return simulate(sim, **arguments)

    if is_lost:
        monkeypatch.setattr(workers, "run_local", lambda command, count, on_poll: on_poll())
        code, out, err = run(*words, "--jobs", "2")
        message = "2 tuning runs not finished, such as lr=1e-06; the same command continues them"
    else:
        monkeypatch.setattr(loop, "run_simulation", fail)
        code, out, err = run(*words)
        message = (
            "1 tuning run failed, such as lr=0.2: [Errno 28] No space left on device; the same command tries again"
        )
    assert (code, err) == (2, f"error: {message}\n") and "validation accuracy" not in out
    assert not (tmp_path / "out" / "points").exists() and not (tmp_path / "out" / "sweep.json").exists()
    monkeypatch.setattr(loop, "run_simulation", simulate)
    monkeypatch.setattr(workers, "run_local", run_local)
    code, out, err = run(*words)
    assert (code, err) == (0, "") and "lr 0.2 (validation accuracy" in out


def test_tuned_values_are_chosen_on_validation_for_every_method_and_alpha(run, tmp_path):
    words = ["--alpha", "0.5", "5", "--seed", "3", "--tune", "lr", "1e-6", "0.2", "--tune-seeds", "7"]
    words += ["--partition-seed", "42"]
    code, out, err = run(*words, "--select", "val")
    assert (code, err) == (0, "")
    assert "tuning lr first: 4 points with 1 seed" in out and "alpha=5: lr 0.2 (validation accuracy" in out
    content = json.loads((tmp_path / "out" / "sweep.json").read_text())
    tuning = content["tuning"]
    assert tuning["settings"] == {"lr": [1e-6, 0.2]} and tuning["seeds"] == [7] and tuning["select"] == "val"
    for cell, choice in tuning["chosen"].items():
        tried = History.load(tmp_path / "out" / "tuning" / "points" / f"{cell},lr=0.2")
        assert choice["score"] == tried.records[-1]["val_accuracy"]
        assert (choice["values"], choice["num_runs"]) == ({"lr": 0.2}, 2)
    assert [p["name"] for p in content["points"]] == ["alpha=0.5", "alpha=5"]
    for point in content["points"]:
        assert History.load(tmp_path / "out" / "points" / point["name"]).config.lr == 0.2
    before = (tmp_path / "out" / "sweep.json").read_bytes()
    assert run(*words)[0] == 0 and (tmp_path / "out" / "sweep.json").read_bytes() == before


def test_settings_tuned_by_a_file_are_chosen_on_validation_by_the_same_flag(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text("[axes]\nseed = [0]\n[tune]\nlr = [0.1, 0.2]\n")
    words = ["--config", str(file), "--tune-seeds", "7"]
    assert read(*words, "--select", "val").grid == read(*words).grid


def test_methods_have_the_grids_of_the_settings_they_use_or_equal_budgets():
    words = ["--method", "fedavg", "fedprox", "--tune", "lr", "0.1", "0.2", "--tune", "fedprox.mu", "0.01", "1"]
    names = [p.name for p in read(*words, "--tune-seeds", "7").grid.points.points]
    assert len(names) == 2 + 4 and sum("fedprox" in name for name in names) == 4
    limited = [p.name for p in read(*words, "--tune-seeds", "7", "--tune-budget", "2").grid.points.points]
    assert set(limited) < set(names) and [sum(m in n for n in limited) for m in ("=fedavg", "=fedprox")] == [2, 2]


def require_submitit(monkeypatch):
    """Skips a test without submitit.

    It configures logging when it is imported, which closes absl's handler and with it the stream that pytest captures.
    """
    monkeypatch.setenv("SUBMITIT_LOG_LEVEL", "NOCONFIG")
    pytest.importorskip("submitit", reason="jobs of a cluster need the slurm extra")


@pytest.mark.slow
@pytest.mark.parametrize(
    "executor", [[], ["--executor", "submitit", "--slurm", "timeout_min=10"]], ids=["", "submitit"]
)
def test_processes_share_the_points_without_computing_one_twice(tmp_path, cache, monkeypatch, executor):
    if executor:
        require_submitit(monkeypatch)
    words = ["--algorithm", "fedavg", "fedprox", "--seed", "0:3", "--jobs", "2", *executor]
    command = [sys.executable, "-m", "fedvg_jax.sweep", *short(*words, "--out", str(tmp_path / "out"))]
    environment = {**os.environ, "FEDVG_CACHE_DIR": str(cache), "COLUMNS": "200"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (
        (done.returncode, done.stderr) == (0, "")
        and "6/6" in done.stdout
        and len(re.findall(r"± \S+ \(3\)", done.stdout)) == 2
    )
    for folder in (tmp_path / "out" / "points").iterdir():
        assert History.load(folder).summary["parts"] == 1 and not list(folder.glob("history.*-*"))


def test_points_of_a_job_of_submitit_have_the_histories_of_the_runs_alone(run, tmp_path, monkeypatch):
    require_submitit(monkeypatch)
    words = ["--rounds", "1", "--seed", "0:2", "--executor", "submitit"]
    words += ["--slurm", "timeout_min=5"]
    code, out, err = run(*words)
    assert (code, err) == (0, "") and "2/2" in out and "n = 2 runs per cell" in out
    assert re.search(rf"1 job of \w+: \S+; logs in {tmp_path}/out/submitit", out)
    for seed in range(2):
        computed = History.load(tmp_path / "out" / "points" / f"seed={seed}")
        alone = fedvg_jax.run(dataclasses.replace(computed.config, out=None, resume=None))
        assert [r | {"seconds": 0} for r in computed.records] == [r | {"seconds": 0} for r in alone.records]


class Job:
    """A job of submitit that is done."""

    def __init__(self, number, error=None):
        self.job_id, self.error = f"7_{number}", error

    def done(self):
        return True

    def exception(self):
        return self.error


def fake_submitit(run_jobs):
    """Returns a module in place of submitit; `run_jobs` takes the function and its arguments, and returns the jobs."""

    class AutoExecutor:
        cluster = "slurm"

        def __init__(self, folder):
            folder.mkdir(exist_ok=True)

        def update_parameters(self, **parameters):
            assert parameters == {"timeout_min": 5, "name": "fedvg-sweep", "slurm_partition": "gpu"}

        def map_array(self, function, arguments):
            return run_jobs(function, arguments)

    return types.SimpleNamespace(AutoExecutor=AutoExecutor)


ENDS = [
    "Job (task=0) failed during processing with trace:\n" + 20 * "  File sweep.py\n",
    "Job not requeued because: timed-out and not checkpointable",
]
"""The message of a job that failed, and of one that is lost."""


@pytest.mark.parametrize("end", ENDS, ids=["failed", "lost"])
def test_points_of_an_ended_job_are_unfinished_and_the_same_command_computes_them(run, tmp_path, monkeypatch, end):
    """The time limit of the first job stops it after a point, and the second job computes nothing."""
    simulate, computed = loop.run_simulation, []

    def simulate_and_stop(sim, on_records, **arguments):
        computed.append(sim.config.seed)
        return simulate(sim, on_records=lambda records: signal.raise_signal(signal.SIGTERM), **arguments)

    def simulate_all(sim, **arguments):
        computed.append(sim.config.seed)
        return simulate(sim, **arguments)

    def exit_code(function, words, simulate_point):
        with monkeypatch.context() as patch:
            patch.setattr(loop, "run_simulation", simulate_point)
            patch.setenv("SUBMITIT_EXECUTOR", "slurm")
            return function(words)

    def run_first(function, arguments):
        assert [words[-1] for words in arguments] == ["--worker=1/2", "--worker=2/2"]
        assert exit_code(function, arguments[0], simulate_and_stop) == 128 + signal.SIGTERM
        return [Job(0), Job(1, RuntimeError(end))]

    def run_both(function, arguments):
        assert [exit_code(function, words, simulate_all) for words in arguments] == [0, 0]
        return [Job(0), Job(1)]

    words = ["--rounds", "1", "--seed", "0:2", "--jobs", "2", "--executor", "submitit"]
    words += ["--slurm", "timeout_min=5", "slurm_partition=gpu"]
    monkeypatch.setitem(sys.modules, "submitit", fake_submitit(run_first))
    code, out, err = run(*words)
    assert (code, err) == (2, "error: 1 point not finished, such as seed=1; the same command continues them\n")
    reason = " ".join(end.split())[:200]
    assert re.findall("job .* was lost.*", out) == [f"job 7_1 was lost: {reason}; its points are unfinished"]
    monkeypatch.setitem(sys.modules, "submitit", fake_submitit(run_both))
    code, out, err = run(*words)
    assert (code, err) == (0, "") and "lost" not in out and "n = 2 runs per cell" in out
    assert computed == [0, 1]


@pytest.mark.slow
def test_killed_sweep_leaves_no_worker_and_continues_to_the_same_histories(run, tmp_path, cache):
    words = ["--rounds", "400", "--checkpoint-every", "50", "--seed", "0:4"]
    start = [sys.executable, "-m", "fedvg_jax.sweep", *short(*words, "--out", str(tmp_path / "out"), "--jobs", "2")]
    with started(start, env={**os.environ, "FEDVG_CACHE_DIR": str(cache)}) as process:
        while len(list((tmp_path / "out").glob("points/*/checkpoints/*/seal.json"))) < 2:
            assert process.poll() is None
            time.sleep(0.1)
        process.kill()
    claims = list((tmp_path / "out").glob("points/*/.claim"))
    deadline = time.monotonic() + 240
    while not all(map(is_free, claims)):  # the workers end after their present chunks
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert run(*words)[0] == 0
    for seed in range(4):
        stopped = History.load(tmp_path / "out" / "points" / f"seed={seed}")
        alone = fedvg_jax.run(dataclasses.replace(stopped.config, out=None, resume=None))
        assert [r | {"seconds": 0} for r in stopped.records] == [r | {"seconds": 0} for r in alone.records]


def is_free(path):
    with files.claimed(path) as is_mine:
        return is_mine


def test_stopped_sweep_exits_with_the_code_of_its_signal(run, monkeypatch):
    simulate = loop.run_simulation

    def stopped(sim, on_records, **arguments):
        return simulate(sim, on_records=lambda records: signal.raise_signal(signal.SIGINT), **arguments)

    monkeypatch.setattr(loop, "run_simulation", stopped)
    code, out, _ = run("--seed", "0:2")
    assert code == 130 and "the same command continues the sweep" in out
    monkeypatch.undo()
