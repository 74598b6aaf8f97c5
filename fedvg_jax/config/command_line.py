# ruff: noqa: RUF009  the calls in the dataclass return fields
"""The settings as flags of a command line, by argparse: `--name VALUE`, and `--name` and `--no-name` of a switch.

And settings from TOML files, with the names of `Config`: keys, and a `[table]` for a group such as `[fedvg]`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re
import textwrap
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fedvg_jax.config import presets
from fedvg_jax.config.declare import descriptions, setting, suggestion, table
from fedvg_jax.config.methods import ALGORITHMS, NATIVE, PERSONAL, WEIGHTINGS
from fedvg_jax.config.options import GROUPS, SETTINGS, Config, registered
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files

WORDS = {int: "INT", float: "FLOAT", str: "TEXT"}
"""Type of a setting -> word for its value in help."""


@dataclasses.dataclass(frozen=True)
class OfCommand:
    """Options of the command line that are no settings of a run."""

    config: Path | None = setting(
        None, word="FILE", topic=SETTINGS["out"].facts.topic, is_common=True
    )
    """TOML file of settings, which flags override."""
    dry_run: bool = setting(False, is_common=True)
    """Print the plan (compiling, time, memory) and train nothing. Two rounds are timed."""


FLAGS = table(OfCommand)
OPTIONS = SETTINGS | FLAGS

ALL = (*presets.SHORTHANDS, *OPTIONS)
"""Names of everything that a flag may set."""

_METHODS = dict.fromkeys(
    name for name in (*presets.METHODS, *ALGORITHMS, *PERSONAL) if "+" not in name
)

OPEN_CHOICES = {
    "method": (*_METHODS, "W", "A+W"),
    "fidelity": tuple(presets.FIDELITY),
    "dataset": (*presets.DATASETS, *presets.OUTSIDE.values()),
    "weighting": (NATIVE, *WEIGHTINGS, "permuted(NAME)", "NAME+NAME"),
}
"""Option -> its names, where no setting declares them."""

PRECEDENCE = (
    "Defaults belong to the digits demonstration; each data set has its own preset. A TOML file overrides the"
    " preset, --method and --fidelity override the file, and other options override them all."
)


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations that raises UsageError where it refuses."""

    def __init__(self, prog: str, **texts: Any):
        super().__init__(
            prog,
            f"{prog} [OPTIONS]",
            formatter_class=_Formatter,
            add_help=False,
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
            **texts,
        )

    def error(self, message: str) -> NoReturn:
        """Raises UsageError with argparse's message."""
        raise UsageError(message.removeprefix("argument "))


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help of 79 columns, in which words keep their hyphens."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=24, width=79)

    def _split_lines(self, text: str, width: int) -> list[str]:
        wrap = functools.partial(
            textwrap.wrap, width=width, break_long_words=False, break_on_hyphens=False
        )
        return [line for part in text.split("\n") for line in wrap(part)]


def flag_of(name: str) -> str:
    """Returns a setting as it is typed."""
    return f"--{name.replace('_', '-')}"


def add_settings(
    parser: argparse.ArgumentParser,
    shown: str = "",
    takes_many: bool = False,
    names: Collection[str] = ALL,
) -> None:
    """Adds every setting and shorthand, below the headings of their topics.

    Args:
        parser: of a command.
        shown: what its help shows: "common" options, "all", or none.
        takes_many: whether an option takes any number of words, and its value is a list of them for every time that it
            is given; a switch takes words, too, and `--no-NAME` is the word false.
        names: settings and shorthands that the command uses; its help shows no other.
    """
    texts, topics = (
        descriptions(Config) | presets.DESCRIPTIONS | descriptions(OfCommand) if shown else {},
        {},
    )
    many: dict[str, Any] = {"nargs": "*", "action": "append"} if takes_many else {}
    on: dict[str, Any] = many or {"action": "store_true"}
    off: dict[str, Any] = (
        {"action": "append_const", "const": ["false"]} if takes_many else {"action": "store_false"}
    )
    is_long = shown == "all"
    for name in ALL:
        option = OPTIONS.get(name)
        topic = option.facts.topic if option else "Method"
        if topic not in topics:
            topics[topic] = parser.add_argument_group(topic)
        is_common = option is None or option.facts.is_common
        entry: dict[str, Any] = {"help": argparse.SUPPRESS}
        if name in names and (is_long or (shown and is_common)):
            entry = {"help": _help(name, texts[name], is_long), "metavar": _word(name)}
        flag, (group, dot, last) = f"--{name.replace('_', '-')}", name.rpartition(".")
        if option and bool in option.types:
            topics[topic].add_argument(flag, dest=name, help=entry["help"], **on)
            negated = flag_of(f"{group}{dot}no_{last}")
            parser.add_argument(negated, dest=name, help=argparse.SUPPRESS, **off)
        else:
            topics[topic].add_argument(flag, dest=name, **entry, **many)
        if last == "kind":  # the kind alone turns a group on
            parser.add_argument(flag_of(group), dest=name, help=argparse.SUPPRESS, **many)


