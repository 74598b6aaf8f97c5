"""Names that stand for several settings, and `apply`, which makes settings of the names and values of any source.

A name is a preset of `--dataset NAME`, or a shorthand, `--method NAME` or `--fidelity NAME`. `fidelity.toml` has a row
for each difference between the paper, the published code and this package: a name of `--reference`, settings that give
the published behaviour, or the reason why a run cannot have it. The table in docs/fidelity.md is generated from it.
"""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from fedvg_jax.config import declare
from fedvg_jax.config.declare import listed, suggestion
from fedvg_jax.config.methods import ALGORITHMS, NATIVE, PERSONAL, WEIGHTINGS, parse_weighting
from fedvg_jax.core.types import UsageError

T = TypeVar("T")

_PAPER = {
    "clients": 100,
    "join_ratio": 0.1,
    "rounds": 200,
    "local_epochs": 5,
    "batch_size": 32,
    "lr": 0.01,
    "eval_every": 20,
    "model": "resnet18",
}
"""Settings that the data sets of the paper share, unless a line below overrides them."""

_CUSTOM = {
    "model": "lenet5",
    "clients": 20,
    "join_ratio": 0.25,
    "rounds": 200,
    "lr": 0.01,
    "eval_every": 20,
}
"""Settings for a user's images."""

_TEXT = {
    "model": "gru",
    "partition": "group",
    "rounds": 30,
    "local_epochs": 2,
    "batch_size": 16,
    "optimiser": "adam",
    "lr": 0.005,
}
"""Settings for texts; each author is a client."""

_FEW_ROWS = {"clients": 5, "rounds": 50, "alpha": 0.5, "lr": 0.2}
"""Settings for fewer than 200 rows."""

DATASETS: dict[str, dict] = {
    "digits": {},
    "breast_cancer": {"clients": 10, "min_samples_rule": "top_up", "rounds": 50, "lr": 0.2},
    "wine": _FEW_ROWS,
    "iris": _FEW_ROWS,
    "literature": _TEXT,
    "cifar10": _PAPER,
    "cifar100": _PAPER,
    "stl10": _PAPER,
    "organamnist": _PAPER,
    "tinyimagenet": _PAPER | {"model": "resnet50", "batch_size": 128, "momentum": 0.9},
    "covid19": _PAPER | {"model": "resnet50", "clients": 20, "join_ratio": 0.25},
    "dermamnist": _PAPER | {"model": "resnet50", "clients": 25, "join_ratio": 0.2},
    "npz": _CUSTOM,
    "folder": _CUSTOM,
    "csv": {"clients": 10, "min_samples_rule": "top_up", "rounds": 50, "lr": 0.1},
}
"""Data set -> its preset. The presets of the paper's data sets are its table of hyperparameters. The paper does not
train on CIFAR-100 and STL-10, which have the settings of CIFAR-10."""

OUTSIDE = {"tfds:": "tfds:NAME", "hf:": "hf:FOLDER"}
"""Prefix of data sets that other libraries prepare -> how such a name is written."""

# --- where the published code differs

Evidence = Literal["run", "read", "memory", "uncertain"]
"""How a statement was checked.

- run: the code was executed.
- read: the source or the paper was read.
- memory: the cited paper was recalled, not read again.
- uncertain: the statement is inferred.
"""


class Difference(NamedTuple):
    """One difference between the paper, the published code and the defaults here."""

    id: str
    subject: str
    paper: str
    """Statement of the FedVG paper, or of the algorithm's paper, named in parentheses."""
    published: str
    """Behaviour of the published code."""
    ours: str
    """Default behaviour of this package."""
    paper_evidence: Evidence
    published_evidence: Evidence
    settings: Mapping[str, Any] = {}
    """Dotted settings that give the published behaviour."""
    reason: str = ""
    """Why a run cannot have it, or why `--fidelity official` does not."""
    is_switch: bool = False
    """Whether `id` is a name of `--reference`."""
    by_default: bool = False
    """Of a switch: whether a run has the published behaviour unless it is set otherwise."""
    official: bool = False
    """Whether `--fidelity official` has the published behaviour."""


_TABLE = tomllib.loads(Path(__file__).with_name("fidelity.toml").read_text(encoding="utf-8"))

DIFFERENCES = [Difference(**row) for row in _TABLE["difference"]]
"""All rows, in the order of the documentation's table."""


SWITCHES = {row.id: row for row in DIFFERENCES if row.is_switch}
"""Name of `--reference` -> its row."""


OFFICIAL = [row for row in DIFFERENCES if row.official]
"""Rows that `--fidelity official` applies."""


@functools.cache
def reference_behaviours(text: str) -> frozenset[str]:
    """Returns the differences of a run; later words of the text override earlier ones.

    >>> sorted(reference_behaviours("block,no-truck"))
    ['block', 'external-copies']
    """
    chosen = {name for name, row in SWITCHES.items() if row.by_default}
    official = {row.id for row in OFFICIAL} & SWITCHES.keys()
    for word in listed(text):
        name = word.removeprefix("no-")
        named = official if word == "official" else {name}
        chosen = chosen - named if word != name else chosen | named
    return frozenset(chosen)


# --- names of several settings

PAPERS = ("fedavg", "fedavgm", "fedprox", "scaffold", "feddyn", "elastic")
"""Algorithms of FedVG's paper, which has the defaults of their settings."""

METHODS = (*PAPERS, "fedvg", *(f"{algorithm}+fedvg" for algorithm in PAPERS))
"""Methods of FedVG's paper."""

