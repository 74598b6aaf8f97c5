"""Methods: the grammar of `--weighting`, names, and the settings that algorithms and weightings declare."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from fedvg_jax import algorithms, weightings
from fedvg_jax.config.declare import Condition, group, is_one, setting, suggestion, table
from fedvg_jax.core.types import Hyperparameter, Option, UsageError

ALGORITHMS, WEIGHTINGS = algorithms.BY_NAME, weightings.BY_NAME

NATIVE = "native"
"""Name that stands for the weighting in the algorithm's paper."""


@functools.cache
def weighting_names(text: str) -> tuple[str, ...]:
    """Returns the names of the weightings that a text combines.

    >>> weighting_names("samples+permuted(fedvg)"), weighting_names("native")
    (('samples', 'fedvg'), ('native',))
    """
    known = {*WEIGHTINGS, NATIVE}
    return tuple(name for name in re.findall(r"\w+", text) if name in known)


# --- the grammar of `--weighting`


class Permuted(NamedTuple):
    """permuted(RULE): the weights of a rule, assigned to other clients."""

    rule: Rule


class Mean(NamedTuple):
    """FIRST+SECOND: the mean of two rules."""

    first: Rule
    second: Rule


Rule = str | Permuted | Mean


def parse_weighting(text: str) -> Rule:
    """Returns the rule that a text describes: NAME, permuted(RULE), or the mean of two, A+B.

    Raises:
        UsageError: the text is none of these.

    >>> parse_weighting("samples+permuted(fedvg)")
    Mean(first='samples', second=Permuted(rule='fedvg'))
    >>> parse_weighting("permuted(samples+fedvg)")
    Permuted(rule=Mean(first='samples', second='fedvg'))
    """
    outside = [i for i, char in enumerate(text) if char == "+" and _is_closed(text[:i])]
    if len(outside) == 1:
        return Mean(parse_weighting(text[: outside[0]]), parse_weighting(text[outside[0] + 1 :]))
    if inner := re.fullmatch(r"permuted\((.*)\)", text):
        return Permuted(parse_weighting(inner[1]))
    if text not in WEIGHTINGS and text != NATIVE:
        hint = suggestion(text, (NATIVE, *WEIGHTINGS, "permuted(NAME)"))
        if text in ALGORITHMS:
            hint = f"; {text} is an algorithm; use --method {text}"
        raise UsageError(f"unknown weighting '{text[:100]}'{hint}")
    return text


def _is_closed(text: str) -> bool:
    """Returns whether no parenthesis is open at the end of a text."""
    return text.count("(") <= text.count(")")


def streams(text: str) -> bool:
    """Returns whether a rule can weigh a cohort chunk by chunk: a NAME that `WEIGHTINGS` marks, or the mean of two.

    >>> streams("samples+fedvg"), streams("permuted(fedvg)")
    (True, False)
    """
    rule = parse_weighting(text)
    parts = rule if isinstance(rule, Mean) else [rule]
    return all(
        isinstance(part, str) and (part == NATIVE or WEIGHTINGS[part].streams) for part in parts
    )


# --- names of methods


class LocalPart(NamedTuple):
    """A method that is FedAvg with local tensors."""

    label: str
    local: str
    """Setting of its local tensors."""


PERSONAL = {
    "fedper": LocalPart("FedPer", "^classifier/"),
    "fedrep": LocalPart("FedRep", "0.5:^classifier/"),
    "fedbn": LocalPart("FedBN", r"(^|/)(bn\d|norm|downsample_1/|\w+Norm_\d)"),
}
"""FedPer (Arivazhagan et al. 2019) and FedRep (Collins et al. 2021) keep the head, FedBN (Li et al. 2021) the
normalisation layers."""


def label(name: str) -> str:
    """Returns a method as papers spell it; another text as it is."""
    entry = ALGORITHMS.get(name) or WEIGHTINGS.get(name) or PERSONAL.get(name)
    return entry.label or name if entry else name


def method_of(algorithm: str, weighting: str, local: str = "") -> str:
    """Returns the name that `--method` takes: the paper's name, else WEIGHTING or ALGORITHM+WEIGHTING.

    >>> method_of("fedavg", "samples+fedvg"), method_of("fedavg", "uniform"), method_of("fedprox", "uniform")
    ('fedavg+fedvg', 'uniform', 'fedprox+uniform')
    >>> method_of("fedavg", "samples"), method_of("fedavg", "native"), method_of("fedavg", "fedvg", "^classifier/")
    ('fedavg', 'fedavg', 'fedper+fedvg')
    """
    if algorithm != "fedavg":
        return f"{algorithm}+{weighting}".removesuffix("+native")
    weighting = "" if weighting in ("native", "samples") else weighting
    if personal := [name for name, part in PERSONAL.items() if part.local == local]:
        return f"{personal[0]}+{weighting}".removesuffix("+")
    return "fedavg+fedvg" if weighting == "samples+fedvg" else weighting or "fedavg"


