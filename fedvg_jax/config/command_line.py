"""The settings as flags of a command line, by argparse: `--name VALUE`.

And settings from TOML files, with the names of `Config`: keys, and a `[table]` for a group such as `[fedvg]`.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fedvg_jax.config import presets
from fedvg_jax.config.declare import descriptions, suggestion
from fedvg_jax.config.methods import ALGORITHMS, NATIVE, PERSONAL, WEIGHTINGS
from fedvg_jax.config.options import GROUPS, SETTINGS, Config
from fedvg_jax.core.types import Range, UsageError
from fedvg_jax.host import files

WORDS = {int: "INT", float: "FLOAT", str: "TEXT"}
"""Type of a setting -> word for its value in help."""

OF_COMMAND: dict[str, dict[str, Any]] = {
    "config": {
        "type": files.user_path,
        "metavar": "FILE",
        "help": "TOML file of settings, which flags override.",
    },
    "dry_run": {
        "action": "store_true",
        "help": "Print the plan (compiling, time, memory) and train nothing. Two rounds are timed.",
    },
}
"""Options of the command line that are no settings of a run -> their entries in a parser."""

ALL = (*presets.SHORTHANDS, *SETTINGS)
"""Names of the settings and shorthands that a flag may set."""

FLAGS = {name: f"--{name.replace('_', '-')}" for name in (*ALL, *OF_COMMAND)}
"""Setting, shorthand or option -> as it is typed."""

OPEN_CHOICES = {
    "method": (*presets.METHODS, *ALGORITHMS, *PERSONAL, "W", "A+W"),
    "fidelity": tuple(presets.FIDELITY),
    "dataset": (*presets.DATASETS, *presets.OUTSIDE.values()),
    "weighting": (NATIVE, *WEIGHTINGS, "permuted(NAME)", "NAME+NAME"),
}
"""Option -> its names, where no setting declares them."""


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations that raises UsageError where it refuses."""

    def __init__(self, prog: str, **texts: Any):
        super().__init__(
            prog,
            f"{prog} [OPTIONS]",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=False,
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
            **texts,
        )

    def error(self, message: str) -> NoReturn:
        """Raises UsageError with argparse's message."""
        raise UsageError(message.removeprefix("argument "))


def add_settings(
    parser: argparse.ArgumentParser,
    names: Collection[str] = ALL,
    texts: Mapping[str, str] = {},
    **options: Any,
) -> None:
    """Adds settings and shorthands, below the headings of their topics.

    Args:
        parser: of a command.
        names: of the settings and shorthands.
        texts: name -> description; {} for a parser that prints no help.
        **options: of argparse for every flag, such as `nargs`.
    """
    topics = {}
    for name in ALL:
        if name not in names:
            continue
        topic = SETTINGS[name].facts.topic if name in SETTINGS else "Method"
        if topic not in topics:
            topics[topic] = parser.add_argument_group(topic)
        entry = {"help": _help(name, texts[name]), "metavar": _word(name)} if texts else {}
        topics[topic].add_argument(FLAGS[name], dest=name, **entry, **options)


def add_options(parser: argparse.ArgumentParser, names: Collection[str]) -> None:
    """Adds the options of `OF_COMMAND` that are among the names."""
    for name, entry in OF_COMMAND.items():
        if name in names:
            parser.add_argument(FLAGS[name], dest=name, **entry)


def help_text(prog: str, purpose: str, examples: str, names: Collection[str]) -> str:
    """Returns the help of a command that takes the settings.

    Args:
        prog: the command as it is typed.
        purpose: one sentence about it.
        examples: indented lines.
        names: settings, shorthands and options that the command uses.
    """
    parser = Parser(prog, description=f"{purpose}\n\n{examples}")
    add_options(parser, names)
    add_settings(parser, names, descriptions(Config) | presets.SHORTHANDS)
    return parser.format_help().rstrip()


def parse(argv: Sequence[str], prog: str, names: Collection[str] = (*ALL, *OF_COMMAND)) -> dict:
    """Returns the values of a command line by setting, in the settings' types; of a repeated flag, the last.

    Args:
        argv: flags of settings, with one value each. A value that begins with a dash is a number, or follows a "=".
        prog: the command as it is typed, for messages.
        names: settings, shorthands and options that the command uses.

    Raises:
        UsageError: a flag is unknown, or its value is not one of the setting's.

    >>> parse(["--lr", "0.1", "--fedvg.norm=l2", "--dry-run"], "sim")
    {'lr': 0.1, 'fedvg.norm': 'l2', 'dry_run': True}
    """
    parser = Parser(prog)
    add_options(parser, names)
    add_settings(parser, names)
    found = read_words(parser, argv)
    return {n: value_of(n, v) if isinstance(v, str) else v for n, v in found.items()}


def read_words(parser: argparse.ArgumentParser, argv: Sequence[str]) -> dict[str, Any]:
    """Returns what a parser reads from a command line.

    Raises:
        UsageError: a flag is unknown, with the one that is probably meant, or lacks its value.
    """
    found, unknown = parser.parse_known_args(argv)
    for word in unknown:
        hint = "; flags take one value, and several in python -m fedvg_jax.sweep"
        if word.startswith("-"):
            flags = [flag for action in parser._actions for flag in action.option_strings]
            hint = suggestion(word.partition("=")[0], flags)
        raise UsageError(f"unknown argument {word[:100]}{hint}")
    return vars(found)


def value_of(name: str, text: str) -> Any:
    """Returns the value of a flag as one of its setting's types; of a shorthand, the text."""
    return SETTINGS[name].typed(text, FLAGS[name]) if name in SETTINGS else text


def _word(name: str) -> str:
    """Returns the word for a value in help."""
    option = SETTINGS.get(name)
    if name in OPEN_CHOICES or option is None or option.names:
        return "NAME"
    return option.facts.word or "|".join(WORDS[kind] for kind in option.types if kind in WORDS)


def _help(name: str, text: str) -> str:
    """Returns a setting's description, its names or range, and its default."""
    option = SETTINGS.get(name)
    if choices := OPEN_CHOICES.get(name) or (option.names if option else ()):
        text += f" Choices: {', '.join(dict.fromkeys(choices))}."
    if option and isinstance(option.facts.allowed, Range):
        text += f" Allowed: {option.facts.allowed.words}."
    if option and option.default not in (None, ""):
        text += f" Default: {option.default}."
    return text.replace("%", "%%")


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the settings of a TOML file by dotted name.

    Raises:
        UsageError: the file cannot be read, or is not TOML.
    """
    try:
        return dotted(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except (OSError, ValueError, RecursionError) as error:
        reason = files.reason(error)
        raise UsageError(f"cannot read {path} as TOML: {reason}; check --config") from None


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
