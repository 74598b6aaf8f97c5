"""What a run will take, before it is run: its work counted, its parts timed on this machine.

    seconds = sum over rounds (a + b steps_r + c groups) + chunks x d + evaluations x e

steps_r are those of round r's longest lane, groups the scoring groups of D_val; a, b, c, d and e the times of an empty
round, a local step, a group, a chunk and an evaluation. The programs timed are the run's own, on few rounds, steps and
groups: trip counts are data.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedvg_jax.config import Config, cohort_size
from fedvg_jax.core import hardware
from fedvg_jax.core.types import Data, Schedule
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.runs import chunks as run_chunks
from fedvg_jax.runs import simulation

SECONDS = 1.0
"""A sample is made longer until it takes so long, or is the whole."""

REPEATS = 5

COUNTED = 1000
"""Rounds whose work is counted; those after them are taken to be like them, being drawn from the same distribution."""


class Prediction(NamedTuple):
    """The plan of a run."""

    rounds: int
    steps_per_round: float
    """minibatch steps of all clients, a mean over rounds"""
    train_images_per_round: float
    scoring_images_per_round: int
    """D_val once for every client of the cohort; 0 where the weights do not need it"""
    eval_images: int
    """of one evaluation"""
    evaluations: int
    compile_seconds: float
    seconds_per_round: float
    """a mean over rounds, without evaluations"""
    seconds: float
    """of the whole run, without compiling"""
    memory_bytes: int
    """device: arguments, results and scratch of a chunk; on the CPU the process at its largest"""


def predict(sim: simulation.Simulation) -> Prediction:
    """Counts the rounds' work, and times a sample of each part.

    Args:
        sim: as `build.simulation` gives it; its state is not touched.
    """
    config, programs = sim.config, run_chunks.compile_programs(sim)
    first = sim.schedule(0)
    sample = _Sample(sim, programs, first, simulation.make_executor(config).lanes_together)
    groups = int((np.asarray(sim.data.scoring) >= 0).any(1).sum())
    step = slope(sample.training, int(first.num_steps.max()))
    group = slope(sample.scoring, groups)
    fixed = slope(sample.rounds, simulation.MAX_ROUNDS)
    chunk = sample.rounds(1)[1] - fixed
    evaluation = _seconds(lambda: run_chunks.evaluate(sim, programs, sim.state))
    empty = max(0.0, fixed - step * _longest_lane(sample.cut(1)))  # of a round without a step
    counted = range(min(config.rounds, COUNTED))
    work = np.array([_work(sim, sim.schedule(r)) for r in counted])  # schedules are too large to be kept
    in_turn, steps, images = work.T
    seconds_per_round = float(np.mean(empty + step * in_turn + group * groups))
    training = config.rounds * seconds_per_round
    evaluations = math.ceil(config.rounds / config.eval_every)
    chunks = max(evaluations, math.ceil(training / run_chunks.CHUNK_SECONDS))
    uses_data = reads_scoring(config)
    return Prediction(
        config.rounds,
        float(steps.mean()),
        float(images.mean()),
        cohort_size(config) * int((np.asarray(sim.data.scoring) >= 0).sum()) * uses_data,
        sum(int((np.asarray(table) >= 0).sum()) for table in run_chunks.evaluation_tables(sim.data).values()),
        evaluations,
        programs.seconds,
        seconds_per_round,
        training + chunks * max(0.0, chunk) + evaluations * evaluation,
        _memory(programs),
    )


class _Sample(NamedTuple):
    """Runs of one round, cut short."""

    sim: simulation.Simulation
    programs: run_chunks.Programs
    schedule: Schedule
    lanes_together: int = 1

    def training(self, steps: int) -> tuple[int, float]:
        """(longest lane, seconds) of a round of so many steps a client, without scoring."""
        cut = self.cut(steps)
        return _longest_lane(cut), self._seconds(cut, 0)

    def scoring(self, groups: int) -> tuple[int, float]:
        """(groups, seconds) of a round of one step a client."""
        return groups, self._seconds(self.cut(1), groups)

    def rounds(self, count: int) -> tuple[int, float]:
        """(rounds, seconds) of rounds of one step a client, without scoring."""
        return count, self._seconds(self.cut(1), 0, count)

    def cut(self, steps: int) -> Schedule:
        """The first round with so many steps of every client, and no probes."""
        fewer = np.minimum(self.schedule.num_steps, steps)
        old, none = self.schedule.plan, np.zeros_like(self.schedule.probe_steps)
        plan = schedules.plans(fewer, old.client.shape[-1], self.lanes_together, schedules.block_size(old))
        return self.schedule._replace(num_steps=fewer, probe_steps=none, plan=plan)

    def _seconds(self, cut: Schedule, groups: int, count: int = 1) -> float:
        stacked = schedules.stack([cut], simulation.MAX_ROUNDS)._replace(rows=self.schedule.rows)
        data = _without(self.sim.data, groups)

        def run():
            state = jax.tree.map(jnp.copy, self.sim.state)
            return self.programs.chunk(state, np.int32(count), stacked, data, self.sim.hyper)

        return _seconds(run)


def slope(sample: Callable[[int], tuple[int, float]], most: int) -> float:
    """Seconds of one unit, from the smallest sample and one that takes about `SECONDS` longer, or is the largest."""
    least = more = sample(1)
    size = 1
    while size < most and more[1] - least[1] < SECONDS:
        growth = SECONDS / max(more[1] - least[1], SECONDS / 64)
        size = min(most, math.ceil(size * min(16, max(2, growth))))
        more = sample(size)
    return max(0.0, more[1] - least[1]) / max(1, more[0] - least[0])


def _without(data: Data, groups: int) -> Data:
    """`data` with its first scoring groups only, in all tables a weighting may read."""

    def cut(table, keep):
        rows = np.array(table)
        rows[keep:] = -1
        return jax.device_put(rows, table.sharding)

    share = groups / max(1, int((np.asarray(data.scoring) >= 0).any(1).sum()))
    used = int((np.asarray(data.val) >= 0).any(1).sum())
    return data._replace(scoring=cut(data.scoring, groups), val=cut(data.val, math.ceil(share * used)))


def reads_scoring(config: Config) -> bool:
    """Whether the weights are measured on D_val."""
    names = ("fedvg", "generalised", "val_loss", "val_accuracy", "fltrust", "fitted")
    only_delta = "delta" in (config.fedvg.norm, config.fedvg.signal) and "val" not in config.weighting
    return any(name in config.weighting for name in names) and not only_delta


def _work(sim: simulation.Simulation, schedule: Schedule) -> tuple[float, int, int]:
    """(minibatches one after the other on the longest lane, minibatches, images trained on) of a round."""
    in_turn = _longest_lane(schedule) + _probes(sim, schedule)
    return in_turn, int(schedule.num_steps.sum()), _images(schedule)


def _longest_lane(schedule: Schedule) -> int:
    return int(schedule.plan.length.sum())


def _probes(sim: simulation.Simulation, schedule: Schedule) -> float:
    """Probe batches of one device."""
    placement = simulation.make_executor(sim.config).placement
    return float(schedule.probe_steps.sum()) / (len(placement.device_set) if placement else 1)


def _images(schedule: Schedule) -> int:
    return int((schedule.rows[: schedules.length(schedule)] >= 0).sum())


def _seconds(run: Callable[[], Any]) -> float:
    """The median of a few, after one that warms up: the run will meet a machine as busy as these do."""
    jax.block_until_ready(run())
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def _memory(programs: run_chunks.Programs) -> int:
    if hardware.current().is_cpu and sys.platform != "win32":
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    found = programs.chunk.memory_analysis()
    used = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    return int(used - found.alias_size_in_bytes)
