"""Chooses the values of tuned settings from the tuning runs of a sweep, by their accuracy on D_val. No jax."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config import tuning_grid
from fedvg_jax.config.sweep_points import Point, plain
from fedvg_jax.config.tuning_grid import Tuning
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs import sweep_folder
from fedvg_jax.runs.record import history

FOLDER = "tuning"
"""Folder of the tuning runs inside that of the sweep."""


class Choice(NamedTuple):
    """The values that a cell gets."""

    values: dict[str, Any]
    """tuned settings that the cell uses, with the chosen values"""
    metric: str
    """accuracy, or loss for a task without it"""
    score: float
    """mean of the metric on D_val after the last round, over the tuning seeds"""
    num_runs: int
    """tuning runs of the cell, those that diverged included"""


def choose(out: Path, points: Sequence[Point], tuning: Tuning) -> dict[str, Choice]:
    """Returns the choice of every cell.

    The best mean on D_val after the last round is chosen; of equal ones the first. A combination of which a run
    diverged is not chosen.

    Args:
        out: folder of the tuning runs.
        points: all tuning runs.
        tuning: what is tuned.

    Raises:
        UsageError: a tuning run failed or is unfinished, so that the choice could be another one with it; or every
            combination of a cell diverged.
    """
    sweep_folder.refuse_unfinished(out, points, "tuning run")
    tuned = [name for axis in tuning.axes for name in axis.names]
    choices = {}
    for cell, combinations in tuning_grid.by_cell(points, tuned).items():
        scores = {name: _score(out, runs) for name, runs in combinations.items()}
        finished = {name: score for name, score in scores.items() if score is not None}
        if not finished:
            raise UsageError(f"every value of {cell} diverged in a tuning run; give other values to --tune")
        best = max(finished, key=lambda name: finished[name][1])
        metric, quality = finished[best]
        values = {name: value for name, value in combinations[best][0].values.items() if name in tuned}
        count = sum(map(len, combinations.values()))
        choices[cell] = Choice(values, metric, quality if metric == "accuracy" else -quality, count)
    return choices


def as_json(tuning: Tuning, choices: dict[str, Choice]) -> dict[str, Any]:
    """Returns the entry `tuning` of sweep.json."""
    grid = {name: [plain(v) for v in values] for axis in tuning.axes for name, values in axis.as_json().items()}
    chosen = {
        cell: choice._asdict() | {"values": {name: plain(value) for name, value in choice.values.items()}}
        for cell, choice in choices.items()
    }
    return {"settings": grid, "seeds": list(tuning.seeds), "budget": tuning.budget, "select": "val", "chosen": chosen}


def _score(out: Path, runs: Sequence[Point]) -> tuple[str, float] | None:
    """Returns metric and mean quality on D_val of the runs of one combination; None if a run diverged."""
    qualities, metric = [], ""
    for point in runs:
        folder = sweep_folder.point_folder(out, point.name)
        if sweep_folder.read_failure(folder):
            return None
        last = history.read(folder)[-1]
        metric, sign, _ = history.primary_metric(last)
        value = last.get(f"val_{metric}")
        qualities.append(-math.inf if value is None else sign * value)
    return metric, statistics.fmean(qualities)
