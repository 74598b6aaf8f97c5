"""The plan of a run on hardware that this machine does not have, from its programs compiled for that hardware.

Kernels, bytes, operations, memory and collectives are read from the programs. Nothing is timed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu.targets import hlo
from benchmarks.gpu.targets import programs as target_programs
from benchmarks.gpu.targets.devices import Target, parse_target
from benchmarks.gpu.targets.hlo import Kernel, Section
from fedvg_jax.config import Config
from fedvg_jax.core import scopes
from fedvg_jax.runs.assemble import simulation
from fedvg_jax.runs.placement import memory

COUNTED = 100
"""Rounds whose work is counted. Later rounds are drawn from the same distribution."""

LARGEST = 5
"""Largest arrays that a plan lists."""


class Part(NamedTuple):
    """A part of a run, once."""

    kernels: int
    copies: int
    """Of these, the kernels that only copy."""
    bytes: int
    flops: float
    """Of matmuls and convolutions, over all lanes of one device."""


class Collective(NamedTuple):
    """Communication between devices, in one round."""

    kind: str
    count: int
    bytes: int
    """Of its arrays on one device, over all `count`."""


class TargetPlan(NamedTuple):
    """The plan of a run on a target."""

    target: str
    device: str
    num_devices: int
    """Devices that share a cohort."""
    lanes: int
    """Clients side by side on each device."""
    compile_seconds: float
    memory_bytes: int
    """Arguments, results and temporaries of a chunk of rounds on one device, as XLA plans them."""
    memory_parts: Mapping[str, int]
    memory_limit: int
    """Memory of one device."""
    largest: Sequence[tuple[int, str]]
    """(bytes, shape) of the largest arrays that kernels write."""
    parts: Mapping[str, Part]
    """Of `PARTS`, those that the programs have."""
    collectives: Sequence[Collective]
    steps_per_round: float
    """Local steps of the longest lane, mean over rounds."""
    segments_per_round: float
    """Changes of clients between lanes, mean over rounds."""
    rounds: int

    @property
    def fits(self) -> bool:
        """Whether the memory of one device suffices."""
        return self.memory_bytes <= self.memory_limit


PARTS = {
    "step": "one local step, all lanes of a device",
    "segment": "lanes change clients, once",
    "scoring pass": "one pass over rows of D_val",
    "evaluation": "one minibatch of an evaluation",
    "rest of a round": "one round without local training and scoring",
    "round": "one round",
}
"""Name of a part -> what it is."""


def plan_for_target(config: Config, target: str, **replacements: Any) -> TargetPlan:
    """Returns the plan of a run on a target, from its programs, which it compiles.

    Args:
        config: settings.
        target: as in `--target`, e.g. "h100" or "h200:2x8".
        replacements: keyword arguments of `simulation.simulation`: data, partition, task, algorithm, weighting, hyper,
            progress, reading.

    Raises:
        UsageError: the target is not known, its compiler is not installed, or jax was started for other devices.

    >>> plan_for_target(Config(), "b300")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: target 'b300' is not known; ...
    """
    parsed = parse_target(target)
    sim = target_programs.simulate_for(config, target_programs.machine_of(parsed), replacements)
    return make_plan(sim, parsed, target_programs.compile_for(sim, parsed.hardware))


def make_plan(sim: simulation.Simulation, target: Target, programs: target_programs.TargetPrograms) -> TargetPlan:
    """Returns the plan of a run from its compiled programs.

    Args:
        sim: as `target_programs.simulate_for` returns it.
        target: the hardware.
        programs: compiled for it.
    """
    config = sim.config
    chunk, evaluate = (hlo.sections(hlo.parse(program.as_text())) for program in programs[:2])
    schedules = [sim.schedule(r) for r in range(min(config.rounds, COUNTED))]
    num_devices = len(sim.executor.placement.device_set) if sim.executor.placement else 1
    num_scored, num_padded = _scoring_groups(sim)
    work = Work(
        steps=float(np.mean([schedule.plan.length.sum() for schedule in schedules])),
        segments=float(np.mean([schedule.plan.num_segments for schedule in schedules])),
        probes=float(np.mean([schedule.probe_steps.sum() / num_devices for schedule in schedules])),
        scored=num_scored / num_padded,
    )
    parts = _parts(chunk, evaluate, work)
    sizes = memory.program_bytes(programs.chunk)
    return TargetPlan(
        target=target.name,
        device=target.model.kind,
        num_devices=num_devices,
        lanes=sim.executor.lanes_together,
        compile_seconds=programs.seconds,
        memory_bytes=sum(sizes.values()),
        memory_parts=sizes,
        memory_limit=target.model.memory_bytes,
        largest=_largest(chunk),
        parts=parts,
        collectives=_collectives(chunk),
        steps_per_round=work.steps,
        segments_per_round=work.segments,
        rounds=config.rounds,
    )


class Work(NamedTuple):
    """Iterations of the loops of a round that depend on data, means over rounds."""

    steps: float
    segments: float
    probes: float
    scored: float
    """Fraction of the minibatches of D_val that are not padding, which scoring skips."""


def _parts(chunk: Section, evaluate: Section, work: Work) -> dict[str, Part]:
    """Returns the parts of `PARTS` that the programs have."""
    sections_by_part = {
        "step": hlo.loops(chunk, scopes.LOCAL_STEPS),
        "segment": [_without(s, scopes.LOCAL_STEPS) for s in hlo.loops(chunk, scopes.SEGMENTS)],
        "scoring pass": hlo.loops(chunk, scopes.SCORING_PASSES) or _inlined(chunk, scopes.SCORING_PASSES),
        "evaluation": hlo.loops(evaluate, scopes.EVALUATION) or [evaluate],
        "rest of a round": [_rest(section) for section in hlo.loops(chunk, scopes.ROUNDS)],
        "round": hlo.loops(chunk, scopes.ROUNDS) or [chunk],
    }
    parts = {name: [_part(s, work) for s in sections] for name, sections in sections_by_part.items()}
    # the last lanes of a cohort that is no multiple of them have loops of their own
    return {name: max(of_loops, key=lambda part: part.bytes) for name, of_loops in parts.items() if of_loops}


def _without(section: Section, scope: str) -> Section:
    """Returns a section without its inner loops of that name."""
    inner = hlo.loops(section, scope)
    return section._replace(sections=tuple(s for s in section.sections if s not in inner))


def _rest(rounds: Section) -> Section:
    """Returns a round without local training and without scoring."""
    trained = {id(section) for section in hlo.loops(rounds, scopes.SEGMENTS)}
    scored = [s for s in rounds.sections if hlo.loops(s, scopes.SCORING_PASSES) or _inlined(s, scopes.SCORING_PASSES)]
    left_out = trained | {id(section) for section in scored}
    kernels = tuple(kernel for kernel in rounds.kernels if scopes.SCORING_PASSES not in kernel.scope)
    return rounds._replace(kernels=kernels, sections=tuple(s for s in rounds.sections if id(s) not in left_out))


def _inlined(chunk: Section, scope: str) -> list[Section]:
    """Returns loops of one iteration, which XLA has inlined, each as the kernels with its name."""
    kernels = {s.scope: tuple(kernel for kernel in s.kernels if scope in kernel.scope) for s in hlo.walk(chunk)}
    return [Section(name, 1, of_scope, ()) for name, of_scope in kernels.items() if of_scope]


def _part(section: Section, work: Work) -> Part:
    launched = _launches(section, work)
    return Part(
        kernels=round(sum(count for count, _ in launched)),
        copies=round(sum(count for count, kernel in launched if kernel.is_copy)),
        bytes=round(sum(count * kernel.bytes for count, kernel in launched)),
        flops=sum(count * kernel.flops for count, kernel in launched),
    )


def _trips(section: Section, work: Work) -> float:
    """Returns the iterations of a loop in its parent's one iteration."""
    if section.trips is not None:
        is_scoring = hlo.is_loop(section, scopes.SCORING_PASSES)
        return math.ceil(section.trips * work.scored) if is_scoring else section.trips
    counts = {scopes.SEGMENTS: work.segments, scopes.LOCAL_STEPS: work.steps / max(work.segments, 1.0)}
    return next((n for scope, n in counts.items() if section.scope.endswith(f"{scope}/while")), work.probes)


