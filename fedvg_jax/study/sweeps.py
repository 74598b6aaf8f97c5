"""Computes the points of a sweep in one process, which may share them with others; and `run_sweep` of Python.

Points are ordered by their programs, so each program is compiled once, and a data set is read once for the points that
follow one another. A point is a run with a folder of its own, which the process locks that computes it: finished points
are skipped, one that was interrupted continues from its checkpoint, and one that fails is recorded, stops nothing, and
is tried again by the next command.

From Python, objects may replace settings, and hyperparameters that they declare may be axes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fedvg_jax.config import SETTINGS, Config
from fedvg_jax.config.uses import PASSED, replaced_with
from fedvg_jax.core import reuse
from fedvg_jax.core.types import Algorithm, Weighting
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.host import files, hardware
from fedvg_jax.host.errors import UsageError, one_line
from fedvg_jax.runs.assemble import population, programs, simulation
from fedvg_jax.runs.assemble.given import Given, merge_hyperparameters, traced_anew
from fedvg_jax.runs.record import checkpoint, digests, folder as run_folder, provenance
from fedvg_jax.runs.record.history import DivergedError, History, Record
from fedvg_jax.study import sweep_folder, sweep_points, tuning, workers
from fedvg_jax.study.sweep_folder import Failure, Observers
from fedvg_jax.study.sweep_points import HYPER, OBJECTS, Point, Sweep
from fedvg_jax.views import tracking
from fedvg_jax.views.output import say

POLL_SECONDS = 1.0
"""Seconds between two looks at points that other processes compute."""


class SweepResult(NamedTuple):
    """The result of one point of a sweep.

    Attributes:
        name: Of the point's folder.
        values: The axes' values that the point uses, by setting.
        result: The history; or a `Failure` of a point that diverged or failed.
        config: The settings of the point.
        given: What Python passed in place of settings -> its name; "" for one without.
    """

    name: str
    values: dict[str, Any]
    result: History | Failure
    config: Config | None = None
    given: Mapping[str, str] = {}


def by_program(points: Sequence[Point]) -> list[list[Point]]:
    """Returns the points in groups of one program each, up to shapes of partitions, in the order of first points."""
    groups: dict[tuple, list[Point]] = {}
    for point in points:
        own = tuple(point.values.get(argument) for argument in OBJECTS)
        groups.setdefault((programs.static_settings(point.config), data_key(point.config), own), []).append(point)
    return list(groups.values())


def compute(
    points: Sequence[Point],
    out: Path | None,
    observers: Observers = Observers(),  # noqa: B008  a named tuple of functions, never changed
    given: Given = Given(),  # noqa: B008  a named tuple, never changed
    objects: Mapping[str, Mapping[str, Any]] = {},
    keeps: dict[tuple, reuse.Keep] | None = None,
    metrics: Mapping[str, Callable[..., Any]] = {},
) -> tuple[dict[str, History | Failure], str | None]:
    """Computes the points that are not finished; waits for those of other processes, and takes over where one dies.

    Points that have failed, in whichever process, are not tried again; see `sweep_folder.clear_failures`.

    Args:
        points: of the sweep.
        out: folder of the sweep, which `sweep_folder.open_folder` has made; None keeps the results in memory.
        observers: what is called while the sweep is going on.
        given: what takes the place of settings, the same for all points.
        objects: see `Objects`.
        keeps: see `Work`.
        metrics: see `fedvg_jax.run`.

    Returns:
        The results of the points that this process has computed, by name; and the signal that stopped it, or None.
    """
    work = Work(out, observers, given, objects, {} if keeps is None else keeps, {}, {}, [], metrics)
    pending = list(points)
    while pending:
        busy, groups = [], by_program(pending)
        while groups:
            groups.sort(key=functools.partial(_has_begun, out))  # programs that no process has compiled come first
            for point in groups.pop(0):
                if workers.is_orphan():
                    return work.results, "SIGTERM"
                if not _compute_or_skip(work, point):
                    busy.append(point)
                if work.stops:
                    return work.results, work.stops[0]
        if pending := busy:
            time.sleep(POLL_SECONDS)
    return work.results, None


def _has_begun(out: Path | None, group: Sequence[Point]) -> bool:
    """Returns whether some process has begun a point of a program."""
    return out is not None and any(sweep_folder.point_folder(out, point.name).exists() for point in group)


def compute_plan(
    plan: tuning.Plan, console: Console | None, described: Mapping[str, str] = {}, *work: Any
) -> tuple[list[Point], dict[str, History | Failure]]:
    """Computes the tuning runs, if there are any, and then the points with the values that these have chosen.

    Args:
        plan: what is computed.
        console: where progress and choices are shown; None for nowhere.
        described: see `sweep_folder.Stored.given`.
        work: `given`, `objects`, `keeps` and `metrics` of `compute`.

    Returns:
        The points, and the results of those that this process has computed, by name.

    Raises:
        Stopped: by a signal.
        UsageError: a folder cannot be used, or a tuning run has no result.
    """

    def compute_shown(points: Sequence[Point], out: Path | None) -> dict[str, History | Failure]:
        if out and not workers.is_started():
            sweep_folder.clear_failures(out, points)
        shown = sweep_progress(console, points, out) if console else contextlib.nullcontext(Observers())
        with shown as observers:
            results, stopped_by = compute(points, out, observers, *work)
        if stopped_by:
            raise workers.Stopped(stopped_by, results)
        return results

    points, chosen = plan.made.points, {}
    if plan.out and plan.tuning and plan.tuning_runs:
        sweep_folder.refuse_taken(plan.out)
        grid, tried = plan.out / tuning.FOLDER, plan.tuning_runs.points
        sweep_folder.open_folder(grid, sweep_folder.document(plan.tuning_runs, tried, described))
        compute_shown(tried, grid)
        choices = tuning.choose(grid, tried, plan.tuning)
        if console:
            for cell, choice in choices.items():
                say(console, f"{cell}: {tuning.chosen_text(choice, plan.tuning)}")
        points, chosen = tuning.chosen_points(points, choices), tuning.as_json(plan.tuning, choices)
    if plan.out:
        sweep_folder.open_folder(plan.out, sweep_folder.document(plan.made, points, described, chosen))
    return points, compute_shown(points, plan.out)


def load(points: Sequence[Point], out: Path) -> list[SweepResult]:
    """Returns the results of the points that are in the folder of a sweep, in the order of the points."""
    results = []
    for point in points:
        folder = sweep_folder.point_folder(out, point.name)
        failure = sweep_folder.read_failure(folder)
        if failure or run_folder.is_finished(folder, point.config):
            results.append(SweepResult(point.name, point.values, failure or History.load(folder), point.config))
    return results


Objects = Mapping[str, Mapping[str, Any]]
"""Argument of a run -> name on its axis -> object from Python."""


def of_point(values: Mapping[str, Any], given: Given, objects: Mapping[str, Mapping[str, Any]] = {}) -> Given:
    """Returns what is given with the objects and the hyperparameters among the values of axes, which win."""
    own = {name.removeprefix(HYPER): value for name, value in values.items() if name.startswith(HYPER)}
    chosen = {name: named[values[name]] for name, named in objects.items() if values.get(name) in named}
    return given._replace(hyper={**(given.hyper or {}), **own} or None, **chosen)


def data_key(config: Config) -> tuple:
    """Returns the settings that a data set is read with."""
    of_set = (config.dataset, config.data_dir, config.image_size, config.splits, config.max_rows)
    return *of_set, config.cache_dir, config.columns


class Work(NamedTuple):
    """What a process computes, and where the results go."""

    out: Path | None
    observers: Observers
    given: Given
    """what takes the place of settings"""
    objects: Objects
    keeps: dict[tuple, reuse.Keep]
    """names of a point's objects -> what keeps the programs of these and of what is given; grows"""
    data: dict[tuple, Arrays]
    """the data set that was read last; the others are not kept, because they may fill the memory"""
    results: dict[str, History | Failure]
    """of the points that are computed; grows"""
    stops: list[str]
    """signals that stopped the process; grows"""
    metrics: Mapping[str, Callable[..., Any]] = {}
    """see `fedvg_jax.run`"""

    def keep_of(self, point: Point) -> reuse.Keep:
        """Returns what keeps the programs of a point."""
        return self.keeps.setdefault(tuple(point.values.get(name) for name in self.objects), reuse.keeper())

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
            if sweep_folder.read_failure(folder) is not None or run_folder.is_finished(folder, point.config):
                return True
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
    given = of_point(point.values, work.given, work.objects)
    is_given = given.data is not None
    if not is_given:
        key = data_key(config)
        if key not in work.data:
            work.data.clear()
            work.data[key] = population.load_data(config)
        given = given._replace(data=work.data[key])
    sim = simulation.assemble(config, given, work.keep_of(point))
    names = {**sim.given} | {name: point.values[name] for name in work.objects if name in sim.given}
    # without the data set that the settings name
    named = {name: text for name, text in names.items() if is_given or name != "data"}
    return sim._replace(given=named, metrics=work.metrics)


