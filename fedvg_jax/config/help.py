"""Texts of `--help` and `--help-all`, from the dataclasses that declare the settings. No jax."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from typing import Any, NamedTuple

from fedvg_jax.config import presets
from fedvg_jax.config.allowed import DATASETS, NAMES, RANGES
from fedvg_jax.config.options import Config
from fedvg_jax.config.weighting_grammar import WEIGHTINGS

WIDTH = 79
"""Columns of the texts: they fit a terminal of 80."""

INDENT = 24
"""Column at which descriptions start."""

COMMON = {
    "Method": ("method", "fidelity", "algorithm", "weighting"),
    "Data and clients": ("dataset", "data_dir", "partition", "alpha", "clients", "join_ratio"),
    "Training": ("model", "rounds", "local_epochs", "batch_size", "lr", "seed"),
    "Run": ("config", "out", "resume", "devices", "dry_run"),
}
"""Group -> options that `--help` shows."""

TOPICS = {
    "Data set": (
        *("dataset", "data_dir", "image_size", "splits", "max_rows", "image_column", "label_column"),
        "group_column",
        *("normalise", "augment"),
    ),
    "Model": ("model", "pretrained", "init", "stem", "norm"),
    "Method": ("method", "fidelity", "algorithm", "weighting", "server_stats"),
    "Clients and partition": (
        *("clients", "join_ratio", "cohorts", "dropout", "untrained", "nonfinite", "partition", "alpha"),
        *("partition_seed", "shards_per_client", "classes_per_client", "partition_file"),
        *("export_partition", "export_form", "min_samples", "min_samples_rule", "split", "test_ratio", "val_ratio"),
        "select",
    ),
    "Training": (
        *("rounds", "local_epochs", "batch_size", "single_rows", "lr", "optimiser", "momentum", "optimiser_state"),
        "weight_decay",
        *("lr_schedule", "lr_decay", "seed", "eval_every", "record"),
    ),
    "Hardware": ("devices", "lanes", "hold", "pool", "memories", "conv", "precision", "deterministic", "force"),
    "Files, stopping and resuming": (
        *("config", "out", "resume", "checkpoint_every", "keep", "cache_dir", "trust_cache", "export"),
        *("track", "profile", "dry_run"),
    ),
}
"""Group -> top-level options, as `--help-all` and the option reference list them."""

TITLES = {
    "fedvg": "FedVG",
    "fedavgm": "FedAvgM",
    "fedopt": "FedAdam, FedYogi, FedAdagrad",
    "fedprox": "FedProx",
    "scaffold": "Scaffold",
    "feddyn": "FedDyn",
    "elastic": "Elastic aggregation",
    "robust": "Robust aggregation",
    "attack": "Corrupt updates",
    "tuning": "Server steps on the validation set",
    "validation": "Validation set",
    "corrupt": "Corrupt rows",
}
"""Group of options -> its title."""

PLACEHOLDERS = {"str": "TEXT", "int": "INT", "float": "FLOAT", "Path": "PATH", "bool": ""}
"""Type of a field -> word for its value."""

VALUE_WORDS = {
    **{"data_dir": "DIR", "out": "DIR", "resume": "RUN|auto", "profile": "DIR", "cache_dir": "DIR", "config": "FILE"},
    **{"local_epochs": "INT|MIN:MAX", "devices": "INT|auto", "lanes": "INT|auto|all", "image_size": "S|HxW"},
    **{
        "partition_file": "FILE",
        "export_partition": "FILE",
        "pretrained": "FILE|DIR",
        "init": "RUN",
        "export": "FILE|DIR",
        "track": "NAME,...",
        "record": "NAME,...",
        "validation.data_dir": "DIR",
    },
    **{"fedvg.include": "REGEX", "fedvg.multipliers": "REGEX=NUMBER,..."},
}
"""Option -> word for its value, where the type says too little."""

OPEN_CHOICES = {
    "dataset": (*DATASETS, *presets.OUTSIDE.values()),
    "weighting": (*WEIGHTINGS, "permuted(NAME)", "NAME+NAME"),
    "method": (*(name for name in presets.METHODS if "+" not in name), "uniform", "ALGORITHM+WEIGHTING"),
    "fidelity": tuple(presets.FIDELITY),
}
"""Option -> its allowed names, where these are not all in `NAMES`."""


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
    options = {option.name: option for option in _top_level()}
    parts = [f"usage: {command} [OPTIONS]", _wrap(purpose), f"Examples:\n{examples}"]
    for title, names in COMMON.items():
        entries = [_entry(options[name], options[name].summary, with_range=False) for name in names]
        parts.append("\n".join([f"{title}:", *entries]))
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
    options = {option.name: option for option in _top_level()}
    parts = [f"usage: {command} [OPTIONS]", _wrap(purpose)]
    parts += [_section(title, [options[name] for name in names]) for title, names in TOPICS.items()]
    for name, group in groups().items():
        parts.append(_section(TITLES[name], options_of(group, f"{name}.")))
    return "\n\n".join(parts)


def groups() -> dict[str, Any]:
    """Returns the nested groups of settings with their defaults, by name."""
    default = Config()
    values = {field.name: getattr(default, field.name) for field in dataclasses.fields(default)}
    return {name: value for name, value in values.items() if dataclasses.is_dataclass(value)}


def options_of(group: Any, prefix: str = "") -> list[Option]:
    """Returns the options that the fields of a dataclass declare; nested groups are left out.

    Args:
        group: an instance, with the defaults.
        prefix: before the names, e.g. "fedvg.".
    """
    texts = descriptions(type(group))
    options = []
    for field in dataclasses.fields(group):
        default, name = getattr(group, field.name), prefix + field.name
        if not dataclasses.is_dataclass(default):
            choices = OPEN_CHOICES.get(name) or NAMES.get(name, ())
            allowed = RANGES[name][1] if name in RANGES else ""
            word = "NAME" if choices else VALUE_WORDS.get(name) or _placeholder(str(field.type))
            options.append(Option(name, word, texts[field.name], default, choices, allowed))
    return options


def descriptions(cls: type) -> dict[str, str]:
    """Returns field -> the text below it in the source, on one line."""
    tree = ast.parse(inspect.getsource(cls)).body[0]
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for field, below in itertools.pairwise(tree.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            texts[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return texts


def show_default(value: Any) -> str:
    """Returns a default as it is typed on a command line.

    >>> show_default(0.1), show_default(None), show_default(False)
    ('0.1', 'none', 'off')
    """
    if value is None or value == "":
        return "none"
    return "off" if value is False else str(value)


def _top_level() -> list[Option]:
    """Returns the shorthands and the options that are in no group."""
    texts = descriptions(Config)
    defaults = {"fidelity": "corrected"}
    shorthands = [
        Option(name, "NAME", texts[name], defaults.get(name), OPEN_CHOICES[name]) for name in presets.SHORTHANDS
    ]
    return shorthands + options_of(Config())


def _placeholder(hint: str) -> str:
    words = [PLACEHOLDERS[kind] for kind in hint.split(" | ") if kind != "None"]
    return "|".join(word for word in words if word)


def _section(title: str, options: list[Option]) -> str:
    return "\n".join([f"{title}:", *(_entry(option, option.text, with_range=True) for option in options)])


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
