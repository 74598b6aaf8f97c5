"""What runs are compared by: a metric of their evaluations, and the evaluation that stands for a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from fedvg_jax.core.types import UsageError
from fedvg_jax.runs.record import history
from fedvg_jax.runs.record.history import History, Record
from fedvg_jax.study.run import Run

Choice = Literal["final", "at_best_val", "max"]
"""Which evaluation of a run stands for it; "max" is the minimum where lower values are better."""

CHOICES: dict[Choice, str] = {
    "final": "final round",
    "at_best_val": "round best on validation",
    "max": "maximum over evaluations, chosen on test",
}
"""Evaluation -> its name in tables."""

SHARES = tuple(name for name in history.BETTER if name != "loss")
"""Metrics of the package between 0 and 1, which are shown in percent."""

TITLES = {"accuracy": "test accuracy", "loss": "test loss"}
"""Metric -> its name in tables; any other one is shown as it is recorded."""

MODELS = ("global model", "own models")
STATISTICS = ("mean accuracy", "worst decile of accuracy", "spread of accuracy")
for _model, _names in zip(MODELS, history.CLIENT_ACCURACIES.values(), strict=True):
    for _statistic, _name in zip(STATISTICS, _names, strict=True):
        TITLES[_name] = f"{_statistic} over clients, {_model}"


class Outcome(NamedTuple):
    """The metric that a study compares."""

    metric: str
    """A name of `measured`."""
    better: str
    """Which values are better: "higher" or "lower"."""

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
        """The metric in words."""
        return TITLES.get(self.metric, self.metric)

    @property
    def direction(self) -> str:
        """A remark for tables where lower values are better; "" otherwise."""
        return " (lower is better)" if self.better == "lower" else ""

    @property
    def heading(self) -> str:
        """The metric with its unit and its direction."""
        unit = ", %" if self.is_share else ""
        return f"{self.title}{unit}{self.direction}"

    @property
    def difference_unit(self) -> str:
        """The unit of differences, in words."""
        points = "points of " if self.is_share else ""
        return f"{points}{self.title}{self.direction}"

    def choice_name(self, choice: Choice) -> str:
        """Returns the name of an evaluation; the best one may be a minimum."""
        name = CHOICES[choice]
        return name if self.better == "higher" else name.replace("max", "min")

    def value(self, record: Record, part: str = "test") -> float:
        """Returns the metric on rows of a part, shares in percent; nan where it is not finite or not measured."""
        value = measured(record, part).get(self.metric)
        return math.nan if value is None else value

    def evaluations(self, records: Sequence[Record], part: str = "test") -> dict[int, float]:
        """Returns round -> metric on rows of a part, of the rounds in which it is finite."""
        values = {record["round"]: self.value(record, part) for record in records}
        return {number: value for number, value in values.items() if math.isfinite(value)}

    def of_run(self, run: History, choice: Choice) -> float:
        """Returns the metric in the evaluation that stands for a run; nan where it is not finite."""
        return self.value(self._chosen(run, choice))

    def _chosen(self, run: History, choice: Choice) -> Record:
        evaluated = evaluations(run.records)
        if choice == "final":
            return evaluated[-1]
        if choice == "at_best_val":
            best = run.summary["best_val_round"]
            return next(record for record in evaluated if record["round"] == best)
        return max(evaluated, key=self._quality)

    def _quality(self, record: Record) -> float:
        value = self.value(record)
        return -math.inf if math.isnan(value) else self.sign * value


def evaluations(records: Sequence[Record]) -> list[Record]:
    """Returns the records with an evaluation."""
    return [record for record in records if "test_loss" in record]


def measured(record: Record, part: str = "test") -> dict[str, float | None]:
    """Returns name -> value of all that a record has measured on rows of a part, shares in percent.

    The part test includes the caller's own metrics and the accuracies over clients.

    >>> measured({"round": 1, "val_loss": 1.0, "test_loss": 2.0, "test_accuracy": 0.5, "mae": 3.0, "weights": [1.0]})
    {'loss': 2.0, 'accuracy': 50.0, 'mae': 3.0}
    """
    found: dict[str, Any] = {}
    for name, value in record.items():
        if name.startswith(f"{part}_"):
            found[name.removeprefix(f"{part}_")] = value
        elif part == "test" and (name in TITLES or not history.is_reserved(name)):
            found[name] = value
    found.pop("majority_accuracy", None)
    numbers = {
        name: value
        for name, value in found.items()
        if value is None or isinstance(value, (int, float))
    }
    return {name: _shown(name, value) for name, value in numbers.items()}


def _shown(name: str, value: float | None) -> float | None:
    """Returns a value as tables have it: a share in percent."""
    return 100 * value if value and name in SHARES else value


def of_last(records: Sequence[Record]) -> dict[str, float | None]:
    """Returns what the last evaluation has measured; see `measured`."""
    return measured(evaluations(records)[-1])


def choose_outcome(runs: Sequence[Run], are_personal: bool, text: str | None) -> Outcome:
    """Returns the outcome that all runs are compared by.

    Args:
        runs: all finished ones.
        are_personal: whether some method has models of the clients' own.
        text: the caller's choice, a name that may begin with "min:" or "max:"; None for the default: the accuracy of
            the clients' own models if `are_personal` and all runs record it, else the global model's, or loss.

    Raises:
        UsageError: some run has not recorded the metric, or nothing says which values are better.
    """
    recorded = [of_last(run.records) for run in runs]
    shared = set.intersection(*map(set, recorded))
    common = [name for name in recorded[0] if name in shared]
    personal, *_ = history.CLIENT_ACCURACIES["personal_accuracy"]
    if text is None:
        candidates = [personal] if are_personal else []
        name = next((name for name in (*candidates, "accuracy") if name in common), "loss")
        return Outcome(name, history.BETTER[name])
    declared = {"min:": "lower", "max:": "higher"}.get(text[:4])
    name = (text[4:] if declared else text).removeprefix("test_")
    if name not in common:
        without = next(
            run for run, values in zip(runs, recorded, strict=True) if name not in values
        )
        raise UsageError(
            f"--metric {text[:100]}: {without.folder} has none; all runs have {', '.join(common)}"
        )
    better = declared or history.BETTER.get(name) or _recorded_direction(runs, name)
    if better is None:
        raise UsageError(
            f"--metric {name}: nothing says whether lower or higher values are better; give min:{name} or max:{name},"
            f' or record it with fv.Metric(function, better="lower")'
        )
    return Outcome(name, better)


def _recorded_direction(runs: Sequence[Run], metric: str) -> str | None:
    """Returns which values of a metric are better by `fv.Metric`; None where the runs do not say so, or disagree."""
    recorded = {run.history.summary.get("better", {}).get(metric) for run in runs} - {None}
    return recorded.pop() if len(recorded) == 1 else None


ROUNDING = 1e-9
"""Relative difference to a target that is rounding: results have nine digits, and the mean of equal ones may be above
them."""


def rounds_to(outcome: Outcome, records: Sequence[Record], target: float) -> float:
    """Returns the first evaluated round that reaches a target, up to rounding; infinity where none does."""
    reached = outcome.sign * target - ROUNDING * abs(target)
    values = outcome.evaluations(records).items()
    return next(
        (float(number) for number, value in values if outcome.sign * value >= reached), math.inf
    )
