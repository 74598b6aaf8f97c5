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
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from fedvg_jax.core.types import Argument, Choice, Range, UsageError

T = TypeVar("T")

Kind = Literal["compiled", "data", "host"]
"""What a setting changes. compiled: the program of a run; data: its numbers, of the same program; host: no result."""


def as_name(text: str) -> str:
    """Returns a name in lower case, as all are registered; a text with a colon, such as a path, as it is.

    >>> as_name("FedAvg + FedVG"), as_name("hf:Birds")
    ('fedavg+fedvg', 'hf:Birds')
    """
    return text if ":" in text else re.sub(r"\s*\+\s*", "+", text.lower())


ABOVE_0 = Range(0, excludes_low=True)
FROM_0 = Range(0)
COUNT = Range(1)
FRACTION = Range(0, 1, excludes_low=True)
BETWEEN_0_AND_1 = Range(0, 1, excludes_low=True, excludes_high=True)
BELOW_1 = Range(0, 1, excludes_high=True)
SEED = Range(0, 2**32, excludes_high=True, text="in [0, 2**32)")
UNIT = Range(0, 1)


class Condition(NamedTuple):
    """Condition on another setting, under which a setting is used."""

    setting: str
    """Dotted name of the other setting."""
    holds: Callable[[Any], bool]
    """Config -> whether the setting is used."""
    by: str
    """Values of the other setting for which it holds, in words."""


def is_one(name: str, *values: str) -> Condition:
    """Holds where a setting has one of the values."""
    value_of = operator.attrgetter(name)
    return Condition(
        name, lambda config: value_of(config).partition(":")[0] in values, " or ".join(values)
    )


class Facts(NamedTuple):
    """What the field of a setting, or of a group of settings, declares beside its type and default."""

    allowed: Collection[str] | Range | None = None
    """Names, or the range of a number; None where `checks` has a rule of its own, or any value is allowed."""
    kind: Kind = "compiled"
    is_traced: bool = False
    """Whether it is a traced scalar of a round, by its name, which must then fit float32."""
    doc: str = ""
    """Its entry in help; by default the docstring below the field."""
    used: tuple[Condition, ...] = ()
    """Conditions that must all hold for a run to use the setting."""
    form: Callable[[str], str] | None = None
    """Makes the one form of a text, such as a name in lower case; None where `allowed` and the types say it."""
    word: str = ""
    """Word for its value in help, where the type says too little."""
    topic: str = ""
    """Heading in help; by default the heading of the field before it."""
    is_common: bool = False
    """Whether `--help` shows it; `--help-all` shows all."""
    names_method: bool = False
    """Of a group: whether a report names its settings with the method, where they vary."""


def setting(
    default: T,
    allowed: Collection[str] | Range | None = None,
    kind: Kind = "compiled",
    **others: Any,
) -> T:
    """Returns the field of a setting with its `Facts`. A traced scalar is data."""
    facts = Facts(allowed, "data" if others.get("is_traced") else kind, **others)
    return dataclasses.field(default=default, metadata={"facts": facts})


def group(
    settings: type[T], title: str, *used: Condition, names_method: bool = True, **entry: Any
) -> T:
    """Returns the field of a group of settings.

    Args:
        settings: its dataclass.
        title: its heading in help.
        used: conditions of all its settings.
        names_method: see `Facts`.
        **entry: of the field's metadata.
    """
    facts = Facts(used=used, topic=title, names_method=names_method)
    return dataclasses.field(default_factory=settings, metadata={"facts": facts, **entry})


NOUNS = {bool: "true or false", int: "an integer", float: "a number", str: "a text", Path: "a path"}


