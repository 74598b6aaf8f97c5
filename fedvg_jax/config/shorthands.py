"""Shorthands for several settings, `method` and `fidelity`, also as arguments of `Config`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, TypeVar

from fedvg_jax.config import declare, presets
from fedvg_jax.config.declare import as_name
from fedvg_jax.config.methods import ALGORITHMS, PERSONAL, WEIGHTINGS
from fedvg_jax.config.suggestions import suggestion
from fedvg_jax.config.weighting_grammar import parse_weighting
from fedvg_jax.core.types import UsageError

T = TypeVar("T", bound=type)


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
            if value == "fedsgd":
                rows = "a --batch-size of all rows of the largest client"
                raise UsageError(f"method fedsgd is fedavg of one step: --method fedavg --local-epochs 1, and {rows}")
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


def takes_shorthands(config: T) -> T:
    """Returns a dataclass of settings that also takes shorthands, and groups as dicts."""
    make = config.__init__

    @functools.wraps(make)
    def init(self: Any, **settings: Any) -> None:
        make(self, **fields_of(config, settings))

    config.__init__ = init  # pyright: ignore[reportAttributeAccessIssue]
    return config


def fields_of(config: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that some arguments of a dataclass of settings give, `method` and `fidelity` among them.

    Settings given beside a shorthand win.

    Args:
        config: the dataclass.
        settings: the arguments. A group is its dataclass, or a dict of the settings to change.
    """
    names: set[str] = {field.name for field in dataclasses.fields(config)}
    groups = declare.groups(config)
    given = {name: value for name, value in settings.items() if value is not None or name not in presets.SHORTHANDS}
    shorthands = given.keys() & presets.SHORTHANDS.keys()
    if shorthands and given.keys() >= names:
        raise UsageError(f"dataclasses.replace cannot apply {' and '.join(shorthands)}; give it to Config(...)")
    flat = {}
    for name, value in given.items():
        if isinstance(value, Mapping) and name in groups:
            flat |= {f"{name}.{inner}": v for inner, v in value.items()}
        else:
            flat[name] = value
    fields, inner = {}, {}
    for name, value in with_meaning(flat).items():
        group, _, last = name.partition(".")
        if group not in names or (last and group not in groups):
            synonyms = {known: setting.facts.also for known, setting in declare.table(config).items()}
            hint = suggestion(name, [*names, *presets.SHORTHANDS], synonyms)
            raise UsageError(f"unknown setting '{name}'{hint}")
        if last:
            inner.setdefault(group, {})[last] = value
        else:
            fields[name] = value
    for name, values in inner.items():
        is_known = values.keys() <= groups[name].__dataclass_fields__.keys()  # others are refused by the checks
        fields.setdefault(name, groups[name](**values) if is_known else values)
    return fields