def record_failure(work: Work, point: Point, error: Exception, num_done: int) -> Failure:
    """Returns an error as a `Failure`, and writes it to the point's folder."""
    if isinstance(error, DivergedError):
        failure = Failure("diverged", len(error.history.records), one_line(str(error)))
    else:
        is_expected = isinstance(error, (UsageError, OSError, MemoryError))
        name, reason = type(error).__name__, one_line(str(error))
        told = (reason or name) if is_expected else f"{name}: {reason or name}"
        failure = Failure("failed", num_done, told, "".join(traceback.format_exception(error)))
    if folder := work.folder(point):
        with contextlib.suppress(OSError):  # of a full disk: the point stays unfinished
            sweep_folder.write_failure(folder, point.config, failure)
    return failure


def _config_in(folder: Path | None, config: Config) -> Config:
    """Returns the settings of a run in the point's folder: resumed where it has a checkpoint."""
    resume = None
    if folder and digests.newest_round(folder):
        (folder / sweep_folder.FAILURE).unlink(missing_ok=True)
        resume = str(folder)
    elif folder:
        sweep_folder.clear(folder)
    return dataclasses.replace(config, out=folder, resume=resume)


OF_TENSORS = ("train", "lora", "local", "fedvg.include", "init")
"""Settings that name tensors or sizes of a model, which only its building can check."""

