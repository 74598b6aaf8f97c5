"""Reads settings: by dotted name, from TOML files, and of any convertible type.

A file has the names of `Config`: top-level keys, and a `[table]` for a nested group such as `[fedvg]`.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedvg_jax.config import declare
from fedvg_jax.config.options import SETTINGS, Config, registered
from fedvg_jax.config.suggestions import suggestion
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files

MAX_FILE_SIZE = 2**20
"""Most characters of a file of settings; a device such as /dev/zero has no end."""

GROUPS = declare.groups(Config)
"""Name of a group -> its dataclass."""

SYNONYMS = {name: setting.facts.also for name, setting in SETTINGS.items()}
"""Setting -> words that other libraries have for it."""


def flatten(config: Config) -> dict[str, Any]:
    """Returns settings by dotted name.

    >>> flatten(Config())["alpha"], flatten(Config())["fedvg.norm"]
    (0.05, 'l1')
    """
    return {name: setting.get(config) for name, setting in SETTINGS.items()}


def name_hint(name: str, allowed: Iterable[str] = SETTINGS) -> str:
    """Returns the end of an error message about an unknown setting, with what is probably meant."""
    return suggestion(name, allowed, SYNONYMS)


def apply(config: Config, settings: Mapping[str, Any], source: str) -> Config:
    """Returns `config` with some settings replaced.

    Args:
        config: the other settings.
        settings: dotted name -> value.
        source: where they come from, for messages.

    Raises:
        UsageError: a name is unknown, or a value has another type.

    >>> apply(Config(), {"fedvg.norm": "l2"}, "example").fedvg.norm
    'l2'
    """
    changes: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name not in SETTINGS:
            hint = f"; it is a table, [{name}]" if name in GROUPS else name_hint(name)
            raise UsageError(f"{source}: unknown setting '{name[:100]}'{hint}")
        group, _, last = name.rpartition(".")
        changes.setdefault(group, {})[last] = _typed(SETTINGS[name].types, registered(name, value), f"{source}: {name}")
    replaced = changes.pop("", {})
    replaced |= {group: dataclasses.replace(getattr(config, group), **inner) for group, inner in changes.items()}
    return dataclasses.replace(config, **replaced) if replaced else config


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the settings of a TOML file by dotted name.

    Raises:
        UsageError: the file cannot be read, or is not TOML.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:  # a pipe, too, such as a shell's <(command)
            text = file.read(MAX_FILE_SIZE + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the config file {path}: {files.reason(error)}; check --config") from None
    if len(text) > MAX_FILE_SIZE:
        raise UsageError(f"{path} is not a file of settings: it has more than {MAX_FILE_SIZE:,} characters")
    try:
        return dotted(tomllib.loads(text))
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or brackets in brackets
        hint = "; paths with \\ stand in single quotes" if "\\" in text else ""
        raise UsageError(f"{path} is not valid TOML: {error}{hint}") from None


def typed(config: Any) -> Config:
    """Returns `config` with every value converted to its field's type, as from a file or the command line.

    A mapping is converted to a group of settings, an int to a float, a string to a path, and a NumPy or JAX scalar to
    its number.

    Raises:
        UsageError: a value has another type, or a group has an unknown name.
    """
    if not isinstance(config, Config):
        raise UsageError(f"config must be a fedvg_jax.Config; got {_shown(config)}")
    given: dict[str, Any] = {}
    for name, group in GROUPS.items():
        value = getattr(config, name)
        if isinstance(value, Mapping):
            given |= {f"{name}.{key}": inner for key, inner in value.items()}
            config = dataclasses.replace(config, **{name: group()})
        elif type(value) is not group:
            raise UsageError(f"Config: {name} must be a {group.__name__} or a dict; got {_shown(value)}")
    return apply(config, flatten(config) | given, "Config")


def _typed(allowed: tuple[type, ...], value: Any, where: str) -> Any:
    """Returns `value` as one of the types `allowed`: an int becomes a float or text, a string a path or a count."""
    if not isinstance(value, allowed):
        value = python_scalar(value)
    if {int, str} <= {*allowed} and isinstance(value, str) and re.fullmatch(r"[1-9]\d{0,8}", value, re.ASCII):
        return int(value)
    if value == "" and type(None) in allowed:
        raise UsageError(f"{where} must not be empty; leave it out")
    if isinstance(value, allowed) and (bool in allowed or not isinstance(value, bool)):
        return value
    if float in allowed and type(value) is int and abs(value) < 2**1000:
        return float(value)
    if Path in allowed and type(value) is str:
        return Path(value)
    if str in allowed and type(value) is int:
        return str(value)
    names = " or ".join(t.__name__ for t in allowed if t is not type(None))
    article = "an" if names.startswith("int") else "a"
    raise UsageError(f"{where} must be {article} {names}; got {_shown(value)}")


def _shown(value: Any) -> str:
    """Returns a value for a message; Python refuses to write an int of thousands of digits."""
    return "a number too large" if type(value) is int and abs(value) >= 2**1000 else repr(value)[:100]


def dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the settings of nested tables by dotted name.

    An empty table that is not a group stays a value, which no setting accepts.

    >>> dotted({"lr": 0.1, "fedvg": {"norm": "l2"}, "fedprox": {}, "rounds": {}})
    {'lr': 0.1, 'fedvg.norm': 'l2', 'rounds': {}}
    """
    flat: dict[str, Any] = {}
    for name, value in table.items():
        is_table = isinstance(value, dict) and (value or prefix + name in GROUPS)
        flat |= dotted(value, f"{prefix}{name}.") if is_table else {prefix + name: value}
    return flat


def python_scalar(value: Any) -> Any:
    """Returns a scalar of NumPy or jax, which are not imported here, as a Python number; other values as they are."""
    return value.item() if getattr(value, "ndim", None) == 0 else value
