"""Runs that report to trackers: the contract of what reports, and the run around it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from fedvg_jax.config import Config
from fedvg_jax.runs import loop, simulation
from fedvg_jax.runs.history import DivergedError, History, Record


class Tracking(Protocol):
    """Reports one run. No function raises."""

    def open(self) -> None:
        """Starts the report, or continues that of an earlier part. The run folder exists."""
        ...

    def add(self, records: Sequence[Record]) -> None:
        """Reports rounds; first those of earlier parts."""
        ...

    def close(self, status: str, history: History | None) -> None:
        """Ends the report.

        Args:
            status: finished, stopped or failed.
            history: of the run; None where an error ended it.
        """
        ...


MakeTracking = Callable[[Config, Callable[[str], None], Collection[str]], Tracking]
"""(settings, log, given) -> the report of a run; `log` takes lines for the user, `given` is that of the simulation."""


class Untracked:
    """The report of a run without trackers."""

    def __init__(self, config: Config, log: Callable[[str], None], given: Collection[str] = ()) -> None:
        pass

    def open(self) -> None:
        """Does nothing."""

    def add(self, records: Sequence[Record]) -> None:
        """Does nothing."""

    def close(self, status: str, history: History | None) -> None:
        """Does nothing."""


def run_simulation(
    sim: simulation.Simulation,
    tracking: Tracking,
    on_records: Callable[[list[Record]], None] = lambda records: None,
    **listeners: Any,
) -> History:
    """Runs a simulation as `loop.run_simulation` does, and reports it.

    Args:
        sim: the simulation.
        tracking: reports it.
        on_records: see `loop.run_simulation`.
        listeners: its other arguments.
    """

    def report(records: list[Record]) -> None:
        on_records(records)
        tracking.add(records)

    try:
        result = loop.run_simulation(sim, **listeners, on_start=tracking.open, on_records=report)
    except BaseException as error:
        close(tracking, error)
        raise
    close(tracking, result)
    return result


def close(tracking: Tracking, result: History | BaseException) -> None:
    """Ends the report of a run by its result, or by the error that ended it."""
    if isinstance(result, History):
        tracking.close("stopped" if result.summary.get("stopped_by") else "finished", result)
    else:
        tracking.close("failed", result.history if isinstance(result, DivergedError) else None)
