"""Computes the points of a sweep in one process, which may share them with others.

Points are ordered by their programs, so each program is compiled once, and a data set is read once for the points that
follow one another. A point is a run with a folder of its own: finished points are skipped, one that was interrupted
continues from its checkpoint, and one that fails is recorded, stops nothing, and is tried again by the next command.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config import Config
from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError, one_line
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.runs import programs, simulation
from fedvg_jax.runs.record import checkpoint
from fedvg_jax.runs.record.history import DivergedError, History, Record
from fedvg_jax.study import sweep_folder
from fedvg_jax.study.sweep_folder import Failure
from fedvg_jax.study.sweep_points import Point
from fedvg_jax.views import tracking

_log_warning = logging.getLogger(__name__).warning

HYPER = "hyper."
"""Prefix of axes of hyperparameters that the given objects declare."""

POLL_SECONDS = 1.0
"""Seconds between two looks at points that other processes compute."""


class Observers(NamedTuple):
    """What a sweep reports to."""

    on_start: Callable[[Point], None] = lambda point: None
    on_records: Callable[[Point, list[Record]], None] = lambda point, records: None
    """gets a point's records of every chunk of rounds; first those of earlier processes"""
    on_end: Callable[[Point, History | Failure], None] = lambda point, result: None
    """of every point that this process has computed"""
    log: Callable[[str], None] = _log_warning
    """gets a line about a point, which starts with its name, or about several"""


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
    work = Work(out, observers, replacements, {}, {}, [])
    pending = list(points)
    while pending:
        busy = []
        for point in pending:
            if not _compute_or_skip(work, point):
                busy.append(point)
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


def for_point(point: Point, replacements: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `simulation.simulation` for a point: the values on its axes win."""
    own = {name.removeprefix(HYPER): value for name, value in point.values.items() if name.startswith(HYPER)}
    hyper = {**(replacements.get("hyper") or {}), **own}
    return {**replacements, "hyper": hyper} if hyper else dict(replacements)


def data_key(config: Config) -> tuple:
    """Returns the settings that a data set is read with."""
    return (
        *(config.dataset, config.data_dir, config.image_size, config.splits, config.max_rows),
        *(config.cache_dir, simulation.columns(config)),
    )


class Work(NamedTuple):
    """What a process computes, and where the results go."""

    out: Path | None
    observers: Observers
    replacements: Mapping[str, Any]
    """arguments of `simulation.simulation`"""
    data: dict[tuple, Arrays]
    """the data set that was read last; the others are not kept, because they may fill the memory"""
    results: dict[str, History | Failure]
    """of the points that are computed; grows"""
    stops: list[str]
    """signals that stopped the process; grows"""

    def folder(self, point: Point) -> Path | None:
        """Returns the run folder of a point, or None."""
        return sweep_folder.point_folder(self.out, point.name) if self.out else None


def _compute_or_skip(work: Work, point: Point) -> bool:
    """Computes a point unless that is done, or has failed since the command started; returns False if it is held."""
    folder = work.folder(point)
    with contextlib.ExitStack() as stack:
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            if not stack.enter_context(files.claimed(folder / sweep_folder.CLAIM)):
                return False
            if sweep_folder.read_failure(folder) is not None or sweep_folder.is_finished(folder, point.config):
                return True
        work.observers.on_start(point)
        result = _compute_point(work, point)
        if not (isinstance(result, History) and result.summary["interrupted"]):
            work.results[point.name] = result
            work.observers.on_end(point, result)
    return True


def _compute_point(work: Work, point: Point) -> History | Failure:
    """Runs a point to its end, or until a signal stops it; an error becomes a `Failure`, which is recorded."""
    num_done = 0

    def count(records: list[Record]) -> None:
        nonlocal num_done
        num_done = records[-1]["round"]
        observers.on_records(point, records)

    observers = work.observers
    try:
        history = tracking.run_simulation(
            simulation_of(work, point),
            log=lambda line: observers.log(f"{point.name}: {line}"),
            on_stop=work.stops.append,
            on_records=count,
        )
        # in memory, a history's model must not occupy the device
        return history if work.out else history._replace(variables=checkpoint.to_host(history.variables))
    except Exception as error:  # one point's error, of whatever kind, must not end the others
        return record_failure(work, point, error, num_done)


def simulation_of(work: Work, point: Point) -> simulation.Simulation:
    """Returns the simulation of a point, in its folder."""
    config = _config_in(work.folder(point), point.config)
    arguments = for_point(point, work.replacements)
    is_given = arguments.get("data") is not None
    if not is_given:
        key = data_key(config)
        if key not in work.data:
            work.data.clear()
            work.data[key] = simulation.load_data(config)
        arguments["data"] = work.data[key]
    sim = simulation.simulation(config, **arguments)
    return sim if is_given else sim._replace(given=sim.given - {"data"})  # the data set that the settings name


def record_failure(work: Work, point: Point, error: Exception, num_done: int) -> Failure:
    """Returns an error as a `Failure`, and writes it to the point's folder."""
    if isinstance(error, DivergedError):
        failure = Failure("diverged", len(error.history.records), one_line(str(error)))
    else:
        is_expected = isinstance(error, (UsageError, OSError, MemoryError))
        name, reason = type(error).__name__, one_line(str(error))
        failure = Failure("failed", num_done, (reason or name) if is_expected else f"{name}: {reason or name}")
    if folder := work.folder(point):
        with contextlib.suppress(OSError):  # of a full disk: the point stays unfinished
            sweep_folder.write_failure(folder, point.config, failure)
    return failure


def _config_in(folder: Path | None, config: Config) -> Config:
    """Returns the settings of a run in the point's folder: resumed where it has a checkpoint."""
    if folder is None:
        return dataclasses.replace(config, out=None, resume=None)
    if sweep_folder.has_checkpoint(folder):
        (folder / sweep_folder.FAILURE).unlink(missing_ok=True)
        return dataclasses.replace(config, out=folder, resume=str(folder))
    sweep_folder.clear(folder)
    return dataclasses.replace(config, out=folder, resume=None)
