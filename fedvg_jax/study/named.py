"""Axes with named values: objects from Python, and methods that bundle objects and settings."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, NamedTuple

from fedvg_jax.config.methods import ALGORITHMS, NATIVE, WEIGHTINGS
from fedvg_jax.config.presets import METHODS, meaning
from fedvg_jax.core.types import Algorithm, Selection, Send, Task, UsageError, Weighting

OBJECTS = ("weighting", "algorithm", "task", "selection", "aggregate", "send", "attack")
"""Arguments of a run that take objects from Python, which may be values of axes."""

AXES = {{"aggregate": "robust"}.get(argument, argument): argument for argument in OBJECTS}
"""Axis, which has the name of the setting -> argument."""

TAKEN = {"method": METHODS, "weighting": (NATIVE, *WEIGHTINGS), "algorithm": ALGORITHMS}
"""Axis -> names that stand for what the setting of that name takes."""


class Method(NamedTuple):
    """A value of the axis "method" of `run_sweep`: objects, texts and settings that are compared under one name.

    What it leaves out is as in the sweep's settings. Settings on other axes, and tuned ones, override the method's.

    Args:
        algorithm: an object, or a text as `--algorithm` takes it.
        weighting: an object, a function task -> `Weighting`, or a text as `--weighting` takes it.
        task: a model and its loss.
        selection: an object, or a text as `--selection` takes it.
        aggregate: a robust rule, or a text as `--robust` takes it.
        send: an object, or a text as `--send` takes it.
        attack: what a corrupt client returns, or a text as `--attack` takes it.
        hyper: name -> value of hyperparameters that the objects declare.
        settings: dotted setting -> value.

    >>> Method(algorithm="scaffold", weighting="uniform", settings={"lr": 0.05}).algorithm
    'scaffold'
    """

    algorithm: Algorithm | str | None = None
    weighting: Weighting | Any | None = None
    task: Task | None = None
    selection: Selection | str | None = None
    aggregate: Any = None
    send: Send | str | None = None
    attack: Any = None
    hyper: Mapping[str, float] = {}
    settings: Mapping[str, Any] = {}


Named = Mapping[str, Mapping[str, Method]]
"""Axis -> name on it -> what that stands for; an object on the axis "weighting" is a method with this weighting."""


def name_values(axes: Any) -> tuple[dict[Any, Any], dict[str, dict[str, Method]]]:
    """Returns axes with names in place of values, and what these names stand for.

    Values of an axis of `AXES`, or of "method", that are objects stand in a dict, name -> object or setting.

    Raises:
        UsageError: a name is none, or means another value of the setting.

    >>> def root(task): ...
    >>> plain, named = name_values({"weighting": {"root": root, "baseline": "samples"}, "seed": "0:2"})
    >>> plain, named["weighting"]["baseline"].weighting
    ({'weighting': ['root', 'baseline'], 'seed': '0:2'}, 'samples')
    """
    if not isinstance(axes, Mapping):
        raise UsageError(
            f"axes must be a dict of settings with their values; got {type(axes).__name__}"
        )
    plain, named = dict(axes), {}
    for axis in (*AXES, "method"):
        values = axes.get(axis)
        if not isinstance(values, Mapping):
            continue
        if not values or any(_is_wrong(axis, *item) for item in values.items()):
            raise UsageError(
                f"axes: {axis} takes a dict, name of your own -> object; got the names {list(values)}"
            )
        plain[axis] = list(values)
        named[axis] = {name: _as_method(axis, value) for name, value in values.items()}
    return plain, named


def _is_wrong(axis: str, name: Any, value: Any) -> bool:
    """Returns whether a name is none, or one that a setting takes for something else than the value."""
    if not isinstance(name, str) or not name:
        return True
    is_same = isinstance(value, str) and value == name.lower()
    return name.lower() in TAKEN.get(axis, ()) and not is_same


def _as_method(axis: str, value: Any) -> Method:
    """Returns what a value of an axis stands for."""
    if axis != "method":
        return Method(**{AXES[axis]: value})
    if not isinstance(value, (str, Method)):
        raise UsageError(f"axes: method takes names and fv.Method(...); got {value!r:.100}")
    return Method(settings={axis: value}) if isinstance(value, str) else value


def _chosen(named: Named, values: Mapping[str, Any]) -> dict[str, Method]:
    """Returns axis -> what the name on it stands for."""
    return {axis: methods[values[axis]] for axis, methods in named.items() if axis in values}


def objects_in(method: Method) -> dict[str, Any]:
    """Returns the objects of a method by argument of a run, with its hyperparameters."""
    parts = {argument: getattr(method, argument) for argument in OBJECTS}
    objects = {n: part for n, part in parts.items() if not isinstance(part, (str, NoneType))}
    return objects | ({"hyper": method.hyper} if method.hyper else {})


def objects_of(named: Named, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the objects that values of axes stand for, by argument of a run."""
    objects: dict[str, Any] = {}
    for method in _chosen(named, values).values():
        objects |= objects_in(method)
    return objects


def names_of(named: Named, values: Mapping[str, Any]) -> dict[str, str]:
    """Returns the names of the objects that values of axes stand for, by argument of a run."""
    names: dict[str, str] = {}
    for axis, method in _chosen(named, values).items():
        names |= {name: values[axis] for name in objects_in(method) if name != "hyper"}
    return names


def settings_of(named: Named, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values of axes as settings: those that names stand for, which other axes override."""
    meant: dict[str, Any] = {}
    for method in _chosen(named, values).values():
        meant |= method.settings
        for setting, argument in AXES.items():
            part = getattr(method, argument)
            meant |= {setting: part} if isinstance(part, str) else {}
    return meant | {name: value for name, value in values.items() if name not in named}


def is_custom_method(name: str) -> bool:
    """Returns whether a method's name is a caller's, and none that `--method` takes."""
    try:
        meaning({"method": name})
    except UsageError:
        return True
    return False
