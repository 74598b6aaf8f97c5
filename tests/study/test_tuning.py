"""The choice of tuned values, from run folders written by hand."""

from __future__ import annotations

import pytest
from support.files import one_line

from fedvg_jax.config import Config, to_json
from fedvg_jax.runs.record import folder as run_folder, history
from fedvg_jax.study import sweep_folder, sweep_trials, tuning
from fedvg_jax.study.sweep_trials import Layer, Sweep

TUNING = tuning.make_tuning({"lr": [0.1, 0.2, 0.3]}, "5:7")


def swept(**axes):
    return Sweep((Layer(sweep_trials.parse_axes(axes)),), Config(rounds=1))


SWEEP = swept(alpha=[0.5, 5.0], seed="0:4")


def tuned(out, accuracies, failures=(), sweep=SWEEP, grid=TUNING):
    """Writes the tuning runs with these validation accuracies by name; returns the choice of every condition."""
    trials = tuning.make_plan(sweep, out, grid).tuning_trials
    for trial in trials:
        folder = sweep_folder.trial_folder(out, trial.name)
        folder.mkdir(parents=True)
        record = {
            "round": 1,
            "val_accuracy": history.number(accuracies(trial.values)),
            "test_accuracy": history.number(1 - accuracies(trial.values)),
        }
        run_folder.write_json(folder / "config.json", to_json(trial.config))
        history.append(folder, [record])
        run_folder.write_json(folder / "summary.json", {"rounds": 1, "stopped_by": None})
        if trial.values.get("lr") in failures:
            sweep_folder.write_failure(
                folder, trial.config, sweep_folder.Failure("diverged", 1, "client 3 diverged")
            )
    return tuning.choose(out, trials, grid)


def test_the_best_value_is_chosen_for_every_condition(tmp_path):
    """The best mean over the seeds, the first of equal ones, and none of which a run diverged."""
    table = {0.1: (0.9, 0.1), 0.2: (0.6, 0.6), 0.3: (0.9, 0.9)}
    equal = {0.1: (0.15, 0.15), 0.2: (0.1, 0.2), 0.3: (0.9, 0.9)}
    assert (0.15 + 0.15) / 2 < (0.1 + 0.2) / 2, "in floating point"
    by_alpha = {0.5: table, 5.0: equal}
    choices = tuned(
        tmp_path, lambda v: by_alpha[v["alpha"]][v["lr"]][v["seed"] - 5], failures=[0.3]
    )
    assert {condition: choice.values["lr"] for condition, choice in choices.items()} == {
        "alpha=0.5": 0.2,
        "alpha=5": 0.1,
    }
    assert choices["alpha=0.5"].score == pytest.approx(0.6) and choices["alpha=0.5"].num_runs == 6


def test_nothing_is_chosen_before_every_tuning_run_has_finished_or_diverged(tmp_path):
    tuned(tmp_path, lambda v: v["lr"], failures=[0.2])
    trials = tuning.make_plan(SWEEP, None, TUNING).tuning_trials
    name = "alpha=5,lr=0.3,seed=5"
    folder = sweep_folder.trial_folder(tmp_path, name)
    (folder / "summary.json").unlink()
    with one_line(f"1 trial not finished, such as {name}"):
        tuning.choose(tmp_path, trials, TUNING)
    failure = sweep_folder.Failure("failed", 0, "disk full")
    sweep_folder.write_failure(folder, trials[0].config, failure)
    with one_line("disk full"):
        tuning.choose(tmp_path, trials, TUNING)


def test_condition_of_which_every_value_diverged_is_refused(tmp_path):
    with one_line(
        r"every value of alpha=0.5 diverged in a tuning run, .*; give other values to --tune"
    ):
        tuned(tmp_path, lambda v: v["lr"], failures=[0.1, 0.2, 0.3])


def test_a_metric_that_is_finite_for_no_value_chooses_nothing(tmp_path):
    with one_line("alpha=0.5 .* no finite accuracy"):
        tuned(tmp_path, lambda v: float("nan"))


def test_chosen_values_are_the_settings_of_all_seeds_of_their_condition(tmp_path):
    """The weighting is the one that native stood for."""
    sweep = swept(method=["fedvg", "fedavg"], seed="0:2")
    grid = tuning.make_tuning({"weighting": ["native", "uniform"]}, "5:7")
    liked = {"fedvg": "native", "fedavg": "uniform"}
    choices = tuned(
        tmp_path, lambda v: float(v["weighting"] == liked[v["method"]]), sweep=sweep, grid=grid
    )
    trials = sweep_trials.make_trials(sweep)
    chosen = tuning.chosen_trials(trials, choices)
    assert [trial.config.weighting for trial in chosen] == ["fedvg", "fedvg", "uniform", "uniform"]
    assert [trial.name for trial in chosen] == [trial.name for trial in trials]
