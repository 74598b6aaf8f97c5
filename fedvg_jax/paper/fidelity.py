"""Where the paper, the published code and this package differ, one row per difference.

The rows are in `fidelity.toml`. `presets.FIDELITY` takes the settings of `--fidelity official` from here, and
`python docs/generate.py` the README's table. A row names settings that give the published behaviour, or the reason why
there are none.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any, Literal, NamedTuple

Evidence = Literal["run", "read", "memory", "uncertain"]
"""How a statement was checked: the code was run; the source or the paper was read; the cited paper was recalled, not
read again; or the statement is inferred."""


class Departure(NamedTuple):
    """One difference between the paper, the published code and the defaults here."""

    id: str
    subject: str
    paper: str
    """What the FedVG paper says, or the paper of the algorithm, named in parentheses."""
    published: str
    """What the published code does."""
    ours: str
    """What this package does by default."""
    paper_evidence: Evidence
    published_evidence: Evidence
    settings: Mapping[str, Any] = {}
    """Dotted settings that give the published behaviour."""
    reason: str = ""
    """Why there are no such settings, or why `--fidelity official` leaves them alone."""
    official: bool = False
    """Whether `--fidelity official` applies `settings`."""


def _read() -> tuple[Departure, ...]:
    text = resources.files("fedvg_jax.paper").joinpath("fidelity.toml").read_text(encoding="utf-8")
    return tuple(Departure(**row) for row in tomllib.loads(text)["departure"])


DEPARTURES = _read()
"""All rows, in the order of the README's table."""


def official_settings() -> dict[str, Any]:
    """The settings that `--fidelity official` applies."""
    return {name: value for row in DEPARTURES if row.official for name, value in row.settings.items()}
