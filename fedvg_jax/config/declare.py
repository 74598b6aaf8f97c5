"""How a setting is declared: in its dataclass field, by type, default, docstring and `Facts`.

Checks, flags, help, the option reference, suggestions, compiled programs and reports read these declarations.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import functools
import inspect
import itertools
import math
import operator
import os
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from fedvg_jax.core.types import Argument, Choice, Range, UsageError

T = TypeVar("T")

Kind = Literal["compiled", "data", "host"]
"""What a setting changes. compiled: the program of a run; data: its numbers, of the same program; host: no result."""


ABOVE_0 = Range(0, excludes_low=True)
FROM_0 = Range(0)
COUNT = Range(1)
FRACTION = Range(0, 1, excludes_low=True)
BETWEEN_0_AND_1 = Range(0, 1, excludes_low=True, excludes_high=True)
BELOW_1 = Range(0, 1, excludes_high=True)
SEED = Range(0, 2**32, excludes_high=True)
UNIT = Range(0, 1)


class Form(NamedTuple):
    """The texts that a setting may be, as a regular expression and in words."""

    pattern: str
    words: str

    def holds(self, value: Any) -> bool:
        """Returns whether a value has the form."""
        return bool(re.fullmatch(self.pattern, str(value), re.ASCII))


COUNT_OR_AUTO = Form(r"auto|[1-9]\d{0,8}", "auto, or a number >= 1")


class Condition(NamedTuple):
    """Condition on another setting, under which a setting is used."""

    setting: str
    """Dotted name of the other setting."""
    holds: Callable[[Any], bool]
    """Config -> whether the setting is used."""
    by: str
    """Values of the other setting for which it holds, in words."""


@functools.cache
def is_one(name: str, *values: str) -> Condition:
    """Holds where a setting has one of the values."""
    value_of = operator.attrgetter(name)
    return Condition(
        name, lambda config: value_of(config).partition(":")[0] in values, " or ".join(values)
    )


def above_0(name: str, by: str) -> Condition:
    """Holds where the number of a setting is above 0."""
    value_of = operator.attrgetter(name)
    return Condition(name, lambda config: value_of(config) > 0, by)


class Facts(NamedTuple):
    """What the field of a setting, or of a group of settings, declares beside its type and default."""

    allowed: Collection[str] | Range | Form | None = None
    """Names, the range of a number, or the form of a text; None where `checks` has a rule of its own, or any value is
    allowed."""
    kind: Kind = "compiled"
    is_traced: bool = False
    """Whether it is a traced scalar of a round, by its name, which must then fit float32."""
    doc: str = ""
    """Its entry in help; by default the docstring below the field."""
    used: tuple[Condition, ...] = ()
    """Conditions that must all hold for a run to use the setting."""
    word: str = ""
    """Word for its value in help, where the type says too little."""
    topic: str = ""
    """Heading in help; by default the heading of the field before it."""


def setting(
    default: T,
    allowed: Collection[str] | Range | Form | None = None,
    kind: Kind = "compiled",
    **others: Any,
) -> T:
    """Returns the field of a setting with its `Facts`. A traced scalar is data."""
    facts = Facts(allowed, "data" if others.get("is_traced") else kind, **others)
    return dataclasses.field(default=default, metadata={"facts": facts})


def group(settings: type[T], title: str) -> T:
    """Returns the field of a group of settings, with its heading in help."""
    return dataclasses.field(default_factory=settings, metadata={"facts": Facts(topic=title)})


NOUNS = {int: "an integer", float: "a number", str: "a text", Path: "a path"}

ACCEPTED: dict[type, tuple[type, ...]] = {
    int: (int, str),
    float: (float, int, str),
    str: (str, int, type(Path())),
    Path: (str, type(Path())),
}
"""Type of a setting -> types of values that become it; the first that a setting has and that fits is taken."""


class Setting(NamedTuple):
    """A setting as its field and group declare it."""

    name: str
    """Dotted name."""
    types: tuple[type, ...]
    """Types of its value, NoneType among them where it may be unset."""
    default: Any
    facts: Facts
    """With the topic that it is listed under."""
    get: Callable[[Any], Any]
    """Config -> its value."""

    names: tuple[str, ...] = ()
    """The allowed names; empty for other settings."""
    arguments: Mapping[str, Argument] = {}
    """The allowed names behind which a value may stand."""

    @property
    def deciders(self) -> set[str]:
        """The settings that decide whether a run uses it."""
        return {condition.setting for condition in self.facts.used}

    def made(self, config: Any) -> Any:
        """Returns what the setting names; None where that stands for nothing.

        It is made from the value behind the name, or from the name of the traced scalar that has the value.
        """
        choice, value = self.choice(self.get(config))
        traced = choice and choice.argument and choice.argument.traced
        return choice and choice.made(traced or value)

    def choice(self, text: str) -> tuple[Choice | None, Any]:
        """Returns what stands behind the name in a text, and the value behind the name."""
        name, value = self.split(text)
        assert isinstance(self.facts.allowed, Mapping), "names stand for objects"
        return self.facts.allowed[name], value

    def split(self, text: str) -> tuple[str, Any]:
        """Returns the name in a text NAME or NAME:VALUE, and the value, by default the name's default.

        Raises:
            ValueError: the value has another type, or is out of range.
        """
        name, colon, argument_text = text.partition(":")
        argument = self.arguments.get(name)
        if argument is None:
            return text, None
        if not argument.range:
            return name, argument_text
        is_tuple = isinstance(argument.default, tuple)
        defaults = argument.default if is_tuple else (argument.default,)
        words = argument_text.split(",") if colon else []
        try:
            pairs = zip(defaults, [*words, *defaults[len(words) :]], strict=True)
            numbers = tuple(type(default)(word) for default, word in pairs)
        except ValueError:
            numbers = (math.nan,)
        if not all(map(argument.range.holds, numbers)):
            raise ValueError(f"{name}:VALUE takes {len(defaults)} number(s) {argument.range.words}")
        return name, numbers if is_tuple else numbers[0]

    def typed(self, value: Any, where: str) -> Any:
        """Returns a value as one of the setting's types: an int becomes a float or text, a text a number or a path.

        Args:
            value: also a scalar of NumPy or jax.
            where: what a message calls it.

        Raises:
            UsageError: it has another type.
        """
        value = python_scalar(value)
        is_optional = type(None) in self.types
        if value is None and is_optional:
            return None
        for kind, accepted in ACCEPTED.items():
            is_empty = value == "" and is_optional
            if kind in self.types and type(value) in accepted and not is_empty:
                with contextlib.suppress(ValueError, OverflowError):
                    return kind(os.path.expanduser(str(value)) if kind is Path else value)
        names = " or ".join(NOUNS[kind] for kind in self.types if kind in NOUNS)
        raise UsageError(f"{where} must be {names}; got {shown(value)}")


def python_scalar(value: Any) -> Any:
    """Returns a scalar of NumPy or jax, which are not imported here, as a Python number; other values as they are."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def shown(value: Any) -> str:
    """Returns a value for a message; Python refuses to write an int of thousands of digits."""
    try:
        return repr(value)[:100]
    except ValueError:
        return "a number too large"