class Setting(NamedTuple):
    """A setting as its field and group declare it."""

    name: str
    """Dotted name."""
    types: tuple[type, ...]
    """Types of its value, NoneType among them where it may be unset."""
    default: Any
    facts: Facts
    """With the conditions of its group, and the topic that it is listed under."""
    get: Callable[[Any], Any]
    """Config -> its value."""
    names: tuple[str, ...] = ()
    """The allowed names; empty for other settings."""
    range: Range | None = None
    """The allowed range; None for other settings."""
    choices: Mapping[str, Choice] = {}
    """What the allowed names stand for, where they stand for more than themselves."""
    arguments: Mapping[str, Argument] = {}
    """The allowed names behind which a value may stand."""
    traced: frozenset[str] = frozenset()
    """The names of the traced scalars that have its value."""

    def made(self, config: Any) -> Any:
        """Returns what the setting names, made from the value behind the name."""
        name, value = self.split(self.get(config))
        return self.choices[name].made(value)

    def split(self, text: str) -> tuple[str, Any]:
        """Returns the name in a text NAME or NAME:VALUE, and the value, by default the name's own.

        Raises:
            ValueError: the value has another type, or is out of range.
        """
        name, colon, given = text.partition(":")
        argument = self.arguments.get(name)
        if argument is None:
            return text, None
        if not argument.range:
            return name, given
        is_tuple = isinstance(argument.default, tuple)
        defaults = argument.default if is_tuple else (argument.default,)
        words = given.split(",") if colon else []
        try:
            pairs = zip(defaults, [*words, *defaults[len(words) :]], strict=True)
            numbers = tuple(type(default)(word) for default, word in pairs)
        except ValueError:
            numbers = (math.nan,)
        if not all(map(argument.range.holds, numbers)):
            many = f"up to {len(defaults)} numbers, each" if len(defaults) > 1 else "a number"
            raise ValueError(f"{name}:VALUE takes {many} {argument.range.words}")
        return name, numbers if is_tuple else numbers[0]

    def meaning(self, value: Any) -> Any:
        """Returns a value, of a text NAME or NAME:VALUE both, so that topk, topk:0.01 and topk:.01 are one setting."""
        try:
            return self.split(value) if self.arguments else value
        except ValueError:  # of an edited config.json
            return value

    def formed(self, value: Any) -> Any:
        """Returns a text in its one form: a name in lower case, as all are registered, a path with its ~ expanded."""
        if not isinstance(value, str | Path):
            return value
        if Path in self.types:
            return type(value)(os.path.expanduser(value))
        form = self.facts.form or (as_name if self.names else str)
        return form(str(value))

    def typed(self, value: Any, where: str) -> Any:
        """Returns a value as one of the setting's types: an int becomes a float or text, a text a number or a path.

        Args:
            value: also a scalar of NumPy or jax.
            where: what a message calls it.

        Raises:
            UsageError: it has another type.
        """
        allowed = self.types
        value = self.formed(python_scalar(value))
        if isinstance(value, str):
            for kind in {int, float} & {*allowed}:
                with contextlib.suppress(ValueError):
                    return kind(value)
        if value == "" and type(None) in allowed:
            raise UsageError(f"{where} must not be empty; leave it out")
        if isinstance(value, allowed) and (bool in allowed or not isinstance(value, bool)):
            return value
        for kind, given in ((float, int), (Path, str), (str, int)):
            is_short = isinstance(value, str) or (type(value) is int and abs(value) < 2**1000)
            if kind in allowed and type(value) is given and is_short:
                return kind(value)  # pyright: ignore[reportArgumentType]  the kinds fit by the line above
        names = " or ".join(NOUNS[kind] for kind in allowed if kind in NOUNS)
        hint = spaces(value) if isinstance(value, str) else ""
        raise UsageError(f"{where} must be {names}; got {shown(value)}{hint}")

    def scalars(self, config: Any) -> dict[str, Any]:
        """Returns the traced scalars that have its value, by name; behind a name that is not chosen, the default."""
        value = self.get(config)
        if self.facts.is_traced:
            return {self.name: value}
        if not self.arguments:
            return {}
        chosen, number = self.split(value)
        traced = {name: a for name, a in self.arguments.items() if a.traced}
        values = {argument.traced: argument.default for argument in traced.values()}
        if chosen in traced:
            values[traced[chosen].traced] = number
        return values


