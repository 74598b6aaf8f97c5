"""`python -m fedvg_jax.sweep`: its command line, its table, restarts, exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.processes import started
from support.small_sweeps import timeless

import fedvg_jax
from fedvg_jax import sweep
from fedvg_jax.config.options import partition_seed
from fedvg_jax.host import files
from fedvg_jax.study import report, sweep_folder

SHORT = {
    "--weighting": "uniform",
    "--rounds": "2",
    "--clients": "6",
    "--local-epochs": "1",
    "--eval-every": "2",
}
SHORT |= {"--model": "linear"}


def short(*words):
    """The words of a command, with those of `SHORT` that it does not give itself."""
    return [
        word for flag, value in SHORT.items() if flag not in words for word in (flag, value)
    ] + list(words)


def read(*words):
    return sweep.read_command_line([*words, "--out", "runs/x"])


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Runs the command in this process; returns (exit code, standard output, standard error)."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        code = sweep.main(short(*words, "--out", str(tmp_path / "out")))
        return code, *capsys.readouterr()

    return run


def test_partitions_of_tuning_runs_are_drawn_with_the_seeds_of_tuning():
    grid = read("--seed", "0:2", "--tune", "lr", "0.1", "0.2").plan.tuning_trials
    assert {(p.config.seed, partition_seed(p.config)) for p in grid} == {(1000, 1000), (1001, 1001)}
    grid = read(
        "--seed", "0:2", "--partition-seed", "42", "--tune", "lr", "0.1", "0.2"
    ).plan.tuning_trials
    assert {p.config.partition_seed for p in grid} == {42}


def test_a_private_sweep_says_that_epsilon_counts_no_tuning():
    words = ["--seed", "0", "--weighting", "uniform", "--tune", "lr", "0.1", "0.2"]
    for private in ([], ["--dp.clip", "0.5"]):
        said = "\n".join(sweep.opening_lines(read(*words, *private)))
        assert ("epsilon" in said) == bool(private)


def test_command_line_replaces_settings_and_axes_of_the_file(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text("rounds = 9\nlr = 0.5\n[axes]\nalpha = [1.0, 2.0]\nseed = '0:4'\n")
    command = read("--config", str(path), "--seed", "0:2", "--alpha", "3", "--rounds", "5")
    assert [p.name for p in command.plan.trials] == ["seed=0", "seed=1"]
    assert {(p.config.alpha, p.config.rounds, p.config.lr) for p in command.plan.trials} == {
        (3.0, 5, 0.5)
    }


@pytest.mark.parametrize(
    "words",
    [
        ["--alpha", "0.1", "0"],
        ["--dataset", "stl10", "--data-dir", "nowhere"],
        ["--lora", "0", "2", "99", "--model", "mlp"],
    ],
    ids=["a value", "data", "a rank"],
)
def test_all_trials_are_checked_before_the_first_and_mistakes_have_exit_code_2(
    words, capsys, tmp_path
):
    assert sweep.main(short(*words, "--out", str(tmp_path / "out"))) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "out").exists()


def test_sweep_prints_its_trials_a_table_and_its_folder_and_continues(run, tmp_path):
    code, out, err = run("--seed", "0:2")
    assert (code, err) == (0, "")
    assert "sweep of 2 trials: seed (2)" in out and "2/2  seed=1: test accuracy" in out
    assert "n = 2 runs per condition" in out and str(tmp_path / "out") in out
    code, again, _ = run("--seed", "0:2")
    assert code == 0 and "1/2" not in again and "n = 2 runs per condition" in again
    if not report.missing_packages():
        (shown,) = (tmp_path / "out").rglob("report.html")
        assert f"report: {shown}" in again


def test_dry_run_lists_unfinished_trials_and_programs_and_writes_nothing(run, tmp_path):
    code, out, _ = run("--seed", "0:3", "--dry-run")
    assert code == 0 and "3 trials, 1 program" in out and not (tmp_path / "out").exists()
    assert run("--seed", "1", "2", "--rounds", "1")[0] == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    code, out, _ = run("--seed", "0:4", "--rounds", "1", "--dry-run")
    assert code == 0 and [line for line in out.splitlines() if line.startswith("  ")] == [
        "  seed=0",
        "  seed=3",
    ]
    assert "2 trials, 1 program; 2 of 4 trials finished" in out
    code, out, _ = run("--seed", "1", "2", "--rounds", "1", "--dry-run")
    assert code == 0 and "nothing to compute; 2 of 2 trials finished" in out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_diverged_trials_are_in_the_table_and_failed_ones_in_the_exit_code(run, tmp_path):
    """A trial fails that finds a folder where it is to write a file."""
    code, out, err = run("--lr", "0.2", "1e30", "--seed", "0")
    assert (code, err) == (0, "") and "– ‡" in out and "‡ lr=1e+30: diverged in round 1" in out
    (tmp_path / "out" / "trials" / "lr=0.3" / "history.jsonl").mkdir(parents=True)
    code, out, err = run("--lr", "0.2", "1e30", "0.3", "--seed", "0")
    assert code == 2 and err.count("\n") == 1 and "1 trial failed, such as lr=0.3" in err


def test_tuned_values_are_chosen_on_validation_for_every_method_and_alpha(run, tmp_path):
    words = [
        "--alpha",
        "0.5",
        "5",
        "--seed",
        "3",
        "--tune",
        "lr",
        "1e-6",
        "0.2",
        "--tune-seeds",
        "7",
    ]
    words += ["--partition-seed", "42"]
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert (
        "tuning lr first: 4 trials with 1 seed" in out
        and "alpha=5: lr 0.2 (the largest of its grid) (validation accuracy" in out
    )
    content = json.loads((tmp_path / "out" / "sweep.json").read_text())
    tuning = content["tuning"]
    assert tuning["settings"] == {"lr": [1e-6, 0.2]} and tuning["seeds"] == [7]
    for cell, choice in tuning["chosen"].items():
        tried = fedvg_jax.History.load(
            tmp_path / "out" / "tuning" / "trials" / f"{cell},lr=0.2,seed=7"
        )
        assert choice["score"] == tried.records[-1]["val_accuracy"]
        assert (choice["values"], choice["num_runs"]) == ({"lr": 0.2}, 2)
    assert [p["name"] for p in content["trials"]] == ["alpha=0.5", "alpha=5"]
    for trial in content["trials"]:
        assert fedvg_jax.History.load(tmp_path / "out" / "trials" / trial["name"]).config.lr == 0.2
    before = (tmp_path / "out" / "sweep.json").read_bytes()
    assert run(*words)[0] == 0 and (tmp_path / "out" / "sweep.json").read_bytes() == before


def test_methods_have_the_grids_of_the_settings_they_use():
    words = [
        "--method",
        "fedavg",
        "fedprox",
        "--tune",
        "lr",
        "0.1",
        "0.2",
        "--tune",
        "fedprox.mu",
        "0.01",
        "1",
    ]
    names = [p.name for p in read(*words, "--tune-seeds", "7").plan.tuning_trials]
    assert len(names) == 2 + 4 and sum("fedprox" in name for name in names) == 4


def test_processes_of_one_command_have_the_histories_of_the_runs_alone(run, tmp_path):
    """Their tuning runs, too."""
    words = [
        "--seed",
        "0:2",
        "--rounds",
        "1",
        "--jobs",
        "2",
        "--tune",
        "lr",
        "0.1",
        "0.2",
        "--tune-seeds",
        "7",
    ]
    cores, variables = os.sched_getaffinity(0), dict(os.environ)
    try:
        code, _, err = run(*words)
    finally:
        os.sched_setaffinity(0, cores)
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
    assert (code, err) == (0, "")
    for computed in (
        fedvg_jax.History.load(tmp_path / "out" / "trials" / f"seed={seed}") for seed in range(2)
    ):
        alone = fedvg_jax.run(dataclasses.replace(computed.config, out=None, resume=None))
        assert timeless(computed.records) == timeless(alone.records)


def test_an_executor_that_a_module_names_computes_the_trials(run):
    code, out, err = run("--seed", "0:2", "--executor", "concurrent.futures:ThreadPoolExecutor")
    assert (code, err) == (0, "") and "2/2" in out


def test_the_last_shard_shows_the_results(run):
    for shard, is_last in (("1/2", False), ("2/2", True)):
        code, out, err = run("--seed", "0:2", "--shard", shard)
        assert (code, err) == (0, "") and ("n = 2 runs per condition" in out) == is_last


@pytest.mark.slow
def test_killed_sweep_leaves_no_worker_and_continues_to_the_same_histories(run, tmp_path):
    words = ["--rounds", "400", "--checkpoint-every", "50", "--seed", "0:4"]
    start = [
        sys.executable,
        "-m",
        "fedvg_jax.sweep",
        *short(*words, "--out", str(tmp_path / "out"), "--jobs", "2"),
    ]
    with started(start) as process:
        while len(list((tmp_path / "out").glob("trials/*/checkpoints/*/about"))) < 2:
            assert process.poll() is None
            time.sleep(0.1)
        process.kill()
    claims = list((tmp_path / "out").glob("trials/*/.claim"))
    deadline = time.monotonic() + 240
    while not all(map(is_free, claims)):  # the workers end after their present trials
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert run(*words)[0] == 0
    for seed in range(4):
        stopped = fedvg_jax.History.load(tmp_path / "out" / "trials" / f"seed={seed}")
        alone = fedvg_jax.run(dataclasses.replace(stopped.config, out=None, resume=None))
        assert timeless(stopped.records) == timeless(alone.records)


LOCKLESS = """
import errno, fcntl, os

