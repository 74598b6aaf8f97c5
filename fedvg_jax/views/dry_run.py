"""Predicts what a run will take: counts its steps, and times samples of its parts on this machine.

    seconds = sum over rounds (a + b steps_r + c groups) + chunks x d + evaluations x e

steps_r are the local steps of round r's longest lane, and groups the scoring groups of D_val. a, b, c, d and e are the
times of an empty round, a local step, a group, a chunk and an evaluation. The timed programs are the run's own, on few
rounds, steps and groups, because trip counts are data.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from fedvg_jax.core import tree
from fedvg_jax.core.types import Data, Executor, Schedule, SimState
from fedvg_jax.engine import lane_plan
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.host import hardware
from fedvg_jax.runs import chunks as run_chunks
from fedvg_jax.runs.assemble import simulation
from fedvg_jax.runs.placement import client_memories, memory

SECONDS = 1.0
"""Duration that a sample is extended to, if the whole takes as long."""

REPEATS = 5
"""Repetitions of a sample, of which the median counts."""

COUNTED = 1000
"""Rounds whose work is counted. Later rounds are drawn from the same distribution."""


class Rates(NamedTuple):
    """Seconds of the parts of a run: the coefficients of the module's equation."""

    empty_round: float
    step: float
    group: float
    chunk: float
    evaluation: float


class Prediction(NamedTuple):
    """The plan of a run."""

    rounds: int
    """Rounds that are left to compute."""
    steps_per_round: float
    """Local steps of all clients, mean over rounds."""
    evaluations: int
    compile_seconds: float
    seconds_per_round: float
    """Mean over rounds, without evaluations."""
    seconds: float
    """All these rounds, without compiling."""
    memory_bytes: int
    """Device: arguments, results and scratch of a chunk. CPU: largest size of the process."""


def predict(sim: simulation.Simulation, num_done: int = 0) -> Prediction:
    """Returns the plan of a run: its work, counted, and its time and memory, estimated.

    Args:
        sim: as `simulation.simulation` returns it; its state is not changed.
        num_done: rounds that are computed already, fewer than all.
    """
    config, programs = sim.config, run_chunks.compile_programs(sim)
    groups = _num_groups(sim.data)
    rates = _measure_rates(sim, programs, groups)
    num_rounds = config.rounds - num_done
    counted = range(num_done, num_done + min(num_rounds, COUNTED))
    work = np.array([_work(sim, sim.schedule(r)) for r in counted])  # schedules are too large to be kept
    longest, steps = work.T
    seconds_per_round = float(np.mean(rates.empty_round + rates.step * longest + rates.group * groups))
    if sim.host_rows:  # rows are copied while the round before is computed
        first = sim.schedule(0)
        copying = _seconds(lambda: run_chunks.prepare_chunk(sim, [first]).data.training)
        seconds_per_round = max(seconds_per_round, copying)
    least = math.ceil(num_rounds / sim.memories.max_rounds)
    if sim.selection and sim.selection.num_candidates:  # it measures losses before every round, which is one chunk
        seconds_per_round += _seconds(lambda: sim.schedule(num_done, sim.state))
        least = num_rounds
    training = num_rounds * seconds_per_round
    evaluations = math.ceil(config.rounds / config.eval_every) - num_done // config.eval_every
    chunks = max(evaluations, math.ceil(training / run_chunks.CHUNK_SECONDS), least)
    return Prediction(
        rounds=num_rounds,
        steps_per_round=float(steps.mean()),
        evaluations=evaluations,
        compile_seconds=programs.seconds,
        seconds_per_round=seconds_per_round,
        seconds=training + chunks * rates.chunk + evaluations * rates.evaluation,
        memory_bytes=_memory(programs),
    )


