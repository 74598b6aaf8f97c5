"""A study: the runs of a comparison, by method, scenario and replicate, and where a run belongs in it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedvg_jax.config import Config, declare, flatten, presets, uses
from fedvg_jax.config.methods import PERSONAL
from fedvg_jax.config.options import effective, sign_of
from fedvg_jax.config.weighting_grammar import method_of
from fedvg_jax.runs.record import history
from fedvg_jax.runs.record.folder import RESUMABLE_CHANGES
from fedvg_jax.runs.record.history import History, Record
from fedvg_jax.study.sweep_points import HYPER, PLACES

Choice = Literal["final", "at_best_val", "max"]
"""Which evaluation of a run stands for it; "max" is the minimum of a loss."""

CHOICES: dict[Choice, str] = {
    "final": "final round",
    "at_best_val": "round best on validation",
    "max": "maximum over evaluations, chosen on test",
}
"""Evaluation -> its name in tables."""

SHARES = ("accuracy", "accuracy_mean", "decile", "spread", "f1")
"""Last words of metrics between 0 and 1, which are shown in percent."""

TITLES = {"accuracy": "test accuracy", "loss": "test loss"}
TITLES |= {
    key: f"{statistic} over clients, {model}"
    for keys, model in zip(
        history.CLIENT_ACCURACIES.values(), ("global model", "own models", "fine-tuned models"), strict=True
    )
    for key, statistic in zip(keys, ("mean accuracy", "worst decile of accuracy", "spread of accuracy"), strict=True)
}
"""Metric -> its name in tables; any other one has its own."""

Scenario = tuple[tuple[str, Any], ...]
"""(setting, value) of every setting that varies besides the method and the seeds."""

Replicate = tuple[int, int]
"""(seed, partition seed); runs of two methods are paired by it."""


class Run(NamedTuple):
    """One finished run folder."""

    folder: Path
    history: History
    partition: Mapping[str, Any]
    """partition.json; empty where the folder has none."""
    manifest: Mapping[str, Any]
    layers: Sequence[str]
    """Names of the columns of `layer_shares`."""
    given: Mapping[str, str] = {}
    """What the run got from Python in place of settings -> its name; "" for one without."""

    @property
    def weighting(self) -> str:
        """The weighting of the config, or "own weighting" for one from Python."""
        return uses.with_passed({"weighting": self.config.weighting}, self.given)["weighting"]

    @property
    def config(self) -> Config:
        """The settings of the run."""
        assert self.history.config is not None
        return self.history.config

    @property
    def records(self) -> list[Record]:
        """The records, one per round."""
        return self.history.records


class Cell(NamedTuple):
    """The runs of one method in one scenario."""

    method: str
    scenario: Scenario
    runs: Mapping[Replicate, Run]
    missing: tuple[str, ...] = ()
    """A line for every run that is missing, incomplete or damaged."""
    failures: tuple[str, ...] = ()
    """A line for every run that diverged or failed."""


class Study(NamedTuple):
    """Everything a report is drawn from."""

    title: str
    methods: tuple[str, ...]
    scenarios: tuple[Scenario, ...]
    cells: Mapping[tuple[str, Scenario], Cell]
    metric: str
    """The outcome that is compared: a name of `outcomes`."""
    settings: Mapping[str, Any]
    """Settings that all runs share, by dotted name."""
    notes: tuple[str, ...] = ()
    """Lines on what is unusual about the runs."""
    declared_sign: int = 0
    """`sign`, where the caller declares it; 0 for that of the metric's name."""

    def cell(self, method: str, scenario: Scenario) -> Cell:
        """Returns a cell; empty where there is none."""
        return self.cells.get((method, scenario)) or Cell(method, scenario, {})

    @property
    def unit(self) -> float:
        """100 for a share, which is shown in percent; 1 for another metric."""
        return unit(self.metric)

    @property
    def metric_title(self) -> str:
        """The metric in words."""
        return TITLES.get(self.metric, self.metric)

    @property
    def difference_unit(self) -> str:
        """The unit of differences, in words."""
        return f"points of {self.metric_title}" if self.unit > 1 else self.metric_title

    @property
    def digits(self) -> int:
        """Decimals of the metric in tables."""
        return 2 if self.unit > 1 else 4

    @property
    def sign(self) -> int:
        """1 where a larger value of the metric is better, otherwise -1."""
        return self.declared_sign or sign_of(self.metric)

    @property
    def runs(self) -> list[Run]:
        """All finished runs."""
        return [run for cell in self.cells.values() for run in cell.runs.values()]


