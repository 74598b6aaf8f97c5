"""Computes runs of one program side by side; each has records, checkpoints and a folder of its own.

A run in progress has one of the P places of a joint program. A chunk of rounds ends where any run pauses. A run that
ends or fails makes way for one that waits. A place for which no run waits holds the arrays of another run, and its
clients take no step.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Wrapped

from fedvg_jax.config import Config
from fedvg_jax.core import tree
from fedvg_jax.core.gradient_support import FULL_SUPPORT
from fedvg_jax.core.types import (
    Algorithm,
    Data,
    Executor,
    GradientSupport,
    Hyper,
    Schedule,
    SimState,
    Task,
    Weighting,
)
from fedvg_jax.engine import cohort_memories, federated_round, joint_runs, schedule
from fedvg_jax.engine.local_training import Optimiser
from fedvg_jax.runs import chunks, evaluation_records, executables, loop, memory, programs, stop_signals
from fedvg_jax.runs.devices import make_executor
from fedvg_jax.runs.history import History, Record
from fedvg_jax.runs.registry import make_live
from fedvg_jax.runs.simulation import MAX_ROUNDS, Simulation

LEAST_GAIN = 1.2
"""Rounds per second side by side, over those one after another, from which on `auto` computes runs side by side."""


class Arrays(NamedTuple):
    """Arguments of a joint program; leaves [P, ...], except the pool."""

    state: SimState
    data: Data
    hyper: Hyper


class Joint(NamedTuple):
    """The programs of P runs, compiled."""

    num_places: int
    executor: Executor
    chunk: Callable
    """see `federated_round.make_chunk`, of `joint_runs.joint_round`; the state is donated"""
    evaluate: Callable
    """see `joint_runs.joint_evaluate`"""
    seconds: float
    """that compiling took"""


class ProgramError(Exception):
    """An error of the program that runs share, which none of them has caused.

    Attributes:
        error: The error itself.
    """

    def __init__(self, error: Exception):
        super().__init__(str(error))
        self.error = error


class Member(NamedTuple):
    """A run that has a place, or waits for one."""

    run: loop.Run
    state: SimState
    """that it starts from"""
    end: Callable[[History | Exception], None]
    """takes the result, and leaves the run folder"""
    seconds: list[float]
    """of compiling and of running: this run's share of the joint program's"""
    planned: list[Schedule]
    """schedules of its next rounds, as far as they are drawn"""

    @property
    def num_done(self) -> int:
        """Rounds done."""
        return len(self.run.records)


def fits(first: Simulation, other: Simulation) -> bool:
    """Returns whether two runs can share a program: one round function, equal shapes, and one pool on the devices."""
    if first is other or any(sim.host_pool or sim.host_memories for sim in (first, other)):
        return first is other
    is_equal = first.chunk is other.chunk and _signature(first) == _signature(other)
    pools = zip(jax.tree.leaves(first.data.pool), jax.tree.leaves(other.data.pool), strict=True)
    return is_equal and all(a is b or bool(jnp.array_equal(a, b, equal_nan=True)) for a, b in pools)


def _signature(sim: Simulation) -> tuple:
    leaves, structure = jax.tree.flatten((sim.state, sim.data, dict(sim.hyper), sim.schedule(0)))
    return structure, tuple((np.shape(leaf), leaf.dtype) for leaf in leaves)


def compile_joint(sims: Sequence[Simulation]) -> Joint:
    """Returns the joint program of as many runs, which fit each other.

    Raises:
        UsageError: it needs more memory than there is, and `force` is not set.
    """
    start, sim, num_places = time.perf_counter(), sims[0], len(sims)
    config = programs.static_settings(sim.config)
    assert sim.algorithm is not None and sim.weighting is not None and sim.optimiser is not None
    support = FULL_SUPPORT if "algorithm" in sim.given else make_live(config, sim.task)
    key = (config, sim.task, sim.algorithm, sim.weighting, sim.optimiser, support, num_places)
    executor, chunk, evaluate = (_stored_functions if executables.is_hashable(key) else _functions)(*key)
    rounds = _stack([[s.schedule(0)] for s in sims], executor, num_places)
    compiled = programs.compile_for(chunk, evaluate, *_arguments(_arrays(sims, executor, num_places), rounds))
    memory.refuse_unfitting(sim.config, memory.of_program(compiled.chunk))
    return Joint(num_places, executor, compiled.chunk, compiled.evaluate, time.perf_counter() - start)


def _functions(
    config: Config,
    task: Task,
    algorithm: Algorithm,
    weighting: Weighting,
    optimiser: Optimiser,
    support: GradientSupport,
    num_places: int,
) -> tuple[Executor, Wrapped, Wrapped]:
    """Returns the executor of P runs, and the jitted chunk and evaluation."""
    executor = make_executor(config, num_runs=num_places)
    parts = (task, algorithm, weighting, joint_runs.pooled(executor), optimiser, support)
    chunk = federated_round.make_chunk(joint_runs.joint_round(programs.make_round(config, *parts)))
    placement = programs.chunk_placement(executor, of_runs=True)
    jitted = jax.jit(chunk, donate_argnums=0, out_shardings=placement)
    evaluation = joint_runs.joint_evaluate(task, executor, is_detailed=evaluation_records.is_detailed(config))
    return executor, jitted, jax.jit(evaluation, out_shardings=executor.placement)


_stored_functions = functools.lru_cache(executables.MAX_PROGRAMS)(_functions)


def _arguments(arrays: Arrays, rounds: Schedule) -> tuple[SimState, Schedule, Data, Hyper]:
    return arrays.state, rounds, arrays.data, arrays.hyper


def pays(joint: Joint, sims: Sequence[Simulation]) -> bool:
    """Returns whether a round of these runs side by side is faster than one after another, by `LEAST_GAIN`.

    Times the second of two calls, because the first one loads the program.
    """
    planned = [[sim.schedule(0)] for sim in sims]
    alone = chunks.compile_programs(sims[0])
    rounds = _stack(planned, joint.executor, joint.num_places)
    arrays = _arrays(sims, joint.executor, joint.num_places)

    def run_alone() -> None:
        for sim, (first,) in zip(sims, planned, strict=True):
            state = tree.copies(sim.state)
            arguments = (np.int32(1), schedule.stack([first], MAX_ROUNDS), sim.data, sim.hyper)
            jax.block_until_ready(alone.chunk(state, *arguments))

    def run_together() -> None:
        state = tree.copies(arrays.state)
        jax.block_until_ready(joint.chunk(state, np.int32(1), rounds, arrays.data, arrays.hyper))

    return _seconds_of_second_call(run_alone) >= LEAST_GAIN * _seconds_of_second_call(run_together)


def _seconds_of_second_call(call: Callable[[], None]) -> float:
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compute(
    joint: Joint,
    members: Sequence[Member],
    waiting: Iterator[Member],
    exit_message: Callable[[], str] | None,
    on_stop: Callable[[str], None],
    log: Callable[[str], None],
) -> None:
    """Computes the members and then those that wait, until all have ended, a signal stops them or the program fails.

    Every member's `end` is called with its history, or with the exception that ended it: a `ProgramError` if the
    program failed. Runs that have waited until then are not opened.

    Args:
        joint: the program.
        members: the first runs, at most one for each place.
        waiting: further runs, each of which is opened when a place becomes free.
        exit_message: see `stop_signals.watch`.
        on_stop: called with the signal.
        log: gets lines about all runs.
    """
    running = list(members)
    watching = stop_signals.watch(exit_message, is_saved=lambda: all(m.run.recorder.is_saved for m in running))
    with stop_signals.catch_signals() as requests, watching:
        try:
            _compute(joint, running, waiting, requests, log)
        finally:
            if requests.stop:
                on_stop(requests.stop[0])


def _compute(
    joint: Joint,
    members: list[Member],
    waiting: Iterator[Member],
    requests: stop_signals.Requests,
    log: Callable[[str], None],
) -> None:
    """Does the work of `compute`; `members` are always those that have a place."""
    for member in members:
        member.seconds[0] += joint.seconds / len(members)
    states, arrays = [m.state for m in members], None
    round_seconds = chunks.CHUNK_SECONDS  # an estimate: the first chunk is one round
    while members:
        try:
            arrays = arrays or _arrays([m.run.sim for m in members], joint.executor, joint.num_places, states)
            num_rounds = max(1, int(chunks.CHUNK_SECONDS / round_seconds))
            arrays, new, round_seconds = _compute_chunk(joint, members, arrays, num_rounds)
            states = [_take_state(joint.executor)(arrays.state, i) for i in range(len(members))]
        except Exception as error:  # of whatever kind: the sweep goes on
            for member in members:
                member.end(ProgramError(error))
            return
        saves = stop_signals.take_save_requests(requests)
        is_over = [_add(*each, bool(saves)) for each in zip(members, states, new, strict=True)]
        if requests.stop:
            for member, last, over in zip(members, states, is_over, strict=True):
                if not over:
                    _finish(member, last, requests.stop[0])
            return
        if saves:
            _answer_save_requests(saves, [m for m, over in zip(members, is_over, strict=True) if not over], log)
        if any(is_over):
            kept = [(m, s) for m, s, over in zip(members, states, is_over, strict=True) if not over]
            added = list(itertools.islice(waiting, joint.num_places - len(kept)))
            members[:] = [m for m, _ in kept] + added
            states, arrays = [s for _, s in kept] + [m.state for m in added], None


def _compute_chunk(
    joint: Joint, members: Sequence[Member], arrays: Arrays, num_rounds: int
) -> tuple[Arrays, list[list[Record]], float]:
    """Computes up to `num_rounds` rounds of the members.

    Returns:
        The arrays after the last round, the records of every member, and the seconds of one round.
    """
    planned = _plan(members, num_rounds)
    start = time.perf_counter()
    rounds = _stack(planned, joint.executor, joint.num_places)
    state, metrics = joint.chunk(arrays.state, np.int32(len(planned[0])), rounds, arrays.data, arrays.hyper)
    arrays = arrays._replace(state=state)
    _plan_ahead(members, planned)  # while the device works
    metrics = jax.device_get(metrics)
    round_seconds = (time.perf_counter() - start) / len(planned[0])
    share = round_seconds / len(members)
    new = [_records(m, mine, metrics, i, share) for i, (m, mine) in enumerate(zip(members, planned, strict=True))]
    _add_evaluations(joint, members, arrays, new)
    for member in members:
        member.seconds[1] += (time.perf_counter() - start) / len(members)
    return arrays, new, round_seconds


def _add(member: Member, state: SimState, new: list[Record], is_requested: bool) -> bool:
    """Records a chunk of a run; returns whether the run has ended or failed.

    Args:
        member: the run.
        state: after the chunk.
        new: the chunk's records.
        is_requested: whether a signal requests a checkpoint.
    """
    run = member.run
    try:
        loop.add_chunk(run, state, new)
        if member.num_done < run.sim.config.rounds:
            loop.save_checkpoint(run, state, is_requested=is_requested)
            return False
    except Exception as error:  # one run's error, of whatever kind, must not end the others
        member.end(error)
        return True
    _finish(member, state, None)
    return True


def _answer_save_requests(signals: Sequence[str], members: Sequence[Member], log: Callable[[str], None]) -> None:
    """Logs how many runs were saved for the signals that request a checkpoint."""
    count = sum(member.run.recorder.keeps_checkpoints for member in members)
    if members:
        answer = f"checkpoints of {count} run{'s' * (count != 1)}" if count else "no checkpoints are kept"
        log(f"{signals[0]}: {answer}")


def _finish(member: Member, state: SimState, stopped_by: str | None) -> None:
    """Ends a run that has all its rounds, or that a signal stopped."""
    try:
        result = loop.finish(member.run, state, stopped_by)
    except Exception as error:
        result = error
    member.end(result)


def _plan(members: Sequence[Member], num_rounds: int) -> list[list[Schedule]]:
    """Returns the schedules of the next rounds of each run, equally many."""
    num_rounds = min(num_rounds, *(chunks.until_pause(m.run.sim.config, m.num_done) for m in members))
    planned = [chunks.plan_chunk(m.run.sim, m.planned, m.num_done, num_rounds) for m in members]
    num_rounds = min(map(len, planned))
    return [mine[:num_rounds] for mine in planned]


def _plan_ahead(members: Sequence[Member], running: Sequence[Sequence[Schedule]]) -> None:
    """Draws the schedules of as many further rounds as run now."""
    for member, mine in zip(members, running, strict=True):
        begin = member.num_done + len(mine)
        end = min(begin + len(mine), member.run.sim.config.rounds)
        member.planned[:] = [member.run.sim.schedule(number) for number in range(begin, end)]


def _stack(planned: Sequence[Sequence[Schedule]], executor: Executor, num_places: int) -> Schedule:
    """Returns the schedules of a chunk for all places.

    Args:
        planned: run -> its schedules, equally many for each.
        executor: of the joint program.
        num_places: P; the clients of a place without a run take no step.
    """
    capacity = num_places * len(planned[0][0].rows)
    idle = [joint_runs.idle_schedule(planned[0][0])] * (num_places - len(planned))
    rounds = [joint_runs.join_schedules([*of_runs, *idle], executor) for of_runs in zip(*planned, strict=True)]
    stacked = schedule.stack(rounds, MAX_ROUNDS, capacity)
    # XLA would choose a placement that may not divide the axes
    return stacked if executor.placement is None else jax.device_put(stacked, executor.placement)


def _arrays(
    sims: Sequence[Simulation], executor: Executor, num_places: int, states: Sequence[SimState] | None = None
) -> Arrays:
    """Returns the arrays of runs as those of P places, of which the last may repeat the first run.

    Args:
        sims: the runs.
        executor: whose devices hold the arrays.
        num_places: P.
        states: of the runs; by default the initial ones.
    """
    order = (*range(len(sims)), *[0] * (num_places - len(sims)))
    tables = _stacked([sim.data._replace(pool=()) for sim in sims], order)
    hyper = _stacked([dict(sim.hyper) for sim in sims], order)
    tables, hyper = jax.device_put((tables, hyper), executor.placement)
    state = _stack_states(executor, order)(list(states or [sim.state for sim in sims]))
    return Arrays(state, tables._replace(pool=sims[0].data.pool), hyper)


def _stacked(trees: Sequence[Any], order: Sequence[int]) -> Any:
    """Returns pytrees as one with leaves [P, ...], where `order` has the number of each place's."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(trees[i] for i in order))


