"""Sweeps from Python: `run_sweep`, with objects in place of settings, and axes of hyperparameters they declare."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config import Config
from fedvg_jax.config.io import python_scalar
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs import simulation
from fedvg_jax.runs.hyperparameters import merge_hyperparameters
from fedvg_jax.runs.record import provenance
from fedvg_jax.study import sweep_folder, sweeps
from fedvg_jax.study.axes import FOLLOW, Axis, parse_axes, refuse_set
from fedvg_jax.study.sweep_points import (
    ONLY,
    Layer,
    Point,
    Points,
    Sweep,
    combinations,
    make_points,
    name_of,
    varying_names,
)
from fedvg_jax.study.sweeps import HYPER, Observers, SweepResult

REPLACED = {
    "data": ("dataset", "data_dir", "image_size", "splits"),
    "partition": (
        "partition",
        "partition_file",
        "alpha",
        "split",
        "min_samples_rule",
        "shards_per_client",
        "classes_per_client",
    ),
    "task": ("model", *simulation.MODEL_SETTINGS),
    "algorithm": ("algorithm", "method"),
    "weighting": ("weighting", "method"),
    "selection": ("selection", "candidates"),
}
"""Argument -> settings that it replaces, so that an axis of them would change nothing."""

OF_SPLIT = ("min_samples", "test_ratio", "val_ratio")
"""Settings that `partition=(train, val, test)` replaces too; a list of the clients' rows is split by them."""


def split_hyper(axes: Mapping[Any, Any]) -> tuple[dict[Any, Any], list[Axis]]:
    """Returns the axes of settings, and those of hyperparameters, each of whose values is there once.

    Raises:
        UsageError: an axis of a hyperparameter has no list of values.

    >>> split_hyper({"seed": "0:2", "hyper.T": [0.1, 1.0]})
    ({'seed': '0:2'}, [Axis(names=('hyper.T',), values=((0.1,), (1.0,)))])
    """
    own = []
    for name, values in axes.items():
        if isinstance(name, str) and name.startswith(HYPER):
            is_list = isinstance(values, Iterable) and not isinstance(values, (str, Mapping))
            listed = [python_scalar(value) for value in values] if is_list and getattr(values, "ndim", 1) == 1 else []
            if not listed:
                raise UsageError(f"axes: {name} must be a list of numbers; got {values!r}")
            distinct = {name_of({name: value}): value for value in listed}  # 1 and 1.0 are one value
            own.append(Axis((name,), tuple((value,) for value in distinct.values())))
    names = {axis.names[0] for axis in own}
    return {name: values for name, values in axes.items() if name not in names}, own


def with_hyper(points: Sequence[Point], axes: Sequence[Axis]) -> list[Point]:
    """Returns a point for every combination of the points and the hyperparameters' values, which vary fastest."""
    varying = varying_names(axes)

    def joined(point: Point, row: Mapping[str, Any]) -> Point:
        own = name_of({name: row[name] for name in varying})
        names = [name for name in (point.name, own) if name != ONLY]
        return Point(",".join(names) or ONLY, point.values | dict(row), point.config)

    return [joined(point, row) for point in points for row in combinations(axes)]


