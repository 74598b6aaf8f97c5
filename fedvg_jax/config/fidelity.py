"""Where the paper, the published code and this package differ, one row per difference.

The rows are in `fidelity.toml`. `presets.FIDELITY` and the documentation's table are generated from them. A row is
a name of `--reference`, names settings that give the published behaviour, or has the reason why a run cannot have it.
The functions below read texts of the setting `reference`.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

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
    """Of a switch: whether a run has the published behaviour unless it is given otherwise."""
    official: bool = False
    """Whether `--fidelity official` has the published behaviour."""


_TABLE = tomllib.loads(Path(__file__).with_name("fidelity.toml").read_text(encoding="utf-8"))

DIFFERENCES = [Difference(**row) for row in _TABLE["difference"]]
"""All rows, in the order of the documentation's table."""


SWITCHES = {row.id: row for row in DIFFERENCES if row.is_switch}
"""Name of `--reference` -> its row."""


def official_settings() -> dict[str, Any]:
    """Returns the settings that `--fidelity official` applies, by dotted name."""
    settings = {
        name: value for row in DIFFERENCES if row.official for name, value in row.settings.items()
    }
    return {"reference": "official", **settings}


def listed(names: str) -> list[str]:
    """Returns the names in a text NAME,..., each once.

    >>> listed("wandb, tensorboard,wandb")
    ['wandb', 'tensorboard']
    """
    return list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))


@functools.cache
def reference_behaviours(text: str) -> frozenset[str]:
    """Returns the differences of a run; later words of the text override earlier ones.

    >>> sorted(reference_behaviours("block,no-truck"))
    ['block', 'external-copies']
    """
    chosen = {name for name, row in SWITCHES.items() if row.by_default}
    for word in listed(text):
        name = word.removeprefix("no-")
        named = (
            {name for name, row in SWITCHES.items() if row.official}
            if word == "official"
            else {name}
        )
        chosen = chosen - named if word != name else chosen | named
    return frozenset(chosen)


def as_reference(config: Any, name: str) -> bool:
    """Returns whether a run has a behaviour of the published code."""
    return name in reference_behaviours(config.reference)
