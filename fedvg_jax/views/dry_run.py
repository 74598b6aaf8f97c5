"""Predicts what a run will take: compiles its programs and times its next two rounds and an evaluation.

seconds = rounds x one round + evaluations x one evaluation
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from typing import NamedTuple

from fedvg_jax.host import hardware
from fedvg_jax.runs import chunks
from fedvg_jax.runs.assemble import simulation
from fedvg_jax.runs.placement import memory


class Prediction(NamedTuple):
    """The plan of a run."""

    rounds: int
    """Rounds that are left to compute."""
    steps_per_round: float
    """Local steps of all clients, mean over the timed rounds."""
    evaluations: int
    compile_seconds: float
    seconds_per_round: float
    """Without an evaluation."""
    seconds: float
    """All these rounds, without compiling."""
    memory_bytes: int
    """Device: arguments, results and scratch of a chunk. CPU: largest size of the process."""


def predict(sim: simulation.Simulation, num_done: int = 0) -> Prediction:
    """Returns the plan of a run.

    Args:
        sim: as `simulation.simulation` returns it; its state is not changed.
        num_done: rounds that are computed already, fewer than all.
    """
    config, programs = sim.config, chunks.compile_programs(sim)
    last = min(config.rounds, num_done + 2)
    two = sim._replace(config=dataclasses.replace(config, rounds=last, eval_every=last))
    start, durations, records = time.perf_counter(), [], []
    for _, new in chunks.run_chunks(two, programs, sim.state, num_done, lambda record, state: False):
        durations.append(time.perf_counter() - start)
        records += new
        start = time.perf_counter()
    one_round = records[-1]["seconds"]  # the first round after compiling takes longer
    evaluations = math.ceil(config.rounds / config.eval_every) - num_done // config.eval_every
    num_rounds = config.rounds - num_done
    is_informed = sim.selection is not None and sim.selection.num_candidates > 0  # it measures losses in every pause
    pauses = num_rounds if is_informed else evaluations
    steps = [int(sim.schedule(number).num_steps.sum()) for number in range(num_done, last)]
    return Prediction(
        rounds=num_rounds,
        steps_per_round=sum(steps) / len(steps),
        evaluations=evaluations,
        compile_seconds=programs.seconds,
        seconds_per_round=one_round,
        seconds=num_rounds * one_round + pauses * (durations[-1] - one_round),
        memory_bytes=_memory(programs),
    )


def _memory(programs: chunks.Programs) -> int:
    """Returns the bytes of a chunk on its device; on a CPU the largest size of the process."""
    if hardware.current().is_cpu:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return sum(memory.program_bytes(programs.chunk).values())
