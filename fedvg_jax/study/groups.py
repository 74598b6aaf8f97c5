"""A study: a frame with a row for each run of a comparison, and its groups, the runs of one method in one condition."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedvg_jax.study.outcomes import Choice, Outcome
from fedvg_jax.study.places import Condition, Seeds
from fedvg_jax.study.run import Run
from fedvg_jax.study.sweep_trials import Settings

Frame = Any
"""A `pandas.DataFrame`, because type checkers infer too much of its methods."""


class Group(NamedTuple):
    """The runs of one method in one condition."""

    method: str
    condition: Condition
    rows: Frame
    """Rows of the study's frame."""

    @property
    def runs(self) -> dict[Seeds, Run]:
        """The finished runs."""
        return self.results("run")

    def results(self, column: str = "final") -> dict[Seeds, Any]:
        """Returns the outcome of every run in the evaluation that stands for it, where it is finite.

        Args:
            column: of the study's frame, such as a `Choice`.
        """
        return self.rows.set_index(["seed", "partition_seed"])[column].dropna().to_dict()


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
    """Everything a report is drawn from."""

    title: str
    methods: tuple[str, ...]
    conditions: tuple[Condition, ...]
    frame: Frame
    """A row for each run, those without a result included. `run` is a `Run` or None, `problem` a line on what is wrong
    with it and `kind` its kind, "" for neither; `condition` is a position in `conditions`; the names of `CHOICES` are
    outcomes, nan without a result."""
    outcome: Outcome
    settings: Settings
    """Settings that all runs share, by dotted name."""
    notes: Sequence[str] = ()
    """Lines on what is unusual about the runs."""
    baseline: str | None = None
    """The method that the others are compared with; None for every pair of methods."""
    choice: Choice = "final"
    """The evaluation that stands for a run."""
    tuned: Sequence[Mapping[str, Any]] = ()
    """For each group of a tuned sweep: its name, `values` in words, `metric`, `score` and `num_runs`."""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of methods that are compared, the later one of every pair first."""
        if self.baseline is None:
            return [(later, earlier) for earlier, later in itertools.combinations(self.methods, 2)]
        return [(method, self.baseline) for method in self.methods if method != self.baseline]

    @functools.cached_property
    def groups(self) -> dict[tuple[str, Condition], Group]:
        """The groups that have rows, in the order of their first run."""
        groups = {}
        for (method, position), rows in self.frame.groupby(["method", "condition"], sort=False):
            condition = self.conditions[position]
            groups[method, condition] = Group(method, condition, rows)
        return groups

    def group(self, method: str, condition: Condition) -> Group:
        """Returns a group; empty where there is none."""
        return self.groups.get((method, condition)) or Group(method, condition, self.frame.iloc[:0])

    @property
    def runs(self) -> list[Run]:
        """All finished runs."""
        return self.frame["run"].dropna().tolist()
