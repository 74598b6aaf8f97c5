"""Shorthands for several settings, `method` and `fidelity`, and a `Config` that accepts them as arguments."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from fedvg_jax.config import presets
from fedvg_jax.config.io import GROUPS, apply, name_hint
from fedvg_jax.config.options import ALGORITHMS, WEIGHTINGS, Config, registered
from fedvg_jax.config.suggestions import suggestion
from fedvg_jax.config.weighting_grammar import parse_weighting
from fedvg_jax.core.types import UsageError


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
            value = str(registered(name, shorthands[name]))
            is_method = name == "method"
            meant = table.get(value, _composed(value) if is_method else None)
            if value == "fedsgd":
                rows = "a --batch-size of all rows of the largest client"
                raise UsageError(f"method fedsgd is fedavg of one step: --method fedavg --local-epochs 1, and {rows}")
            if meant is None:
                composed = (*ALGORITHMS, *WEIGHTINGS, *presets.PERSONAL, "ALGORITHM+WEIGHTING") if is_method else ()
                raise UsageError(f"unknown {name} {value!r}{suggestion(value, dict.fromkeys((*table, *composed)))}")
            settings |= meant
    return settings


def apply_with_shorthands(
    config: Config, settings: Mapping[str, Any], source: str, method: str | None = None
) -> Config:
    """Returns `config` with some settings replaced, as `io.apply` does; those beside a shorthand win.

    Weighting native beside a method is the method's own, unless an algorithm is given, too.

    Args:
        config, settings, source: as those of `io.apply`; settings may have shorthands.
        method: of settings that were applied earlier; None without one.

    >>> config = apply_with_shorthands(Config(), {"method": "fedvg"}, "file")
    >>> apply_with_shorthands(config, {"weighting": "native"}, "command line", "fedvg").weighting
    'fedvg'
    """
    own = {name: value for name, value in settings.items() if name not in presets.SHORTHANDS}
    method = settings.get("method", method)
    if method is not None and registered("weighting", own.get("weighting")) == "native" and "algorithm" not in own:
        own["weighting"] = meaning({"method": method})["weighting"]
    return apply(config, meaning(settings) | own, source)


def _composed(method: str) -> dict[str, Any] | None:
    """Returns the settings of an algorithm, of a weighting under FedAvg, or of both; None for another text."""
    name, plus, weighting = method.partition("+")
    if name not in ALGORITHMS and name not in presets.PERSONAL:
        name, plus, weighting = "fedavg", "+", method
    try:
        parse_weighting(weighting if plus else "native")
    except UsageError:
        return None
    settings = presets.METHODS.get(name, presets.PERSONAL.get(name, {}))
    algorithm = name if name in ALGORITHMS else "fedavg"
    return {**settings, "algorithm": algorithm, "weighting": weighting or "native"}


_FIELDS = {field.name: field for field in dataclasses.fields(Config)}
_generated = Config.__init__


@functools.wraps(_generated)
def _construct(self: Config, *args: Any, **settings: Any) -> None:
    """Applies the arguments `method` and `fidelity` of `Config`.

    Settings given beside a shorthand win. A group may be given as a dict of the settings to change. Of a group given as
    a dataclass, the values that differ from the defaults win. A default that contradicts the shorthand is refused,
    because whether it was chosen cannot be known.
    """
    given = {name: settings.pop(name, None) for name in presets.SHORTHANDS}
    given = {name: value for name, value in given.items() if value is not None}
    unknown = next((name for name in settings if name not in _FIELDS), None)
    if unknown is not None:
        raise UsageError(f"unknown setting '{unknown}'{name_hint(unknown, [*_FIELDS, *presets.SHORTHANDS])}")
    positional = dict(zip(_FIELDS, args, strict=False))
    if twice := positional.keys() & settings.keys():
        raise UsageError(f"Config takes {min(twice)} by position or by name; got both")
    settings |= positional
    if given and settings.keys() >= _FIELDS.keys():
        raise UsageError(f"dataclasses.replace cannot apply {' and '.join(given)}; give it to Config(...)")
    is_native = registered("weighting", settings.get("weighting")) == "native"
    if "method" in given and is_native and "algorithm" not in settings:
        del settings["weighting"]  # the method's own
    meant = meaning(given)
    for name, group in GROUPS.items():
        inner = {key.removeprefix(f"{name}."): meant.pop(key) for key in [*meant] if key.startswith(f"{name}.")}
        if inner or isinstance(settings.get(name), Mapping):
            settings[name] = _fill_group(name, settings.get(name, {}), group(), inner)
    _generated(self, **{**meant, **settings})


Config.__init__ = _construct


def _fill_group(name: str, given: Any, default: Any, values: Mapping[str, Any]) -> Any:
    """Returns a group of settings: as given, and with a shorthand's values where nothing is given.

    Args:
        name: of the group.
        given: a dict of the settings to change, or the group as a dataclass.
        default: the group with its defaults.
        values: what the shorthand sets.
    """
    if isinstance(given, Mapping):
        names = {f.name for f in dataclasses.fields(default)}
        merged = {**values, **given}
        return dataclasses.replace(default, **merged) if merged.keys() <= names else merged
    if type(given) is not type(default):
        return given  # refused when the settings are checked
    changes = {}
    for inner, value in values.items():
        chosen, usual = getattr(given, inner), getattr(default, inner)
        if chosen == usual and value != usual:
            raise UsageError(
                f"the shorthand sets {name}.{inner} to {value!r}, and the {type(default).__name__} given has"
                f" the default {usual!r}; give {name} as a dict of the settings to change"
            )
        changes[inner] = value if chosen == usual else chosen
    return dataclasses.replace(given, **changes)
