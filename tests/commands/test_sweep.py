"""`python -m fedvg_jax.sweep`: its command line, its table, restarts, exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
from support.processes import started
from support.small_sweeps import timeless

import fedvg_jax
import fedvg_jax.report
from fedvg_jax import sweep
from fedvg_jax.host import files
from fedvg_jax.study import report

SHORT = {"--weighting": "uniform", "--rounds": "2", "--clients": "6", "--local-epochs": "1"}
SHORT |= {"--eval-every": "2", "--model": "linear"}


def short(line, out):
    """The words of a command line, with those of `SHORT` that it does not give itself."""
    words = [*line.split(), "--out", str(out)]
    for flag, value in SHORT.items():
        words += [] if flag in words else [flag, value]
    return words


def read(line):
    return sweep.read_command_line([*line.split(), "--out", "runs/x"]).plan


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Runs the command in this process; returns (exit code, standard output, standard error)."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(line):
        code = sweep.main(short(line, tmp_path / "out"))
        return code, *capsys.readouterr()

    with mock.patch.dict(os.environ):
        yield run


def test_command_line_replaces_settings_and_axes_of_the_file(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text("rounds = 9\nlr = 0.5\n[axes]\nalpha = [1.0, 2.0]\nseed = '0:4'\n")
    trials = read(f"--config {path} --seed 0:2 --alpha 3 --rounds 5").trials
    assert [trial.name for trial in trials] == ["seed=0", "seed=1"]
    configs = [trial.config for trial in trials]
    assert {(c.alpha, c.rounds, c.lr) for c in configs} == {(3.0, 5, 0.5)}


def test_all_trials_are_checked_before_the_first_and_mistakes_have_exit_code_2(run, tmp_path):
    code, _, err = run("--lora 0 2 99 --model mlp")
    assert (code, err.count("\n")) == (2, 1) and not (tmp_path / "out").exists()


def test_sweep_prints_its_trials_a_table_and_its_folder_and_continues(run, tmp_path):
    for package in report.EXTRA:
        pytest.importorskip(package)
    code, out, err = run("--seed 0:2")
    assert (code, err) == (0, "")
    assert "sweep of 2 trials" in out and "2/2  seed=1: test accuracy" in out
    assert "mean ± standard deviation" in out and str(tmp_path / "out") in out
    code, again, _ = run("--seed 0:2")
    assert code == 0 and "1/2" not in again and "mean ± standard deviation" in again
    (shown,) = (tmp_path / "out").rglob("report.html")
    assert f"files: {shown}" in again


def test_sweep_and_report_end_with_the_answer(run, tmp_path, capsys):
    for package in report.EXTRA:
        pytest.importorskip(package)
    _, swept, _ = run("--weighting samples uniform --seed 0:2")
    assert fedvg_jax.report.main([str(tmp_path / "out")]) == 0
    for out in (swept, capsys.readouterr().out):
        *_, page, comparison, answer = out.splitlines()
        assert page.endswith("report.html") and "paired by seed (n = 2)" in comparison
        assert answer.startswith(("uniform against FedAvg is undecided", "uniform is "))


def test_dry_run_lists_unfinished_trials_and_writes_nothing(run, tmp_path):
    assert run("--seed 1 2 --rounds 1")[0] == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    code, out, _ = run("--seed 0:4 --rounds 1 --dry-run")
    assert code == 0 and out.splitlines()[1:3] == ["seed=0", "seed=3"]
    assert "not finished: 2 trials" in out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_diverged_trials_are_in_the_table_and_failed_ones_in_the_exit_code(run, tmp_path):
    """A trial fails that finds a folder where it is to write a file."""
    code, out, err = run("--lr 0.2 1e30 --seed 0")
    assert (code, err) == (0, "") and "– †" in out and "† lr=1e+30: diverged in round 1" in out
    (tmp_path / "out" / "trials" / "lr=0.3" / "history.jsonl").mkdir(parents=True)
    code, out, err = run("--lr 0.2 1e30 0.3 --seed 0")
    assert code == 2 and err.count("\n") == 1 and "1 trial not finished, such as lr=0.3: " in err


def test_tuned_values_are_chosen_on_validation_for_every_method_and_alpha(run, tmp_path):
    line = "--alpha 0.5 5 --seed 3 --partition-seed 42 --tune lr 1e-6 0.2 --tune-seeds 7"
    code, out, err = run(line)
    assert (code, err) == (0, "")
    assert "sweep of 2 trials and 4 tuning runs" in out
    assert "alpha=5: lr 0.2 (at an end of its grid) (validation accuracy" in out
    content = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert content["tuning"]["settings"] == {"lr": [1e-6, 0.2]}
    for condition, choice in content["tuning"]["chosen"].items():
        folder = tmp_path / "out" / "tuning" / "trials" / f"{condition},lr=0.2,seed=7"
        assert choice["score"] == fedvg_jax.History.load(folder).records[-1]["val_accuracy"]
        assert (choice["values"], choice["num_runs"]) == ({"lr": 0.2}, 2)
        trial = fedvg_jax.History.load(tmp_path / "out" / "trials" / condition)
        assert trial.config.lr == 0.2 and trial.summary["resumed_from"] is None
    code, again, _ = run(line)
    assert code == 0 and "1/2" not in again


def test_methods_have_the_grids_of_the_settings_they_use():
    grids = "--tune lr 0.1 0.2 --tune fedprox.mu 0.01 1 --tune-seeds 7"
    names = [trial.name for trial in read(f"--method fedavg fedprox {grids}").tuning_trials]
    assert len(names) == 2 + 4 and sum("fedprox" in name for name in names) == 4


def equals_the_run_alone(folder):
    """Whether a trial has the history of a run of its settings."""
    computed = fedvg_jax.History.load(folder)
    alone = fedvg_jax.run(dataclasses.replace(computed.config, out=None, resume=None))
    return timeless(computed.records) == timeless(alone.records)


def test_processes_of_one_command_have_the_histories_of_the_runs_alone(run, tmp_path):
    """Their tuning runs, too."""
    code, _, err = run("--seed 0:2 --rounds 1 --jobs 2 --tune lr 0.1 0.2 --tune-seeds 7")
    assert (code, err) == (0, "")
    for folder in (tmp_path / "out" / "trials").iterdir():
        assert equals_the_run_alone(folder)


def test_an_executor_that_a_module_names_computes_the_trials(run):
    code, out, err = run("--seed 0:2 --executor concurrent.futures:ThreadPoolExecutor")
    assert (code, err) == (0, "") and "2/2" in out


def test_the_last_shard_shows_the_results(run):
    for shard, is_last in (("1/2", False), ("2/2", True)):
        code, out, err = run(f"--seed 0:2 --shard {shard}")
        assert (code, err) == (0, "") and ("mean ± standard deviation" in out) == is_last


@pytest.mark.slow
def test_killed_sweep_leaves_no_worker_and_continues_to_the_same_histories(run, tmp_path):
    line = "--rounds 400 --checkpoint-every 50 --seed 0:4"
    command = short(f"{line} --jobs 2", tmp_path / "out")
    with started([sys.executable, "-m", "fedvg_jax.sweep", *command]) as process:
        while len(list((tmp_path / "out").glob("trials/*/checkpoints/*/about"))) < 2:
            assert process.poll() is None
            time.sleep(0.1)
        process.kill()
    claims = list((tmp_path / "out").glob("trials/*/.claim"))
    deadline = time.monotonic() + 240
    while not all(map(is_free, claims)):  # the workers end after their present trials
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert run(line)[0] == 0
    for seed in range(4):
        assert equals_the_run_alone(tmp_path / "out" / "trials" / f"seed={seed}")


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
        # minutes, in processes that get another signal
        code, out, _ = run("--seed 0:2 --rounds 20000 --eval-every 20000 --jobs 2")
        stopping.result()
    assert code == 130 and "the same command continues the sweep" in out