def python_scalar(value: Any) -> Any:
    """Returns a scalar of NumPy or jax, which are not imported here, as a Python number; other values as they are."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def shown(value: Any) -> str:
    """Returns a value for a message; Python refuses to write an int of thousands of digits."""
    return (
        "a number too large" if type(value) is int and abs(value) >= 2**1000 else repr(value)[:100]
    )


@functools.cache
def table(config: type, prefix: str = "", outer: Facts = Facts()) -> dict[str, Setting]:  # noqa: B008  immutable
    """Returns dotted name -> setting, of a dataclass and then of the groups in it.

    Args:
        config: the dataclass.
        prefix: before every name, e.g. "fedvg.".
        outer: what the field of the group declares.
    """
    settings, in_groups = {}, {}
    topic, hints, inner = outer.topic, typing.get_type_hints(config), groups(config)
    for field in dataclasses.fields(config):
        name, facts, hint = prefix + field.name, field.metadata["facts"], hints[field.name]
        if field.name in inner:
            in_groups |= table(hint, f"{name}.", facts)
            continue
        topic = facts.topic or topic
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        facts = facts._replace(used=outer.used + facts.used, topic=topic)
        settings[name] = Setting(name, kinds, field.default, facts, operator.attrgetter(name))
        if isinstance(facts.allowed, Mapping):
            settings[name] = _with_choices(settings[name], facts.allowed)
        elif facts.allowed is not None or facts.is_traced:
            of_range = isinstance(facts.allowed, Range)
            settings[name] = settings[name]._replace(
                range=facts.allowed if of_range else None,
                names=() if of_range else tuple(facts.allowed or ()),
                traced=frozenset({name} if facts.is_traced else ()),
            )
    return settings | in_groups


def _with_choices(setting: Setting, allowed: Mapping[str, Choice | None]) -> Setting:
    """Returns a setting with what its allowed names stand for."""
    choices = {name: choice for name, choice in allowed.items() if isinstance(choice, Choice)}
    arguments = {name: choice.argument for name, choice in choices.items() if choice.argument}
    traced = {argument.traced for argument in arguments.values()} - {""}
    return setting._replace(
        names=tuple(allowed), choices=choices, arguments=arguments, traced=frozenset(traced)
    )


def flatten(config: Any) -> dict[str, Any]:
    """Returns settings by dotted name, such as fedvg.norm."""
    return {name: declared.get(config) for name, declared in table(type(config)).items()}


@functools.cache
def groups(config: type) -> dict[str, type]:
    """Returns a dict from group name to dataclass."""
    return {
        f.name: f.default_factory
        for f in dataclasses.fields(config)
        if isinstance(f.default_factory, type)
    }


def method_groups(config: type) -> list[str]:
    """Returns the groups that are part of a method's name in a report, if their settings vary."""
    return [
        field.name for field in dataclasses.fields(config) if field.metadata["facts"].names_method
    ]


def descriptions(config: type, prefix: str = "") -> dict[str, str]:
    """Returns dotted name -> the docstring below the field, on one line, of a dataclass and of its groups."""
    texts = {
        prefix + f.name: doc for f in dataclasses.fields(config) if (doc := f.metadata["facts"].doc)
    }
    for owner in config.__mro__[:-1]:
        source = _node(owner)
        for field, below in itertools.pairwise(source.body if source else []):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
            ):
                texts[prefix + field.target.id] = " ".join(
                    str(ast.literal_eval(below.value)).split()
                )
    for name, settings in groups(config).items():
        texts |= descriptions(settings, f"{name}.")
    return texts


@functools.cache
def _module(name: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[name]))


def _node(declared: type) -> ast.ClassDef | None:
    """Returns the source of a class of a module, which is parsed once; None for a class that is made at run time."""
    classes = (node for node in _module(declared.__module__).body if isinstance(node, ast.ClassDef))
    return next((node for node in classes if node.name == declared.__qualname__), None)


def spaces(text: str) -> str:
    """Returns the end of an error message about several values that are separated by commas; "" for one value.

    >>> spaces("uniform, fedvg"), spaces("fedvg")
    ('; a sweep takes several values separated by spaces: uniform fedvg', '')
    """
    values = [value.strip() for value in text.split(",")]
    is_list = len(values) > 1 and all(values)
    return (
        f"; a sweep takes several values separated by spaces: {' '.join(values)}" if is_list else ""
    )


def suggestion(name: str, allowed: Iterable[str]) -> str:
    """Returns the end of an error message about a mistyped name: the one that is probably meant, or the allowed ones.

    >>> suggestion("fedgv", ["fedvg", "samples"]), suggestion("norm", ["fedvg.norm", "lr"]), suggestion("x", ["lr"])
    ("; did you mean 'fedvg'?", "; did you mean 'fedvg.norm'?", '; allowed: lr')
    """
    names, plain = list(allowed), name.lower().replace("-", "_")
    if hint := spaces(name):
        return hint
    of_group = [known for known in names if known.rpartition(".")[2] == plain]
    likeness = {
        known: difflib.SequenceMatcher(None, known, plain).ratio() for known in of_group or names
    }
    closest = min(likeness, key=lambda known: (-likeness[known], known), default="")
    if closest and (of_group or likeness[closest] >= 0.6):
        return f"; did you mean '{closest}'?"
    return (
        f"; allowed: {', '.join(names)}"
        if len(names) < 40
        else "; python -m fedvg_jax.sim --help-all lists all"
    )
