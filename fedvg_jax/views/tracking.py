"""Trackers: a run that reports its settings and metrics to TensorBoard or Weights & Biases.

The package of tracker X is the extra X, and imported only for runs
that ask for it. A tracker that fails is left with one line, and the run continues without it.

What trackers write is in tracking/ of the run folder. A resumed run reports its earlier rounds again: TensorBoard hides
what was written before, and W&B leaves out the steps that its run has.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# the packages are extras, and protobuf makes the classes of its messages at run time

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config.checks import used, with_passed
from fedvg_jax.config.declare import listed
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import extras, files, processes
from fedvg_jax.runs import loop
from fedvg_jax.runs.assemble.simulation import Simulation
from fedvg_jax.runs.record import folder as run_folder
from fedvg_jax.runs.record.history import History, Record

Values = dict[str, float]
"""Name of a metric -> value."""


class TrackedRun(NamedTuple):
    """A run that starts, as its trackers record it."""

    name: str
    group: str | None
    """name of the sweep that the run is a trial of"""
    folder: Path | None
    """where the tracker may write; exists"""
    settings: Mapping[str, Any]
    """by dotted name, those that the run uses"""


class Writer(NamedTuple):
    """The functions of one tracker, for one run. They may raise anything."""

    place: str
    """where the run is shown or stored, for the user"""
    log: Callable[[int, Values], None]
    """(round, name of a metric -> value)"""
    close: Callable[[bool], None]
    """called at the end with whether all rounds were computed"""


def require(track: str, has_folder: bool) -> None:
    """Raises UsageError if a tracker's package is missing, or if it needs a run folder and there will be none.

    Args:
        track: names of trackers.
        has_folder: whether the run will have a folder.
    """
    for name in listed(track):
        extras.load(name, name, f"track {name}")
        if name == "tensorboard" and not has_folder:
            raise UsageError("track tensorboard writes into the run folder; name one by out")


def run_simulation(sim: Simulation, **listeners: Any) -> History:
    """Runs a simulation as `loop.run_simulation` does, and reports it to the trackers that its settings name.

    Args:
        sim: the simulation, of settings that `require` admits.
        **listeners: fields of `loop.Observers`; `log` gets a line about every tracker, too.
    """
    observers = loop.Observers(**listeners)
    names = listed(sim.config.track) if processes.is_first() else ()
    writers = {}

    def for_each(trackers: Iterable[str], action: Callable[[str], None]) -> None:
        """Calls a function with every tracker, which is left if that fails."""
        for name in [*trackers]:
            try:
                action(name)
            except Exception as error:  # of whatever kind a tracker raises: the run must not end
                writers.pop(name, None)
                reason = files.reason(error)
                observers.log(f"tracker {name} failed, and the run continues without it: {reason}")

    def start(name: str) -> None:
        writers[name] = WRITERS[name](_describe(sim))
        observers.log(f"tracked by {name}: {writers[name].place}")

    def write(number: int, values: Values) -> None:
        for_each(writers, lambda name: writers[name].log(number, values))

    def report(records: list[Record]) -> None:
        observers.on_progress(records)
        if records[0]["round"] == 1:
            for_each(names, start)
        for record in records:
            write(record["round"], scalars(record))

    is_complete = False
    try:
        history = loop.run_simulation(sim, **observers._replace(on_progress=report)._asdict())
        is_complete = history.summary.get("stopped_by") is None
        results = {f"summary/{name}": value for name, value in scalars(history.summary).items()}
        write(len(history.records), results)
        return history
    finally:
        for_each(writers, lambda name: writers[name].close(is_complete))


def scalars(record: Record) -> Values:
    """Returns the finite numbers of a record by the names that trackers show, grouped by what precedes the slash.

    >>> scalars({"round": 3, "weights": [0.5, 0.5], "train_loss": 1.5, "test_accuracy": 0.9, "val_loss": None})
    {'train/loss': 1.5, 'test/accuracy': 0.9}
    """
    values = {}
    for name, value in record.items():
        if isinstance(value, int | float) and name != "round" and math.isfinite(value):
            part, _, metric = name.partition("_")
            is_grouped = part in ("train", "val", "test") and metric
            values[f"{part}/{metric}" if is_grouped else name] = float(value)
    return values


def _describe(sim: Simulation) -> TrackedRun:
    """Returns what a tracker shows of a run, and makes its folder."""
    experiment = sim.experiment
    settings, path = with_passed(used(sim.config), experiment.custom), experiment.folder.path
    if path is None:
        return TrackedRun(time.strftime("%Y%m%d-%H%M%S"), None, None, settings)
    out, folder = path.resolve(), path / run_folder.TRACKING
    folder.mkdir(exist_ok=True)
    group = out.parent.parent.name if out.parent.name == "trials" else None
    return TrackedRun(out.name, group, folder, settings)


def tensorboard(run: TrackedRun) -> Writer:
    """Returns a writer of an event file in the run's folder."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    events = EventFileWriter(str(run.folder))

    def write(**content: Any) -> None:
        events.add_event(Event(wall_time=time.time(), **content))
        events.flush()

    def log(number: int, values: Values) -> None:
        entries = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        write(step=number, summary=Summary(value=entries))

    plain = {
        name: value if isinstance(value, bool | int | float) else str(value)
        for name, value in run.settings.items()
    }
    write(session_log=SessionLog(status=SessionLog.START))
    write(summary=hparams_pb(plain, trial_id=run.name))
    return Writer(str(run.folder), log, lambda is_complete: events.close())


def wandb(run: TrackedRun) -> Writer:
    """Returns a writer of a run of Weights & Biases, or of its offline files where WANDB_MODE is offline."""
    import wandb

    identity = uuid.uuid4().hex[:8]
    if run.folder is not None:
        stored = run.folder / "wandb-id"
        identity = stored.read_text("utf-8") if stored.exists() else identity
        files.replace(stored, identity)
    tracked = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "fedvg_jax"),
        name=run.name,
        group=run.group,
        id=identity,
        resume="allow",
        dir=os.environ.get("WANDB_DIR", run.folder),
        config=dict(run.settings),
        reinit="create_new",  # the runs of a sweep follow one another, beside a run of the caller
        settings=wandb.Settings(console="off", silent=True),
    )

    def log(number: int, values: Values) -> None:
        tracked.log(values, step=number)

    place = f"{tracked.dir} (offline; wandb sync sends it)" if tracked.offline else str(tracked.url)
    return Writer(place, log, lambda is_complete: tracked.finish(0 if is_complete else 1))


WRITERS = {"tensorboard": tensorboard, "wandb": wandb}
