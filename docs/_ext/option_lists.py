"""Lists of the command line's options, from the dataclasses that declare them."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from fedvg_jax.config import Config, allowed, presets
from fedvg_jax.config.help import TITLES, TOPICS, descriptions

KINDS = {"str": "text", "int": "whole number", "float": "number", "Path": "path"}
"""A field's type -> the word for it."""


def options() -> str:
    """Every option, under headings by topic."""
    default = Config()
    groups = {f.name: getattr(default, f.name) for f in dataclasses.fields(default)}
    nested = {name: group for name, group in groups.items() if dataclasses.is_dataclass(group)}
    flat = [name for name in groups if name not in nested]
    listed = {name for names in TOPICS.values() for name in names}
    topics = {title: [name for name in names if name in flat] for title, names in TOPICS.items()}
    topics["Other settings"] = [name for name in flat if name not in listed]
    parts = [section(title, default, names) for title, names in topics.items() if names]
    for prefix, group in nested.items():
        names = [f.name for f in dataclasses.fields(group)]
        parts.append(section(TITLES.get(prefix, prefix), group, names, f"{prefix}."))
    return "\n".join(parts)


def section(title: str, group: Any, names: list[str], prefix: str = "") -> str:
    """A heading and a list."""
    texts, lines = descriptions(type(group)), [f"## {title}", ""]
    hints = {f.name: f.type for f in dataclasses.fields(group)}
    for name in names:
        lines.append(entry(prefix + name, hints[name], getattr(group, name), texts.get(name, "")))
    return "\n".join([*lines, ""])


def entry(name: str, hint: str, default: Any, text: str) -> str:
    """`--flag` TYPE: the description, the default and the allowed values."""
    flag = "--" + name.replace("_", "-")
    kinds = [KINDS.get(part, part) for part in str(hint).split(" | ") if part not in ("None", "bool")]
    kind = f" *{' or '.join(kinds)}*" if kinds else ""
    is_said = default in (None, "") and "default" in text.lower()
    facts = [] if is_said else [f"Default: {shown(default)}."]
    if name in allowed.NAMES:
        facts.append("Allowed: " + ", ".join(f"`{value}`" for value in allowed.NAMES[name]) + ".")
    elif name in allowed.RANGES:
        facts.append(f"Allowed: {escape(allowed.RANGES[name][1])}.")
    return f"- `{flag}`{kind}: {' '.join([escape(text), *facts])}"


def shown(value: Any) -> str:
    """A default as it is written on a command line."""
    if value is None or value == "":
        return "none"
    return "off" if value is False else f"`{value}`"


def escape(text: str) -> str:
    """Plain text as Markdown that shows it unchanged."""
    return re.sub(r"([\\*_\[\]<>|~$])", r"\\\1", text)


def methods() -> str:
    """`--method NAME` -> the settings it stands for."""
    return settings_table("`--method`", presets.METHODS)


def official() -> str:
    """The settings of `--fidelity official`."""
    rows = [f"| `{name}` | `{value}` |" for name, value in presets.FIDELITY["official"].items()]
    return "\n".join(["| setting | value |", "|---|---|", *rows]) + "\n"


def presets_of_data_sets() -> str:
    """`--dataset NAME` -> the settings that differ from the defaults."""
    names = (
        *(
            "model",
            "partition",
            "clients",
            "join_ratio",
            "rounds",
            "local_epochs",
            "batch_size",
            "optimiser",
            "lr",
            "momentum",
        ),
        "eval_every",
    )
    default = Config()
    rows = [
        [f"`{name}`", *(f"`{settings.get(key, getattr(default, key))}`" for key in names)]
        for name, settings in presets.DATASETS.items()
    ]
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
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
