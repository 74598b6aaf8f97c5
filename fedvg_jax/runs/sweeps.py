"""Computes the points of a sweep in one process, which may share them with others.

Points are ordered by their programs, so each program is compiled once, and a data set is read once for the points that
follow one another. A point is a run with a folder of its own: finished points are skipped, one that was interrupted
continues from its checkpoint, and one that fails is recorded and stops nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config import Config
from fedvg_jax.config.sweep_points import Point
from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError, one_line
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.runs import checkpoint, loop, programs, simulation, sweep_folder, sweep_objects
from fedvg_jax.runs.history import DivergedError, History, Record
from fedvg_jax.runs.sweep_folder import Failure

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


class Observers(NamedTuple):
    """What a sweep reports to."""

    on_start: Callable[[Point], None] = lambda point: None
    on_records: Callable[[list[Record]], None] = lambda records: None
    """gets the records of every chunk of rounds; first those of earlier processes"""
    on_end: Callable[[Point, History | Failure], None] = lambda point, result: None
    """of every point that this process has computed"""
    log: Callable[[str], None] = lambda line: None
    exit_message: Callable[[], str] | None = None
    """see `stop_signals.watch`"""
    run: Callable[..., History] = loop.run_simulation
    """runs a simulation; gets the arguments of `loop.run_simulation`"""


def program_key(config: Config) -> tuple:
    """Returns a value that is equal for points of one program, except for the shapes of their partitions."""
    return programs.static_settings(config), data_key(config)


def data_key(config: Config) -> tuple:
    """Returns the settings that a data set is read with."""
    return (
        *(config.dataset, config.data_dir, config.image_size, config.splits, config.cache_dir),
        simulation.columns(config),
    )


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
) -> tuple[dict[str, History | Failure], str | None]:
    """Computes the points that are neither finished nor held by another process.

    Args:
        points: in the order in which to compute them.
        out: folder of the sweep, which `sweep_folder.open_folder` has made; None keeps the results in memory.
        observers: what is called while the sweep is going on.
        replacements: arguments of `simulation.simulation` other than the config, the same for all points.
        waits: whether to wait for points that other processes compute. If such a process dies, its point is computed
            here.

    Returns:
        The results of the points that this process has computed, by name; and the signal that stopped it, or None.
    """
    results: dict[str, History | Failure] = {}
    data, stops = _DataStore({}), []
    listeners = {"log": observers.log, "exit_message": observers.exit_message, "on_stop": stops.append}
    listeners |= {"on_records": observers.on_records, "run": observers.run}
    pending = list(points)
    while pending:
        busy = []
        for point in pending:
            with _claim(out, point) as is_mine:
                if not is_mine:
                    busy.append(point)
                    continue
                if out and sweep_folder.is_done(sweep_folder.point_folder(out, point.name), point.config):
                    continue
                observers.on_start(point)
                result = _compute_point(point, out, data, replacements, listeners)
                if not (isinstance(result, History) and result.summary["interrupted"]):
                    results[point.name] = result
                    observers.on_end(point, result)
                if stops:
                    return results, stops[0]
        pending = busy if waits else []
        if pending:
            time.sleep(POLL_SECONDS)
    return results, None


def load(points: Sequence[Point], out: Path) -> list[SweepResult]:
    """Returns the results of the points that are in the folder of a sweep, in the order of the points."""
    results = []
    for point in points:
        folder = sweep_folder.point_folder(out, point.name)
        failure = sweep_folder.read_failure(folder)
        if failure or sweep_folder.is_finished(folder, point.config):
            results.append(SweepResult(point.name, point.values, failure or History.load(folder)))
    return results


class _DataStore(NamedTuple):
    """The data set that was read last; the others are not kept, because they may fill the memory."""

    arrays: dict[tuple, Arrays]

    def read(self, config: Config) -> Arrays:
        key = data_key(config)
        if key not in self.arrays:
            self.arrays.clear()
            self.arrays[key] = simulation.load_data(config)
        return self.arrays[key]


@contextlib.contextmanager
def _claim(out: Path | None, point: Point) -> Iterator[bool]:
    """Yields whether this process may compute the point; a point that is done is claimed for an instant only."""
    if out is None:
        yield True
        return
    folder = sweep_folder.point_folder(out, point.name)
    folder.mkdir(parents=True, exist_ok=True)
    with files.claimed(folder / sweep_folder.CLAIM) as is_mine:
        yield is_mine


def _compute_point(
    point: Point,
    out: Path | None,
    data: _DataStore,
    replacements: Mapping[str, Any],
    listeners: Mapping[str, Any],
) -> History | Failure:
    """Runs a point to its end, or until a signal stops it; an error becomes a `Failure`, which is recorded.

    Args:
        point: to compute.
        out: folder of the sweep.
        data: the data set that was read last.
        replacements: arguments of `simulation.simulation`.
        listeners: arguments of `loop.run_simulation`, and `run`, which gets them.
    """
    folder = sweep_folder.point_folder(out, point.name) if out else None
    num_done = 0

    def count(records: list[Record]) -> None:
        nonlocal num_done
        num_done = records[-1]["round"]
        listeners["on_records"](records)

    try:
        config = _config_in(folder, point.config)
        arguments = sweep_objects.for_point(point, replacements)
        if arguments.get("data") is None:
            arguments["data"] = data.read(config)
        sim = simulation.simulation(config, **arguments)
        run, arguments = listeners["run"], {name: f for name, f in listeners.items() if name != "run"}
        history = run(sim, **{**arguments, "on_records": count})
        return history if folder else _on_host(history)
    except DivergedError as error:
        failure = Failure("diverged", len(error.history.records), one_line(str(error)))
    except Exception as error:  # one point's error, of whatever kind, must not end the others
        is_expected = isinstance(error, (UsageError, OSError, MemoryError))
        reason = one_line(str(error)) or type(error).__name__
        failure = Failure("failed", num_done, reason if is_expected else f"{type(error).__name__}: {reason}")
    if folder:
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


def _on_host(history: History) -> History:
    """Returns a history whose model does not occupy the device."""
    return history._replace(variables=checkpoint.to_host(history.variables))
