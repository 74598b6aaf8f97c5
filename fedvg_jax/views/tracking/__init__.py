"""Trackers: a run that reports its settings and metrics to TensorBoard or Weights & Biases.

`run_simulation` stands in for that of `runs.loop`. The package of tracker X is the extra X, and imported, by the module
`X_run`, only for runs that ask for it. A tracker that fails is left with one line, and the run continues without it.

In a run folder, tracking/ holds what the trackers write, and tracking/runs.json what identifies the tracked runs, with
the rounds that each has. A resumed run continues its tracked runs.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedvg_jax.config import Config
from fedvg_jax.config.fidelity import listed
from fedvg_jax.config.uses import used, with_passed
from fedvg_jax.config.weighting_grammar import method_of
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files
from fedvg_jax.runs.record import folder as run_folder
from fedvg_jax.runs.record.history import DivergedError, History, Record

if TYPE_CHECKING:
    from fedvg_jax.runs.assemble.simulation import Simulation

RUNS = "runs.json"

_log_warning = logging.getLogger(__name__).warning


Scalars = dict[int, dict[str, float]]
"""round -> name of a metric -> value"""


class TrackedRun(NamedTuple):
    """A run that starts, as its trackers record it."""

    name: str
    group: str
    """name of the sweep that the run is a trial of; empty for a single run"""
    folder: Path | None
    """where the tracker may write; exists"""
    settings: Mapping[str, Any]
    """by dotted name, those that the run uses"""
    stored: Mapping[str, Any]
    """what the tracker returned as `stored` in an earlier segment of the run; `rounds`, the number of rounds that are
    tracked already; later ones of an interrupted segment may be there, too"""


class Writer(NamedTuple):
    """The functions of one tracker, for one run. They may raise anything."""

    place: str
    """where the run is shown or stored, for the user"""
    stored: Mapping[str, Any]
    """what identifies the tracked run, as JSON values"""
    log: Callable[[Scalars], None]
    close: Callable[[str, Mapping[str, float], int], None]
    """(status: finished, stopped or failed; numbers of the summary; number of rounds)"""


def require(config: Config, has_folder: bool) -> None:
    """Raises UsageError if a tracker's package is missing, or if it needs a run folder and there will be none.

    Args:
        config: settings.
        has_folder: whether the run will have a folder.
    """
    for name in listed(config.track):
        if importlib.util.find_spec(name) is None:
            raise UsageError(f"track {name} needs {name}; pip install 'fedvg_jax[{name}]'")
        if name == "tensorboard" and not has_folder:
            raise UsageError("track tensorboard writes into the run folder; name one by out")


def run_simulation(
    sim: Simulation,
    *,
    on_records: Callable[[list[Record]], None] = lambda records: None,
    log: Callable[[str], None] = _log_warning,
    **listeners: Any,
) -> History:
    """Runs a simulation as `loop.run_simulation` does, and reports it to the trackers that its settings name.

    Args:
        sim: the simulation, of settings that `require` admits.
        on_records: see `loop.run_simulation`.
        log: as there; gets a line about every tracker, too.
        listeners: its other arguments.
    """
    from fedvg_jax.runs import loop  # which imports jax

    trackers = Trackers(sim.config, log, sim.experiment.custom)

    def report(records: list[Record]) -> None:
        on_records(records)
        trackers.add(records)

    try:
        result = loop.run_simulation(
            sim, **listeners, log=log, on_start=trackers.open, on_records=report
        )
    except BaseException as error:
        trackers.close("failed", error.history if isinstance(error, DivergedError) else None)
        raise
    trackers.close("stopped" if result.summary.get("stopped_by") else "finished", result)
    return result


class Trackers:
    """The trackers of one run that have not failed. No function raises.

    Args:
        config: settings of the run.
        log: called with one line about every tracker.
        given: what the caller passed in place of the config's.
    """

    def __init__(
        self, config: Config, log: Callable[[str], None], given: Mapping[str, str]
    ) -> None:
        self._config, self._log, self._given = config, log, given
        self._folder = config.out and config.out / run_folder.TRACKING
        self._stored = _read(self._folder)
        self._writers: dict[str, Writer] = {}

    def open(self) -> None:
        """Starts the tracked runs, or continues them. The run folder exists.

        Of a run of several processes, the first one reports.
        """
        from fedvg_jax.host import processes  # which imports jax

        names = listed(self._config.track)
        for name in names if names and processes.is_first() else ():
            with self._left_if_it_fails(name):
                if self._folder is not None:
                    self._folder.mkdir(exist_ok=True)
                stored = self._stored.setdefault(name, {"rounds": 0})
                module = importlib.import_module(f"{__name__}.{name}_run")
                writer = module.open_writer(
                    _describe(self._config, self._folder, stored, self._given)
                )
                is_new = any(stored.get(key) != value for key, value in writer.stored.items())
                self._writers[name] = writer
                self._store(name, **writer.stored, **({"rounds": 0} if is_new else {}))
                self._log(f"tracked by {name}: {writer.place}")

    def add(self, records: Sequence[Record]) -> None:
        """Reports the rounds that are not tracked yet; the first call has the rounds of earlier segments."""
        for name, writer in list(self._writers.items()):
            if new := {
                r["round"]: scalars(r) for r in records if r["round"] > self._stored[name]["rounds"]
            }:
                with self._left_if_it_fails(name):
                    writer.log(new)
                    self._store(name, rounds=max(new))

    def close(self, status: str, result: History | None) -> None:
        """Ends the tracked runs with the results of the run.

        Args:
            status: finished, stopped or failed.
            result: of the run; None where an error ended it.
        """
        summary, records = (result.summary, result.records) if result else ({}, [])
        numbers = {name: float(value) for name, value in summary.items() if _is_number(value)}
        for name, writer in list(self._writers.items()):
            with self._left_if_it_fails(name):
                writer.close(status, numbers, len(records))

    def _store(self, name: str, **entries: Any) -> None:
        self._stored[name] |= entries
        if self._folder is not None:
            files.replace(self._folder / RUNS, json.dumps(self._stored, indent=1) + "\n")

    @contextlib.contextmanager
    def _left_if_it_fails(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of whatever kind a tracker raises: the run must not end
            self._writers.pop(name, None)
            self._log(
                f"tracker {name} failed, and the run continues without it: {files.reason(error)}"
            )


def scalars(record: Record) -> dict[str, float]:
    """Returns the numbers of a record by the names that trackers show, grouped by what stands before the slash.

    >>> scalars({"round": 3, "weights": [0.5, 0.5], "train_loss": 1.5, "test_accuracy": 0.9, "val_loss": None})
    {'train/loss': 1.5, 'test/accuracy': 0.9, 'clients/effective': 2.0}
    """
    values = {}
    for name, value in record.items():
        if _is_number(value) and name != "round":
            part, _, metric = name.partition("_")
            values[f"{part}/{metric}" if metric and part in ("train", "val", "test") else name] = (
                float(value)
            )
    weights = record.get("weights") or []
    if weights and all(map(_is_number, weights)) and any(weights):
        values["clients/effective"] = sum(weights) ** 2 / sum(w * w for w in weights)
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _describe(
    config: Config, folder: Path | None, stored: Mapping[str, Any], given: Mapping[str, str]
) -> TrackedRun:
    """Returns what a tracker shows of a run: objects from Python stand in place of the settings that they replace."""
    out = config.out.resolve() if config.out else None
    own = [given[argument] for argument in ("algorithm", "weighting") if argument in given]
    named = "-".join(dict.fromkeys(filter(None, own))) or "own-method"
    method = named if own else method_of(config.algorithm, config.weighting, config.local)
    name = out.name if out else f"{time.strftime('%Y%m%d-%H%M%S')}-{method}"
    sweep = out.parent.parent if out and out.parent.name == "trials" else Path()
    group = f"{sweep.parent.name}-tuning" if sweep.name == "tuning" else sweep.name
    return TrackedRun(name, group, folder, with_passed(used(config), given), dict(stored))


def _read(folder: Path | None) -> dict[str, dict[str, Any]]:
    """Returns what an earlier segment of the run has stored; {} where it is missing or damaged."""
    try:
        stored = files.read_object(folder / RUNS) if folder else {}
    except UsageError:
        return {}
    return {
        name: e
        for name, e in stored.items()
        if isinstance(e, dict) and isinstance(e.get("rounds"), int)
    }