def scenario_text(scenario: Scenario) -> str:
    """Returns a scenario for people.

    >>> scenario_text((("dataset", "digits"), ("alpha", 0.05)))
    'dataset digits, alpha 0.05'
    """
    return ", ".join(f"{name} {value_text(value)}" for name, value in scenario)


def value_text(value: Any) -> str:
    """Returns the value of a setting for people: floats without trailing zeros.

    >>> value_text(0.1 + 0.2), value_text(0.12345671)
    ('0.3', '0.12345671')
    """
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def replicate_text(replicate: Replicate) -> str:
    """Returns a replicate for people.

    >>> replicate_text((3, 42))
    'seed 3, partition seed 42'
    """
    return f"seed {replicate[0]}, partition seed {replicate[1]}"


def results(study: Study, cell: Cell, choice: Choice = "final") -> dict[Replicate, float]:
    """Returns the outcome of every run of a cell, shares in percent.

    Runs without that result are left out.

    Args:
        study: where the cell is from.
        cell: runs of one method in one scenario.
        choice: which evaluation.
    """
    chosen = {replicate: _chosen(study, run, choice) for replicate, run in sorted(cell.runs.items())}
    values = {replicate: outcomes(record).get(study.metric) for replicate, record in chosen.items()}
    return {replicate: value for replicate, value in values.items() if value is not None}


def outcomes(record: Record, part: str = "test") -> dict[str, float | None]:
    """Returns name -> value of all that a record has measured on rows of a part, shares in percent.

    The part test includes the caller's own metrics and the accuracies over clients.

    >>> outcomes({"round": 1, "val_loss": 1.0, "test_loss": 2.0, "test_accuracy": 0.5, "mae": 3.0, "weights": [1.0]})
    {'loss': 2.0, 'accuracy': 50.0, 'mae': 3.0}
    """
    own = {n: v for n, v in record.items() if part == "test" and (n in TITLES or not history.is_reserved(n))}
    measured = {n.removeprefix(f"{part}_"): v for n, v in record.items() if n.startswith(f"{part}_")} | own
    measured.pop("majority_accuracy", None)
    return {n: v and unit(n) * v for n, v in measured.items() if v is None or isinstance(v, (int, float))}


def last_outcomes(run: Run) -> dict[str, float | None]:
    """Returns what the last evaluation of a run has measured; see `outcomes`."""
    return outcomes(next((record for record in reversed(run.records) if "test_loss" in record), {}))


def unit(metric: str) -> float:
    """Returns 100 for a share, which is shown in percent; 1 for another metric.

    >>> unit("accuracy"), unit("personal_worst_decile"), unit("mae")
    (100.0, 100.0, 1.0)
    """
    return 100.0 if metric.endswith(SHARES) else 1.0


def _chosen(study: Study, run: Run, choice: Choice) -> Record:
    """Returns the evaluation that stands for a run; the summary names the round best on validation."""
    evaluated = [record for record in run.records if "test_loss" in record]
    if choice == "max":
        return max(evaluated, key=lambda record: _quality(study, record))
    if choice == "at_best_val":
        return next(record for record in evaluated if record["round"] == run.history.summary["best_val_round"])
    return evaluated[-1]


def _quality(study: Study, record: Record) -> float:
    value = outcomes(record).get(study.metric)
    return -math.inf if value is None else study.sign * value


def choice_name(study: Study, choice: Choice) -> str:
    """Returns the name of a choice of the round; the best loss is a minimum."""
    return CHOICES[choice] if study.sign > 0 else CHOICES[choice].replace("max", "min")


def evaluations(study: Study, run: Run, part: str = "test") -> tuple[list[int], list[float]]:
    """Returns the rounds with an evaluation, and the metric on rows of a part at each, shares in percent."""
    measured = {record["round"]: outcomes(record, part).get(study.metric) for record in run.records}
    known = {number: value for number, value in measured.items() if value is not None}
    return list(known), list(known.values())