FIDELITY: dict[str, dict[str, Any]] = {"corrected": {}, "official": {"reference": "official"}}
"""Value of `--fidelity` -> settings. official is the published code where it departs from the papers."""
for _row in OFFICIAL:
    FIDELITY["official"] |= _row.settings

SHORTHANDS = {
    "method": "Algorithm A, weighting W, or both."
    " A: with the weights of its own paper. W: FedAvg with the weights of W."
    " A+W: algorithm A with the weights of W."
    " fedavg+fedvg: the mean of both weights.",
    "fidelity": "Behaviour where the published code departs from the papers."
    " corrected follows the papers, official the published code.",
}
"""Shorthand -> its entry in help. fidelity overrides method."""


def dataset_preset(name: str) -> dict:
    """Returns the preset of a data set; empty for an unknown one.

    >>> dataset_preset("covid19")["clients"], dataset_preset("tfds:mnist")["model"], dataset_preset("nosuch")
    (20, 'lenet5', {})
    """
    return _CUSTOM if name.startswith(tuple(OUTSIDE)) else DATASETS.get(name, {})


# --- from names and values to settings


def of_method(method: str) -> dict[str, Any]:
    """Returns the settings of an algorithm, of a weighting under FedAvg, or of both.

    Raises:
        UsageError: the method is unknown.

    >>> of_method("fedprox"), of_method("uniform")
    ({'algorithm': 'fedprox', 'weighting': 'native'}, {'algorithm': 'fedavg', 'weighting': 'uniform'})
    """
    if method == "fedavg+fedvg":
        return {"algorithm": "fedavg", "weighting": "samples+fedvg"}
    name, plus, weighting = method.partition("+")
    if name not in ALGORITHMS and name not in PERSONAL:
        name, weighting = "fedavg", method
    elif not plus:
        weighting = NATIVE
    try:
        parse_weighting(weighting)
    except UsageError:
        known = (*ALGORITHMS, NATIVE, *WEIGHTINGS, *PERSONAL, "ALGORITHM+WEIGHTING")
        raise UsageError(f"unknown method {method!r}{suggestion(method, known)}") from None
    local = {"local": PERSONAL[name].local} if name in PERSONAL else {}
    return {**local, "algorithm": name if name in ALGORITHMS else "fedavg", "weighting": weighting}


def meaning(shorthands: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings, by dotted name, that shorthands stand for.

    Raises:
        UsageError: the value of a shorthand is unknown.

    >>> meaning({"method": "fednova+val_loss", "fidelity": "corrected"})
    {'algorithm': 'fednova', 'weighting': 'val_loss'}
    """
    settings = {}
    if "method" in shorthands:
        settings |= of_method(str(shorthands["method"]))
    if "fidelity" in shorthands:
        name = str(shorthands["fidelity"])
        if name not in FIDELITY:
            raise UsageError(f"unknown fidelity {name!r}{suggestion(name, FIDELITY)}")
        settings |= FIDELITY[name]
    return settings


def with_meaning(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings with those that their shorthands stand for; the ones beside a shorthand win.

    Weighting native beside a method alone is the method's weighting.
    """
    beside = {name: value for name, value in settings.items() if name not in SHORTHANDS}
    if "method" in settings and beside.get("weighting") == NATIVE and "algorithm" not in beside:
        del beside["weighting"]
    return meaning(settings) | beside


def fields(config: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns every field of a dataclass of settings, from the arguments of its constructor.

    Settings named beside a shorthand win. Where all are named, as by `dataclasses.replace`, the shorthand wins.

    Args:
        config: the dataclass.
        settings: name -> value. A group is its dataclass, or a dict of the settings to change.

    Raises:
        UsageError: a name is unknown, or a value has another type.
    """
    groups, dotted = declare.groups(config), {}
    for name, value in settings.items():
        if name not in groups:
            dotted[name] = value
            continue
        if not isinstance(value, groups[name] | Mapping):
            raise UsageError(f"Config: {name} must be a dict; got {declare.shown(value)}")
        inner = value if isinstance(value, Mapping) else vars(value)
        for key, of_group in inner.items():
            dotted[f"{name}.{key}"] = of_group
    shorthands = {n: v for n in SHORTHANDS if (v := dotted.pop(n, None)) is not None}
    if settings.keys() >= {field.name for field in dataclasses.fields(config)}:
        dotted |= meaning(shorthands)
    else:
        dotted = with_meaning(dotted | shorthands)
    defaults = {name: declared.default for name, declared in declare.table(config).items()}
    values = declare.nested(defaults | _typed(config, dotted, "Config"))
    return values | {name: of_group(**values[name]) for name, of_group in groups.items()}


def apply(config: T, settings: Mapping[str, Any], source: str) -> T:
    """Returns `config` with some settings replaced.

    Args:
        config: the other settings.
        settings: dotted name -> value; may have shorthands, beside which the other settings win.
        source: where they come from, for messages.

    Raises:
        UsageError: a name is unknown, or a value has another type.

    >>> from fedvg_jax.config import Config
    >>> apply(Config(), {"fedvg.norm": "l2"}, "example").fedvg.norm
    'l2'
    """
    changes = _typed(type(config), with_meaning(settings), source)
    return type(config)(**(declare.flatten(config) | changes))


def _typed(config: type, settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Returns settings by dotted name in their types."""
    table, values = declare.table(config), {}
    for name, value in settings.items():
        declared = table.get(name)
        if declared is None:
            hint = suggestion(name, [*table, *SHORTHANDS])
            raise UsageError(f"{source}: unknown setting '{str(name)[:100]}'{hint}")
        is_default = value is declared.default  # which needs no conversion
        values[name] = value if is_default else declared.typed(value, f"{source}: {name}")
    return values
