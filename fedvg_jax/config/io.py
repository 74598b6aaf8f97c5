"""Reads settings: by dotted name, from TOML files, and of any convertible type.

A file has the names of `Config`: top-level keys, and a `[table]` for a nested group such as `[fedvg]`.
"""

from __future__ import annotations

import dataclasses
import functools
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvg_jax.config.options import Config
from fedvg_jax.config.suggestions import suggestion
from fedvg_jax.core.types import UsageError

MAX_FILE_SIZE = 2**20
"""Most characters of a file of settings; a device such as /dev/zero has no end."""

_GROUPS = {f.name for f in dataclasses.fields(Config) if dataclasses.is_dataclass(f.default_factory)}


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Returns settings by dotted name.

    Args:
        config: a dataclass of settings.
        prefix: before every name, e.g. "fedvg.".

    >>> flatten(Config())["alpha"], flatten(Config())["fedvg.norm"]
    (0.05, 'l1')
    """
    flat: dict[str, Any] = {}
    for name in _field_names(type(config)):
        value = getattr(config, name)
        if hasattr(type(value), "__dataclass_fields__"):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


@functools.cache
def _field_names(group: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(group))


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
    current = flatten(config)
    changes: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name not in current:
            raise UsageError(f"{source}: unknown setting '{name[:100]}'{suggestion(name, current)}")
        group, _, last = name.rpartition(".")
        hints = _hints(type(getattr(config, group) if group else config))
        changes.setdefault(group, {})[last] = _typed(hints[last], value, f"{source}: {name}")
    replaced = changes.pop("", {})
    replaced |= {group: dataclasses.replace(getattr(config, group), **inner) for group, inner in changes.items()}
    return dataclasses.replace(config, **replaced) if replaced else config


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the settings of a TOML file by dotted name.

    Raises:
        UsageError: the file cannot be read, or is not TOML.
    """
    try:
        with path.open(encoding="utf-8") as file:  # a pipe, too, such as a shell's <(command)
            text = file.read(MAX_FILE_SIZE + 1)
        if len(text) > MAX_FILE_SIZE:
            raise UsageError(f"{path} is not a file of settings: it has more than {MAX_FILE_SIZE:,} characters")
        return dotted(tomllib.loads(text))
    except UsageError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the config file {path}: {_reason(error)}; check --config") from None
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or brackets in brackets
        raise UsageError(f"{path} is not valid TOML: {error}") from None


def typed(config: Any) -> Config:
    """Returns `config` with every value converted to its field's type, as from a file or the command line.

    A mapping is converted to a group of settings, an int to a float, a string to a path, and a NumPy or JAX scalar to
    its number.

    Raises:
        UsageError: a value has another type, or a group has an unknown name.
    """
    if not isinstance(config, Config):
        raise UsageError(f"config must be a fedvg_jax.Config; got {_shown(config)}")
    defaults = Config()
    groups = {f.name: getattr(defaults, f.name) for f in dataclasses.fields(Config)}
    changed: dict[str, Any] = {}
    for name, default in groups.items():
        value = getattr(config, name)
        if not dataclasses.is_dataclass(default) or isinstance(default, type):
            changed[name] = _typed(_hints(Config)[name], value, f"Config: {name}")
        elif isinstance(value, Mapping):
            inner = {f"{name}.{key}": _scalar(v) for key, v in value.items()}
            changed[name] = getattr(apply(Config(), inner, "Config"), name)
        elif type(value) is type(default):
            hints = _hints(type(value)).items()
            inner = {key: _typed(hint, getattr(value, key), f"Config: {name}.{key}") for key, hint in hints}
            changed[name] = dataclasses.replace(value, **inner)
        else:
            raise UsageError(f"Config: {name} must be a {type(default).__name__} or a dict; got {_shown(value)}")
    return dataclasses.replace(config, **changed)


@functools.cache
def _hints(group: type) -> dict[str, Any]:
    return typing.get_type_hints(group)


def _scalar(value: Any) -> Any:
    """Returns the number of a NumPy or JAX scalar; any other value unchanged."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def _typed(hint: Any, value: Any, where: str) -> Any:
    """Returns `value` as the type `hint`: an int becomes a float or text, and a string a path."""
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if not isinstance(value, allowed):
        value = _scalar(value)
    if value == "" and types.NoneType in allowed:
        raise UsageError(f"{where} must not be empty; leave it out, or name . for the current folder")
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
        is_table = isinstance(value, dict) and (value or prefix + name in _GROUPS)
        flat |= dotted(value, f"{prefix}{name}.") if is_table else {prefix + name: value}
    return flat


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