@functools.lru_cache(executables.MAX_PROGRAMS)
def _stack_states(executor: Executor, order: tuple[int, ...]) -> Callable[[list[SimState]], SimState]:
    """Returns states -> one state [P, ...], as one program, in which each device stacks the rows that it holds."""
    placement = cohort_memories.placement(executor, of_runs=True)
    return jax.jit(functools.partial(_stacked, order=order), out_shardings=placement)


@functools.lru_cache(executables.MAX_PROGRAMS)
def _take_state(executor: Executor) -> Callable[[SimState, int], SimState]:
    """Returns (states, place) -> the state of one place."""
    return jax.jit(tree.take, out_shardings=cohort_memories.placement(executor))


def _records(member: Member, planned: list[Schedule], metrics: Any, place: int, seconds: float) -> list[Record]:
    mine = jax.tree.map(lambda leaf: leaf[:, place], metrics)
    return chunks.chunk_records(member.num_done, planned, mine, seconds)


def _add_evaluations(joint: Joint, members: Sequence[Member], arrays: Arrays, new: list[list[Record]]) -> None:
    """Adds evaluations to the last new record of each run that has one due."""
    due = [
        chunks.until_evaluation(m.run.sim.config, r[-1]["round"] - 1) == 1 for m, r in zip(members, new, strict=True)
    ]
    if not any(due):
        return
    sums = chunks.evaluation_sums(joint.evaluate, arrays.state, arrays.data)
    for place, (member, records) in enumerate(zip(members, new, strict=True)):
        if due[place]:
            mine = jax.tree.map(lambda leaf, place=place: leaf[place], sums)
            records[-1] |= chunks.evaluation_record(member.run.sim, mine)