def is_switch(name: str) -> bool:
    """Returns whether an option needs no value."""
    return name in OPTIONS and bool in OPTIONS[name].types


def help_text(
    prog: str, purpose: str, examples: str = "", shown: str = "all", names: Collection[str] = ALL
) -> str:
    """Returns the help of a command that takes the settings.

    Args:
        prog: the command as it is typed.
        purpose: one sentence about it.
        examples: indented lines.
        shown: "common" for the options that most runs need, or "all".
        names: settings and shorthands that the command uses.
    """
    description = "\n".join(textwrap.wrap(purpose, 79))
    epilog = ""
    if shown == "common":
        description += f"\n\nExamples:\n{examples}"
        precedence = "\n".join(textwrap.wrap(PRECEDENCE, 79)) + "\n\n" if "method" in names else ""
        epilog = f"{precedence}All options: {prog} --help-all"
    parser = Parser(prog, description=description, epilog=epilog)
    add_settings(parser, shown, names=names)
    return parser.format_help().rstrip()


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
    parser = Parser(prog)
    add_settings(parser)
    found = read_words(
        parser, argv, "a flag takes one value here; python -m fedvg_jax.sweep takes several"
    )
    return {
        name: value_of(name, value) if isinstance(value, str) else value
        for name, value in found.items()
    }


def read_words(
    parser: argparse.ArgumentParser, argv: Sequence[str], no_flag: str
) -> dict[str, Any]:
    """Returns what a parser reads from a command line, in which flags may have underscores.

    Args:
        parser: of a command.
        argv: the command line.
        no_flag: what to say of a word that belongs to no flag.

    Raises:
        UsageError: a flag is unknown, with the one that is probably meant, or lacks its value.
    """
    found, unknown = parser.parse_known_args(with_hyphens(argv))
    if unknown:
        word = unknown[0]
        hint = (
            suggestion(word.lstrip("-").partition("=")[0], ALL)
            if word.startswith("-")
            else f"; {no_flag}"
        )
        hint = re.sub("'(.+)'", lambda name: flag_of(name[1]), hint)
        raise UsageError(f"unknown argument {word[:100]}{hint}")
    return vars(found)


def with_hyphens(argv: Sequence[str]) -> list[str]:
    """Returns a command line with hyphens in place of the underscores of its flags.

    >>> with_hyphens(["--join_ratio=0.5", "a_b"])
    ['--join-ratio=0.5', 'a_b']
    """
    return [re.sub("^--[^=]*", lambda flag: flag[0].replace("_", "-"), word) for word in argv]


def value_of(name: str, text: str) -> Any:
    """Returns the value of a flag as one of its setting's types; of a shorthand, the text."""
    return OPTIONS[name].typed(text, flag_of(name)) if name in OPTIONS else registered(name, text)


def _word(name: str) -> str:
    """Returns the word for a value in help."""
    option = OPTIONS.get(name)
    if name in OPEN_CHOICES or option is None or option.names:
        return "NAME"
    return option.facts.word or "|".join(WORDS[kind] for kind in option.types if kind in WORDS)


def _help(name: str, text: str, is_long: bool) -> str:
    """Returns a setting's description, its names or range, and its default.

    Args:
        name: of the setting.
        text: its description in sentences; the first stands alone.
        is_long: whether all sentences and the range are shown.
    """
    option = OPTIONS.get(name)
    default = option.default if option else {"fidelity": "corrected"}.get(name)
    sentences = re.split(r"(?<=\.) ", text)
    is_long = is_long or name == "method"
    shown = [s for i, s in enumerate(sentences) if is_long or i == 0 or s.startswith("Default:")]
    if choices := OPEN_CHOICES.get(name) or (option.names if option else ()):
        shown.append(f"Choices: {', '.join(choices)}.")
    if is_long and option and option.range and option.range.words not in text:
        shown.append(f"Allowed: {option.range.words}.")
    if not (default is None or default is False or default == "" or "Default:" in text):
        shown.append(f"Default: {default}.")
    return ("\n" if name == "method" else " ").join(shown).replace("%", "%%")


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the settings of a TOML file by dotted name.

    Raises:
        UsageError: the file cannot be read, or is not TOML.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the config file {path}: {files.reason(error)}; check --config"
        ) from None
    try:
        return dotted(tomllib.loads(text))
    except (
        ValueError,
        RecursionError,
    ) as error:  # also a number of thousands of digits, or brackets in brackets
        raise UsageError(f"{path} is not valid TOML: {error}") from None


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
