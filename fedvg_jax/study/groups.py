"""A study: a frame with a row for each run of a comparison, and its groups, the runs of one method in one condition."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fedvg_jax.study.outcomes import Choice, Outcome
from fedvg_jax.study.places import Condition, Seeds
from fedvg_jax.study.run import Run

Frame = Any
"""A `pandas.DataFrame`, because type checkers infer too much of its methods."""

NOT_FINITE = "not finite"
"""Kind of a run that ended, but has no finite outcome in the chosen evaluation."""


class Group(NamedTuple):
    """The runs of one method in one condition."""

    method: str
    condition: Condition
    rows: Frame
    """Those of the study's frame."""

    @property
    def runs(self) -> dict[Seeds, Run]:
        """The finished runs."""
        finished = self.rows[self.rows["run"].notna()]
        return dict(zip(finished["seeds"], finished["run"], strict=True))

    def results(self, choice: Choice = "final") -> dict[Seeds, float]:
        """Returns the outcome of every run in the evaluation that stands for it, where it is finite."""
        known = self.rows.dropna(subset=[choice])
        return dict(zip(known["seeds"], known[choice], strict=True))

    def lines(self, column: str) -> list[str]:
        """Returns the texts of a column: "missing", "failure" or "stopped"."""
        return [line for line in self.rows[column] if line]

    def losses(self, choice: Choice) -> list[str]:
        """Returns the kind of every run without a result: "diverged", "failed" or `NOT_FINITE`."""
        ended = [kind for kind in self.rows["kind"] if kind]
        return ended + [NOT_FINITE] * len(self.not_finite(choice))

    def is_whole(self, choice: Choice) -> bool:
        """Returns whether there are runs, and all of them have a result."""
        return bool(self.runs) and not self.losses(choice) and not self.lines("missing")

    def not_finite(self, choice: Choice) -> list[str]:
        """Returns the names of the finished runs without a finite outcome."""
        is_lost = self.rows["run"].notna() & self.rows[choice].isna()
        return list(self.rows.loc[is_lost, "name"])

    @property
    def rounds(self) -> str:
        """The number of rounds of the runs, such as "30" or "3 to 30"; "" without runs."""
        return span(len(run.records) for run in self.runs.values())


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
    """Everything a report is drawn from."""

    title: str
    methods: tuple[str, ...]
    conditions: tuple[Condition, ...]
    frame: Frame
    """A row for each run, those without a result included. `run` is a `Run` or None; `missing`, `failure`, `kind` and
    `stopped` are texts, "" for none; `condition` is a position in `conditions`; the names of `CHOICES` are outcomes."""
    outcome: Outcome
    settings: Mapping[str, Any]
    """Settings that all runs share, by dotted name."""
    notes: tuple[str, ...] = ()
    """Lines on what is unusual about the runs."""
    tuned: tuple[Mapping[str, Any], ...] = ()
    """For each group of a tuned sweep: its name, `values` in words, `metric`, `score` and `num_runs`."""

    @functools.cached_property
    def groups(self) -> dict[tuple[str, Condition], Group]:
        """The groups that have rows, in the order of their first run."""
        groups = self.frame.groupby(["method", "condition"], sort=False)
        places = [(str(method), self.conditions[position]) for method, position in groups.groups]
        return {place: Group(*place, rows) for place, (_, rows) in zip(places, groups, strict=True)}

    def group(self, method: str, condition: Condition) -> Group:
        """Returns a group; empty where there is none."""
        return self.groups.get((method, condition)) or Group(method, condition, self.frame.iloc[:0])

    @property
    def runs(self) -> list[Run]:
        """All finished runs."""
        return [run for run in self.frame["run"] if run is not None]


def span(counts: Iterable[int]) -> str:
    """Returns the smallest and the largest of several numbers in words; "" without any.

    >>> span([3, 30, 30]), span([2])
    ('3 to 30', '2')
    """
    ordered = sorted({*counts})
    return " to ".join(map(str, dict.fromkeys((*ordered[:1], *ordered[-1:]))))


def mean(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the values that are known; None without any.

    >>> mean([1.0, None, 2.0])
    1.5
    """
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def settings(study: Study) -> list[str]:
    """Returns the settings that conditions have; a setting that a run does not use is not part of its condition."""
    return list(dict.fromkeys(name for condition in study.conditions for name, _ in condition))


def column_setting(study: Study) -> str | None:
    """Returns the setting that a table has as columns, among the settings that all conditions have.

    It is the only one that varies, else alpha, else the last one besides data set and model; None where there is none.
    """
    shared = set.intersection(*(set(dict(condition)) for condition in study.conditions))
    names = [name for name in settings(study) if name in shared]
    if "alpha" in names:
        return "alpha"
    if len(names) == 1:
        return names[0]
    return next((name for name in reversed(names) if name not in ("dataset", "model")), None)


def panels(study: Study) -> dict[Condition, list[Condition]]:
    """Returns the conditions by their settings other than the column's: one table or figure each."""
    column = column_setting(study)
    grouped: dict[Condition, list[Condition]] = {}
    for condition in study.conditions:
        rest = tuple((name, value) for name, value in condition if name != column)
        grouped.setdefault(rest, []).append(condition)
    return grouped


def column_value(study: Study, condition: Condition) -> Any:
    """Returns the value of the column's setting; None where no setting varies."""
    return dict(condition).get(column_setting(study) or "")