@functools.cache
def table(config: type, prefix: str = "", topic: str = "") -> dict[str, Setting]:
    """Returns dotted name -> setting, of a dataclass and then of the groups in it.

    Args:
        config: the dataclass.
        prefix: before every name, e.g. "fedvg.".
        topic: the heading of the group.
    """
    settings, in_groups = {}, {}
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        name, facts, hint = prefix + field.name, field.metadata["facts"], hints[field.name]
        topic = facts.topic or topic
        if isinstance(field.default_factory, type):
            in_groups |= table(hint, f"{name}.", topic)
            continue
        names, arguments = (), {}
        if not isinstance(facts.allowed, Range | Form | None):
            names = tuple(facts.allowed)
        if isinstance(facts.allowed, Mapping):
            for choice_name, choice in facts.allowed.items():
                if isinstance(choice, Choice) and choice.argument:
                    arguments[choice_name] = choice.argument
        settings[name] = Setting(
            name,
            typing.get_args(hint) or (hint,),
            field.default,
            facts._replace(topic=topic),
            operator.attrgetter(name),
            names,
            arguments,
        )
    return settings | in_groups


def flatten(config: Any) -> dict[str, Any]:
    """Returns settings by dotted name, such as fedvg.norm."""
    return {name: declared.get(config) for name, declared in table(type(config)).items()}


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings by dotted name as nested dicts.

    >>> nested({"lr": 0.1, "fedvg.norm": "l2"})
    {'lr': 0.1, 'fedvg': {'norm': 'l2'}}
    """
    result: dict[str, Any] = {}
    for name, value in settings.items():
        group, dot, last = name.rpartition(".")
        of_group = result.setdefault(group, {}) if dot else result
        of_group[last] = value
    return result


@functools.cache
def groups(config: type) -> dict[str, type]:
    """Returns a dict from group name to dataclass."""
    return {
        f.name: f.default_factory
        for f in dataclasses.fields(config)
        if isinstance(f.default_factory, type)
    }


def descriptions(config: type, prefix: str = "") -> dict[str, str]:
    """Returns dotted name -> description, on one line, of a dataclass and of its groups.

    It is the `doc` of a field's facts, or the docstring below the field.
    """
    texts = {prefix + f.name: f.metadata["facts"].doc for f in dataclasses.fields(config)}
    body = []
    with contextlib.suppress(OSError):  # a class that is made at run time has no source
        body = ast.walk(ast.parse(inspect.getsource(config)))
    for field, below in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            texts[prefix + ast.unparse(field.target)] = " ".join(
                ast.literal_eval(below.value).split()
            )
    for name, settings in groups(config).items():
        texts |= descriptions(settings, f"{name}.")
    return texts


def listed(names: str) -> list[str]:
    """Returns the names in a text NAME,..., each once.

    >>> listed("wandb, tensorboard,wandb")
    ['wandb', 'tensorboard']
    """
    return list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))


def suggestion(name: str, allowed: Iterable[str]) -> str:
    """Returns the end of an error message about an unknown name: the one that is probably meant, or the allowed ones.

    >>> suggestion("fedgv", ["fedvg", "samples"]), suggestion("x", ["lr"])
    ("; did you mean 'fedvg'?", '; allowed: lr')
    """
    names = list(allowed)
    if close := difflib.get_close_matches(name.lower(), names, 1):
        return f"; did you mean '{close[0]}'?"
    few = ", ".join(names) if len(names) < 40 else "see python -m fedvg_jax.sim --help"
    return f"; allowed: {few}"
