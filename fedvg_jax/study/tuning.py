"""Tuning of a sweep: every method gets the grid of the tuned settings that it uses, and all grids get the same seeds.

A condition is a combination of the sweep's axes without their seeds, such as a method at one alpha. Values are chosen
for every condition on its tuning runs. Those runs have separate seeds, and their test results are not used.
"""

from __future__ import annotations

import collections
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config.checks import check
from fedvg_jax.config.declare import flatten
from fedvg_jax.config.presets import SHORTHANDS, apply
from fedvg_jax.core.types import Metric, UsageError
from fedvg_jax.runs.record import history
from fedvg_jax.study import sweep_folder, sweep_trials
from fedvg_jax.study.places import value_text
from fedvg_jax.study.sweep_folder import Stored
from fedvg_jax.study.sweep_trials import HYPER, RANGED, Settings, Sweep, Trial

FOLDER = "tuning"
"""Folder of the tuning runs in the folder of the sweep."""

SEEDS = "1000:1002"
"""Seeds of the tuning runs, by default."""


ON_VALIDATION = ("accuracy", "loss", "balanced_accuracy", "macro_f1")
"""Metrics of the package on D_val."""


class Tuning(NamedTuple):
    """What is tuned."""

    settings: dict[str, list[Any]]
    """tuned setting -> its values"""
    seeds: list[int]
    metric: str
    """on D_val, by which values are chosen; "" for accuracy, or loss for a task without it"""
    better: str
    """which of its values are better: "higher" or "lower"; "" for what the records say"""


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
    def pending(self) -> list[Trial]:
        """The tuning runs and the trials that are left to compute."""
        tried = sweep_folder.pending(self.out and self.out / FOLDER, self.tuning_trials)
        return tried + sweep_folder.pending(self.out, self.trials)


