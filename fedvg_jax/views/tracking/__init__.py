"""Trackers: a run that reports its settings, metrics and pictures to TensorBoard, Weights & Biases or MLflow.

`run_simulation` stands in for that of `runs.loop`. The packages of the trackers are extras, and imported only for runs
that ask for them. A tracker that fails is left with one line, and the run continues without it.

In a run folder, tracking/ holds what the trackers write, and tracking/runs.json what identifies the tracked runs, with
the rounds that each has. A resumed run goes on in them.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import math
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedvg_jax import config as configs
from fedvg_jax.config import Config, method_name, sweep_points
from fedvg_jax.config.options import tracker_names
from fedvg_jax.config.passed import with_passed
from fedvg_jax.config.uses import unused
from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs import history
from fedvg_jax.runs.history import History, Record
from fedvg_jax.views.tracking.writers import Ending, TrackedRun, Writer

if TYPE_CHECKING:
    from fedvg_jax.runs.simulation import Simulation

FOLDER = history.TRACKING
"""Folder of the trackers in a run folder."""

RUNS = "runs.json"

WRITERS = {
    "tensorboard": ("tensorboard", "fedvg_jax.views.tracking.tensorboard_events"),
    "wandb": ("wandb", "fedvg_jax.views.tracking.wandb_run"),
    "mlflow": ("mlflow", "fedvg_jax.views.tracking.mlflow_run"),
}
"""Name of a tracker -> the package that it needs, and the module of its writer."""

_log_warning = logging.getLogger(__name__).warning


def require(config: Config, has_folder: bool) -> None:
    """Raises UsageError if a tracker's package is missing, or if it needs a run folder and there will be none.

    Args:
        config: settings.
        has_folder: whether the run will have a folder.
    """
    for name in tracker_names(config):
        if importlib.util.find_spec(WRITERS[name][0]) is None:
            raise UsageError(f"track {name} needs {WRITERS[name][0]}; pip install 'fedvg_jax[{name}]'")
        if name == "tensorboard" and not has_folder:
            raise UsageError("track tensorboard writes into the run folder; name one by out")


def run_simulation(sim: Simulation, **listeners: Any) -> History:
    """Runs a simulation as `loop.run_simulation` does, and reports it to the trackers that its settings name.

    Args:
        sim: the simulation.
        listeners: other arguments of `loop.run_simulation`.

    Raises:
        UsageError: as `require`; or as `loop.run_simulation`.
    """
    from fedvg_jax.runs import tracked

    require(sim.config, sim.config.out is not None)
    trackers = Trackers(sim.config, listeners.get("log", _log_warning), sim.given)
    return tracked.run_simulation(sim, trackers, **listeners)


class Trackers:
    """The trackers of one run that have not failed: a `runs.tracked.Tracking`.

    Args:
        config: settings of the run.
        log: called with one line about every tracker.
        given: what the caller passed in place of the config's.
    """

    def __init__(self, config: Config, log: Callable[[str], None], given: Collection[str] = ()) -> None:
        self._config, self._log, self._given = config, log, given
        self._folder = config.out and config.out / FOLDER
        self._stored = _read(self._folder)
        self._writers: dict[str, Writer] = {}

    def open(self) -> None:
        """Starts the tracked runs, or continues them. The run folder exists.

        Of a run of several processes, the first one reports.
        """
        from fedvg_jax.core import processes  # which imports jax

        names = tracker_names(self._config)
        for name in names if names and processes.is_first() else ():
            try:
                if self._folder is not None:
                    self._folder.mkdir(exist_ok=True)
                stored = self._stored.setdefault(name, {"rounds": 0})
                module = importlib.import_module(WRITERS[name][1])
                self._writers[name] = module.open_writer(_describe(self._config, self._folder, stored, self._given))
                self._stored[name] = {**self._writers[name].stored, "rounds": stored["rounds"]}
                self._write()
                self._log(f"tracked by {name}: {self._writers[name].place}")
            except Exception as error:  # of whatever kind a tracker raises: the run must not end
                self._leave(name, error)

    def add(self, records: Sequence[Record]) -> None:
        """Reports the rounds that are not tracked yet."""
        for name, writer in list(self._writers.items()):
            new = {r["round"]: scalars(r) for r in records if r["round"] > self._stored[name]["rounds"]}
            if not new:
                continue
            try:
                writer.log(new)
                self._stored[name]["rounds"] = max(new)
                self._write()
            except Exception as error:  # as above
                self._leave(name, error)

    def close(self, status: str, history: History | None) -> None:
        """Ends the tracked runs with the results and the pictures of the run.

        Args:
            status: finished, stopped or failed.
            history: of the run; None where an error ended it.
        """
        if not self._writers:
            return
        with tempfile.TemporaryDirectory(prefix="fedvg_jax-") as scratch:
            ending = Ending(status, *_results(history, self._config, Path(scratch), self._log))
            for name, writer in list(self._writers.items()):
                try:
                    writer.close(ending)
                except Exception as error:  # as above
                    self._leave(name, error)

    def _write(self) -> None:
        if self._folder is not None:
            files.replace(self._folder / RUNS, json.dumps(self._stored, indent=1) + "\n")

    def _leave(self, name: str, error: Exception) -> None:
        self._writers.pop(name, None)
        self._log(f"tracker {name} failed, and the run continues without it: {files.reason(error)}")


def scalars(record: Record) -> dict[str, float]:
    """Returns the numbers of a record by the names that trackers show, grouped by what stands before the slash.

    >>> scalars({"round": 3, "weights": [0.5, 0.5], "train_loss": 1.5, "test_accuracy": 0.9, "val_loss": None})
    {'train/loss': 1.5, 'test/accuracy': 0.9, 'clients/effective': 2.0}
    """
    values = {}
    for name, value in record.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "round":
            part, _, metric = name.partition("_")
            values[f"{part}/{metric}" if metric and part in ("train", "val", "test") else name] = float(value)
    weights = record.get("weights") or []
    if weights and all(isinstance(w, (int, float)) for w in weights) and any(weights):
        values["clients/effective"] = sum(weights) ** 2 / sum(w * w for w in weights)
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _describe(
    config: Config, folder: Path | None, stored: Mapping[str, Any], given: Collection[str] = ()
) -> TrackedRun:
    """Returns what a tracker shows of a run: objects from Python stand in place of the settings that they replace."""
    out = config.out
    method = "own-method" if {"algorithm", "weighting"} & {*given} else method_name(config)
    name = out.resolve().name if out else f"{time.strftime('%Y%m%d-%H%M%S')}-{method}"
    is_point = out is not None and out.resolve().parent.name == "points"
    group = out.resolve().parent.parent.name if out and is_point else ""
    left_out = {*sweep_points.HOST, *unused(config)}
    settings = {n: sweep_points.plain(v) for n, v in configs.flatten(config).items() if n not in left_out}
    identity = {key: value for key, value in stored.items() if key != "rounds"}
    return TrackedRun(name, group, folder, with_passed(settings, given), identity, stored["rounds"])


def _results(
    history: History | None, config: Config, scratch: Path, log: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Path], int]:
    """Returns the numbers of the summary, the pictures of the run, and the number of its rounds."""
    if history is None:
        return {}, {}, 0
    numbers = {
        n: float(v) for n, v in history.summary.items() if isinstance(v, (int, float)) and not isinstance(v, bool)
    }
    return numbers, _pictures(history, config, scratch, log), len(history.records)


def _pictures(history: History, config: Config, scratch: Path, log: Callable[[str], None]) -> dict[str, Path]:
    """Draws the pictures of a run into a folder; returns them by name, none without Matplotlib."""
    if importlib.util.find_spec("matplotlib") is None or not history.records:
        return {}
    from fedvg_jax.views import plots

    try:
        return {path.stem: path for path in plots.write(scratch, history.records, config)}
    except Exception as error:  # pictures are the last and least of a tracked run
        log(f"no pictures for the trackers: {files.reason(error)}")
        return {}


def _read(folder: Path | None) -> dict[str, dict[str, Any]]:
    """Returns what an earlier part of the run has stored; {} where it is missing or damaged."""
    if folder is None or not (folder / RUNS).is_file():
        return {}
    try:
        stored = files.read_object(folder / RUNS)
    except UsageError:
        return {}
    return {
        name: entries
        for name, entries in stored.items()
        if isinstance(entries, dict) and type(entries.get("rounds")) is int and entries["rounds"] >= 0
    }
