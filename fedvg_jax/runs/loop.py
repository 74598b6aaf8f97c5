"""A whole run: chunks of rounds, the records and checkpoints after each, and the summary."""

from __future__ import annotations

import copy
import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedvg_jax.core.types import SimState
from fedvg_jax.host import hardware, processes
from fedvg_jax.models import pretrained
from fedvg_jax.runs import chunks, endings, recording
from fedvg_jax.runs.assemble import simulation
from fedvg_jax.runs.record import checkpoint, history
from fedvg_jax.runs.record.history import History, Record

_log_warning = logging.getLogger(__name__).warning

Callback = Callable[[Record, SimState], None]


class Observers(NamedTuple):
    """What a run reports to."""

    callbacks: Sequence[Callback] = ()
    """called after every round with (a copy of the record, state); chunks are then one round long"""
    on_records: Callable[[list[Record]], None] | None = None
    """called after every chunk with copies of its records, before they are written; first with those before a resumed
    run's checkpoint. It may raise `StopRun`, as callbacks may."""
    on_progress: Callable[[list[Record]], None] = lambda records: None
    """called with the records of every chunk when they are written; first with those before a resumed run's
    checkpoint"""
    log: Callable[[str], None] = _log_warning
    """called with one line about a resumed run, about the first round that averages no client, and about a signal"""
    on_stop: Callable[[str], None] = lambda name: None
    """called at the end with the name of the first stop signal, also of one that came too late to stop the run"""


def run_simulation(sim: simulation.Simulation, **listeners: Any) -> History:
    """Runs a simulation to its end, or until a signal stops it.

    Args:
        sim: the simulation.
        listeners: fields of `Observers`.

    Returns:
        The history so far; `summary["stopped_by"]` names the signal that stopped the run.

    Raises:
        DivergedError: a client or the loss diverged, and `nonfinite` is "raise".
        UsageError: the run folder cannot be used, or is not as its run left it.
    """
    observers = Observers(**listeners)
    with recording.open_run_folder(sim, observers.log) as recorder:
        start = recorder.start
        run = Run(sim, recorder, observers, list(start.records), [])
        if start.records:
            observers.on_progress(start.records)
            if observers.on_records:
                report = functools.partial(observers.on_records, copy.deepcopy(start.records))
                is_ended_by([report], run)
        return _finished_history(sim) if start.is_finished else _run_rounds(run)


def export(sim: simulation.Simulation, finished: History) -> None:
    """Writes the final model to the file that the settings name, if any; of several processes, the first does."""
    target = sim.experiment.folder.export
    if target and processes.is_first():
        architecture = sim.experiment.model.name or None
        pretrained.save(target, finished.variables, architecture, sim.scaled_by)


def _finished_history(sim: simulation.Simulation) -> History:
    """Returns the history of a run that has no rounds left to compute; its models are read when they are used."""
    folder, template = sim.experiment.folder.path, sim.state.variables
    assert folder is not None, "only a run with a folder is resumed"

    def reading(read: Callable) -> Callable:
        return functools.cache(lambda: sim.whole(read(folder, template)))

    return History.load(folder)._replace(
        variables=reading(checkpoint.final_variables),
        best_variables=reading(checkpoint.best_variables),
        config=sim.experiment.settings,
    )


class Run(NamedTuple):
    """A run that computes its rounds."""

    sim: simulation.Simulation
    recorder: recording.Recorder
    observers: Observers
    records: list[Record]
    """of all rounds so far; grows"""
    endings: list[str]
    """why a callback ended the run, once one has"""


def _run_rounds(run: Run) -> History:
    """Computes the rounds that are left, and returns the history of all."""
    sim, recorder, observers = run.sim, run.recorder, run.observers
    experiment, cohorts = sim.experiment, sim.experiment.cohorts
    if cohorts.size == 1 < cohorts.num_clients:
        observers.log(
            "one client a round: every weighting gives it the weight 1; use a larger join_ratio or buffered.size"
        )
    if experiment.privacy:
        from fedvg_jax.runs.assemble import privacy

        observers.log(privacy.COVERS if sim.account else privacy.UNKNOWN)
    is_over = run.endings or len(run.records) >= experiment.rounds
    compiled = None if is_over else chunks.compile_programs(sim)
    recorder.start_clock(compiled.seconds if compiled else 0.0)
    state, stop, rounds = recorder.start.state, None, ()
    with (
        endings.catch_signals(observers.on_stop, observers.log) as received,
        hardware.single_lapack_thread(),
    ):
        if compiled:
            is_ended, is_single = functools.partial(call_observers, run), bool(observers.callbacks)
            virtual_seconds = (run.records or [{}])[-1].get("virtual_seconds", 0.0)
            rounds = chunks.run_chunks(
                sim, compiled, state, is_ended, is_single=is_single, virtual_seconds=virtual_seconds
            )
        for state, new in rounds:
            with processes.together():
                add_chunk(run, state, new)
            stop, is_over = endings.agree(received, processes.largest), bool(run.endings)
            if stop or is_over:
                break
            save_checkpoint(run, state)
        is_stopped = stop and len(run.records) < experiment.rounds and not is_over
        # inside `catch_signals`, so that a second SIGHUP does not end the process amid the last checkpoint
        return finish(run, state, stop if is_stopped else None)