ROUNDING = 1e-9
"""Relative difference to a target that is rounding: results have nine digits, and the mean of equal ones may be above
them."""


def rounds_to(study: Study, run: Run, target: float) -> int | None:
    """Returns the first evaluated round that reaches a target, up to rounding; None where none does.

    Args:
        study: where the run is from.
        run: a run folder.
        target: test accuracy in percent, or loss.
    """
    reached = study.sign * target - ROUNDING * abs(target)
    return next((r for r, v in zip(*evaluations(study, run), strict=True) if study.sign * v >= reached), None)


def seconds(run: Run) -> float | None:
    """Returns the seconds of all rounds; None where a record has none."""
    times = [record["seconds"] for record in run.records if record["seconds"] is not None]
    return float(sum(times)) if len(times) == len(run.records) else None


def bytes_sent(run: Run) -> int | None:
    """Returns the bytes that clients received and sent in all rounds; None where no round has recorded them."""
    return sum(history.bytes_sent(run.records).values()) or None


def majority(study: Study, method: str, scenario: Scenario) -> float | None:
    """Returns the mean accuracy of always answering the largest class, in percent.

    None where it is not recorded, and where losses are compared.
    """
    if study.metric != "accuracy":
        return None
    return mean(map(majority_of_run, study.cell(method, scenario).runs.values()))


