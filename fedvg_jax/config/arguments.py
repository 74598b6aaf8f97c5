"""Settings as flags of a command line: `--name VALUE` or `--name=VALUE`, `--name` and `--no-name` of a switch."""

from __future__ import annotations

import argparse
import types
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedvg_jax.config import presets
from fedvg_jax.config.io import SYNONYMS
from fedvg_jax.config.options import SETTINGS
from fedvg_jax.config.suggestions import closest, several_values
from fedvg_jax.core.types import UsageError

NUMBERS = {int: "an integer", float: "a number"}


def given(argv: Sequence[str]) -> list[str]:
    """Returns the settings that are flags of a command line, whatever their values.

    >>> given(["--lr", "0.1", "--fedvg.norm=l2", "--no-dry-run"])
    ['lr', 'fedvg.norm', 'dry_run']
    """
    settings = (_setting(word.partition("=")[0]) for word in argv)
    return list(dict.fromkeys(setting[0] for setting in settings if setting))


def parse(argv: Sequence[str], prog: str) -> dict[str, Any]:
    """Returns the values of a command line by setting, in the settings' types; of a repeated flag, the last.

    Args:
        argv: flags of settings, with one value each. A value that begins with a dash is a number, or follows a "=".
        prog: the command as it is typed, for messages.

    Raises:
        UsageError: a flag is unknown, or its value is not one of the setting's.

    >>> parse(["--lr", "0.1", "--fedvg.norm=l2", "--no-dry-run"], "sim")
    {'lr': 0.1, 'fedvg.norm': 'l2', 'dry_run': False}
    """
    values: dict[str, Any] = {}
    unknown: list[str] = []
    words = list(reversed(argv))
    while words:
        flag, is_joined, text = (word := words.pop()).partition("=")
        name, switched = _setting(flag) or ("", True)
        if not name:
            unknown.append(word)
        elif bool in SETTINGS[name].types:
            values[name] = switched
            unknown += [text] if is_joined else []
        elif not is_joined and (not words or _is_flag(words[-1])):
            raise UsageError(f"{flag} needs a value; one that begins with a dash is written {flag}=VALUE")
        else:
            values[name] = _value(flag, SETTINGS[name].types, text if is_joined else words.pop(), prog)
    if unknown:
        raise UsageError(f"unknown argument {unknown[0][:100]}; {_hint(unknown[0], prog)}")
    return values


def parse_path(text: str) -> Path:
    """Returns the path that a word names, for argparse; an empty one, which Python takes for ".", is refused."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty; name a file or a folder, or . for the current folder")
    return Path(text)


def _setting(flag: str) -> tuple[str, bool] | None:
    """Returns the setting that a flag names, and whether it switches it on; None for other words."""
    return _settings().get(flag[2:].replace("-", "_")) if flag.startswith("--") else None


@cache
def _settings() -> dict[str, tuple[str, bool]]:
    """Returns names of flags -> setting, and False for the flag that switches it off."""
    names: dict[str, tuple[str, bool]] = {}
    for name in SETTINGS:
        if bool in SETTINGS[name].types:
            group, dot, last = name.rpartition(".")
            names[f"{group}{dot}no_{last}"] = name, False
        names[name] = name, True
    return names


def _is_flag(word: str) -> bool:
    """Returns whether a word is not a value: it begins with a dash and is not a number."""
    try:
        float(word)
    except ValueError:
        return word.startswith("-")
    return False


def _value(flag: str, kinds: tuple[type, ...], text: str, prog: str) -> Any:
    """Returns the value of a flag as the first of the types that it can be."""
    if types.NoneType in kinds and text == "None":
        return None
    if types.NoneType in kinds and not text:
        raise UsageError(f"{flag} must not be empty; leave it out, or name . for the current folder")
    for kind in (kind for kind in (int, float, Path, str) if kind in kinds):
        try:
            return kind(text)
        except ValueError:
            continue
    several = several_values(text, lambda part: part.replace(".", "", 1).isdecimal())
    expected = next(NUMBERS[kind] for kind in kinds if kind in NUMBERS)
    shown = f"a text of {len(text):,} characters" if len(text) > 100 else repr(text)
    raise UsageError(f"{flag.replace('_', '-')} must be {expected}; got {shown} ({several or f'{prog} --help'})")


def _hint(word: str, prog: str) -> str:
    """Returns the end of the message about an unknown argument."""
    if not word.startswith("-"):
        return "a flag takes one value here; python -m fedvg_jax.sweep takes several"
    name = word.lstrip("-").partition("=")[0]
    close = closest(name, [*SETTINGS, *presets.SHORTHANDS], SYNONYMS)
    return f"did you mean --{close.replace('_', '-')}?" if close else f"{prog} --help-all lists all"