def make_tuning(
    settings: Settings,
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
    if not isinstance(settings, Mapping):
        raise UsageError(f"tune must be a dict, setting -> values; got {settings!r:.100}")
    if not settings:
        if seeds is not None or metric is not None:
            raise UsageError(
                "tune: seeds and a metric of tuning need settings to tune, such as --tune lr 0.1 0.2"
            )
        return None
    better = "" if metric is None else _direction(metric, custom)
    apart = (*RANGED, *SHORTHANDS, "dataset")
    for name in settings:
        # the settings of a trial, which sweep.json has, hold no hyperparameters of objects
        if name in apart or not isinstance(name, str) or name.startswith(HYPER):
            raise UsageError(f"tune: {name!s:.100} cannot be tuned; make it an axis")
    seeds = SEEDS if seeds is None else seeds
    axes = sweep_trials.parse_axes({**settings, "seed": seeds}, "tune")
    grid = {}
    for axis in axes:
        grid[axis.names[0]] = [value for (value,) in axis.values]
    return Tuning(grid, grid.pop("seed"), metric or "", better)


def _direction(metric: str, custom: Mapping[str, Metric]) -> str:
    """Returns which values of a metric are better; UsageError for one that cannot choose."""
    measured, name = custom.get(metric), str(metric).removeprefix("val_")
    if measured is None and name in ON_VALIDATION:
        return history.BETTER[name]
    if measured is None or measured.rows != "val" or measured.better is None:
        raise UsageError(
            f"tune_metric {metric!s:.100}: values are chosen by {', '.join(ON_VALIDATION)}, or by a metric of the call"
            ' that says its rows and better values: fv.Metric(function, better="lower", rows="val")'
        )
    return measured.better


def condition_of(values: Settings, tuned: Collection[str] = ()) -> str:
    """Returns the name of a trial's condition: of its values except seeds and tuned settings.

    >>> condition_of({"method": "fedvg", "alpha": 0.05, "seed": 3})
    'method=fedvg,alpha=0.05'
    """
    apart = (*RANGED, *tuned)
    return sweep_trials.name_of({n: value for n, value in values.items() if n not in apart})


def tuning_sweep(sweep: Sweep, tuning: Tuning) -> Sweep:
    """Returns the sweep of the tuning runs, which has the tuned settings and separate seeds on its axes."""
    layers = []
    for layer in sweep.layers:
        kept = tuple(axis for axis in layer.axes if not {*axis.names} <= {*RANGED})
        settings = {name: value for name, value in layer.settings.items() if name != "seed"}
        layers.append(layer._replace(axes=kept, settings=settings))
    added = sweep_trials.parse_axes({**tuning.settings, "seed": tuning.seeds}, "tune")
    layers[-1] = layers[-1]._replace(axes=(*layers[-1].axes, *added))
    return sweep._replace(layers=tuple(layers), title=f"{sweep.title} (tuning)".strip())


def make_plan(sweep: Sweep, out: Path | None, tuning: Tuning | None) -> Plan:
    """Returns a sweep with its trials and its tuning runs.

    Raises:
        UsageError: a setting cannot work at some trial, or no trial uses it; a tuned setting decides whether an axis is
            used, so that the conditions of the tuning runs are not the sweep's; or a seed of the tuning runs is one of
            the trials.
    """
    trials = sweep_trials.make_trials(sweep)
    if not tuning:
        return Plan(sweep, trials, out)
    tried = sweep_trials.make_trials(tuning_sweep(sweep, tuning))
    if shared := {trial.config.seed for trial in trials} & {*tuning.seeds}:
        raise UsageError(
            f"seed {min(shared)} is one of the tuning runs and of the trials; give other --tune-seeds"
        )
    conditions = {condition_of(trial.values) for trial in trials}
    if others := conditions ^ {condition_of(trial.values, tuning.settings) for trial in tried}:
        raise UsageError(
            f"tune: {min(others)} exists for some values of {', '.join(tuning.settings)} only; make the tuned settings"
            " axes"
        )
    return Plan(sweep, trials, out, tuning, tried)


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
    sweep_folder.refuse_unfinished(out, trials)
    conditions = collections.defaultdict(lambda: collections.defaultdict(list))
    for trial in trials:
        condition = condition_of(trial.values, tuning.settings)
        conditions[condition][condition_of(trial.values)].append(trial)
    choices = {}
    for condition, runs_of in conditions.items():
        scored = [choice for runs in runs_of.values() if (choice := _score(out, runs, tuning))]
        if not scored:
            raise UsageError(
                f"every value of {condition} diverged in a tuning run, or has no finite"
                f" {tuning.metric or 'accuracy or loss'}; give other values to --tune, or another --tune-metric"
            )
        better = tuning.better or history.BETTER[scored[0].metric]
        sign = 1 if better == "higher" else -1
        # records have nine digits
        best = max(scored, key=lambda choice: round(sign * choice.score, 8))
        choices[condition] = best._replace(num_runs=sum(map(len, runs_of.values())))
    return choices


def _score(out: Path, runs: Sequence[Trial], tuning: Tuning) -> Choice | None:
    """Returns a combination of tuned values with its score; None if a run diverged, or has no finite metric."""
    folders = [sweep_folder.trial_folder(out, trial.name) for trial in runs]
    if any(map(sweep_folder.read_failure, folders)):
        return None
    records = [history.read(folder)[-1] for folder in folders]
    metric = tuning.metric.removeprefix("val_") or history.primary_metric(records[0])
    name = f"val_{metric}" if f"val_{metric}" in records[0] else metric
    if name not in records[0]:
        raise UsageError(f"tune_metric {metric}: {runs[0].name} has recorded none")
    scores = [record[name] for record in records]
    if None in scores:  # of a record, which holds finite numbers
        return None
    flat = flatten(runs[0].config)  # which has the weighting that native stands for
    values = {name: flat[name] for name in tuning.settings if name in runs[0].values}
    return Choice(values, metric, statistics.fmean(scores), len(runs))


def chosen_trials(trials: Sequence[Trial], choices: Mapping[str, Choice]) -> list[Trial]:
    """Returns the trials of the sweep with the values that were chosen for their conditions."""
    tuned = []
    for trial in trials:
        values = choices[condition_of(trial.values)].values
        config = check(apply(trial.config, values, "tune"))
        tuned.append(trial._replace(config=config))
    return tuned


def as_json(tuning: Tuning, choices: Mapping[str, Choice]) -> dict[str, Any]:
    """Returns the entry `tuning` of sweep.json."""
    chosen = {condition: choice._asdict() for condition, choice in choices.items()}
    return tuning._asdict() | {"chosen": chosen}


# --- in words


def values_text(values: Settings, grid: Mapping[str, Sequence[Any]]) -> str:
    """Returns chosen values in words, which say of a number that it is at an end of its grid.

    Args:
        values: tuned setting -> chosen value.
        grid: tuned setting -> values that were tried.

    >>> values_text({"lr": 0.1, "fedvg.norm": "l1"}, {"lr": [0.1, 0.01], "fedvg.norm": ["l1", "l2"]})
    'lr 0.1 (at an end of its grid), fedvg.norm l1'
    """
    texts = []
    for name, value in values.items():
        tried = [other for other in grid.get(name, ()) if type(other) in (int, float)]
        is_end = len(tried) > 1 and value in (min(tried), max(tried))
        texts.append(f"{name} {value_text(value)}{' (at an end of its grid)' if is_end else ''}")
    return ", ".join(texts)


def choices_in_words(sweeps: Sequence[Stored]) -> list[dict[str, Any]]:
    """Returns what sweeps have chosen for each condition, with `values` in words; [] without tuning."""
    chosen = []
    for sweep in sweeps:
        for condition, choice in sweep.tuning.get("chosen", {}).items():
            values = values_text(choice["values"], sweep.tuning["settings"])
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
    """Returns a line about sweeps that were tuned over different values, or with different seeds; [] for others."""
    if not all(sweep.tuning for sweep in sweeps):
        return []
    grids = [{**sweep.tuning["settings"], "seed": sweep.tuning["seeds"]} for sweep in sweeps]
    if all(grid == grids[0] for grid in grids):
        return []
    several = " and ".join(dict.fromkeys(map(str, grids)))
    return [f"sweeps were tuned over different values: {several}"]
