"""What runs are compared by: a metric of their evaluations, and the evaluation that stands for a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from fedvg_jax.config.options import algorithm_of
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs.record import history
from fedvg_jax.runs.record.history import History, Record
from fedvg_jax.study.run import Run

Choice = Literal["final", "at_best_val", "max"]
"""Which evaluation of a run stands for it; "max" is the minimum where lower values are better."""

CHOICES: dict[Choice, str] = {
    "final": "final round",
    "at_best_val": "round best on validation",
    "max": "best evaluation, chosen on test",
}
"""Evaluation -> its name in tables."""

SHARES = tuple(name for name in history.BETTER if name != "loss")
"""Metrics of the package between 0 and 1, which are shown in percent."""

TO_TARGET = {"rounds_to_target": "round", "time_to_target": "virtual_seconds"}
"""Metric of a run with a target -> the entry of the first record that reaches it."""


class Outcome(NamedTuple):
    """The metric that a study compares."""

    metric: str
    """A name of `measured`, or of `TO_TARGET`."""
    better: str
    """Which values are better: "higher" or "lower"."""
    goal: tuple[Outcome, float] | None = None
    """The metric that is to reach a target, and the target; shares in percent."""

    @property
    def sign(self) -> int:
        """1 where higher values are better, otherwise -1."""
        return 1 if self.better == "higher" else -1

    @property
    def is_share(self) -> bool:
        """Whether values are shown in percent."""
        return self.metric in SHARES

    @property
    def digits(self) -> int:
        """Decimals in tables."""
        return 2 if self.is_share else 4

    @property
    def title(self) -> str:
        """The metric in words, with its unit and the direction of better values."""
        name = f"test {self.metric}" if self.metric in ("accuracy", "loss") else self.metric
        unit = ", %" if self.is_share else ""
        direction = " (lower is better)" if self.better == "lower" else ""
        return f"{name}{unit}{direction}"

    @property
    def of_rounds(self) -> Outcome:
        """The metric that every evaluation has: this one, or the one that is to reach the target."""
        return self.goal[0] if self.goal and self.metric in TO_TARGET else self

    def evaluations(self, records: Sequence[Record], part: str = "test") -> dict[int, float]:
        """Returns round -> metric on rows of a part, shares in percent, of the rounds in which it is finite."""
        values = {record["round"]: measured(record, part).get(self.metric) for record in records}
        return {number: value for number, value in values.items() if value is not None}

    def of_run(self, run: History, choice: Choice) -> float:
        """Returns the metric in the evaluation that stands for a run; nan where it is not finite."""
        if self.metric in TO_TARGET:
            return self.to_target(run.records)[self.metric]
        values = self.evaluations(run.records)
        if choice == "max":
            return max(values.values(), key=lambda value: self.sign * value, default=math.nan)
        last = evaluations(run.records)[-1]["round"]
        return values.get(last if choice == "final" else run.summary["best_val_round"], math.nan)

    def to_target(self, records: Sequence[Record]) -> dict[str, float]:
        """Returns the round and the virtual seconds in which the goal is first reached; nan where it never is.

        >>> records = [{"round": i, "test_accuracy": i / 10, "virtual_seconds": 5.0 * i} for i in (1, 2, 3)]
        >>> accuracy = Outcome("accuracy", "higher")
        >>> Outcome("rounds_to_target", "lower", (accuracy, 15.0)).to_target(records)
        {'rounds_to_target': 2.0, 'time_to_target': 10.0}
        """
        assert self.goal is not None
        metric, target = self.goal
        reached = {}
        for record in records:
            value = measured(record).get(metric.metric, math.nan)
            if metric.sign * value >= metric.sign * target:
                reached = record
                break
        return {name: float(reached.get(entry, math.nan)) for name, entry in TO_TARGET.items()}


def evaluations(records: Sequence[Record]) -> list[Record]:
    """Returns the records with an evaluation."""
    return [record for record in records if "test_loss" in record]


def _metric_of(key: str, part: str) -> str:
    """Returns the metric on rows of a part that an entry of a record is; "" where it is none."""
    name = key.removeprefix(f"{part}_")
    if name != key:
        return "" if name == "majority_accuracy" else name
    is_metric = part == "test" and (key in SHARES or not history.is_reserved(key))
    return key if is_metric else ""


def measured(record: Record, part: str = "test") -> dict[str, float]:
    """Returns name -> value of all finite numbers that a record has measured on rows of a part, shares in percent.

    The part test includes the caller's metrics and the accuracies over clients.

    >>> measured({"round": 1, "val_loss": 1.0, "test_loss": 2.0, "test_accuracy": 0.5, "mae": 3.0, "weights": [1.0]})
    {'loss': 2.0, 'accuracy': 50.0, 'mae': 3.0}
    """
    values = {}
    for key, value in record.items():
        name = _metric_of(key, part)
        if name and isinstance(value, (int, float)) and math.isfinite(value):
            values[name] = 100 * value if name in SHARES else value
    return values


def choose_outcome(runs: Sequence[Run], text: str | None, target: float | None) -> Outcome:
    """Returns the outcome that all runs are compared by.

    Args:
        runs: all finished ones.
        text: the caller's choice, a name that may begin with "min:" or "max:"; None for the default: the accuracy of
            the personal models if some method has such models and all runs record it, else the global model's, or loss.
        target: accuracy from 0 to 1, or loss; for the metrics of `TO_TARGET`.

    Raises:
        UsageError: some run has not recorded the metric, or nothing says which values are better.
    """
    recorded = [_names(run) for run in runs]
    personal, *_ = history.CLIENT_ACCURACIES["personal_accuracy"]
    are_personal = any(run.config.local or algorithm_of(run.config).personal for run in runs)
    shared = set.intersection(*map(set, recorded))
    default = "accuracy" if "accuracy" in shared else "loss"
    if are_personal and personal in shared:
        default = personal
    goal = None
    if target is not None:
        if default != "loss" and not 0 < target <= 1:
            raise UsageError(f"--target must be an accuracy in (0, 1]; got {target:g}")
        metric = Outcome(default, history.BETTER[default])
        goal = metric, 100 * target if metric.is_share else target
    text = text or default
    declared = {"min:": "lower", "max:": "higher"}.get(text[:4])
    name = (text[4:] if declared else text).removeprefix("test_")
    if name in TO_TARGET:
        if goal is None:
            raise UsageError(f"--metric {name} needs a target; give --target, such as 0.8")
        if name == "time_to_target" and not all(map(has_clock, runs)):
            raise UsageError(f"--metric {name}: some run has no clock; give all --clock.step")
        return Outcome(name, "lower", goal)
    if name not in shared:
        without = next(run for run, names in zip(runs, recorded, strict=True) if name not in names)
        common = ", ".join(each for each in recorded[0] if each in shared)
        raise UsageError(f"--metric {name:.100}: {without.folder} has none; all runs have {common}")
    better = declared or history.BETTER.get(name) or _recorded_direction(runs, name)
    if better is None:
        raise UsageError(
            f"--metric {name}: nothing says whether lower or higher values are better; give min:{name} or max:{name},"
            f' or record it with fv.Metric(function, better="lower")'
        )
    return Outcome(name, better, goal)


def _names(run: Run) -> list[str]:
    """Returns the metrics that some evaluation of a run has, finite or not."""
    entries = {key: value for record in evaluations(run.records) for key, value in record.items()}
    numbers = [key for key, value in entries.items() if not isinstance(value, (list, dict))]
    return [name for key in numbers if (name := _metric_of(key, "test"))]


def _recorded_direction(runs: Sequence[Run], metric: str) -> str | None:
    """Returns which values of a metric are better by `fv.Metric`; None where the runs do not say so, or disagree."""
    recorded = {run.history.summary.get("better", {}).get(metric) for run in runs} - {None}
    return recorded.pop() if len(recorded) == 1 else None


def has_clock(run: Run) -> bool:
    """Returns whether the records of a run have virtual seconds."""
    return all("virtual_seconds" in record for record in run.records)