def call_observers(run: Run, records: list[Record], state: SimState) -> bool:
    """Calls the caller's functions with copies of a chunk's records; returns whether one of them has ended the run.

    Args:
        run: before the chunk.
        records: of the chunk.
        state: after it.
    """
    last, on_records = records[-1], run.observers.on_records
    calls = [
        functools.partial(callback, copy.deepcopy(last), state)
        for callback in run.observers.callbacks
    ]
    if on_records:
        recorded, _ = _until_divergence(run, records)
        calls.append(functools.partial(on_records, copy.deepcopy(recorded)))
    return is_ended_by(calls, run)


def is_ended_by(calls: Sequence[Callable[[], None]], run: Run) -> bool:
    """Makes calls of the caller's functions; returns whether one, in whichever process, has ended the run.

    Args:
        calls: of one chunk.
        run: its `endings` get the reasons of calls that raise `StopRun`.
    """
    with processes.together():
        for call in calls:
            try:
                call()
            except history.StopRun as stop:
                run.endings.append(f"callback: {stop}" if str(stop) else "callback")
    is_ended = bool(processes.largest([bool(run.endings)])[0])
    if is_ended and not run.endings:
        run.endings.append("callback")
    return is_ended


def add_chunk(run: Run, state: SimState, new: list[Record]) -> None:
    """Records a chunk of rounds.

    Where `nonfinite` is "raise", rounds after the first in which a client or the loss diverged are not recorded: how
    many there are depends on the length of the chunk.

    Raises:
        DivergedError: a client or the loss diverged, and `nonfinite` is "raise".
    """
    endings.refuse_wrong_weights(new)
    recorded, problem = _until_divergence(run, new)
    warning = endings.no_client_warning(recorded)
    is_first_warning = warning and not endings.no_client_warning(run.records)
    run.records.extend(recorded)
    run.recorder.add(recorded, state)
    run.observers.on_progress(recorded)
    if problem:
        raise history.DivergedError(
            f"round {len(run.records)}: {problem}; use a smaller --lr, correct the data, the model or the weighting,"
            " or leave such clients out by --nonfinite skip",
            _history(run, state, "diverged"),
        )
    if is_first_warning:
        run.observers.log(warning)


def _until_divergence(run: Run, new: list[Record]) -> tuple[list[Record], str]:
    """Returns the records of a chunk that the history gets, to the first round that ends the run; and why it does."""
    experiment = run.sim.experiment
    if experiment.skips_nonfinite:
        return new, ""
    # the loss of a custom task may have any unit
    limit = math.inf if experiment.model.is_custom else endings.EXPLOSION
    return endings.until_first(new, limit)


def save_checkpoint(run: Run, state: SimState, *, is_last: bool = False) -> None:
    """Starts writing a checkpoint if one is due. All processes must call it.

    Process 0 decides and writes; all of them send it the rows of client states that their devices hold.

    Args:
        run: its last record is of the round of `state`.
        state: after that round.
        is_last: whether the run ends with it.

    Raises:
        UsageError: the previous checkpoint could not be written.
    """
    recorder = run.recorder
    with processes.together():
        is_due = recorder.is_checkpoint_due(is_last)
    if processes.largest([is_due])[0]:
        saved = run.sim.state_placement.save(state)
        with processes.together():
            recorder.write_checkpoint(saved)


def finish(run: Run, state: SimState, stopped_by: str | None) -> History:
    """Writes the last checkpoint and the summary, and returns the history.

    Args:
        run: its rounds are computed, or it was stopped.
        state: after the last of them.
        stopped_by: the signal that stopped it, or None.
    """
    if run.records:
        save_checkpoint(run, state, is_last=True)
    with processes.together():
        run.recorder.wait()
        return _history(run, state, stopped_by)


def _history(run: Run, state: SimState, stopped_by: str | None) -> History:
    """Writes the summary, and returns the history so far."""
    recorder = run.recorder
    summary = _summary(run, stopped_by)
    account = run.sim.account
    if account:  # of the model, which may be of a later round than the last record
        epsilon = account.epsilon(int(state.round))
        summary |= {"epsilon": history.number(epsilon), "delta": account.delta}
    recorder.write_summary(summary)
    best = run.sim.whole(recorder.best) if recorder.best else None
    experiment, model = run.sim.experiment, run.sim.whole(state.variables)
    return History(run.records, summary, model, experiment.folder.path, best, experiment.settings)


def _summary(run: Run, stopped_by: str | None) -> dict[str, Any]:
    """Returns the content of summary.json. `resumed_from` is the round of the last checkpoint that was restored."""
    experiment, records, start = run.sim.experiment, run.records, run.recorder.start
    compiling, running = run.recorder.seconds()
    better = dict(run.sim.task.better)
    better |= {name: metric.better for name, metric in run.sim.metrics.items() if metric.better}
    optional = {"better": better, "custom": dict(experiment.custom), "names": dict(run.sim.names)}
    return {
        "rounds": len(records),
        "interrupted": stopped_by not in (None, "diverged"),
        "stopped_by": stopped_by,
        "stopped_early": run.endings[0] if run.endings else None,
        "resumed_from": len(start.records) if experiment.folder.is_resumed else None,
        **history.summarise(records),
        **history.bytes_sent(records),
        "corrupt_clients": list(experiment.method.corrupt_clients),
        "compile_seconds": round(compiling, 3),
        "run_seconds": round(running, 3),
        **{name: value for name, value in optional.items() if value},
    }
