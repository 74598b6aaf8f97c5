"""A whole run: chunks of rounds on the device, evaluations between them, records on the host.

The device works on a chunk without reading anything back; meanwhile the host plans the next. A chunk ends at an
evaluation, a checkpoint or a callback, when its table of minibatches is full, or after about two seconds, so that
progress, interrupts and time left stay live.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedvg_jax import config as configs
from fedvg_jax.config import Config
from fedvg_jax.core import files
from fedvg_jax.core.types import Data, Metrics, Schedule, SimState, UsageError, Variables
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.runs import divergence, history, provenance, resume, simulation, stop_signals, verification
from fedvg_jax.runs import recorder as recording
from fedvg_jax.runs.history import History, Record

CHUNK_SECONDS = 2.0

_tell = logging.getLogger(__name__).warning

Callback = Callable[[Record, SimState], None]

Metric = Callable[[Variables, Data], Any]
"""(global model, data) -> one number, at every evaluation; `data.pool` and its tables of rows are as in a round"""


def run(
    config: Config | None = None,
    *,
    data=None,
    partition=None,
    task=None,
    algorithm=None,
    weighting=None,
    hyper: Mapping[str, float] | None = None,
    callbacks: Sequence[Callback] = (),
    metrics: Mapping[str, Metric] | None = None,
) -> History:
    """One federated run.

    Args:
        config: settings; by default the digits demonstration.
        data: a pair (x, y) of arrays of any rank, or `data.arrays.Arrays`, in place of the data set.
        partition: (train, val, test), each with one array of rows per client; or a list of the rows of every client,
            which are then split as the config says.
        task: a model and its loss, e.g. of `linen_task`, in place of the config's.
        algorithm, weighting: replace what the config names; a weighting may also be a function task -> Weighting.
        hyper: name -> value of hyperparameters that the given algorithm or weighting declares.
        callbacks: called after every round with (record, state); chunks are then one round long.
        metrics: name -> (global model, data) -> one number, recorded under that name at every evaluation.

    Returns:
        The history; it is also written to `config.out` if that is set.

    Raises:
        UsageError: for settings or files that cannot work, before anything is computed; for a model or a weighting that
            breaks its contract, with the leaf and the expected shape.
        DivergedError: a UsageError with the `history` so far; a client diverged, and `nonfinite` is "raise".
        KeyboardInterrupt: Ctrl-C was pressed; with a run folder, after a checkpoint.

    >>> run(Config(rounds=2), metrics={"test_loss": lambda model, data: 0.0})
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: metric 'test_loss' would hide the history's own; give it another name
    """
    config = resume.resolve(configs.check(Config() if config is None else config))
    for name in metrics or {}:
        if history.is_own(name):
            raise UsageError(f"metric '{name}' would hide the history's own; give it another name")
    sim = simulation.simulation(
        config, data=data, partition=partition, task=task, algorithm=algorithm, weighting=weighting, hyper=hyper
    )
    finished = drive(sim._replace(metrics=metrics or {}), callbacks=callbacks)
    stopped_by = finished.summary["stopped_by"]
    if stopped_by == "SIGINT":  # a caller's loop over runs ends, too
        raise KeyboardInterrupt(f"stopped after round {len(finished.records)}; run folder: {finished.folder}")
    if stopped_by is not None:  # everything is safe; now it may do what it does
        signal.raise_signal(signal.Signals[stopped_by])
    return finished


def drive(
    sim: simulation.Simulation,
    *,
    callbacks: Sequence[Callback] = (),
    on_records: Callable[[list[Record]], None] = lambda records: None,
    tell: Callable[[str], None] = _tell,
    farewell: Callable[[], str] | None = None,
) -> History:
    """Runs a simulation to its end, or until it is asked to stop.

    Args:
        on_records: hears of every chunk; first of the rounds before a resumed run's checkpoint, if there are any.
        tell: takes a line about a resumed run, about the first round that averages no client, and at the end how many
            there were.
        farewell: see `interrupts.watch`.

    Raises:
        DivergedError: a client diverged where it must not.
        MisfitError: the folder is that of a finished run, and not as that run left it.
        UsageError: the run folder cannot be used.
    """
    config = sim.config
    _make_trace_folder(config.profile)
    layers = simulation.layer_names(config, sim.task) if config.out else ()
    about = {"layers": layers, "partition": sim.statistics}
    sources = functools.partial(provenance.sources, sim.arrays, sim.partition, sim.data.pool)
    with recording.opened(config, sim.state, about, sources, tell) as recorder:
        start = recorder.start
        if start.records:
            on_records(start.records)
        if len(start.records) == config.rounds and start.resumed_from is not None:
            return _finished(config, recorder, tell)
        return _drive(sim, recorder, callbacks, on_records, tell, farewell)


def _finished(config: Config, recorder: recording.Recorder, tell: Callable[[str], None]) -> History:
    """The result of a run that has done all its rounds, after checking its folder."""
    start, best = recorder.start, recorder.best and recorder.best.variables
    known = recorder.known_summary()
    if start.is_repaired or not (config.out / "summary.json").exists():
        results = history.summarise(start.records)
        whole = {name: value for name, value in results.items() if value is not None or not known}
        known = (known or _summary(config, start.records, start, start.seconds, None)) | whole
        recorder.summarise(known)
    recorder.write_missing()
    report = verification.check(config.out)
    for line in report.notes:
        tell(line)
    if report.misfits:
        raise verification.MisfitError(config.out, report.misfits)
    return History(start.records, known, start.state.variables, config.out, best)


def _drive(sim: simulation.Simulation, recorder: recording.Recorder, callbacks, on_records, tell, farewell) -> History:
    start, stopped_by = recorder.start, None
    state, records = start.state, list(start.records)
    has_warned = False
    programs = compile_programs(sim) if len(records) < sim.config.rounds else None
    clock = _Clock(start.seconds, programs.seconds if programs else 0.0, time.perf_counter())

    def summarise(stopped_by: str | None) -> dict[str, Any]:
        summary = _summary(sim.config, records, start, clock.read(), stopped_by)
        recorder.summarise(summary)
        return summary

    def result(summary: dict[str, Any]) -> History:
        best = recorder.best and recorder.best.variables
        return History(records, summary, state.variables, sim.config.out, best)

    with stop_signals.catch_signals() as requests:
        with stop_signals.watch(farewell), _traced(sim.config.profile) as stop_tracing:
            for state, new in chunks(sim, programs, start.state, len(records), single=bool(callbacks)):
                records += new
                recorder.add(new, state)
                on_records(new)
                if len(records) > len(new):  # the first chunk is one round
                    stop_tracing()
                for callback in callbacks:
                    callback(new[-1], state)
                if sim.config.nonfinite == "raise" and (diverged := divergence.error(new, sim.data)):
                    raise history.DivergedError(diverged, result(summarise("diverged")))
                if not has_warned and (warning := divergence.warning(new, sim.data)):
                    has_warned = True
                    tell(warning)
                if requests.stop:
                    break
                recorder.checkpoint(state, records[-1], clock.read(), is_asked=bool(requests.save))
                _answer(requests.save, recorder, len(records), tell)
        if requests.stop and len(records) < sim.config.rounds:
            stopped_by = requests.stop[0]
        if has_warned and (count := sum(map(divergence.averaged_nobody, records))) > 1:
            tell(f"{count} of {len(records)} rounds averaged no client")
        if records:  # a second SIGHUP must not end this
            recorder.checkpoint(state, records[-1], clock.read(), is_last=True)
            recorder.settle()
        return result(summarise(stopped_by))


def _answer(asked: list[str], recorder: recording.Recorder, number: int, tell: Callable[[str], None]) -> None:
    """Says which checkpoint was made for the signals that asked for one."""
    if asked:
        kept = f"checkpoint of round {number}" if recorder.keeps_checkpoints else "no checkpoints are kept"
        tell(f"{asked[0]}: {kept}")
        asked.clear()


def _make_trace_folder(folder: Path | None) -> None:
    """Makes the folder of `--profile`, or UsageError: JAX reports one that it cannot write with a traceback."""
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        said = files.reason(error)
        raise UsageError(f"profile {folder} is no folder to write a trace into: {said}; name another") from None


@contextlib.contextmanager
def _traced(folder: Path | None) -> Iterator[Callable[[], None]]:
    """Traces to `folder` until told to stop, or to the end."""
    with contextlib.ExitStack() as tracing:
        if folder is not None:
            tracing.enter_context(jax.profiler.trace(folder))
        yield tracing.close


class _Clock(NamedTuple):
    """Seconds of compiling and running, over all parts of a run; of a clock that nobody can set."""

    before: tuple[float, float]
    compiling: float
    begun: float

    def read(self) -> tuple[float, float]:
        return self.before[0] + self.compiling, self.before[1] + time.perf_counter() - self.begun


class Programs(NamedTuple):
    """The two compiled programs of a run, and what compiling took."""

    chunk: Callable
    evaluate: Callable
    seconds: float


def compile_programs(sim: simulation.Simulation) -> Programs:
    """Compiles ahead of time, so that no round pays for it, unless a run of equal shapes has done so."""
    begun = time.perf_counter()
    rounds = schedules.stack([sim.schedule(0)], simulation.MAX_ROUNDS)
    found = simulation.programs.compile_for(sim.chunk, sim.evaluate, sim.state, rounds, sim.data, sim.hyper)
    simulation.memory.refuse_unfitting(sim.config, simulation.memory.of_program(found.chunk))
    return Programs(found.chunk, found.evaluate, time.perf_counter() - begun)


def chunks(
    sim: simulation.Simulation, programs: Programs, state: SimState, done: int, *, single: bool
) -> Iterator[tuple[SimState, list[Record]]]:
    """The state and the new records after every chunk, from a state after `done` rounds."""
    state, planned = jax.tree.map(jnp.copy, state), []  # a chunk takes over the memory of its state
    pace = CHUNK_SECONDS  # seconds a round; the first chunk is one round
    while done < sim.config.rounds:
        count = 1 if single else max(1, int(CHUNK_SECONDS / pace))
        planned = _plan(sim, planned, done, min(count, _until_pause(sim.config, done)))
        begun = time.perf_counter()
        rounds = schedules.stack(planned, simulation.MAX_ROUNDS)
        state, metrics = programs.chunk(state, np.int32(len(planned)), rounds, sim.data, sim.hyper)
        done, now = done + len(planned), planned
        ahead = min(len(now), sim.config.rounds - done)
        planned = [sim.schedule(done + i) for i in range(ahead)]
        metrics = jax.device_get(metrics)
        pace = (time.perf_counter() - begun) / len(now)
        records = _records(done - len(now), now, metrics, pace)
        if _until_evaluation(sim.config, done - 1) == 1:
            records[-1] |= evaluated(sim, programs, state)
        yield state, records


def _plan(sim: simulation.Simulation, planned: list[Schedule], done: int, count: int) -> list[Schedule]:
    """The schedules of the next `count` rounds, or of as many as one chunk holds."""
    planned = planned[:count] + [sim.schedule(done + i) for i in range(len(planned), count)]
    steps = np.cumsum([schedules.num_minibatches(s) for s in planned])
    return planned[: min(simulation.MAX_ROUNDS, int((steps <= len(planned[0].rows)).sum()))]


def _until_evaluation(config: Config, done: int) -> int:
    """Rounds from here to the next evaluation."""
    return min(config.eval_every - done % config.eval_every, config.rounds - done)


def _until_pause(config: Config, done: int) -> int:
    """Rounds from here to the next evaluation or checkpoint."""
    every = config.checkpoint_every
    return min(_until_evaluation(config, done), every - done % every if every else config.rounds)


def _records(done: int, planned: list[Schedule], metrics: Metrics, seconds: float) -> list[Record]:
    per_round = (jax.tree.map(lambda leaf, r=r: leaf[r], metrics) for r in range(len(planned)))
    return [
        history.record(done + r + 1, schedule, m, seconds)
        for r, (schedule, m) in enumerate(zip(planned, per_round, strict=True))
    ]


def evaluation_tables(data: Data) -> dict[str, Any]:
    """The rows that `val_*` and `test_*` of a record are measured on."""
    return {"val": data.val if data.selection is None else data.selection, "test": data.test}


def evaluated(sim: simulation.Simulation, programs: Programs, state: SimState) -> Record:
    """The record entries of an evaluation."""
    tables = evaluation_tables(sim.data).items()
    sums = {part: programs.evaluate(state.variables, sim.data.pool, rows) for part, rows in tables}
    found = {part: sim.task.metrics(s) for part, s in jax.device_get(sums).items()}
    own = {name: _number(name, metric(state.variables, sim.data)) for name, metric in sim.metrics.items()}
    return own | history.evaluation("val", found["val"]) | history.evaluation("test", found["test"])


def _number(name: str, found: Any) -> float | None:
    """A metric's own number; JSON has no NaN, so what is not finite becomes null."""
    if np.size(found) != 1:
        raise UsageError(f"metric '{name}' returned shape {np.shape(found)}; expected one number, of shape ()")
    return history.number(float(np.reshape(found, ())))


def _summary(
    config: Config,
    records: list[Record],
    start: recording.Start,
    seconds: tuple[float, float],
    stopped_by: str | None,
) -> dict[str, Any]:
    """`resumed_from` is the round of the last checkpoint gone on from; seconds are those of all parts."""
    compiling, running = seconds
    return {
        "rounds": len(records),
        "interrupted": stopped_by in [signal.name for signal in stop_signals.STOPPING],
        "stopped_by": stopped_by,
        "resumed_from": start.resumed_from,
        "parts": start.parts,
        "select": config.select,
        **history.summarise(records),
        "corrupt_clients": simulation.corrupt_clients(config).tolist(),
        "compile_seconds": round(compiling, 3),
        "run_seconds": round(running, 3),
        "rounds_per_second": round(len(records) / max(running, 1e-9), 3),
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "versions": provenance.versions(),
    }
