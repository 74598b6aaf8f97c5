"""What a call from Python adds to a sweep: objects in place of settings, and axes of hyperparameters they declare."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fedvg_jax.config.axes import Axis, python_scalar
from fedvg_jax.config.sweep_points import ONLY, Point, name_of
from fedvg_jax.core.types import UsageError
from fedvg_jax.data import cache, user_data
from fedvg_jax.runs import simulation
from fedvg_jax.runs.hyperparameters import merge_hyperparameters

HYPER = "hyper."
"""Prefix of axes of hyperparameters that the given objects declare."""

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
    rows = [{axis.names[0]: value for axis, (value,) in zip(axes, row, strict=True)}
            for row in itertools.product(*(axis.values for axis in axes))]  # fmt: skip
    varying = [axis.names[0] for axis in axes if len(axis.values) > 1]

    def joined(point: Point, row: Mapping[str, Any]) -> Point:
        own = name_of({name: row[name] for name in varying})
        names = [name for name in (point.name, own) if name != ONLY]
        return Point(",".join(names) or ONLY, point.values | dict(row), point.config)

    return [joined(point, row) for point in points for row in rows]


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


def for_point(point: Point, replacements: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `simulation.simulation` for a point: the values on its axes win."""
    own = {name.removeprefix(HYPER): value for name, value in point.values.items() if name.startswith(HYPER)}
    hyper = {**(replacements.get("hyper") or {}), **own}
    return {**replacements, "hyper": hyper} if hyper else dict(replacements)


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
    arguments = [for_point(point, replacements) for point in points]
    if all(value is None for value in arguments[0].values()):
        return
    sim = simulation.simulation(points[0].config, **arguments[0])
    assert sim.algorithm is not None and sim.weighting is not None
    parts = (("algorithm", sim.algorithm), ("weighting", sim.weighting))
    own = tuple(part for name, part in parts if replacements.get(name) is not None)
    for point, argument in zip(points, arguments, strict=True):
        if argument.get("hyper"):
            merge_hyperparameters(point.config, sim.algorithm, sim.weighting, argument["hyper"], own)


def describe(replacements: Mapping[str, Any]) -> dict[str, str]:
    """Returns what identifies given objects: digests of arrays, values, and the names of functions.

    >>> describe({"hyper": {"T": 0.5}, "task": None})
    {'hyper': 'T=0.5'}
    """
    described = {}
    for name, value in replacements.items():
        if value is None:
            continue
        if name == "data":
            arrays = user_data.as_arrays(value)
            described[name] = cache.digest(arrays.x, arrays.y, arrays.groups, tuple(arrays.class_names))
        elif name == "partition":
            is_split = isinstance(value, tuple) and all(isinstance(part, Sequence) for part in value)
            described[name] = cache.digest(*(itertools.chain(*value) if is_split else value))
        elif name == "hyper":
            described[name] = ", ".join(f"{key}={python_scalar(value[key])!r}" for key in sorted(value))
        else:
            parts = value if isinstance(value, tuple) else (value,)
            described[name] = ", ".join(_name_of_function(part) for part in parts if callable(part))
    return described


def _name_of_function(function: Callable) -> str:
    function = getattr(function, "func", function)  # of a partial
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
