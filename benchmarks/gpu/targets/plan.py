"""The plan of a run on hardware that this machine does not have, from its programs compiled for that hardware.

Kernels, memory and collectives are read from the programs. Nothing is timed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.gpu.targets import hlo
from benchmarks.gpu.targets.devices import Target
from benchmarks.gpu.targets.hlo import Section
from benchmarks.gpu.targets.programs import TargetPrograms
from fedvg_jax.core import scopes
from fedvg_jax.runs.assemble import simulation
from fedvg_jax.runs.placement import memory


def make_plan(sim: simulation.Simulation, target: Target, programs: TargetPrograms) -> dict[str, Any]:
    """Returns the plan of a run: its memory on one device, and what one round launches and exchanges.

    `parts` are a local step of all lanes of a device, a change of clients between lanes, a pass over rows of D_val, a
    minibatch of an evaluation, and the rest of a round; each with its kernels, of which `copies` only copy.

    Args:
        sim: as `programs.simulate_for` returns it.
        target: the hardware.
        programs: compiled for it.
    """
    chunk, evaluate = (hlo.read(program.as_text()) for program in programs[:2])
    rounds = hlo.loops(chunk, scopes.ROUNDS) or [chunk]
    parts = {
        "step": hlo.loops(chunk, scopes.LOCAL_STEPS),
        "segment": [_without(s, hlo.loops(s, scopes.LOCAL_STEPS)) for s in hlo.loops(chunk, scopes.SEGMENTS)],
        "scoring pass": hlo.loops(chunk, scopes.SCORING_PASSES) or _inlined(chunk, scopes.SCORING_PASSES),
        "evaluation": hlo.loops(evaluate, scopes.EVALUATION) or [evaluate],
        "rest of a round": [_rest(section) for section in rounds],
    }
    sizes = memory.program_bytes(programs.chunk)
    return {
        "target": target.name,
        "device": target.device.kind,
        "num_devices": len(sim.executor.placement.device_set) if sim.executor.placement else 1,
        "lanes": sim.executor.lanes_together,
        "compile_seconds": programs.seconds,
        "memory_bytes": sum(sizes.values()),
        "memory_parts": sizes,
        "memory_limit": target.device.memory_bytes,
        "fits": sum(sizes.values()) <= target.device.memory_bytes,
        "parts": {name: _largest(sections) for name, sections in parts.items() if sections},
        "collectives": _collectives(rounds[0]),
    }


def _largest(sections: Iterable[Section]) -> dict[str, int]:
    """Returns the kernels of the largest of several loops: the last lanes of a cohort may have loops of their own."""
    launched = max((hlo.all_kernels(section) for section in sections), key=lambda of: sum(count for count, _ in of))
    copies = sum(count for count, kernel in launched if kernel.is_copy)
    return {"kernels": sum(count for count, _ in launched), "copies": copies}


def _without(section: Section, left_out: Iterable[Section]) -> Section:
    """Returns a section without some of its inner loops."""
    ids = {id(inner) for inner in left_out}
    return section._replace(sections=tuple(s for s in section.sections if id(s) not in ids))


def _rest(rounds: Section) -> Section:
    """Returns a round without local training and without scoring."""
    passes = scopes.SCORING_PASSES
    scored = [s for s in rounds.sections if hlo.loops(s, passes) or _inlined(s, passes)]
    kernels = tuple(kernel for kernel in rounds.kernels if passes not in kernel.scope)
    return _without(rounds, [*hlo.loops(rounds, scopes.SEGMENTS), *scored])._replace(kernels=kernels)


def _inlined(chunk: Section, scope: str) -> list[Section]:
    """Returns loops of one iteration, which XLA has inlined, each as the kernels with its name."""
    kernels = {s.scope: tuple(kernel for kernel in s.kernels if scope in kernel.scope) for s in hlo.walk(chunk)}
    return [Section(name, 1, of_scope, ()) for name, of_scope in kernels.items() if of_scope]


def _collectives(rounds: Section) -> dict[str, dict[str, int]]:
    """Returns kind -> launches of a round and bytes that one device puts in."""
    kinds: dict[str, dict[str, int]] = {}
    for count, kernel in hlo.all_kernels(rounds):
        if kernel.is_collective:
            of_kind = kinds.setdefault(kernel.opcode.removesuffix("-start"), {"count": 0, "bytes": 0})
            of_kind["count"] += count
            of_kind["bytes"] += count * kernel.operand_bytes
    return kinds
