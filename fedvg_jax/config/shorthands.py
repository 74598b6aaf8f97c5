"""Shorthands for several settings, `method` and `fidelity`, also as arguments of `Config`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from fedvg_jax.config import former, presets
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


def fields_of(args: Sequence[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns every field of a `Config` that is made with some arguments, `method` and `fidelity` among them.

    Settings given beside a shorthand win. A group may be given as a dict of the settings to change.
    """
    fields = {field.name: field for field in dataclasses.fields(Config)}
    positional = dict(zip(fields, args, strict=False))
    if twice := positional.keys() & settings.keys():
        raise UsageError(f"Config takes {min(twice)} by position or by name; got both")
    meant = {name: settings[name] for name in presets.SHORTHANDS if settings.get(name) is not None}
    own = {name: value for name, value in settings.items() if name not in presets.SHORTHANDS} | positional
    if meant and own.keys() >= fields.keys():
        raise UsageError(f"dataclasses.replace cannot apply {' and '.join(meant)}; give it to Config(...)")
    is_native = registered("weighting", own.get("weighting")) == "native"
    if "method" in meant and is_native and "algorithm" not in own:
        del own["weighting"]  # the method's own
    meant = meaning(meant)
    own = former.current(_dotted(own), "Config", meant.get("departures", ""))
    unknown = next((name for name in own if name.partition(".")[0] not in fields), None)
    if unknown is not None:
        raise UsageError(f"unknown setting '{unknown}'{name_hint(unknown, [*fields, *presets.SHORTHANDS])}")
    result = {name: field.default for name, field in fields.items() if name not in GROUPS}
    result |= {name: value for name, value in {**meant, **own}.items() if "." not in name}
    for name, group in GROUPS.items():
        inner = {**_inside(meant, name), **_inside(own, name)}
        is_known = inner.keys() <= group.__dataclass_fields__.keys()  # others are refused when the settings are checked
        result[name] = own.get(name, group(**inner) if is_known else inner)
    return result


@functools.wraps(Config.__init__)
def _construct(self: Config, *args: Any, **settings: Any) -> None:
    for name, value in fields_of(args, settings).items():
        object.__setattr__(self, name, value)


Config.__init__ = _construct


def _dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings by dotted name, where a group is given as a dict."""
    flat = {}
    for name, value in settings.items():
        is_group = name in GROUPS and isinstance(value, Mapping)
        flat |= {f"{name}.{inner}": v for inner, v in value.items()} if is_group else {name: value}
    return flat


def _inside(settings: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Returns the settings of a group by their names in it."""
    return {name.removeprefix(f"{group}."): v for name, v in settings.items() if name.startswith(f"{group}.")}
