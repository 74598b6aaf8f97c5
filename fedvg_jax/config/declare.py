"""How a setting is declared: in its dataclass field, by type, default, docstring and `Facts`.

Checks, flags, help, the option reference, suggestions, compiled programs and reports read these declarations.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import math
import operator
import sys
import types
import typing
from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple, TypeVar

T = TypeVar("T")

Kind = Literal["compiled", "data", "host"]
"""What a setting changes. compiled: the program of a run; data: its numbers, of the same program; host: no result."""


class Range(NamedTuple):
    """The values that a number may have."""

    holds: Callable[[Any], bool]
    words: str


ABOVE_0 = Range(lambda v: 0 < v < math.inf, "> 0")
FROM_0 = Range(lambda v: 0 <= v < math.inf, ">= 0")
COUNT = Range(lambda v: v >= 1, ">= 1")
FRACTION = Range(lambda v: 0 < v <= 1, "in (0, 1]")
BELOW_1 = Range(lambda v: 0 <= v < 1, "in [0, 1)")
UNIT = Range(lambda v: 0 <= v <= 1, "in [0, 1]")
SEED = Range(lambda v: 0 <= v < 2**32, "in [0, 2**32)")


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
    return Condition(name, lambda config: value_of(config) in values, " or ".join(values))


def is_not(name: str, value: str, by: str = "every other kind") -> Condition:
    """Holds where a setting has another value."""
    value_of = operator.attrgetter(name)
    return Condition(name, lambda config: value_of(config) != value, by)


def weighs_by(*rules: str) -> Condition:
    """Holds for one of the weightings, alone, permuted, or in a mean."""
    return Condition("weighting", lambda config: any(rule in config.weighting for rule in rules), " or ".join(rules))


class Facts(NamedTuple):
    """What the field of a setting, or of a group of settings, declares beside its type and default."""

    allowed: Collection[str] | Range | None = None
    """Names, or the range of a number; None where `checks` has a rule of its own, or any value is allowed."""
    kind: Kind = "compiled"
    hyper: str = ""
    """Name of the traced scalar of a round that has this value, which must then fit float32."""
    used: tuple[Condition, ...] = ()
    """Conditions that must all hold for a run to use the setting."""
    also: str = ""
    """Words that other libraries have for it, spelt too differently to be found by likeness."""
    word: str = ""
    """Word for its value in help, where the type says too little."""
    topic: str = ""
    """Heading in help; by default that of the field before it."""
    is_common: bool = False
    """Whether `--help` shows it; `--help-all` shows all."""
    names_method: bool = False
    """Of a group: whether a report names its settings with the method, where they vary."""


def setting(default: T, allowed: Collection[str] | Range | None = None, kind: Kind = "compiled", **others: Any) -> T:
    """Returns the field of a setting with its `Facts`. A traced scalar is data."""
    facts = Facts(allowed, "data" if "hyper" in others else kind, **others)
    return dataclasses.field(default=default, metadata={"facts": facts})


def group(settings: type[T], title: str, *used: Condition, names_method: bool = True) -> T:
    """Returns the field of a group of settings.

    Args:
        settings: its dataclass.
        title: its heading in help.
        used: conditions of all its settings.
        names_method: see `Facts`.
    """
    facts = Facts(used=used, topic=title, names_method=names_method)
    return dataclasses.field(default_factory=settings, metadata={"facts": facts})


class Setting(NamedTuple):
    """A setting as its field and group declare it."""

    types: tuple[type, ...]
    """Types of its value, NoneType among them where it may be unset."""
    default: Any
    facts: Facts
    """With the conditions of its group, and the topic that it is listed under."""
    get: Callable[[Any], Any]
    """Config -> its value."""

    @property
    def names(self) -> tuple[str, ...]:
        """The allowed names; empty for other settings."""
        return () if isinstance(self.facts.allowed, Range | None) else tuple(self.facts.allowed)

    @property
    def range(self) -> Range | None:
        """The allowed range; None for other settings."""
        return self.facts.allowed if isinstance(self.facts.allowed, Range) else None


def table(config: type, prefix: str = "", outer: Facts = Facts()) -> dict[str, Setting]:  # noqa: B008  immutable
    """Returns dotted name -> setting, of a dataclass and of the groups in it.

    Args:
        config: the dataclass.
        prefix: before every name, e.g. "fedvg.".
        outer: what the field of the group declares.
    """
    settings, topic, hints = {}, outer.topic, typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        name, facts, hint = prefix + field.name, field.metadata["facts"], hints[field.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            settings |= table(hint, f"{name}.", facts)
        else:
            topic = facts.topic or topic
            kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
            facts = facts._replace(used=outer.used + facts.used, topic=topic)
            settings[name] = Setting(kinds, field.default, facts, operator.attrgetter(name))
    return settings


def method_groups(config: type) -> list[str]:
    """Returns the groups of a dataclass whose settings a report names with the method, where they vary."""
    return [field.name for field in dataclasses.fields(config) if field.metadata["facts"].names_method]


def descriptions(config: type) -> dict[str, str]:
    """Returns dotted name -> the docstring below the field, on one line, of a dataclass and of its groups.

    All classes are of one module, which is parsed once: `inspect.getsource` of each class parses it again.
    """
    module = ast.parse(inspect.getsource(sys.modules[config.__module__]))
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    groups = {field.name: field.default_factory for field in dataclasses.fields(config)}
    texts = _docstrings(classes[config.__name__])
    for name, group in groups.items():
        if isinstance(group, type):
            texts |= {f"{name}.{inner}": text for inner, text in _docstrings(classes[group.__name__]).items()}
    return texts


def _docstrings(declared: ast.ClassDef) -> dict[str, str]:
    """Returns field -> the docstring below it, on one line."""
    texts = {}
    for field, below in itertools.pairwise(declared.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            texts[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return texts