def shared_by_points(axes: Sequence[Axis], replacements: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `simulation.simulation` that all points share.

    The name of a point does not have the value of an axis with a single one, which is therefore shared like a value in
    `hyper`.

    Args:
        axes: of hyperparameters.
        replacements: the given arguments.

    >>> shared_by_points([Axis(("hyper.T",), ((0.1,),)), Axis(("hyper.U",), ((1,), (2,)))], {"hyper": {"V": 3}})
    {'hyper': {'V': 3, 'T': 0.1}}
    """
    own = {axis.names[0].removeprefix(HYPER): axis.values[0][0] for axis in axes if len(axis.values) == 1}
    hyper = {**(replacements.get("hyper") or {}), **own}
    return {**replacements, "hyper": hyper or None}


def check(points: Sequence[Point], replacements: Mapping[str, Any]) -> None:
    """Checks the given objects before the first run.

    Args:
        points: of the sweep.
        replacements: arguments of `simulation.simulation`.

    Raises:
        UsageError: an axis varies what an object replaces, a hyperparameter is unknown or out of range, or the data,
            the partition or an object cannot be used.
    """
    for argument, settings in REPLACED.items():
        given = replacements.get(argument)
        is_split = argument == "partition" and isinstance(given, tuple)
        for name in (*settings, *(OF_SPLIT if is_split else ())) if given is not None else ():
            if any(name in point.values for point in points):
                raise UsageError(f"axes: {name} has no effect beside {argument}=; leave one of them out")
    arguments = [sweeps.for_point(point, replacements) for point in points]
    if all(value is None for value in arguments[0].values()):
        return
    sim = simulation.simulation(points[0].config, **arguments[0])
    parts = (("algorithm", sim.algorithm), ("weighting", sim.weighting))
    own = tuple(part for name, part in parts if replacements.get(name) is not None)
    for point, argument in zip(points, arguments, strict=True):
        if argument.get("hyper"):
            merge_hyperparameters(point.config, sim.algorithm, sim.weighting, argument["hyper"], own)


class Plan(NamedTuple):
    """What a call from Python asks for."""

    sweep: Sweep
    points: Points
    replacements: Mapping[str, Any]
    """arguments of `simulation.simulation` other than the config"""
    given: Mapping[str, str]
    """what identifies the objects that all points share"""


def plan(start: Config, axes: Mapping[Any, Any], replacements: Mapping[str, Any]) -> Plan:
    """Returns the points of a sweep, checked.

    Args:
        start: settings that all points share.
        axes: as those of `run_sweep`.
        replacements: arguments of `simulation.simulation` other than the config.
    """
    refuse_set(start)
    settings, own = split_hyper(axes) if isinstance(axes, Mapping) else (axes, [])
    parsed = parse_axes(settings)
    follows = any("seed" in axis.names for axis in parsed) and start.partition_seed == Config.partition_seed
    layers = (Layer({"partition_seed": FOLLOW}, "sweep"),) if follows else ()
    sweep = Sweep(parsed, layers, start)
    points = make_points(sweep)
    points = points._replace(points=with_hyper(points.points, own))
    given = provenance.describe(shared_by_points(own, replacements))
    return Plan(sweep._replace(axes=(*sweep.axes, *own)), points, replacements, given)


def run(plan: Plan, out: Path | None, progress: bool) -> list[SweepResult]:
    """Returns the results of a sweep, in the order of its points; those that a signal left out are missing.

    Args:
        plan: what to compute.
        out: folder of the sweep; None keeps the results in memory.
        progress: whether to print a line for every run, or bars on a terminal.
    """
    points = plan.points.points
    if plan.replacements.get("data") is None:
        sweep_folder.check_sources(points)
    check(points, plan.replacements)
    if out:
        content = {**sweep_folder.document(plan.sweep, plan.points), "given": plan.given}
        sweep_folder.open_folder(out, content, points)
    ordered = [point for group in sweeps.by_program(points) for point in group]
    with _observers(ordered, out, progress) as observers:
        results, stopped_by = sweeps.compute(ordered, out, observers, plan.replacements)
    if stopped_by == "SIGINT":
        raise KeyboardInterrupt(f"stopped; folder of the sweep: {out}")
    if stopped_by is not None:
        signal.raise_signal(signal.Signals[stopped_by])
    if out:
        return sweeps.load(points, out)
    return [SweepResult(p.name, p.values, results[p.name]) for p in points if p.name in results]


@contextlib.contextmanager
def _observers(points: Sequence[Point], out: Path | None, progress: bool) -> Iterator[Observers]:
    """Yields what a sweep reports to: standard output, or nothing."""
    if not progress:
        yield Observers()
        return
    from rich.console import Console

    from fedvg_jax.study import sweep_progress

    def is_done(point: Point) -> bool:
        return out is not None and sweep_folder.is_done(out, point)

    ordered = sorted(points, key=lambda point: not is_done(point))
    with sweep_progress.sweep_progress(Console(), ordered, sum(map(is_done, points))) as observers:
        yield observers