def method_title(name: str) -> str:
    """Returns the name of a method with the spelling of papers; settings behind the first comma stay.

    Args:
        name: as `Config.method` and tables have it.

    >>> method_title("fedvg"), method_title("fedprox+fedvg"), method_title("permuted(fedvg), lr 0.1")
    ('FedVG', 'FedProx+FedVG', 'permuted(FedVG), lr 0.1')
    """
    method, comma, details = name.partition(", ")
    return re.sub(r"\w+", lambda word: label(word[0]), method) + comma + details


# --- the settings


_NAMESPACE = {"__module__": __name__}


def _declared() -> list[tuple[Hyperparameter | Option, Condition]]:
    """Returns what weightings and then algorithms declare, with the condition under which a run uses it."""
    declared: dict[tuple[str, str], tuple[Hyperparameter | Option, list[str]]] = {}
    for kind, entries in {"weighting": WEIGHTINGS, "algorithm": ALGORITHMS}.items():
        for name, entry in entries.items():
            for parameter in (*entry.hyperparameters, *entry.options):
                _, owners = declared.setdefault((kind, parameter.name), (parameter, []))
                owners.append(name)
    return [
        (parameter, _names_one(kind, *owners))
        for (kind, _), (parameter, owners) in declared.items()
    ]


@functools.cache
def _names_one(kind: str, *names: str) -> Condition:
    """Holds where the algorithm is one of the names, or where the weighting combines one of them."""
    if kind == "algorithm":
        return is_one(kind, *names)
    return Condition(
        kind,
        lambda config: not {*names}.isdisjoint(weighting_names(config.weighting)),
        " or ".join(names),
    )


def published_behaviours() -> Iterator[tuple[str, tuple[Condition, ...]]]:
    """Yields the published behaviours of algorithms, with the conditions under which a run can have them."""
    owners: dict[tuple[str, str], list[str]] = {}
    for algorithm, entry in ALGORITHMS.items():
        for name, published in entry.published.items():
            owners.setdefault((name, published.weighting), []).append(algorithm)
    for (name, beside), names in owners.items():
        conditions = [is_one("algorithm", *names)]
        if beside:
            conditions.append(_names_one("weighting", beside))
        yield name, tuple(conditions)


def _field(parameter: Hyperparameter | Option, *used: Condition) -> tuple[str, type, Any]:
    """Returns the field of a group of settings."""
    if isinstance(parameter, Hyperparameter):
        facts = {"allowed": parameter.range, "is_traced": True}
    else:
        used += tuple(is_one(name, *values) for name, values in parameter.used.items())
        kind = "compiled" if parameter.is_compiled else "data"
        facts = {"allowed": parameter.allowed, "kind": kind, "word": parameter.word}
    name = parameter.name.partition(".")[2]
    return (
        name,
        type(parameter.value),
        setting(parameter.value, used=used, doc=parameter.doc, **facts),
    )


def _groups() -> Iterator[tuple[str, type, Any]]:
    """Yields a field for each group of settings. One or several algorithms and weightings declare a group."""
    fields: dict[str, list] = {}
    owners: dict[str, str] = {}
    for parameter, used in DECLARED:
        name = parameter.name.partition(".")[0]
        fields.setdefault(name, []).append(_field(parameter, used))
        owners.setdefault(name, used.by)
    for name, settings in fields.items():
        made = dataclasses.make_dataclass(name, settings, frozen=True, namespace=_NAMESPACE)
        globals()[name] = made  # where pickle finds it
        is_named = name in WEIGHTINGS or name in ALGORITHMS
        titled = [name] if is_named else owners[name].split(" or ")
        yield name, made, group(made, ", ".join(map(label, titled)))


DECLARED = _declared()

Methods = dataclasses.make_dataclass(
    "Methods", list(_groups()), frozen=True, kw_only=True, namespace=_NAMESPACE
)
"""The settings of algorithms and weightings: a group for each that has any."""

HYPERPARAMETERS = frozenset(
    parameter for parameter, _ in DECLARED if isinstance(parameter, Hyperparameter)
)
"""Those that settings of `Methods` set."""

SETTINGS = table(Methods)
"""Dotted name -> setting of an algorithm or a weighting."""
