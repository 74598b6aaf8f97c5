"""`python -m fedvg_jax.sweep`: its command line, its table, restarts, exit codes."""

from __future__ import annotations

import signal

import pytest

from fedvg_jax import sweep
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs import loop

SHORT = ["--weighting", "uniform", "--rounds", "2", "--clients", "6", "--local-epochs", "1", "--eval-every", "2"]


def read(*words):
    return sweep.read_command_line([*words, "--out", "runs/x"])


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(cache, tmp_path, capsys, monkeypatch):
    """Runs the command in this process; returns (exit code, standard output, standard error)."""
    monkeypatch.setenv("FEDVG_CACHE_DIR", str(cache))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        code = sweep.main([*SHORT, *words, "--out", str(tmp_path / "out")])
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


def test_switches_have_values_on_an_axis():
    points = read("--fedvg.per-element", "true", "false").points.points
    assert [p.config.fedvg.per_element for p in points] == [True, False]


def test_partition_seed_follows_and_ranges_join_numbers():
    points = read("--seed", "0:2", "7", "--partition-seed", "follow").points.points
    assert [(p.config.seed, p.config.partition_seed) for p in points] == [(0, 0), (1, 1), (7, 7)]


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


def test_equal_commands_have_one_default_folder():
    first, second, other = (
        sweep.read_command_line(["--seed", *seeds]).out for seeds in (("0:2",), ("0", "1"), ("0:3",))
    )
    assert first == second != other and first.parent.name == "runs"


REFUSED = {
    "unknown flag": (["--lrr", "1", "2"], "unknown argument --lrr; did you mean --lr?"),
    "no flag": (["fedavg"], "unknown argument fedavg"),
    "no number": (["--lr", "0.1", "x"], "--lr: could not convert string to float: 'x'"),
    "no value": (["--alpha"], "Missing value for argument '--alpha'"),
    "no name": (["--method"], "--method needs a name; allowed: fedavg"),
    "out of range": (["--alpha", "0.1", "0"], "point alpha=0: alpha must be > 0"),
    "resume": (["--resume", "runs/x"], "a sweep continues when its command is given again"),
    "cache per point": (["--cache-dir", "a", "b"], "cache_dir is a setting of the whole process"),
    "scale without a file": (["--scale", "tiny"], "give the file with --config"),
    "missing file": (["--config", "no.toml"], "cannot read the config file no.toml"),
    "unused": (["--fedprox.mu", "0.1"], "--fedprox.mu is not used by --algorithm fedavg"),
    "missing data": (["--dataset", "stl10", "--data-dir", "no"], "no: no such folder"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_mistakes_are_one_line_and_exit_code_2_before_anything_is_written(case, capsys, tmp_path):
    words, message = REFUSED[case]
    assert sweep.main([*words, "--out", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr()
    assert message in shown.err and shown.err.count("\n") == 1 and not (tmp_path / "out").exists()


def test_help_fits_80_columns_and_names_the_options_of_a_sweep(capsys):
    assert sweep.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert all(f"--{name.replace('_', '-')}" in text for name in sweep.OWN)


def test_sweep_prints_its_points_a_table_and_its_folder_and_continues(run, tmp_path):
    code, out, err = run("--alpha", "0.5", "5", "--seed", "0:2")
    assert (code, err) == (0, "")
    assert "sweep of 4 points: alpha (2) x seed (2)" in out and "4/4  alpha=5,seed=1: test accuracy" in out
    assert "alpha 0.5" in out and out.count("(n 2)") == 2 and str(tmp_path / "out") in out
    code, again, _ = run("--alpha", "0.5", "5", "--seed", "0:2")
    assert code == 0 and "1/4" not in again and again.count("(n 2)") == 2


def test_diverged_points_are_in_the_table_and_failed_ones_in_the_exit_code(run, monkeypatch):
    code, out, err = run("--lr", "0.2", "1e30", "--seed", "0:2")
    assert (code, err) == (0, "") and "2 diverged" in out
    simulate = loop.run_simulation

    def fail(sim, **arguments):
        if sim.config.seed == 3:
            raise OSError(28, "No space left on device")
        return simulate(sim, **arguments)

    monkeypatch.setattr(loop, "run_simulation", fail)
    code, out, err = run("--lr", "0.2", "1e30", "--seed", "0:2", "3")
    assert code == 2 and err.count("\n") == 1 and "2 points failed, such as lr=0.2,seed=3" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_sweep_exits_with_the_code_of_its_signal(run, monkeypatch, number):
    simulate = loop.run_simulation

    def stopped(sim, on_records, **arguments):
        return simulate(sim, on_records=lambda records: signal.raise_signal(number), **arguments)

    monkeypatch.setattr(loop, "run_simulation", stopped)
    code, out, _ = run("--seed", "0:2")
    assert code == 128 + number and "the same command continues the sweep" in out
    monkeypatch.undo()