OF_MODEL = (*OF_TENSORS, "model", "norm_layers")
"""Settings of which every combination is built before the first point."""


def check(
    points: Sequence[Point],
    given: Given = Given(),  # noqa: B008  a named tuple, never changed
    objects: Mapping[str, Mapping[str, Any]] = {},
    keeps: dict[tuple, reuse.Keep] | None = None,
) -> None:
    """Checks the given objects, and the settings of tensors, before the first run.

    Args:
        points: of the sweep.
        given: what takes the place of settings.
        objects: see `Objects`.
        keeps: see `Work`.

    Raises:
        UsageError: an axis varies what an object replaces, a hyperparameter is unknown or out of range, or a model, the
            data, the partition or an object cannot be used.
    """
    _refuse_replaced(points, given)
    are_given = any(value is not None for point in points[:1] for value in of_point(point.values, given))
    first_of_each: dict[tuple, Point] = {}
    for point in points:
        if are_given or objects or any(SETTINGS[name].get(point.config) for name in OF_TENSORS):
            of_model = (SETTINGS[name].get(point.config) for name in OF_MODEL)
            own = (point.values.get(name) for name in objects)
            first_of_each.setdefault((data_key(point.config), *of_model, *own), point)
    sim, work = None, Work(None, Observers(), given, objects, {} if keeps is None else keeps, {}, {}, [])
    declaring: dict[tuple, tuple[Algorithm, Weighting]] = {}
    for point in reversed(first_of_each.values()):
        try:
            sim = simulation_of(work, point)
        except UsageError as error:
            raise UsageError(f"point {point.name}: {error}" if len(first_of_each) > 1 else str(error)) from None
        declaring[tuple(point.values.get(name) for name in objects)] = sim.algorithm, sim.weighting
    if not are_given or sim is None:
        return
    declared = {parameter.name for part in (sim.algorithm, sim.weighting) for parameter in part.defaults}
    _refuse_replaced(points, given, declared)
    for point in points:
        its, parts = of_point(point.values, given, objects), declaring[tuple(point.values.get(n) for n in objects)]
        passed = tuple(part for part, value in zip(parts, (its.algorithm, its.weighting), strict=True) if value)
        if its.hyper:
            merge_hyperparameters(point.config, *parts, its.hyper, passed)