def flock(file, operation):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

fcntl.flock = flock
"""


def test_one_process_computes_a_sweep_on_a_mount_without_locks_and_a_second_one_is_refused(
    tmp_path,
):
    """Until it has ended; one that was killed does not stand in the way."""
    (tmp_path / "sitecustomize.py").write_text(LOCKLESS)  # what Python imports at its start
    search = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment, out = os.environ | {"PYTHONPATH": search}, tmp_path / "out"
    words = short(
        "--rounds",
        "400",
        "--checkpoint-every",
        "50",
        "--seed",
        "0:2",
        "--jobs",
        "2",
        "--out",
        str(out),
    )
    command = [sys.executable, "-m", "fedvg_jax.sweep", *words]
    with started(command, env=environment) as process:
        while not list(out.glob("trials/*/checkpoints/*/about")):
            assert process.poll() is None
            time.sleep(0.1)
        assert not Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        second = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (
            second.returncode == 2
            and second.stderr.count("\n") == 1
            and f"process {process.pid}" in second.stderr
        )
        process.kill()
        lines, _ = process.communicate()
    # where it is, and that it is not shared
    assert [str(out) in line for line in lines.splitlines()].count(True) == 2
    third = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert third.returncode == 0 and not third.stderr and not (out / sweep_folder.ALONE).exists()
    for seed in range(2):
        computed = fedvg_jax.History.load(out / "trials" / f"seed={seed}")
        alone = fedvg_jax.run(dataclasses.replace(computed.config, out=None, resume=None))
        assert timeless(computed.records) == timeless(alone.records)


def is_free(path):
    with files.claimed(path) as is_mine:
        return is_mine


def test_stopped_sweep_exits_with_the_code_of_its_signal(run, tmp_path):
    def stop():
        while not list((tmp_path / "out").glob("trials/*/history.jsonl")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(stop)
        code, out, _ = run("--seed", "0:2", "--rounds", "20000", "--eval-every", "20000")  # minutes
        stopping.result()
    assert code == 130 and "the same command continues the sweep" in out
