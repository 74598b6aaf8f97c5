"""Texts of the setting `departures`: which behaviours of the published code a run has."""

from __future__ import annotations

import functools
from typing import Any

from fedvg_jax.paper import fidelity


def listed(names: str) -> list[str]:
    """Returns the names in a text NAME,..., each once.

    >>> listed("wandb, tensorboard,wandb")
    ['wandb', 'tensorboard']
    """
    return list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))


@functools.cache
def departures(text: str) -> frozenset[str]:
    """Returns the departures of a run, of which the later words of `departures` win.

    >>> sorted(departures("block,no-truck"))
    ['block', 'external-copies']
    """
    chosen = {name for name, row in fidelity.SWITCHES.items() if row.by_default}
    for word in listed(text):
        name = word.removeprefix("no-")
        named = {name for name, row in fidelity.SWITCHES.items() if row.official} if word == "official" else {name}
        chosen = chosen - named if word != name else chosen | named
    return frozenset(chosen)


def departs(config: Any, name: str) -> bool:
    """Returns whether a run has a behaviour of the published code."""
    return name in departures(config.departures)


def canonical(text: str) -> str:
    """Returns the shortest text of the same departures that has the word official where it is given, in lower case.

    >>> canonical("no-block, truck, cohorts"), canonical("official,no-cohorts,block")
    ('cohorts', 'official,no-cohorts')
    """
    text = text.lower()
    words = listed(text)
    if not {word.removeprefix("no-") for word in words} <= {"official", *fidelity.SWITCHES}:
        return text  # refused when the settings are checked
    first, chosen = words.count("official") * ["official"], departures(text)
    usual = departures(",".join(first))
    changed = [name if name in chosen else f"no-{name}" for name in fidelity.SWITCHES if name in chosen ^ usual]
    return ",".join(first + changed)