def _refuse_replaced(points: Sequence[Point], given: Given, declared: Collection[str] | None = None) -> None:
    """Raises UsageError for an axis that has no effect beside a given object.

    Args:
        points: of the sweep.
        given: what takes the place of settings.
        declared: hyperparameters of the algorithm and the weighting; None where they are not known yet, and their axes
            are not refused.
    """
    arguments = [name for name in PASSED if getattr(given, name) is not None]
    replaced = replaced_with(arguments) | {PASSED[name] for name in arguments}
    replaced |= {"method"} if replaced & {"algorithm", "weighting"} else set()
    for name in dict.fromkeys(name for point in points for name in point.values if name in replaced):
        hyper = SETTINGS[name].facts.hyper if name in SETTINGS else ""
        if not hyper or (declared is not None and hyper not in declared):
            raise UsageError(f"axes: {name} has no effect beside {'=, '.join(arguments)}=; leave one of them out")


CALL = """
import contextlib, pickle, sys, fedvg_jax
with contextlib.suppress(fedvg_jax.UsageError, KeyboardInterrupt), open(sys.argv[1], "rb") as file:
    fedvg_jax.run_sweep(**pickle.load(file))
"""
"""The program of a process that `run_sweep` starts; its argument is a file of the call's arguments."""


def run_sweep(
    start: Config,
    axes: Mapping[Any, Any],
    given: Given,
    out: Path | None,
    progress: bool,
    check_config: Callable[[Config], None],
    metrics: Mapping[str, Callable[..., Any]] = {},
    tuned: tuning.Tuning | None = None,
    jobs: int | str = 1,
    call: Mapping[str, Any] = {},
) -> list[SweepResult]:
    """Returns the results of a sweep, in the order of its points; those that a signal left out are missing.

    Args:
        start: settings that all points share.
        axes: as those of `fedvg_jax.run_sweep`.
        given: what takes the place of settings, with functions of this call.
        out: folder of the sweep; None keeps the results in memory.
        progress: whether to print a line for every run, or bars on a terminal.
        check_config: raises UsageError for settings of a point that only the command line can follow.
        metrics: as those of `fedvg_jax.run`.
        tuned: settings that are chosen on D_val first; None for none.
        jobs: processes that share the points, this one included, or "auto".
        call: arguments of `fedvg_jax.run_sweep` for the others.
    """
    sweep_points.refuse_set(start)
    if tuned and out is None:
        raise UsageError("tune needs out=, a folder for the tuning runs and their choices")
    axes, named = sweep_points.named_objects(axes)
    parsed = sweep_points.parse_axes(axes, named)
    sweep = Sweep(parsed, start=start, objects=named)
    made, runs = sweep_points.make_points(sweep), tuning.tuning_points(sweep, tuned) if tuned else None
    described, objects = _described(parsed, named, given)
    every = [*(runs.points if runs else ()), *made.points]
    for point in every:
        tracking.require(point.config, out is not None)
        check_config(point.config)
    if given.data is None:
        sweep_folder.check_sources(every)
    keeps: dict[tuple, reuse.Keep] = {}
    check(every, given, objects, keeps)
    functions = [*(given.replaced.keys() - {"data", "partition"}), *named, *(["metrics"] if metrics else [])]
    count, plan = _num_processes(jobs, every, functions, out), tuning.Plan(made, out, tuned, runs)
    try:
        console = Console() if progress else None
        with _further_calls(call, count):
            points, results = compute_plan(plan, console, described, given, objects, keeps, metrics)
    except workers.Stopped as stop:
        if stop.signal == "SIGINT":
            raise KeyboardInterrupt(f"stopped; folder of the sweep: {out}") from None
        signal.raise_signal(signal.Signals[stop.signal])
        points, results = made.points, stop.results
    if out:
        return load(points, out)
    listed = []
    for point in (point for point in points if point.name in results):
        its = of_point(point.values, given, objects).replaced
        names = its | {name: str(point.values[name]) for name in objects if name in its}
        listed.append(SweepResult(point.name, point.values, results[point.name], point.config, names))
    return listed


@contextlib.contextmanager
def _further_calls(call: Mapping[str, Any], count: int) -> Iterator[None]:
    """Starts all processes of a call but this one; they end with it."""
    if count == 1:
        yield
        return
    with tempfile.NamedTemporaryFile() as file, workers.further_processes(["-c", CALL, file.name], count) as start:
        try:
            pickle.dump({**call, "progress": False}, file)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            told = one_line(str(error))[:200]
            raise UsageError(f"jobs: {told}; give lists and arrays, which a process can receive") from None
        file.flush()
        start()
        yield


