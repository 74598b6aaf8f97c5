"""Settings of the algorithms and weightings, from what these say about themselves, and names of methods."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fedvg_jax import algorithms, weightings
from fedvg_jax.config.declare import Condition, group, is_one, setting, table
from fedvg_jax.config.fidelity import reference_behaviours
from fedvg_jax.core.types import Algorithm, Hyperparameter, Option

ALGORITHMS, WEIGHTINGS = algorithms.BY_NAME, weightings.BY_NAME

NATIVE = "native"
"""Name that stands for the weighting in the algorithm's own paper."""


@functools.cache
def weighting_names(text: str) -> tuple[str, ...]:
    """Returns the names of the weightings that a text combines.

    >>> weighting_names("samples+permuted(fedvg)"), weighting_names("native")
    (('samples', 'fedvg'), ('native',))
    """
    known = {*WEIGHTINGS, NATIVE}
    return tuple(name for name in re.findall(r"\w+", text) if name in known)


def algorithm_of(config: Any) -> Algorithm:
    """Returns the algorithm that the settings name, with the differences of the run."""
    return _algorithm(
        config.algorithm, reference_behaviours(config.reference), weighting_names(config.weighting)
    )


@functools.cache
def _algorithm(name: str, chosen: frozenset[str], beside: tuple[str, ...]) -> Algorithm:
    entry, arguments = ALGORITHMS[name], {}
    for difference, published in entry.published.items():
        if difference in chosen and (not published.weighting or published.weighting in beside):
            arguments |= published.arguments
    return entry.make(**arguments)


# --- names of methods


class LocalPart(NamedTuple):
    """A method that is FedAvg with local tensors."""

    label: str
    settings: Mapping[str, Any]


PERSONAL = {
    "fedper": LocalPart("FedPer", {"local": "^classifier/"}),
    "fedrep": LocalPart("FedRep", {"local": "0.5:^classifier/"}),
    "fedbn": LocalPart("FedBN", {"local": r"(^|/)(bn\d|norm|downsample_1/|\w+Norm_\d)"}),
}
"""FedPer (Arivazhagan et al. 2019) and FedRep (Collins et al. 2021) keep the head, FedBN (Li et al. 2021) the
normalisation layers."""


# --- the settings


_NAMESPACE = {"__module__": __name__}


def _declared() -> Iterator[tuple[Hyperparameter | Option, Condition]]:
    """Yields what weightings and then algorithms declare, with the condition under which a run uses it."""
    for kind, entries in {"weighting": WEIGHTINGS, "algorithm": ALGORITHMS}.items():
        declared: dict[str, tuple[Hyperparameter | Option, list[str]]] = {}
        for name, entry in entries.items():
            for parameter in (*entry.hyperparameters, *entry.options):
                _, owners = declared.setdefault(parameter.name, (parameter, []))
                owners.append(name)
        for parameter, owners in declared.values():
            yield parameter, _names_one(kind, *owners)


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
    for parameter, used in _declared():
        fields.setdefault(parameter.name.partition(".")[0], []).append(_field(parameter, used))
    for name, settings in fields.items():
        made = dataclasses.make_dataclass(name, settings, frozen=True, namespace=_NAMESPACE)
        globals()[name] = made  # where pickle finds it
        yield name, made, group(made, _title(name))


def _title(group: str) -> str:
    """Returns the heading of a group in help."""
    if group in WEIGHTINGS or group in ALGORITHMS:
        return label(group)
    return ", ".join(
        entry.label
        for entry in ALGORITHMS.values()
        if any(parameter.name.startswith(f"{group}.") for parameter in entry.hyperparameters)
    )


def label(name: str) -> str:
    """Returns a method as papers spell it; another text as it is."""
    entry = ALGORITHMS.get(name) or WEIGHTINGS.get(name) or PERSONAL.get(name)
    return entry.label or name if entry else name


Methods = dataclasses.make_dataclass(
    "Methods", list(_groups()), frozen=True, kw_only=True, namespace=_NAMESPACE
)
"""The settings of algorithms and weightings: a group for each that has any."""

HYPERPARAMETERS = frozenset(
    parameter for parameter, _ in _declared() if isinstance(parameter, Hyperparameter)
)
"""Those that settings of `Methods` set."""

SETTINGS = table(Methods)
"""Dotted name -> setting of an algorithm or a weighting."""
