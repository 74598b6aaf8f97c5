"""Axes whose values have names: objects from Python, and methods that bundle objects and settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedvg_jax.config.methods import ALGORITHMS, NATIVE, WEIGHTINGS
from fedvg_jax.config.options import registered
from fedvg_jax.config.presets import METHODS, meaning
from fedvg_jax.config.weighting_grammar import method_of
from fedvg_jax.core.types import Algorithm, Selection, Send, Task, UsageError, Weighting

OBJECTS = ("weighting", "algorithm", "task", "selection", "aggregate", "send", "attack")
"""Arguments of a run that take objects from Python, which may be values of axes."""

AXES = {{"aggregate": "robust"}.get(argument, argument): argument for argument in OBJECTS}
"""Axis, which has the name of the setting -> argument."""

KNOWN = (*ALGORITHMS, NATIVE, *WEIGHTINGS)
"""Names of algorithms and weightings."""


class Method(NamedTuple):
    """A value of the axis "method" of `run_sweep`: objects, texts and settings that are compared under one name.

    What it leaves out is as in the sweep's settings. Settings on other axes, and tuned ones, override its own.

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


class Bundle(NamedTuple):
    """What a name on an axis stands for."""

    objects: Mapping[str, Any]
    """argument of a run -> object from Python, or hyperparameters"""
    settings: Mapping[str, Any]
    """setting, or "method" -> value"""


Bundles = Mapping[str, Mapping[str, Bundle]]
"""Axis -> name on it -> what that stands for."""


def name_values(axes: Any) -> tuple[dict[Any, Any], dict[str, dict[str, Bundle]]]:
    """Returns axes with names in place of values, and what these names stand for.

    The values of an axis of `AXES`, or of "method", are a dict, name -> object or setting, or a list, in which a
    function has its own name.

    Raises:
        UsageError: a value has no name, the name of another one, or one that means a value of the setting.

    >>> def root(task): ...
    >>> plain, bundles = name_values({"weighting": {"root": root, "baseline": "samples"}, "seed": "0:2"})
    >>> plain, bundles["weighting"]["baseline"].settings
    ({'weighting': ['root', 'baseline'], 'seed': '0:2'}, {'weighting': 'samples'})
    """
    if not isinstance(axes, Mapping):
        raise UsageError(
            f"axes must be a dict of settings with their values; got {type(axes).__name__}"
        )
    plain, bundles = dict(axes), {}
    for axis in (*AXES, "method"):
        values = axes.get(axis, "")
        listed = (
            values if isinstance(values, (list, tuple)) and not _is_object(values) else [values]
        )
        if not isinstance(values, Mapping) and all(isinstance(value, str) for value in listed):
            continue
        if not values:
            raise UsageError(f"axes: {axis} has no values; give names with objects")
        named = (
            values.items() if isinstance(values, Mapping) else [(_name(axis, v), v) for v in listed]
        )
        originals: dict[str, Any] = {}
        for name, value in named:
            if not name or not isinstance(name, str) or name == "<lambda>":
                raise UsageError(
                    f"axes: an object of {axis} has no name; give a dict, name -> object"
                )
            if _means_another(axis, name, value) or originals.setdefault(name, value) is not value:
                raise UsageError(
                    f"axes: {axis} {name} is the name of another {axis}; give it one of its own"
                )
        plain[axis] = list(originals)
        bundles[axis] = {name: _bundle(axis, value) for name, value in originals.items()}
    return plain, bundles


def _is_object(value: Any) -> bool:
    """Returns whether a value is a named tuple, such as an algorithm, and not a list of values."""
    return hasattr(value, "_fields")


def _name(axis: str, value: Any) -> str:
    """Returns the name of a value of a list: of a function its own, of a setting its value."""
    return registered(axis, value) if isinstance(value, str) else getattr(value, "__name__", "")


def _means_another(axis: str, name: str, value: Any) -> bool:
    """Returns whether a name is that of a method, an algorithm or a weighting, and the value is something else."""
    if axis == "method":
        return name in METHODS and not (isinstance(value, str) and value.lower() == name)
    if not isinstance(value, str):
        return registered(axis, name) in KNOWN
    if registered(axis, name) == registered(axis, value) or registered(axis, name) not in KNOWN:
        return False
    return method_of("fedavg", value) != registered(axis, name)


def _bundle(axis: str, value: Any) -> Bundle:
    """Returns what a value of an axis stands for."""
    if isinstance(value, str):
        return Bundle({}, {axis: value})
    if axis != "method":
        return Bundle({AXES[axis]: value}, {})
    if not isinstance(value, Method):
        raise UsageError(f"axes: method takes names and fv.Method(...); got {value!r:.100}")
    objects: dict[str, Any] = {"hyper": value.hyper} if value.hyper else {}
    settings = dict(value.settings)
    for setting, argument in AXES.items():
        part = getattr(value, argument)
        if isinstance(part, str):
            settings[setting] = part
        elif part is not None:
            objects[argument] = part
    return Bundle(objects, settings)


def objects_of(bundles: Bundles, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the objects that values of axes stand for, by argument."""
    objects: dict[str, Any] = {}
    for axis, named in bundles.items():
        if values.get(axis) in named:
            objects |= named[values[axis]].objects
    return objects


def names_of(bundles: Bundles, values: Mapping[str, Any]) -> dict[str, str]:
    """Returns the names of the objects that values of axes stand for, by argument."""
    names: dict[str, str] = {}
    for axis, named in bundles.items():
        if values.get(axis) in named:
            objects = named[values[axis]].objects
            names |= {argument: values[axis] for argument in objects if argument in OBJECTS}
    return names


def settings_of(bundles: Bundles, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values of axes as settings: those that names stand for, which other axes override."""
    meant: dict[str, Any] = {}
    for axis, named in bundles.items():
        if values.get(axis) in named:
            meant |= named[values[axis]].settings
    others = {n: v for n, v in values.items() if v not in bundles.get(n, ())}
    return meant | others


def is_custom_method(name: str) -> bool:
    """Returns whether a method's name is a caller's, and none that `--method` takes."""
    try:
        meaning({"method": name})
    except UsageError:
        return True
    return False