def _num_processes(jobs: int | str, points: Sequence[Point], functions: Sequence[str], out: Path | None) -> int:
    """Returns the number of processes of a call.

    Args:
        jobs: the caller's number, or "auto".
        points: of the sweep and its tuning.
        functions: what the call is given that has functions.
        out: folder of the sweep.

    Raises:
        UsageError: `jobs` is something else, or the processes cannot share the points.
    """
    if jobs == 1 or workers.is_started():
        return 1
    if jobs != "auto" and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise UsageError(f"jobs must be auto or a number >= 1; got {str(jobs)[:50]}")
    if out is None:
        raise UsageError("jobs needs out=, the folder that the processes share")
    if functions:
        raise UsageError(
            f"jobs cannot send {functions[0]} to a process; start one script several times, with the same out"
        )
    machine = hardware.current()
    return jobs if isinstance(jobs, int) else workers.auto_jobs(points, machine if machine.is_cpu else None)


def _described(
    axes: Sequence[sweep_points.Axis], named: Objects, given: Given
) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Returns what identifies given objects and those on axes, and these with functions of the call."""
    # no name of a point has the value of an axis with a single one: all points share it, like a value in `hyper`
    single = {axis.names[0]: axis.values[0][0] for axis in axes if len(axis.values) == 1}
    described = provenance.describe(of_point(single, given)._asdict())
    objects: dict[str, dict[str, Any]] = {argument: {} for argument in named}
    for argument, name, value in [(a, name, value) for a, of_axis in named.items() for name, value in of_axis.items()]:
        objects[argument][name] = getattr(traced_anew(Given(**{argument: value})), argument)
        described[f"{argument} {name}"] = provenance.describe({argument: value})[argument]
    return described, objects


# --- progress


def duration(seconds: float) -> str:
    """Returns a number of seconds in the largest fitting unit.

    >>> duration(42.4), duration(300), duration(9000)
    ('42 s', '5 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@contextlib.contextmanager
def sweep_progress(console: Console, points: Sequence[Point], out: Path | None) -> Iterator[Observers]:
    """Shows points and rounds as they finish; yields what the sweep reports to.

    In a terminal: two bars. Elsewhere: a line per point of this process, which counts those of other processes, too.

    Args:
        console: where to print.
        points: of the sweep.
        out: its folder, if it has one.
    """
    waiting = [point for point in points if out is None or not sweep_folder.is_done(out, point)]
    num_left, started = len(waiting), time.perf_counter()

    def left() -> str:
        """Returns the time left in words: the points left, at the pace of those that ended since the start."""
        if len(waiting) == num_left:
            return "time left unknown"
        pace = (time.perf_counter() - started) / (num_left - len(waiting))
        return f"about {duration(pace * len(waiting))} left"

    log = functools.partial(say, console)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    shown = TextColumn("{task.fields[text]}", markup=False)
    with Progress(*columns, shown, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("points", total=len(points), completed=len(points) - len(waiting), text="")
        rounds = progress.add_task("rounds", total=None, text="")

        def count(point: Point, records: list[Record]) -> None:
            progress.update(rounds, total=point.config.rounds, completed=records[-1]["round"], text=point.name)

        def end(point: Point, result: History | Failure) -> None:
            waiting[:] = [p for p in waiting if p.name != point.name and not (out and sweep_folder.is_done(out, p))]
            num_done = len(points) - len(waiting)
            log(f"{num_done}/{len(points)}  {point.name}: {result_text(result)}, {left()}")
            progress.update(bar, completed=num_done, text=left())

        yield Observers(count, end, log)


def result_text(result: History | Failure) -> str:
    """Returns the result of a point in a few words."""
    if isinstance(result, Failure):
        return f"{result.kind} in round {result.round} ({result.reason})"
    name = "accuracy" if "test_accuracy_final" in result.summary else "loss"
    value = result.summary.get(f"test_{name}_final")
    text = f"{value:.2%}" if name == "accuracy" and value is not None else f"{value}"
    return f"test {name} {text}, {result.summary['run_seconds']:.1f} s"