def _launches(section: Section, work: Work) -> list[tuple[float, Kernel]]:
    """Returns every kernel of one iteration with its number of launches."""
    launched: list[tuple[float, Kernel]] = [(1.0, kernel) for kernel in section.kernels]
    for inner in section.sections:
        trips = _trips(inner, work)
        launched += [(trips * count, kernel) for count, kernel in _launches(inner, work)]
    return launched


def _collectives(chunk: Section) -> list[Collective]:
    rounds = hlo.loops(chunk, scopes.ROUNDS) or [chunk]
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for count, kernel in hlo.all_kernels(rounds[0]):
        if kernel.is_collective:
            kind = kernel.opcode.removesuffix("-start")
            counts[kind] += count
            sizes[kind] += count * kernel.bytes // 2  # read and written
    return [Collective(kind, counts[kind], sizes[kind]) for kind in counts]


def _largest(chunk: Section) -> list[tuple[int, str]]:
    shapes = {shape for _, kernel in hlo.all_kernels(chunk) for shape in hlo.arrays(kernel.shape)}
    return sorted(((hlo.num_bytes(shape), shape) for shape in shapes), reverse=True)[:LARGEST]


def _scoring_groups(sim: simulation.Simulation) -> tuple[int, int]:
    """Returns the minibatches of D_val that have rows, and those of its table."""
    num_padded, batch_size = np.shape(sim.data.scoring)
    num_rows = sim.statistics["validation"]["samples"]
    scored = num_rows - num_rows // 2 if sim.config.best_on == "held_out" else num_rows
    return min(num_padded, math.ceil(scored / batch_size)), num_padded


def to_json(plan: TargetPlan) -> dict[str, Any]:
    """Returns a plan as JSON values."""
    document = plan._asdict() | {"fits": plan.fits, "memory_parts": dict(plan.memory_parts)}
    document["parts"] = {name: part._asdict() for name, part in plan.parts.items()}
    document["collectives"] = [collective._asdict() for collective in plan.collectives]
    document["largest"] = [{"bytes": size, "shape": shape} for size, shape in plan.largest]
    return document
