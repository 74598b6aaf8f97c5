"""Lists of the command line's options and of differences from the paper, from where they are declared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.pages.markdown import escape, table
from fedvg_jax import config
from fedvg_jax.config import SETTINGS, Config, presets
from fedvg_jax.config.declare import Setting, descriptions
from fedvg_jax.config.presets import DIFFERENCES
from fedvg_jax.core.types import Range

KINDS = {str: "text", int: "integer", float: "number", Path: "path"}
"""A setting's type -> the word for it."""


OWN_SECTIONS = {
    **dict.fromkeys(
        ("reference", "holdout", "min_samples_rule", "fedvg.layer", "fedvg.mode", "fedvg.eps"),
        "Fidelity to the paper and its code",
    ),
    **dict.fromkeys(
        ("lanes", "client_chunk", "placement", "conv"), "Advanced: how a round is computed"
    ),
}
"""Settings that few runs change -> their sections, the last of the page."""


def options() -> str:
    """Returns every option, under headings by topic."""
    texts, topics = descriptions(Config), {}
    for name, setting in SETTINGS.items():
        topic = OWN_SECTIONS.get(name, setting.facts.topic)
        topics.setdefault(topic, []).append(entry(name, setting, texts[name]))
    topics = {
        topic: topics[topic]
        for topic in sorted(topics, key=list(OWN_SECTIONS.values()).__contains__)
    }
    return "\n".join(
        "\n".join([f"## {topic}", "", *entries, ""]) for topic, entries in topics.items()
    )


def entry(name: str, setting: Setting, text: str) -> str:
    """Returns `--flag` TYPE and its range, DEFAULT: the description and the allowed names."""
    flag = "--" + name.replace("_", "-")
    kinds = [KINDS[kind] for kind in setting.types if kind in KINDS]
    allowed = setting.facts.allowed
    limits = f" {escape(allowed.words)}" if isinstance(allowed, Range) else ""
    kind = f" *{' or '.join(kinds)}{limits}*" if kinds and not setting.names else ""
    default = "" if setting.default in (None, "") else f", {shown(setting.default)}"
    names = ", ".join(f"`{value}`" for value in setting.names)
    return f"- `{flag}`{kind}{default}: {escape(text)}" + f" Allowed: {names}." * bool(names)


def shown(value: Any) -> str:
    """Returns a default as it is written on a command line."""
    return "off" if value is False else f"`{value}`"


def methods() -> str:
    """Returns `--method NAME` -> the settings it stands for, of the base methods and FedVG."""
    bases = {name: presets.of_method(name) for name in presets.METHODS if "+" not in name}
    rows = [[f"`{name}`", _assignments(settings)] for name, settings in bases.items()]
    return table(["`--method`", "settings"], rows)


def _assignments(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key} = {value}`" for key, value in settings.items())


def presets_of_data_sets() -> str:
    """Returns `--dataset NAME` -> the settings other than the defaults; data sets with the same ones share a row."""
    default, alike = Config(), {}
    for name, settings in presets.DATASETS.items():
        changed = {
            key: settings[key]
            for key in SETTINGS
            if settings.get(key, getattr(default, key, None)) != getattr(default, key, None)
        }
        alike.setdefault(tuple(changed.items()), []).append(f"`{name}`")
    counts = Counter(key for changed in alike for key, _ in changed)
    several = [key for key in SETTINGS if counts[key] > 1]
    rows = []
    for changed, data_sets in alike.items():
        values = dict(changed)
        columns = [f"`{values.get(key, getattr(default, key))}`" for key in several]
        others = {key: value for key, value in changed if key not in several}
        rows.append([", ".join(data_sets), *columns, _assignments(others)])
    return table(["`--dataset`", *(f"`{name}`" for name in several), "others"], rows)


def fidelity() -> str:
    """Returns one row for every difference between the paper, the published code and the defaults here."""
    defaults = config.flatten(config.Config())
    rows = []
    for row in DIFFERENCES:
        paper, published = (
            escape(row.paper) + DOUBT[row.paper_evidence],
            escape(row.published) + DOUBT[row.published_evidence],
        )
        rows.append(
            [
                escape(row.subject),
                paper,
                published,
                escape(row.ours),
                published_behaviour(row, defaults),
            ]
        )
    return table(["", "paper", "published code", "default here", "published behaviour"], rows)


DOUBT = {"run": "", "read": "", "memory": " *(memory)*", "uncertain": " *(uncertain)*"}
"""How a statement was checked -> what its cell says of it."""


def published_behaviour(row, defaults: dict[str, Any]) -> str:
    """Returns the flags of a row, whether they are the default or in the profile, and the row's reason."""
    settings = {"reference": row.id} if row.is_switch else row.settings
    flags = " ".join(f"`--{name.replace('_', '-')} {value}`" for name, value in settings.items())
    is_default = row.by_default or (
        flags and all(defaults.get(name) == value for name, value in settings.items())
    )
    note = " (official)" if row.official else ""
    if is_default:
        note = " (default)"
    return "; ".join(filter(None, [flags + note, escape(row.reason)]))