def _measure_rates(sim: simulation.Simulation, programs: run_chunks.Programs, groups: int) -> Rates:
    """Times samples of each part of a run: shortened runs of the first round."""
    store = client_memories.open_store(sim.memories, sim.config, sim.state)

    def state_on_devices() -> SimState:
        return client_memories.take(sim.memories, store, sim.state, np.zeros(0, int))

    ready, start = run_chunks.prepare_chunk(sim, [sim.schedule(0)]), state_on_devices()
    (first,) = ready.planned

    def sample(steps: int, groups: int, count: int = 1) -> tuple[int, float]:
        """Returns (longest lane, seconds) of rounds of at most `steps` local steps per client and that many groups."""
        shortened = _shortened(first._replace(rows=ready.rounds.rows), steps, sim.executor)
        stacked = schedules.stack([shortened], simulation.MAX_ROUNDS)._replace(rows=ready.rounds.rows)
        data = _with_groups(ready.data, groups)
        seconds = _seconds(lambda: programs.chunk(tree.copies(start), np.int32(count), stacked, data, sim.hyper))
        return _longest_lane(shortened), seconds

    step = slope(lambda steps: sample(steps, 0), int(first.num_steps.max()))
    group = slope(lambda size: (size, sample(1, size - 1)[1]), groups + 1)  # from none: one pass may hold them all
    per_round = slope(lambda count: (count, sample(1, 0, count)[1]), simulation.MAX_ROUNDS)  # of one step
    lane, one_round = sample(1, 0)
    evaluation = _seconds(lambda: run_chunks.evaluate(sim, programs, sim.state, store))
    chunk = max(0.0, one_round - per_round)
    if sim.memories.is_on_host:  # those of a chunk's clients are copied to the devices and back
        chunk += 2 * _seconds(state_on_devices)
    return Rates(max(0.0, per_round - step * lane), step, group, chunk, evaluation)


def _shortened(schedule: Schedule, steps: int, executor: Executor) -> Schedule:
    """Returns a round with at most `steps` local steps per client, and no probes."""
    fewer = np.minimum(schedule.num_steps, steps)
    plan = lane_plan.plan_blocks(
        fewer, executor.num_lanes, executor.lanes_together, lane_plan.block_size(schedule.plan)
    )
    return schedule._replace(num_steps=fewer, probe_steps=np.zeros_like(schedule.probe_steps), plan=plan)


def slope(sample: Callable[[int], tuple[int, float]], most: int) -> float:
    """Returns the seconds of one unit of work.

    Compares a sample of size 1 with one that takes about `SECONDS` longer, or has the largest size.

    Args:
        sample: size -> (units of work, seconds).
        most: largest size.

    >>> slope(lambda size: (size, 0.25 + 0.125 * size), 1000)
    0.125
    """
    smallest = largest = sample(1)
    size = 1
    while size < most and largest[1] - smallest[1] < SECONDS:
        growth = SECONDS / max(largest[1] - smallest[1], SECONDS / 64)
        size = min(most, math.ceil(size * min(16, max(2, growth))))
        largest = sample(size)
    return max(0.0, largest[1] - smallest[1]) / max(1, largest[0] - smallest[0])


def _with_groups(data: Data, groups: int) -> Data:
    """Returns `data` with only its first scoring groups, in all tables that a weighting may read."""

    def keep_rows(table, num_kept):
        rows = np.array(table)
        rows[num_kept:] = -1
        return jax.device_put(rows, table.sharding)

    fraction = groups / max(1, _num_groups(data))
    used = int((np.asarray(data.val) >= 0).any(1).sum())
    return data._replace(scoring=keep_rows(data.scoring, groups), val=keep_rows(data.val, math.ceil(fraction * used)))


def _num_groups(data: Data) -> int:
    """Returns the number of scoring groups that are not padding."""
    return int((np.asarray(data.scoring) >= 0).any(1).sum())


def _work(sim: simulation.Simulation, schedule: Schedule) -> tuple[float, int]:
    """Returns (consecutive local steps on the longest lane, local steps of all clients) of a round."""
    placement = sim.executor.placement
    probes = float(schedule.probe_steps.sum()) / (len(placement.device_set) if placement else 1)  # of one device
    return _longest_lane(schedule) + probes, int(schedule.num_steps.sum())


def _longest_lane(schedule: Schedule) -> int:
    return int(schedule.plan.length.sum())


def _seconds(run: Callable[[], Any]) -> float:
    """Returns the median duration of a few calls after a first one, so that a busy machine counts as it is."""
    jax.block_until_ready(run())
    durations = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(run())
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)


def _memory(programs: Any) -> int:
    """Returns the bytes of a chunk on its device; on a CPU the largest size of the process."""
    if hardware.current().is_cpu:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return sum(memory.program_bytes(programs.chunk).values())
