"""Computes the points of a sweep in one process, which may share them with others.

Points are ordered by their programs, so each program is compiled once, and a data set is read once for the points that
follow one another. A point is a run with a folder of its own: finished points are skipped, one that was interrupted
continues from its checkpoint, and one that fails is recorded, stops nothing, and is tried again by the next command.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config import Config
from fedvg_jax.config.sweep_points import Point
from fedvg_jax.runs import programs, sweep_folder
from fedvg_jax.runs.record.history import History
from fedvg_jax.runs.sweep_folder import Failure
from fedvg_jax.runs.sweep_work import DataStore, Observers, Work, compute_points, data_key

POLL_SECONDS = 1.0
"""Seconds between two looks at points that other processes compute."""


class SweepResult(NamedTuple):
    """The result of one point of a sweep.

    Attributes:
        name: Of the point's folder.
        values: The axes' values that the point uses, by setting.
        result: The history; or a `Failure` of a point that diverged or failed.
    """

    name: str
    values: dict[str, Any]
    result: History | Failure


def program_key(config: Config) -> tuple:
    """Returns a value that is equal for points of one program, except for the shapes of their partitions."""
    return programs.static_settings(config), data_key(config)


def by_program(points: Sequence[Point]) -> list[list[Point]]:
    """Returns the points in groups of one program each, in the order of their first points."""
    groups: dict[tuple, list[Point]] = {}
    for point in points:
        groups.setdefault(program_key(point.config), []).append(point)
    return list(groups.values())


def compute(
    points: Sequence[Point],
    out: Path | None,
    observers: Observers = Observers(),  # noqa: B008  a named tuple of functions, never changed
    replacements: Mapping[str, Any] = {},
    waits: bool = True,
    retries: bool = True,
) -> tuple[dict[str, History | Failure], str | None]:
    """Computes the points that are neither finished nor held by another process.

    Args:
        points: in the order in which to compute them.
        out: folder of the sweep, which `sweep_folder.open_folder` has made; None keeps the results in memory.
        observers: what is called while the sweep is going on.
        replacements: arguments of `simulation.simulation` other than the config, the same for all points.
        waits: whether to wait for points that other processes compute. If such a process dies, its point is computed
            here.
        retries: whether points that failed before this call are computed again. Points that fail during the call, in
            whichever process, are not.

    Returns:
        The results of the points that this process has computed, by name; and the signal that stopped it, or None.
    """
    if out and retries:
        sweep_folder.clear_failures(out, points)
    sources = sweep_folder.read_sources(out) if out else {}
    work = Work(out, observers, replacements, DataStore({}), sources, {}, [])
    pending = list(points)
    while pending:
        busy = compute_points(work, pending)
        if work.stops:
            return work.results, work.stops[0]
        pending = busy if waits else []
        if pending:
            time.sleep(POLL_SECONDS)
    return work.results, None


def load(points: Sequence[Point], out: Path) -> list[SweepResult]:
    """Returns the results of the points that are in the folder of a sweep, in the order of the points."""
    results = []
    for point in points:
        folder = sweep_folder.point_folder(out, point.name)
        failure = sweep_folder.read_failure(folder)
        if failure or sweep_folder.is_finished(folder, point.config):
            results.append(SweepResult(point.name, point.values, failure or History.load(folder)))
    return results


__all__ = ["Observers", "SweepResult", "by_program", "compute", "load", "program_key"]
