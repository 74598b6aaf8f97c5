"""Axes with named values: objects from Python, and methods that bundle objects and settings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from fedvg_jax.config import Config, options, presets
from fedvg_jax.config.checks import FUNCTIONS, PASSED
from fedvg_jax.config.methods import ALGORITHMS, NATIVE, WEIGHTINGS
from fedvg_jax.config.presets import METHODS
from fedvg_jax.core.types import Algorithm, Selection, Send, Task, UsageError, Weighting
from fedvg_jax.data.partitions.partitioners import Partitioner
from fedvg_jax.resolve.texts import as_settings

PARTITION = "partition"

OF_METHOD = {{"aggregate": "robust"}.get(argument, argument): argument for argument in FUNCTIONS}
"""Axis -> argument that takes objects from Python, of those that a `Method` has."""

AXES = {**OF_METHOD, PARTITION: PARTITION}
"""Axis, which has the name of the setting -> argument that takes objects from Python."""

TAKEN = {"method": METHODS, "weighting": (NATIVE, *WEIGHTINGS), "algorithm": ALGORITHMS}
"""Axis -> names that stand for what the setting of that name takes."""


NO_PART = (
    *options.OF_DATA,
    *("seed", "partition_seed", "clients", "partition", "alpha", "min_samples", "min_samples_rule"),
    *("holdout", "test_ratio", "val_ratio"),
)
"""Settings that no method has, because methods are compared on the same clients."""


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
        settings: dotted setting -> value, of training and server; all methods share seeds, data and clients.

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


class Meaning(NamedTuple):
    """What a name on an axis stands for."""

    objects: dict[str, Any]
    """by argument of a run; "hyper" has their hyperparameters"""
    settings: dict[str, Any]

    @property
    def decided(self) -> set[str]:
        """The settings that it decides, those in whose place it has objects among them."""
        return {*self.settings, *(PASSED.get(argument, argument) for argument in self.objects)}


Named = Mapping[str, Mapping[str, Meaning]]
"""Axis -> custom name on it -> what that stands for."""


def name_values(
    axes: Any, config: Config, tuned: Collection[str] = ()
) -> tuple[dict[Any, Any], dict[str, dict[str, Meaning]]]:
    """Returns axes with names in place of values, and what these names stand for, beside settings of the sweep.

    Values of an axis of `AXES`, or of "method", that are objects stand in a dict, name -> object or setting.

    Raises:
        UsageError: a name is none, or means another value of the setting; or a method has an object of another axis, a
            setting twice, or one of `NO_PART`.

    >>> def root(task): ...
    >>> axes = {"weighting": {"root": root, "baseline": "samples"}, "seed": "0:2"}
    >>> plain, named = name_values(axes, Config())
    >>> plain, named["weighting"]["baseline"].settings
    ({'weighting': ['root', 'baseline'], 'seed': '0:2'}, {'weighting': 'samples'})
    """
    if not isinstance(axes, Mapping):
        raise UsageError(
            f"axes must be a dict of settings with their values; got {type(axes).__name__}"
        )
    plain, named = dict(axes), {}
    for axis in (*AXES, "method"):
        values = axes.get(axis)
        if isinstance(values, Method):  # a tuple, and so a list of values
            values = {}
        if not isinstance(values, Mapping):
            continue
        if not values or any(_is_wrong(axis, *item) for item in values.items()):
            raise UsageError(
                f"axes: {axis} takes a dict, custom name -> object; got the names {list(values)}"
            )
        plain[axis] = list(values)
        custom = {name: value for name, value in values.items() if str(value) != name}
        named[axis] = {name: _meaning(axis, name, value, config) for name, value in custom.items()}
    for name, meaning in named.get("method", {}).items():
        if both := meaning.decided & AXES.keys() & {*axes, *tuned}:
            raise UsageError(
                f"axes: {min(both)} is an axis or tuned, and part of {name}; leave one out"
            )
    return plain, named


def _is_wrong(axis: str, name: Any, value: Any) -> bool:
    """Returns whether a name is none, or one that a setting takes for something else than the value."""
    if not isinstance(name, str) or not name:
        return True
    return name.lower() in TAKEN.get(axis, ()) and str(value) != name.lower()


def _meaning(axis: str, name: str, value: Any, config: Config) -> Meaning:
    """Returns what a value of an axis stands for."""
    if axis == "method" and isinstance(value, str):
        return Meaning({}, {axis: value})
    if axis == PARTITION and not isinstance(value, str | Partitioner):
        raise UsageError(f"axes: partition {name} must be a Partitioner; got {value!r:.100}")
    if axis != "method":
        return _meaning_of(config, {axis: value})
    method = value
    if not isinstance(method, Method):
        raise UsageError(f"axes: method takes names and fv.Method(...); got {value!r:.100}")
    for argument in ("settings", "hyper"):
        if not isinstance(value := getattr(method, argument), Mapping):
            raise UsageError(f"method {name}: {argument} must be a dict; got {value!r:.100}")
    members = {setting: getattr(method, argument) for setting, argument in OF_METHOD.items()}
    parts = _meaning_of(config, members, method.hyper)
    named = {**method.settings, **presets.meaning(method.settings)}
    if twice := parts.decided & named.keys():
        raise UsageError(
            f"method {name}: {min(twice)} stands twice, in settings, too; leave one out"
        )
    if shared := named.keys() & NO_PART:
        raise UsageError(
            f"method {name}: all methods share {min(shared)}; give it to Config, or as an axis"
        )
    return parts._replace(settings={**method.settings, **parts.settings})


def _meaning_of(
    config: Config, members: Mapping[str, Any], hyper: Mapping[str, float] = {}
) -> Meaning:
    """Returns what objects and texts stand for, setting -> either; None is left out."""
    objects, texts = {}, {}
    for setting, member in members.items():
        if isinstance(member, str):
            texts[setting] = member
        elif member is not None:
            objects[AXES[setting]] = member
    if hyper:
        objects["hyper"] = hyper
    of_objects, objects = as_settings(config, objects)
    return Meaning(objects, texts | of_objects)


def chosen(named: Named, values: Mapping[str, Any]) -> Iterator[tuple[str, Meaning]]:
    """Yields the custom names among values of axes, with what they stand for."""
    for axis, meanings in named.items():
        if values.get(axis) in meanings:
            yield values[axis], meanings[values[axis]]
