"""Compiles the programs of a run ahead of time for hardware that this machine does not have.

XLA's compilers for GPUs and TPUs are parts of the packages jax[cuda12] and libtpu, and need a description of a device.
jax itself runs on the CPU, which `targets.prepare_environment` arranges before jax is imported.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedvg_jax.config import Config
from fedvg_jax.core import targets
from fedvg_jax.core.targets import Target
from fedvg_jax.core.types import UsageError
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.runs import programs, simulation

OPTIONS: dict[str, dict[str, Any]] = {"gpu": {"xla_gpu_autotune_level": 0}, "tpu": {}}
"""Platform -> options of its compiler. Tuning would measure on the device."""


class TargetPrograms(NamedTuple):
    """The compiled programs of a run; they cannot be called."""

    chunk: Any
    """jax.stages.Compiled"""
    evaluate: Any
    """jax.stages.Compiled, for the test rows"""
    seconds: float
    """that compiling took"""


def machine_of(target: Target) -> programs.Machine:
    """Returns the hardware of a target, with devices that programs can be compiled for.

    Raises:
        UsageError: the package with the target's compiler is missing, or jax was started for other devices.
    """
    targets.require_compiler(target)
    for name, value in targets.ENVIRONMENT.items():
        os.environ.setdefault(name, value)  # the plugins read it when they start
    from jax.experimental import topologies

    hardware = target.hardware
    if hardware.platform == "gpu":
        shape = f"1x{hardware.num_processes}x{hardware.num_devices // hardware.num_processes}"
        described = {"platform": "cuda", "target_config": targets.gpu_target_config(target.model), "topology": shape}
    else:
        topology = targets.TPU_TOPOLOGIES[hardware.num_devices]
        described = {"platform": "tpu", "topology_name": f"{target.model.compiler['generation']}:{topology}"}
    try:
        devices = topologies.get_topology_desc(**described).devices
    except Exception as error:  # the plugins raise several types
        settings = " ".join(f"{name}={value}" for name, value in targets.ENVIRONMENT.items())
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"no compiler for target {target.name}; start Python with {settings} ({reason})") from None
    return programs.Machine(hardware, tuple(devices[: hardware.num_devices]))


def simulate_for(config: Config, target: Target, replacements: Mapping[str, Any] = {}) -> simulation.Simulation:
    """Returns a run as it would be on the target; its state and data are shapes.

    Args:
        config: settings.
        target: the hardware.
        replacements: keyword arguments of `simulation.simulation`.
    """
    return simulation.simulation(config, **replacements, machine=machine_of(target))


def compile_for(sim: simulation.Simulation, target: Target) -> TargetPrograms:
    """Returns the programs of a run of `simulate_for`, compiled."""
    start = time.perf_counter()
    placement = jax.tree.leaves(sim.state.variables)[0].sharding

    def shapes(tree: Any) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=placement), tree)

    rounds = schedules.stack([sim.schedule(0)], simulation.MAX_ROUNDS)
    lowered = sim.chunk.lower(sim.state, *shapes((np.int32(0), rounds)), sim.data, shapes(dict(sim.hyper)))
    evaluate = sim.evaluate.lower(sim.state.variables, sim.data.pool, sim.data.test)
    with _cached_with_names():
        chunk, evaluated = (_compile(program, target.hardware.platform) for program in (lowered, evaluate))
    return TargetPrograms(chunk, evaluated, time.perf_counter() - start)


def _compile(lowered: Any, platform: str) -> Any:
    """Returns a program compiled for a platform, with cuBLAS's matmuls where XLA finds no untuned tiles for its own."""
    options = OPTIONS[platform]
    try:
        return lowered.compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        if "tile sizes" not in str(error):
            raise
        return lowered.compile(compiler_options=options | {"xla_gpu_enable_triton_gemm": False})


@contextlib.contextmanager
def _cached_with_names() -> Iterator[None]:
    """Takes a program from the cache only if its names are these too: loops are recognised by them."""
    name = "jax_compilation_cache_include_metadata_in_key"
    before = jax.config.values[name]
    jax.config.update(name, True)
    try:
        yield
    finally:
        jax.config.update(name, before)
