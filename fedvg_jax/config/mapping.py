"""From names and values to settings: the one way of files, flags, axes, run folders and calls from Python.

The shorthands `method` and `fidelity` stand for several settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from fedvg_jax.config import declare, presets
from fedvg_jax.config.declare import as_name, suggestion
from fedvg_jax.config.methods import ALGORITHMS, PERSONAL, WEIGHTINGS
from fedvg_jax.config.weighting_grammar import parse_weighting
from fedvg_jax.core.types import UsageError

T = TypeVar("T")


def meaning(shorthands: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings, by dotted name, that the given shorthands stand for.

    Raises:
        UsageError: the value of a shorthand is unknown.

    >>> meaning({"method": "fedprox"})
    {'algorithm': 'fedprox', 'weighting': 'native', 'fedprox.mu': 0.01}
    >>> meaning({"method": "uniform"}), meaning({"method": "fednova+val_loss"})
    ({'algorithm': 'fedavg', 'weighting': 'uniform'}, {'algorithm': 'fednova', 'weighting': 'val_loss'})
    """
    settings = {}
    for name, table in presets.SHORTHANDS.items():
        if name in shorthands:
            value = as_name(str(shorthands[name]))
            is_method = name == "method"
            meant = table.get(value, _composed(value) if is_method else None)
            if meant is None:
                composed = (*ALGORITHMS, *WEIGHTINGS, *PERSONAL, "ALGORITHM+WEIGHTING") if is_method else ()
                raise UsageError(f"unknown {name} {value!r}{suggestion(value, dict.fromkeys((*table, *composed)))}")
            settings |= meant
    return settings


def with_meaning(settings: Mapping[str, Any], method: str | None = None) -> dict[str, Any]:
    """Returns settings with those that their shorthands stand for; the ones beside a shorthand win.

    Weighting native beside a method is the method's own, unless an algorithm is given, too.

    Args:
        settings: by dotted name; may have shorthands.
        method: of settings that were given earlier; None without one.

    >>> with_meaning({"weighting": "native"}, "fedvg")
    {'weighting': 'fedvg'}
    """
    own = {name: value for name, value in settings.items() if name not in presets.SHORTHANDS}
    method = settings.get("method", method)
    if method is not None and str(own.get("weighting")).lower() == "native" and "algorithm" not in own:
        own["weighting"] = meaning({"method": method})["weighting"]
    return meaning(settings) | own


def _composed(method: str) -> dict[str, Any] | None:
    """Returns the settings of an algorithm, of a weighting under FedAvg, or of both; None for another text."""
    name, plus, weighting = method.partition("+")
    if name not in ALGORITHMS and name not in PERSONAL:
        name, plus, weighting = "fedavg", "+", method
    try:
        parse_weighting(weighting if plus else "native")
    except UsageError:
        return None
    settings = PERSONAL[name].settings if name in PERSONAL else presets.METHODS.get(name, {})
    algorithm = name if name in ALGORITHMS else "fedavg"
    return {**settings, "algorithm": algorithm, "weighting": weighting or "native"}


def fields(config: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns every field of a dataclass of settings, from the arguments of its constructor.

    Settings given beside a shorthand win. Where all are given, as by `dataclasses.replace`, the shorthand wins.

    Args:
        config: the dataclass.
        settings: name -> value. A group is its dataclass, or a dict of the settings to change.

    Raises:
        UsageError: a name is unknown, or a value has another type.
    """
    groups, names = declare.groups(config), [field.name for field in dataclasses.fields(config)]
    given = {}
    for name, value in settings.items():
        if name in groups and not isinstance(value, groups[name] | Mapping):
            got = declare.shown(value)
            raise UsageError(f"Config: {name} must be a {groups[name].__name__} or a dict; got {got}")
        inner = (value if isinstance(value, Mapping) else vars(value)) if name in groups else None
        given |= {name: value} if inner is None else {f"{name}.{key}": own for key, own in inner.items()}
    meant = {name: given.pop(name, None) for name in presets.SHORTHANDS}
    meant = {name: value for name, value in meant.items() if value is not None}
    given = given | meaning(meant) if settings.keys() >= {*names} else with_meaning(given | meant)
    values = _typed(config, given, "Config")
    result = {name: values.get(name, declared.default) for name, declared in declare.table(config).items()}
    return {name: result[name] for name in names if name not in groups} | {
        group: made(**{field.name: result[f"{group}.{field.name}"] for field in dataclasses.fields(made)})
        for group, made in groups.items()
    }


def apply(config: T, settings: Mapping[str, Any], source: str, method: str | None = None) -> T:
    """Returns `config` with some settings replaced.

    Args:
        config: the other settings.
        settings: dotted name -> value; may have shorthands, beside which the other settings win.
        source: where they come from, for messages.
        method: the shorthand that an earlier source gave; None without one.

    Raises:
        UsageError: a name is unknown, or a value has another type.

    >>> from fedvg_jax.config import Config
    >>> apply(Config(), {"fedvg.norm": "l2"}, "example").fedvg.norm
    'l2'
    """
    changes: dict[str, Any] = {}
    for name, value in _typed(type(config), with_meaning(settings, method), source).items():
        group, _, last = name.rpartition(".")
        changes.setdefault(group, {})[last] = value
    replaced = changes.pop("", {})
    replaced |= {group: dataclasses.replace(getattr(config, group), **inner) for group, inner in changes.items()}
    return dataclasses.replace(config, **replaced) if replaced else config  # pyright: ignore[reportArgumentType]


def _typed(config: type, settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Returns settings by dotted name in their types."""
    table = declare.table(config)
    for name in settings:
        if name not in table:
            is_group = name in declare.groups(config)
            hint = f"; it is a table, [{name}]" if is_group else suggestion(name, [*table, *presets.SHORTHANDS])
            raise UsageError(f"{source}: unknown setting '{str(name)[:100]}'{hint}")
    return {name: table[name].typed(value, f"{source}: {name}") for name, value in settings.items()}
