"""Settings from TOML files, with the names of `Config`: keys, and a `[table]` for a group such as `[fedvg]`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvg_jax.config.options import GROUPS
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files

MAX_FILE_SIZE = 2**20
"""Most characters of a file of settings; a device such as /dev/zero has no end."""


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


def dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the settings of nested tables by dotted name; an empty table of a group has none.

    Another empty table stays a value, which no setting accepts.

    >>> dotted({"lr": 0.1, "fedvg": {"norm": "l2"}, "fedprox": {}, "rounds": {}})
    {'lr': 0.1, 'fedvg.norm': 'l2', 'rounds': {}}
    """
    flat: dict[str, Any] = {}
    for name, value in table.items():
        is_table = isinstance(value, dict) and (value or prefix + name in GROUPS)
        flat |= dotted(value, f"{prefix}{name}.") if is_table else {prefix + name: value}
    return flat
