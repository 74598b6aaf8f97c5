"""A whole run: chunks of rounds on the device, evaluations between them, records on the host.

The device works on a chunk without reading anything back; meanwhile the host plans the next. A chunk ends at an
evaluation, at a callback, when its table of minibatches is full, or after about two seconds, so that progress,
interrupts and time left stay live.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedvg_jax import build, history
from fedvg_jax import schedule as schedules
from fedvg_jax.config import Config
from fedvg_jax.history import History, Record
from fedvg_jax.types import Data, Metrics, Schedule, SimState, UsageError, Variables

CHUNK_SECONDS = 2.0

RESERVED = ("round", "clients", "weights", "scores", "num_samples", "train_loss", "seconds", "dropped", "diverged")
"""Names of a record that no metric may take."""

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
    callbacks: Sequence[Callback] = (),
    metrics: Mapping[str, Metric] | None = None,
) -> History:
    """One federated run.

    Args:
        config: settings; by default the digits demonstration.
        data, partition, task, algorithm, weighting: replace what the config names.
        callbacks: called after every round with (record, state); chunks are then one round long.
        metrics: name -> (global model, data) -> one number, recorded under that name at every evaluation.

    Returns:
        The history; it is also written to `config.out` if that is set.

    Raises:
        UsageError: for settings or files that cannot work, before anything is computed; for a model or a weighting that
            breaks its contract, with the leaf and the expected shape.

    >>> run(Config(rounds=2), metrics={"test_loss": lambda model, data: 0.0})
    Traceback (most recent call last):
        ...
    fedvg_jax.types.UsageError: metric 'test_loss' would hide the history's own; give it another name
    """
    config = Config() if config is None else config
    for name in metrics or {}:
        if name in RESERVED or name.startswith(("val_", "test_")):
            raise UsageError(f"metric '{name}' would hide the history's own; give it another name")
    sim = build.simulation(config, data=data, partition=partition, task=task, algorithm=algorithm, weighting=weighting)
    return drive(sim._replace(metrics=metrics or {}), callbacks=callbacks)


def drive(
    sim: build.Simulation,
    *,
    callbacks: Sequence[Callback] = (),
    on_records: Callable[[list[Record]], None] = lambda records: None,
) -> History:
    """Runs a simulation to its end, or to the first Ctrl-C; `on_records` hears of every chunk."""
    config = sim.config
    folder = history.create(config.out, config, build.layer_names(config, sim.task)) if config.out else None
    programs = compile_programs(sim)
    records: list[Record] = []
    state, interrupted, begun = sim.state, False, time.perf_counter()
    try:
        for state, new in chunks(sim, programs, single=bool(callbacks)):
            records += new
            history.append(folder, new)
            on_records(new)
            for callback in callbacks:
                callback(new[-1], state)
    except KeyboardInterrupt:
        interrupted = True
    summary = _summary(config, records, programs.seconds, time.perf_counter() - begun, interrupted)
    if folder:
        history.write_json(folder / "summary.json", summary)
    return History(records, summary, state.variables, folder)


class Programs(NamedTuple):
    """The two compiled programs of a run, and what compiling took."""

    chunk: Callable
    evaluate: Callable
    seconds: float


def compile_programs(sim: build.Simulation) -> Programs:
    """Compiles ahead of time, so that no round pays for it."""
    begun = time.perf_counter()
    rounds = schedules.stack([sim.schedule(0)], build.MAX_ROUNDS)
    chunk = sim.chunk.lower(sim.state, np.int32(0), rounds, sim.data, sim.hyper).compile()
    tables = {rows.shape: rows for rows in (sim.data.val, sim.data.test)}
    compiled = {
        shape: sim.evaluate.lower(sim.state.variables, sim.data.pool, rows).compile() for shape, rows in tables.items()
    }

    def evaluate(variables, pool, rows):
        return compiled[rows.shape](variables, pool, rows)

    return Programs(chunk, evaluate, time.perf_counter() - begun)


def chunks(sim: build.Simulation, programs: Programs, *, single: bool) -> Iterator[tuple[SimState, list[Record]]]:
    """The state and the new records after every chunk."""
    state, done, planned = jax.tree.map(jnp.copy, sim.state), 0, []  # a chunk takes over the memory of its state
    pace = CHUNK_SECONDS  # seconds a round; the first chunk is one round
    while done < sim.config.rounds:
        count = 1 if single else max(1, int(CHUNK_SECONDS / pace))
        planned = _plan(sim, planned, done, min(count, _until_evaluation(sim.config, done)))
        begun = time.perf_counter()
        rounds = schedules.stack(planned, build.MAX_ROUNDS)
        state, metrics = programs.chunk(state, np.int32(len(planned)), rounds, sim.data, sim.hyper)
        done, now = done + len(planned), planned
        ahead = min(len(now), sim.config.rounds - done)
        planned = [sim.schedule(done + i) for i in range(ahead)]
        metrics = jax.device_get(metrics)
        pace = (time.perf_counter() - begun) / len(now)
        records = _records(done - len(now), now, metrics, pace)
        if _until_evaluation(sim.config, done - 1) == 1:
            records[-1] |= _evaluate(sim, programs, state)
        yield state, records
        _check_finite(sim.config, records)  # after the history has the round that went wrong


def _plan(sim: build.Simulation, planned: list[Schedule], done: int, count: int) -> list[Schedule]:
    """The schedules of the next `count` rounds, or of as many as one chunk holds."""
    planned = planned[:count] + [sim.schedule(done + i) for i in range(len(planned), count)]
    steps = np.cumsum([schedules.length(s) for s in planned])
    return planned[: min(build.MAX_ROUNDS, int((steps <= len(planned[0].rows)).sum()))]


def _until_evaluation(config: Config, done: int) -> int:
    """Rounds from here to the next evaluation."""
    return min(config.eval_every - done % config.eval_every, config.rounds - done)


def _records(done: int, planned: list[Schedule], metrics: Metrics, seconds: float) -> list[Record]:
    per_round = (jax.tree.map(lambda leaf, r=r: leaf[r], metrics) for r in range(len(planned)))
    return [
        history.record(done + r + 1, schedule, m, seconds)
        for r, (schedule, m) in enumerate(zip(planned, per_round, strict=True))
    ]


def _check_finite(config: Config, records: list[Record]) -> None:
    for r in records:
        if config.nonfinite == "raise" and "diverged" in r:
            raise UsageError(
                f"round {r['round']}: clients {r['diverged']} diverged (model or loss not finite);"
                " use a smaller --lr, or --nonfinite skip to leave them out"
            )


def _evaluate(sim: build.Simulation, programs: Programs, state: SimState) -> Record:
    tables = {"val": sim.data.val, "test": sim.data.test}
    sums = {part: programs.evaluate(state.variables, sim.data.pool, rows) for part, rows in tables.items()}
    found = {part: sim.task.metrics(s) for part, s in jax.device_get(sums).items()}
    own = {name: _number(name, metric(state.variables, sim.data)) for name, metric in sim.metrics.items()}
    return own | history.evaluation("val", found["val"]) | history.evaluation("test", found["test"])


def _number(name: str, found: Any) -> float | None:
    """A metric's own number; JSON has no NaN, so what is not finite becomes null."""
    if np.size(found) != 1:
        raise UsageError(f"metric '{name}' returned shape {np.shape(found)}; expected one number, of shape ()")
    return history.number(float(np.reshape(found, ())))


def _summary(
    config: Config, records: list[Record], compile_seconds: float, run_seconds: float, interrupted: bool
) -> dict[str, Any]:
    device = jax.devices()[0]
    return {
        "rounds": len(records),
        "interrupted": interrupted,
        **history.summarise(records),
        "corrupt_clients": build.corrupt_clients(config).tolist(),
        "compile_seconds": round(compile_seconds, 3),
        "run_seconds": round(run_seconds, 3),
        "rounds_per_second": round(len(records) / run_seconds, 3),
        "backend": jax.default_backend(),
        "device": device.device_kind,
        "versions": {name: importlib.metadata.version(name) for name in ("fedvg_jax", "jax", "flax", "optax", "numpy")},
    }
