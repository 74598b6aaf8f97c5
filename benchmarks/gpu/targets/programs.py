"""Compiles the programs of a run ahead of time for hardware that this machine does not have.

XLA's compilers for GPUs and TPUs are parts of the packages jax[cuda12] and libtpu, and need a description of a device.
jax itself runs on the CPU, by `devices.ENVIRONMENT`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from benchmarks.gpu.targets import devices
from benchmarks.gpu.targets.devices import Target
from fedvg_jax.config import Config
from fedvg_jax.core.types import UsageError
from fedvg_jax.engine import cohort_memories
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.host.hardware import Hardware, assumed
from fedvg_jax.runs.assemble import programs, simulation
from fedvg_jax.runs.placement import client_memories, memory

OPTIONS: dict[str, dict[str, Any]] = {"gpu": {"xla_gpu_autotune_level": 0}, "tpu": {}, "cpu": {}}
"""Platform -> options of its compiler. Tuning would measure on the device."""


class Machine(NamedTuple):
    """What programs are compiled for."""

    hardware: Hardware
    devices: tuple
    """jax's devices that share a cohort"""


class TargetPrograms(NamedTuple):
    """The compiled programs of a run; they cannot be called."""

    chunk: Any
    """jax.stages.Compiled"""
    evaluate: Any
    """jax.stages.Compiled, for the test rows"""
    seconds: float
    """that compiling took"""


def machine_of(target: Target) -> Machine:
    """Returns the hardware of a target, with devices that programs can be compiled for.

    Raises:
        UsageError: the package with the target's compiler is missing, or jax was started for other devices.
    """
    devices.require_compiler(target)
    for name, value in devices.ENVIRONMENT.items():
        os.environ.setdefault(name, value)  # the plugins read it when they start
    from jax.experimental import topologies

    try:
        described = topologies.get_topology_desc(**devices.topology(target)).devices
    except Exception as error:  # the plugins raise several types
        settings = " ".join(f"{name}={value}" for name, value in devices.ENVIRONMENT.items())
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"no compiler for target {target.name}; start Python with {settings} ({reason})") from None
    return Machine(target.hardware, tuple(described[: target.hardware.num_devices]))


def simulate_for(config: Config, machine: Machine) -> simulation.Simulation:
    """Returns a run as it would be on another machine; its state and data are shapes on that machine's devices.

    All rows and all memories of clients are planned on the devices.

    Args:
        config: settings.
        machine: hardware and devices, which need not exist.
    """
    host = {"devices": "1", "lanes": "auto", "placement": "device", "force": True}
    here = simulation.simulation(dataclasses.replace(config, **host))
    config = dataclasses.replace(here.config, devices=config.devices, lanes=config.lanes)
    images = programs.Images(here.arrays.x.shape[1:], len(here.arrays.class_names))
    with assumed(machine.hardware):
        program = programs.make_program(config, images, devices=machine.devices)
        state, memories = _state_shapes(config, here.state, program.executor)
    placement = program.executor.placement or SingleDeviceSharding(machine.devices[0])
    of_states = cohort_memories.placement(program.executor) or placement
    return here._replace(
        config=config,
        state=jax.tree.map(_on_sharding, of_states, state),
        memories=memories,
        data=_on_sharding(placement, here.data),
        schedule=simulation.make_schedule(config, here.arrays, here.partition, program),
        chunk=program.chunk,
        evaluate=program.evaluate,
        executor=program.executor,
    )


def _state_shapes(config: Config, state: Any, executor: Any) -> tuple[Any, Any]:
    """Returns the shapes of a state with the rows of memories that the assumed hardware needs, and their placement."""
    of_clients = state.clients
    num_rows = max((len(leaf) for leaf in jax.tree.leaves(of_clients)), default=1)
    client_bytes = memory.num_bytes(of_clients) // num_rows
    placed = client_memories.choose(config, client_bytes, simulation.MAX_ROUNDS, executor.rows)
    return client_memories.shapes_of_rows(state, placed.num_rows, config.clients, executor.rows), placed


def _on_sharding(sharding: Any, shapes: Any) -> Any:
    """Returns shapes of arrays with a sharding."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)


def compile_for(sim: simulation.Simulation, hardware: Hardware) -> TargetPrograms:
    """Returns the programs of a run of `simulate_for`, compiled for the same hardware."""
    start = time.perf_counter()
    placement = jax.tree.leaves(sim.state.variables)[0].sharding

    def shapes(tree: Any) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=placement), tree)

    _, planned = client_memories.number_rows(sim.memories, [sim.schedule(0)])
    rounds = schedules.stack(planned, simulation.MAX_ROUNDS)
    with assumed(hardware):
        lowered = sim.chunk.lower(sim.state, *shapes((np.int32(0), rounds)), sim.data, shapes(dict(sim.hyper)))
        evaluate = sim.evaluate.lower(sim.state.variables, sim.data.pool, sim.data.test)
    with _cached_with_names():
        chunk, evaluated = (_compile(program, hardware.platform) for program in (lowered, evaluate))
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
