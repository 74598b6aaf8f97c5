"""Texts of `--help` and `--help-all`, from the dataclasses that declare the settings. No jax."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedvg_jax.config import presets
from fedvg_jax.config.declare import descriptions
from fedvg_jax.config.options import SETTINGS, WEIGHTINGS, Config

WIDTH = 79
"""Columns of the texts: they fit a terminal of 80."""

INDENT = 24
"""Column at which descriptions start."""

PLACEHOLDERS = {str: "TEXT", int: "INT", float: "FLOAT"}
"""Type of a setting -> word for its value."""

OPEN_CHOICES = {
    "dataset": (*presets.DATASETS, *presets.OUTSIDE.values()),
    "weighting": (*WEIGHTINGS, "permuted(NAME)", "NAME+NAME"),
    "method": (*(name for name in presets.METHODS if "+" not in name), "uniform", "ALGORITHM+WEIGHTING"),
    "fidelity": tuple(presets.FIDELITY),
}
"""Option -> its allowed names, where a setting declares none."""


class Option(NamedTuple):
    """One option of the command line."""

    name: str
    """Dotted name of the setting."""
    placeholder: str
    """Word for its value; empty for a flag without one."""
    text: str
    """Description in sentences; the first stands alone."""
    default: Any
    choices: tuple[str, ...] = ()
    """Allowed names."""
    allowed: str = ""
    """Allowed range, in words."""
    topic: str = ""
    is_common: bool = False
    """Whether `--help` shows it."""

    @property
    def flag(self) -> str:
        """The option as it is typed."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def summary(self) -> str:
        """The first sentence of the description, and the one on the default where there is one."""
        first, *others = re.split(r"(?<=\.) ", self.text)
        return " ".join([first, *(sentence for sentence in others if sentence.startswith("Default:"))])


def common_options(command: str, purpose: str, examples: str) -> str:
    """Returns the text of `--help`: the options that most runs need.

    Args:
        command: as it is typed, e.g. "python -m fedvg_jax.sim".
        purpose: one sentence about the command.
        examples: indented lines.
    """
    parts = [f"usage: {command} [OPTIONS]", _wrap(purpose), f"Examples:\n{examples}"]
    parts += [_section(title, options, is_long=False) for title, options in _topics(lambda o: o.is_common)]
    parts.append(
        _wrap(
            "Defaults are those of the digits demonstration; each data set has its own preset. A TOML file overrides"
            " the preset, --method and --fidelity override the file, and other options override them all."
        )
    )
    parts.append(f"All options: {command} --help-all")
    return "\n\n".join(parts)


def all_options(command: str, purpose: str) -> str:
    """Returns the text of `--help-all`: every option with its full description."""
    sections = [_section(title, options, is_long=True) for title, options in _topics(lambda o: True)]
    return "\n\n".join([f"usage: {command} [OPTIONS]", _wrap(purpose), *sections])


def show_default(value: Any) -> str:
    """Returns a default as it is typed on a command line.

    >>> show_default(0.1), show_default(None), show_default(False)
    ('0.1', 'none', 'off')
    """
    if value is None or value == "":
        return "none"
    return "off" if value is False else str(value)


def _topics(shows: Callable[[Option], bool]) -> list[tuple[str, list[Option]]]:
    """Returns the headings, and the options below each that are shown."""
    by_topic: dict[str, list[Option]] = {}
    for option in options():
        if shows(option):
            by_topic.setdefault(option.topic, []).append(option)
    return list(by_topic.items())


def options() -> list[Option]:
    """Returns the shorthands and all settings as options."""
    texts = descriptions(Config)
    defaults = {"fidelity": "corrected"}
    made = [
        Option(name, "NAME", texts[name], defaults.get(name), OPEN_CHOICES[name], topic="Method", is_common=True)
        for name in presets.SHORTHANDS
    ]
    for name, setting in SETTINGS.items():
        facts, choices = setting.facts, OPEN_CHOICES.get(name) or setting.names
        word = "NAME" if choices else facts.word or "|".join(PLACEHOLDERS.get(kind, "") for kind in setting.types)
        allowed = setting.range.words if setting.range else ""
        made.append(Option(name, word, texts[name], setting.default, choices, allowed, facts.topic, facts.is_common))
    return made


def _section(title: str, options: Sequence[Option], is_long: bool) -> str:
    texts = (_entry(option, option.text if is_long else option.summary, is_long) for option in options)
    return "\n".join([f"{title}:", *texts])


def _entry(option: Option, text: str, with_range: bool) -> str:
    """Returns flag, value word, description, choices and default, wrapped with a hanging indent."""
    facts = [f"Choices: {', '.join(option.choices)}."] if option.choices else []
    if with_range and option.allowed and option.allowed not in text:
        facts.append(f"Allowed: {option.allowed}.")
    is_off = option.default is None or option.default is False or option.default == ""
    if not is_off and "Default:" not in text:
        facts.append(f"Default: {show_default(option.default)}.")
    head = f"  {option.flag} {option.placeholder}".rstrip()
    body = textwrap.wrap(" ".join([text, *facts]), WIDTH - INDENT, break_long_words=False, break_on_hyphens=False)
    indented = [" " * INDENT + line for line in body]
    if len(head) < INDENT - 1:
        indented[0] = head.ljust(INDENT) + body[0]
        return "\n".join(indented)
    return "\n".join([head, *indented])


def _wrap(text: str) -> str:
    return "\n".join(textwrap.wrap(" ".join(text.split()), WIDTH))