def mean(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the values that are known; None without any.

    >>> mean([1.0, None, 2.0])
    1.5
    """
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def majority_of_run(run: Run) -> float | None:
    """Returns the accuracy of always answering the largest class of a run's test rows, in percent; None without it."""
    value = run.records[-1].get("test_majority_accuracy") if run.records else None
    return None if value is None else 100 * value


def settings(study: Study) -> list[str]:
    """Returns the settings that scenarios have; a setting that a run does not use is not part of its scenario."""
    return list(dict.fromkeys(name for scenario in study.scenarios for name, _ in scenario))


def column_setting(study: Study) -> str | None:
    """Returns the setting whose values are the columns of a table, among those that all scenarios have.

    It is the only one that varies, else alpha, else the last one besides data set and model; None where there is none.
    """
    names = [name for name in settings(study) if all(name in dict(scenario) for scenario in study.scenarios)]
    if len(names) == 1 or "alpha" in names:
        return "alpha" if "alpha" in names else names[0]
    return next((name for name in reversed(names) if name not in ("dataset", "model")), None)


def panels(study: Study) -> dict[Scenario, list[Scenario]]:
    """Returns the scenarios by their settings other than the column's: one table or figure each."""
    column, grouped = column_setting(study), {}
    for scenario in study.scenarios:
        rest = tuple((name, value) for name, value in scenario if name != column)
        grouped.setdefault(rest, []).append(scenario)
    return grouped


def column_value(study: Study, scenario: Scenario) -> Any:
    """Returns the value of the column's setting; None where no setting varies."""
    return dict(scenario).get(column_setting(study) or "")


# --- places of runs

NO_RESULT = RESUMABLE_CHANGES - {"rounds"}
NO_RESULT |= {"lanes", "hold", "conv", "validation.data_dir", "record"}
"""Settings that name a place, an implementation or entries of the history: runs that differ in them are compared. A
folder of data that is an axis of a sweep names the data."""

METHOD_GROUPS = (*declare.method_groups(Config), "hyper", "local", "departures")
METHOD_GROUPS += ("train", "lora", "send", "robust")
"""Groups of settings, and settings, that belong to the name of the method where they vary."""

NAMED_APART = ("seed", "partition_seed", "algorithm", "weighting")
"""Settings that a replicate and the base of a method's name have."""

FIRST = ("dataset", "model", "partition", "alpha")
"""Settings that come first in a scenario, in this order."""


class Place(NamedTuple):
    """Where a run belongs in a study."""

    method: str
    scenario: Scenario
    replicate: Replicate


def settings_of(config: Config, values: Mapping[str, Any] = {}, given: Mapping[str, str] = {}) -> dict[str, Any]:
    """Returns the settings that affect the results of a run, by dotted name.

    Args:
        config: its settings.
        values: of the sweep's axes: dotted settings, the shorthands "method" and "fidelity", and "hyper." with a name.
        given: what Python passed in place of settings, of those in `PASSED` -> its name; "" for one without.
    """
    ignored = NO_RESULT.union(uses.unused(config), ["departures"], uses.replaced_with(given))
    settings = {name: value for name, value in effective(config).items() if name not in ignored}
    settings = uses.with_passed(settings | uses.used_departures(config), given)
    own = {name: value for name, value in values.items() if name.startswith(HYPER) or name in (*PLACES, "fidelity")}
    return settings | own


def shared_settings(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the settings that all runs use with the same value, by dotted name."""
    first, *others = (settings.items() for settings in runs)
    return {name: value for name, value in first if all((name, value) in items for items in others)}


def places(runs: Sequence[Mapping[str, Any]], axes: Collection[str] = ()) -> list[Place]:
    """Returns the place of every run.

    Names and scenarios have the settings that a sweep declares as axes; those of other runs have all settings that
    vary. A scenario has none that follows from the ones before it, such as a model that goes with its data set.

    Args:
        runs: settings of all runs of the study, and of those that are missing; see `settings_of`.
        axes: of the sweep that all runs are from; none for other runs.
    """
    declared = {uses.PASSED.get(name, name) for name in axes}
    varying = [name for name in dict.fromkeys(n for run in runs for n in run) if _varies(name, runs)]
    names = [name for name in varying if name not in NAMED_APART]
    if axes:
        names = [name for name in names if declared & {name, name.partition(".")[0]}]
    of_method = [name for name in names if name.partition(".")[0] in METHOD_GROUPS]
    others = [name for name in names if name not in of_method]
    of_scenario: list[str] = []
    for name in sorted(others, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST)):
        if _varies(name, runs, of_scenario):
            of_scenario.append(name)
    return [_place(run, of_scenario, of_method) for run in runs]


def _varies(name: str, runs: Sequence[Mapping[str, Any]], told_apart_by: Sequence[str] = ()) -> bool:
    """Returns whether runs that other settings do not tell apart have several values of a setting."""
    values: dict[tuple, set[Any]] = {}
    for run in runs:
        if name in run:
            values.setdefault(tuple(run.get(other) for other in told_apart_by), set()).add(run[name])
    return any(len(several) > 1 for several in values.values())


def _place(run: Mapping[str, Any], of_scenario: Sequence[str], of_method: Sequence[str]) -> Place:
    """Returns the place of a run; the method's name has its settings that do not go without saying."""
    base = method_of(run["algorithm"], run["weighting"], run.get("local", ""))
    details = [
        f"{_short(name, base)} {value_text(run[name])}"
        for name in of_method
        if name in run and not _goes_without_saying(name, run[name], base)
    ]
    scenario = tuple((name, run[name]) for name in of_scenario if name in run)
    return Place(", ".join([base, *details]), scenario, (run["seed"], run["partition_seed"]))


def _goes_without_saying(name: str, value: Any, base: str) -> bool:
    """Returns whether a setting is the method's own, or a default that stands for nothing, such as no tuning steps.

    >>> _goes_without_saying("tuning.steps", 0, "fedvg"), _goes_without_saying("fedvg.eps", 0.0, "fedvg")
    (True, False)
    >>> _goes_without_saying("local", "^classifier/", "fedper+fedvg"), _goes_without_saying("local", "bias", "fedvg")
    (True, False)
    """
    is_default = flatten(Config()).get(name) == value
    own = presets.METHODS.get(base) or getattr(PERSONAL.get(base.partition("+")[0]), "settings", {})
    return own.get(name) == value or (is_default and value in (0, "none", ""))


def _short(name: str, base: str) -> str:
    """Returns the name of a setting without its group where that is part of the method's name, or says nothing.

    >>> _short("fedvg.norm", "fedprox+fedvg"), _short("dp.clip", "fedavg"), _short("hyper.T", "fedavg")
    ('norm', 'dp.clip', 'T')
    """
    group, _, rest = name.partition(".")
    return rest if group in base or group == "hyper" else name
