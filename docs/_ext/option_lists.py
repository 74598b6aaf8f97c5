"""Lists of the command line's options, from the dataclasses that declare them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fedvg_jax.config import SETTINGS, Config, presets
from fedvg_jax.config.declare import Setting, descriptions

KINDS = {str: "text", int: "integer", float: "number", Path: "path"}
"""A setting's type -> the word for it."""


def options() -> str:
    """Every option, under headings by topic."""
    texts, topics = descriptions(Config), {}
    for name, setting in SETTINGS.items():
        topics.setdefault(setting.facts.topic, []).append(entry(name, setting, texts[name]))
    return "\n".join("\n".join([f"## {topic}", "", *entries, ""]) for topic, entries in topics.items())


def entry(name: str, setting: Setting, text: str) -> str:
    """`--flag` TYPE, DEFAULT: the description and the allowed values."""
    flag = "--" + name.replace("_", "-")
    kinds = [KINDS[kind] for kind in setting.types if kind in KINDS]
    kind = f" *{' or '.join(kinds)}*" if kinds else ""
    default = "" if setting.default in (None, "") else f", {shown(setting.default)}"
    allowed = ", ".join(f"`{value}`" for value in setting.names) if setting.names else ""
    if setting.range and not allowed:
        allowed = escape(setting.range.words)
    return f"- `{flag}`{kind}{default}: {escape(text)}" + f" Allowed: {allowed}." * bool(allowed)


def shown(value: Any) -> str:
    """A default as it is written on a command line."""
    return "off" if value is False else f"`{value}`"


def escape(text: str) -> str:
    """Plain text as Markdown that shows it unchanged."""
    return re.sub(r"([\\*_\[\]<>|~$])", r"\\\1", text)


def methods() -> str:
    """`--method NAME` -> the settings it stands for, of the base methods and FedVG."""
    bases = {name: settings for name, settings in presets.METHODS.items() if "+" not in name}
    return settings_table("`--method`", bases)


def presets_of_data_sets() -> str:
    """`--dataset NAME` -> the settings that differ from the defaults; a row for all data sets with the same ones."""
    names = [name for name in SETTINGS if any(name in settings for settings in presets.DATASETS.values())]
    default = Config()
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, settings in presets.DATASETS.items():
        row = tuple(f"`{settings.get(key, getattr(default, key))}`" for key in names)
        alike.setdefault(row, []).append(f"`{name}`")
    rows = [[", ".join(data_sets), *row] for row, data_sets in alike.items()]
    return table(["`--dataset`", *(f"`{name}`" for name in names)], rows)


def settings_table(title: str, named: dict[str, dict]) -> str:
    """A row for every name, with its settings."""
    rows = [
        [f"`{name}`", ", ".join(f"`{key} = {value}`" for key, value in settings.items())]
        for name, settings in named.items()
    ]
    return table([title, "settings"], rows)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"
