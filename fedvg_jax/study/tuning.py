"""Tuning of a sweep: every method gets the grid of the tuned settings that it uses, and all grids get the same seeds.

A condition is a combination of the sweep's axes without their seeds, such as a method at one alpha. Values are chosen
for every condition on its tuning runs. Those runs have seeds of their own, and their test results are not used.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config.checks import check
from fedvg_jax.config.declare import flatten
from fedvg_jax.config.presets import SHORTHANDS, apply
from fedvg_jax.config.uses import plain
from fedvg_jax.core.types import Metric, UsageError
from fedvg_jax.runs.record import history
from fedvg_jax.study import sweep_folder, sweep_trials
from fedvg_jax.study.places import value_text
from fedvg_jax.study.sweep_folder import Stored
from fedvg_jax.study.sweep_trials import RANGED, Axis, Sweep, Trial

FOLDER = "tuning"
"""Folder of the tuning runs in the folder of the sweep."""

SEEDS = "1000:1002"
"""Seeds of the tuning runs, where none are given."""


ON_VALIDATION = ("accuracy", "loss", "balanced_accuracy", "macro_f1")
"""Metrics of the package on D_val."""


class Tuning(NamedTuple):
    """What is tuned."""

    axes: tuple[Axis, ...]
    """the tuned settings with their values"""
    seeds: tuple[int, ...]
    metric: str = ""
    """on D_val, by which values are chosen; "" for accuracy, or loss for a task without it"""
    better: str = ""
    """which of its values are better: "higher" or "lower"; "" for what the records say"""

    @property
    def settings(self) -> tuple[str, ...]:
        """The tuned settings."""
        return tuple(self.grid)

    @property
    def grid(self) -> dict[str, list[Any]]:
        """Tuned setting -> its values."""
        return {name: values for axis in self.axes for name, values in axis.as_json().items()}


class Plan(NamedTuple):
    """A sweep with its trials and its tuning runs."""

    sweep: Sweep
    trials: list[Trial]
    """where settings are tuned, with values that are replaced by the chosen ones"""
    out: Path | None
    """folder of the sweep; None only without tuning"""
    tuning: Tuning | None = None
    tuning_trials: Sequence[Trial] = ()
    """empty without tuning"""

    @property
    def every(self) -> list[Trial]:
        """The tuning runs and the trials."""
        return [*self.tuning_trials, *self.trials]

    @property
    def pending(self) -> list[Trial]:
        """The tuning runs and the trials that are left to compute."""
        if self.out is None:
            return self.every
        folders = {self.out / FOLDER: self.tuning_trials, self.out: self.trials}
        return [
            trial
            for out, trials in folders.items()
            for trial in trials
            if not sweep_folder.is_done(out, trial)
        ]


def make_tuning(
    settings: Mapping[str, Any],
    seeds: Any = None,
    metric: str | None = None,
    custom: Mapping[str, Metric] = {},
) -> Tuning | None:
    """Returns what is tuned; None for nothing.

    Args:
        settings: setting -> its values.
        seeds: of the tuning runs: numbers, or a range.
        metric: by which values are chosen: a metric on D_val, such as "loss", or the name of a custom one.
        custom: the metrics of the call.

    Raises:
        UsageError: a setting is unknown or cannot be tuned, or the metric is not measured on D_val.
    """
    if not settings:
        if seeds is not None or metric is not None:
            raise UsageError(
                "tune: seeds and a metric of tuning need settings to tune, such as --tune lr 0.1 0.2"
            )
        return None
    better = _direction(metric, custom) if metric else ""
    (seed_axis,) = sweep_trials.cross({"seed": SEEDS if seeds is None else seeds}, "tune")
    if repeated := [name for name in settings if name in (*RANGED, *SHORTHANDS, "dataset")]:
        raise UsageError(f"tune: {repeated[0]} cannot be tuned; make it an axis")
    axes = tuple(sweep_trials.cross(settings, "tune"))
    return Tuning(axes, tuple(row[0] for row in seed_axis.values), metric or "", better)


def _direction(metric: str, custom: Mapping[str, Metric]) -> str:
    """Returns which values of a metric are better; UsageError for one that is not measured on D_val."""
    if metric not in custom:
        if metric.removeprefix("val_") not in ON_VALIDATION:
            known = ", ".join((*ON_VALIDATION, *custom))
            raise UsageError(f"tune_metric {metric[:100]}: no metric on D_val; known are {known}")
        return history.BETTER[metric.removeprefix("val_")]
    if custom[metric].rows != "val":
        raise UsageError(
            f'tune_metric {metric}: it is measured on test rows; if not, say so by fv.Metric(function, rows="val")'
        )
    if custom[metric].better is None:
        raise UsageError(
            f'tune_metric {metric}: nothing says which values are better; give fv.Metric(function, better="lower")'
        )
    return str(custom[metric].better)


def condition_of(values: Mapping[str, Any]) -> str:
    """Returns the name of a trial's condition.

    >>> condition_of({"method": "fedvg", "alpha": 0.05, "seed": 3})
    'method=fedvg,alpha=0.05'
    """
    return sweep_trials.name_of(
        {name: value for name, value in values.items() if name not in RANGED}
    )


def tuning_sweep(sweep: Sweep, tuning: Tuning) -> Sweep:
    """Returns the sweep of the tuning runs, which has the tuned settings and seeds of its own on its axes."""
    kept = (axis for axis in sweep.axes if not {*axis.names} <= {*RANGED})
    seeds = Axis(("seed",), tuple((seed,) for seed in tuning.seeds))
    return sweep._replace(
        axes=(*kept, *tuning.axes, seeds), title=f"{sweep.title} (tuning)".strip()
    )


def make_plan(sweep: Sweep, out: Path | None, tuning: Tuning | None) -> Plan:
    """Returns a sweep with its trials and its tuning runs.

    Raises:
        UsageError: a setting cannot work at some trial, or no trial uses it; a tuned setting is an axis, too, or
            decides whether an axis is used, so that the conditions of the tuning runs are not the sweep's; or a seed of
            the tuning runs is one of the trials.
    """
    trials = sweep_trials.make_trials(sweep)
    if not tuning:
        return Plan(sweep, trials, out)
    tried = sweep_trials.make_trials(tuning_sweep(sweep, tuning))
    if shared := {trial.config.seed for trial in trials} & {*tuning.seeds}:
        raise UsageError(
            f"seed {min(shared)} is one of the tuning runs and of the trials; give other --tune-seeds"
        )
    if (
        others := {condition_of(trial.values) for trial in trials}
        ^ by_condition(tried, tuning.settings).keys()
    ):
        axes = ", ".join(name for axis in sweep.axes for name in axis.names)
        raise UsageError(
            f"tuned {', '.join(tuning.settings)} and the axes {axes} do not combine: {min(others)} exists for some"
            " tuned values only; make the tuned settings axes"
        )
    return Plan(sweep, trials, out, tuning, tried)


def by_condition(
    trials: Sequence[Trial], tuned: Sequence[str]
) -> dict[str, dict[str, list[Trial]]]:
    """Returns the tuning runs by condition and by combination of tuned values."""
    conditions: dict[str, dict[str, list[Trial]]] = {}
    for trial in trials:
        values = {name: value for name, value in trial.values.items() if name in tuned}
        others = {name: value for name, value in trial.values.items() if name not in tuned}
        condition, combination = condition_of(others), sweep_trials.name_of(values)
        conditions.setdefault(condition, {}).setdefault(combination, []).append(trial)
    return conditions


class Choice(NamedTuple):
    """The values that a condition gets."""

    values: dict[str, Any]
    """tuned settings that the condition uses, with the chosen values"""
    metric: str
    """accuracy, or loss for a task without it"""
    score: float
    """mean of the metric on D_val after the last round, over the tuning seeds"""
    num_runs: int
    """tuning runs of the condition, those that diverged included"""


def choose(out: Path, trials: Sequence[Trial], tuning: Tuning) -> dict[str, Choice]:
    """Returns the choice of every condition.

    The best mean on D_val after the last round is chosen; of equal ones the first. A combination with a
    run that diverged is not chosen.

    Args:
        out: folder of the tuning runs.
        trials: all tuning runs.
        tuning: what is tuned.

    Raises:
        UsageError: a tuning run failed or is unfinished, so that the choice could be another one with it; or every
            combination of a condition diverged.
    """
    sweep_folder.refuse_unfinished(out, trials, "tuning run")
    choices = {}
    for condition, runs_of in by_condition(trials, tuning.settings).items():
        scores = {name: _score(out, runs, tuning) for name, runs in runs_of.items()}
        finished = {name: score for name, score in scores.items() if score is not None}
        if not finished:
            raise UsageError(
                f"every value of {condition} diverged in a tuning run; give other values to --tune"
            )
        # records have nine digits
        best = max(finished, key=lambda name: round(finished[name].quality, 8))
        first = runs_of[best][0]
        trained = flatten(first.config)  # which has the weighting that native stands for
        values = {
            name: trained.get(name, value)
            for name, value in first.values.items()
            if name in tuning.settings
        }
        count = sum(map(len, runs_of.values()))
        choices[condition] = Choice(values, finished[best].metric, finished[best].mean, count)
    return choices


def chosen_trials(trials: Sequence[Trial], choices: Mapping[str, Choice]) -> list[Trial]:
    """Returns the trials of the sweep with the values that were chosen for their conditions."""
    tuned = []
    for trial in trials:
        values = choices[condition_of(trial.values)].values
        config = check(apply(trial.config, values, "tune"))
        tuned.append(trial._replace(config=config))
    return tuned


def value_texts(values: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]) -> list[str]:
    """Returns chosen values in words, which say of a number that it is at an end of its grid.

    Args:
        values: tuned setting -> chosen value.
        grid: tuned setting -> values that were tried.

    >>> value_texts({"lr": 0.1, "fedvg.norm": "l1"}, {"lr": [0.1, 0.01], "fedvg.norm": ["l1", "l2"]})
    ['lr 0.1 (the largest of its grid)', 'fedvg.norm l1']
    """
    texts = []
    for name, value in values.items():
        end = _end_of_grid(value, grid.get(name, ()))
        texts.append(f"{name} {value_text(value)}{end}")
    return texts


def _end_of_grid(value: Any, tried: Sequence[Any]) -> str:
    """Returns a remark on a number that is the smallest or the largest of several that were tried; "" otherwise."""
    numbers = [
        other for other in tried if isinstance(other, (int, float)) and not isinstance(other, bool)
    ]
    if len(numbers) < 2:
        return ""
    if value == max(numbers):
        return " (the largest of its grid)"
    return " (the smallest of its grid)" if value == min(numbers) else ""


def choices_in_words(sweeps: Sequence[Stored]) -> list[dict[str, Any]]:
    """Returns what sweeps have chosen for each condition, with `values` in words; [] without tuning."""
    chosen = []
    for sweep in sweeps:
        for condition, choice in sweep.tuning.get("chosen", {}).items():
            values = ", ".join(value_texts(choice["values"], sweep.tuning["settings"]))
            chosen.append({**choice, "condition": condition, "values": values})
    return chosen


def tuned_by_all(sweeps: Sequence[Stored], num_runs: int) -> set[str]:
    """Returns the settings that every sweep has tuned, if all runs are of these sweeps.

    Their values belong to the methods that they were chosen for, and tell no runs apart.
    """
    if not sweeps or sum(len(sweep.trials) for sweep in sweeps) != num_runs:
        return set()
    return set.intersection(*({*sweep.tuning.get("settings", ())} for sweep in sweeps))


def different_grids(sweeps: Sequence[Stored]) -> list[str]:
    """Returns a line for every setting that sweeps have tuned over different values, and one for their seeds."""
    lines = []
    tuned = tuned_by_all(sweeps, sum(len(sweep.trials) for sweep in sweeps))
    for name in sorted(tuned):
        grids = dict.fromkeys(str(sweep.tuning["settings"][name]) for sweep in sweeps)
        if len(grids) > 1:
            lines.append(f"{name} was tuned over different values: {' and '.join(grids)}")
    seeds = dict.fromkeys(str(sweep.tuning.get("seeds")) for sweep in sweeps)
    if tuned and len(seeds) > 1:
        lines.append(f"tuning runs had different seeds: {' and '.join(seeds)}")
    return lines


def chosen_text(choice: Choice, tuned: Tuning) -> str:
    """Returns the choice of a condition in words."""
    values = ", ".join(value_texts(choice.values, tuned.grid)) or "nothing to choose"
    is_share = choice.metric in ON_VALIDATION and choice.metric != "loss"
    score = f"{choice.score:.2%}" if is_share else f"{choice.score:.4g}"
    return f"{values} (validation {choice.metric} {score}, {choice.num_runs} runs)"


def as_json(tuning: Tuning, choices: Mapping[str, Choice]) -> dict[str, Any]:
    """Returns the entry `tuning` of sweep.json."""
    chosen = {condition: choice._asdict() for condition, choice in choices.items()}
    return plain(
        {
            "settings": tuning.grid,
            "seeds": list(tuning.seeds),
            "metric": tuning.metric,
            "chosen": chosen,
        }
    )


class Score(NamedTuple):
    """The runs of one combination of tuned values."""

    metric: str
    mean: float
    quality: float
    """the mean, or minus it where lower values are better"""


def _score(out: Path, runs: Sequence[Trial], tuning: Tuning) -> Score | None:
    """Returns the mean of a metric on D_val over the runs of one combination; None if a run diverged."""
    values, metric, better = [], tuning.metric.removeprefix("val_"), tuning.better
    for trial in runs:
        folder = sweep_folder.trial_folder(out, trial.name)
        if sweep_folder.read_failure(folder):
            return None
        last = history.read(folder)[-1]
        metric = metric or history.primary_metric(last)
        better = better or history.BETTER[metric]
        name = f"val_{metric}" if f"val_{metric}" in last else metric
        if name not in last:
            raise UsageError(f"tune_metric {metric}: {trial.name} has recorded none")
        worst = -math.inf if better == "higher" else math.inf
        values.append(worst if last[name] is None else last[name])  # None is not finite
    mean = statistics.fmean(values)
    return Score(metric, mean, mean if better == "higher" else -mean)
