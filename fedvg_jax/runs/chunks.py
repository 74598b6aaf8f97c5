"""Chunks of rounds on the device, and the evaluations between them.

The device works on a chunk of rounds without reading anything back; meanwhile the host draws the next schedules. A
chunk ends at an evaluation, a checkpoint or a callback that takes the state, when its table of minibatches is full, or
with the first round after about `CHUNK_SECONDS`, so that progress is shown and the run can be stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from fedvg_jax.core import checks, tree
from fedvg_jax.core.types import Data, Metric, Schedule, SimState, Tree, Variables
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.host import processes
from fedvg_jax.runs import client_models
from fedvg_jax.runs.assemble import programs, simulation, tables
from fedvg_jax.runs.placement.client_states import with_client_states
from fedvg_jax.runs.record import history
from fedvg_jax.runs.record.history import Record

CHUNK_SECONDS = 2.0
"""Seconds of one chunk, where nothing else ends it and a round is not longer."""


class Programs(NamedTuple):
    """The two compiled programs of a run."""

    chunk: Callable
    """(state, number of rounds, stacked schedules, data, hyper) -> (state, metrics)"""
    evaluate: Callable
    """(variables, pool, rows) -> added sums of `task.measure`"""
    seconds: float
    """that compiling took"""


def compile_programs(sim: simulation.Simulation) -> Programs:
    """Returns the programs of a run, compiled ahead of time unless a run of equal shapes has compiled them."""
    start = time.perf_counter()
    with processes.together():
        shapes = simulation.shapes_of_chunk(sim)
        chunk, evaluate_compiled = programs.compile_for(sim, shapes)
        if sim.host_rows:
            evaluate_compiled = sim.host_rows.evaluating(sim.evaluate)
            for table in evaluation_tables(sim.data).values():
                # compiles, and reads no row
                evaluate_compiled(sim.whole(sim.state.variables), None, table[:0])
    return Programs(chunk, evaluate_compiled, time.perf_counter() - start)


def run_chunks(
    sim: simulation.Simulation,
    compiled: Programs,
    state: SimState,
    is_ended: Callable[[list[Record], SimState], bool] | None = None,
    *,
    is_single: bool,
    virtual_seconds: float = 0.0,
) -> Iterator[tuple[SimState, list[Record]]]:
    """Yields the state and the new records after every chunk, up to the last round.

    If client states stay on the host, the state holds the states of all clients sampled so far, as views that the next
    chunk changes. The next chunk takes over the arrays of the state. If chunks are single rounds, callbacks get copies
    of them, except of client states, which may be large.

    Args:
        compiled: the programs of `sim`.
        state: before the first chunk.
        is_ended: (records, state) of a chunk -> whether the run ends with it; its last round is then evaluated.
        is_single: whether every chunk is a single round.
        virtual_seconds: before the first chunk, for a run with a clock.
    """
    num_done, placement = int(state.round), sim.state_placement
    store, state = placement.open(state)
    state, drawn = tree.copies(state), []  # the program takes over the memory of its argument
    selection = sim.experiment.method.selection
    # a selection that measures losses needs the model of every round
    is_informed = bool(selection and selection.num_candidates)
    round_seconds = CHUNK_SECONDS  # an estimate: the first chunk is one round

    def next_chunk() -> Chunk | None:
        num_rounds = 1 if is_single or is_informed else max(1, int(CHUNK_SECONDS / round_seconds))
        num_rounds = min(num_rounds, placement.max_rounds, until_pause(sim, num_done))
        return plan_chunk(sim, drawn, num_done, num_rounds, state)

    ahead, traffic = next_chunk(), None
    while ahead:
        start, (planned, rounds, data, clients) = time.perf_counter(), ahead
        state = placement.take(store, state, clients)
        state, metrics = compiled.chunk(state, np.int32(len(planned)), rounds, data, sim.hyper)
        num_done += len(planned)
        ahead = data = None  # so that only two chunks' rows are on the devices
        ahead, traffic = next_chunk(), traffic or sim.traffic  # while the device works
        metrics = jax.device_get(processes.wait(metrics))
        store, after = placement.put(store, state, clients)
        (round_seconds,) = processes.largest([(time.perf_counter() - start) / len(planned)])
        records = []
        for number, schedule in enumerate(planned, num_done - len(planned)):
            of_round = tree.take(metrics, len(records))
            record = history.record(number + 1, schedule, of_round, round_seconds)
            if schedule.waited:
                # from the recorded number, with which a resumed run continues
                virtual_seconds = float(f"{virtual_seconds + schedule.waited.seconds:.9g}")
                record["virtual_seconds"] = virtual_seconds
            record |= traffic.entries(record, schedule.waited)
            if sim.account:
                record["epsilon"] = history.number(sim.account.epsilon(number + 1))
            records.append(record)
        is_evaluated = until_evaluation(sim, num_done - 1) == 1
        if is_evaluated:
            records[-1] |= evaluate(sim, compiled, after, store)
        if is_single:  # copies of all arrays except the client states
            copied = tree.copies(with_client_states(after, ()))
            after = with_client_states(copied, after.clients, after.client_ids)
        if is_ended and is_ended(records, after) and not is_evaluated:
            records[-1] |= evaluate(sim, compiled, after, store)
        yield after, records


class Chunk(NamedTuple):
    """A chunk that can be dispatched."""

    planned: list[Schedule]
    """of its rounds, with rows of the whole pool"""
    rounds: Schedule
    """the same, stacked"""
    data: Data
    clients: np.ndarray
    """int32 [n], the clients with states that are copied to the devices; none unless client states stay on the host"""


def plan_chunk(
    sim: simulation.Simulation,
    drawn: list[Schedule],
    num_done: int,
    num_rounds: int,
    state: SimState,
) -> Chunk | None:
    """Returns the next `num_rounds` rounds, or as many as one chunk holds; None where there are none.

    From a pool on the host, it starts to copy their rows to the devices.

    Args:
        drawn: schedules of the next rounds that are drawn already; the chunk removes those that it uses.
        state: after `num_done` rounds.
    """
    if not num_rounds:
        return None
    drawn += [sim.draw(num_done + i, state) for i in range(len(drawn), num_rounds)]
    steps = np.cumsum([schedules.num_minibatches(s) for s in drawn[:num_rounds]])
    count = min(tables.MAX_ROUNDS, int((steps <= sim.capacity).sum()))
    host = sim.host_rows
    fitting = host.fit(drawn[:count]) if host else drawn[:count]
    del drawn[: len(fitting)]
    clients, planned = sim.state_placement.number_rows(fitting)
    rounds = schedules.stack(planned, tables.MAX_ROUNDS, sim.capacity)
    rounds, data = host.take(rounds) if host else (rounds, sim.data)
    return Chunk(planned, rounds, data, clients)


def until_evaluation(sim: simulation.Simulation, num_done: int) -> int:
    """Returns the number of rounds to the next evaluation."""
    every, rounds = sim.experiment.eval_every, sim.experiment.rounds
    return min(every - num_done % every, rounds - num_done)


def until_pause(sim: simulation.Simulation, num_done: int) -> int:
    """Returns the number of rounds to the next evaluation or checkpoint."""
    every = sim.experiment.folder.checkpoint_every
    to_checkpoint = every - num_done % every if every else sim.experiment.rounds
    return min(until_evaluation(sim, num_done), to_checkpoint)


def evaluation_tables(data: Data) -> dict[str, Any]:
    """Returns the rows that `val_*` and `test_*` of a record are measured on, by "val" and "test"."""
    return {"val": data.val, "test": data.test}


def evaluate(
    sim: simulation.Simulation,
    compiled: Programs,
    state: SimState,
    store: Tree,
) -> Record:
    """Returns the entries of an evaluation: `val_*`, `test_*`, the user's metrics, and what `record` asks for.

    `store` has the client states that the state has not.
    """
    data, variables = sim.data, sim.whole(state.variables)
    evaluated = evaluation_tables(data).items()
    sums = {part: compiled.evaluate(variables, data.pool, rows) for part, rows in evaluated}
    sums = jax.device_get(processes.wait(sums))
    # the next chunk takes over the state's arrays
    model = tree.copies(variables) if sim.metrics else variables
    record = {name: _measured(name, metric, model, data) for name, metric in sim.metrics.items()}
    for part, result in sums.items():
        record |= history.evaluation(part, sim.task.metrics(result))
    if history.CONFUSION in sim.experiment.recorded:  # [true, predicted]
        matrix = np.asarray(sums["test"][history.CONFUSION])
        record["test_confusion"] = matrix.reshape(2 * [round(matrix.size**0.5)]).tolist()
    return record | client_models.entries(sim, state, store)


def _measured(name: str, metric: Metric, model: Variables, data: Data) -> float | None:
    """Returns the value of a user's metric as JSON stores it: null where it is not finite."""
    with checks.calling(f"metric '{name}', which returns one number,"):
        return history.number(float(np.reshape(metric.function(model, data), ())))
