"""What every tracker is given and does: the contract between a run and its writers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Scalars = dict[int, dict[str, float]]
"""round -> name of a metric -> value"""


class TrackedRun(NamedTuple):
    """A run that starts, as its trackers record it."""

    name: str
    group: str
    """name of the sweep that the run is a point of; empty for a single run"""
    folder: Path | None
    """where the tracker may write; exists"""
    settings: Mapping[str, Any]
    """by dotted name, those that the run uses"""
    stored: Mapping[str, Any]
    """what the tracker returned as `stored` in an earlier part of the run"""
    num_tracked: int
    """rounds that are tracked already; later ones of an interrupted part may be there, too"""


class Ending(NamedTuple):
    """The end of a run."""

    status: str
    """finished, stopped or failed"""
    summary: Mapping[str, float]
    num_rounds: int


class Writer(NamedTuple):
    """The functions of one tracker, for one run. They may raise anything."""

    place: str
    """where the run is shown or stored, for the user"""
    stored: Mapping[str, Any]
    """what identifies the tracked run, as JSON values"""
    log: Callable[[Scalars], None]
    close: Callable[[Ending], None]
