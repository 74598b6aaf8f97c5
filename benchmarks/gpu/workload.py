"""The workload of `benchmarks.gpu.sections`: ResNet-18, 60,000 images, 100 clients; tiny sizes in a smoke test."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import machine
from benchmarks.speed import cases
from fedvg_jax import config as configs, resolve
from fedvg_jax.algorithms import fedavg
from fedvg_jax.core import tree
from fedvg_jax.core.types import Batch, ClientReturn, Data, SimState, Task, Variables
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.engine import executors, local_training, schedule as schedules
from fedvg_jax.host import hardware as hw
from fedvg_jax.runs.assemble import simulation as build
from fedvg_jax.weightings import signals

BATCH = 32

Call = Callable[[], object]


class Box(NamedTuple):
    """The limits of a section."""

    deadline: float
    """by `time.monotonic()`"""
    smoke: bool
    """whether to use tiny sizes, which only test that the section runs"""
    chosen: Mapping[str, Any] = {}
    """fields of `hardware.Choices`, of the sections that take the fastest"""

    @property
    def case(self) -> str:
        return "lenet5" if self.smoke else "resnet18"


def take_choices(chosen: Mapping[str, Any]) -> None:
    """Replaces choices of accelerators in this process, before programs are made."""
    hw.ACCELERATOR = hw.ACCELERATOR._replace(**chosen)


def simulation(box: Box, rounds: int = 200) -> build.Simulation:
    """Returns the paper's CIFAR-10 run, on noise of the same shape."""
    case = cases.CASES[box.case]._replace(images=600 if box.smoke else 60_000)
    settings = {
        "alpha": 0.05,
        "clients": 100,
        "join_ratio": 0.1,
        "min_samples": 10,
        "eval_every": 20,
        "rounds": rounds,
    }
    settings |= (
        {"alpha": 1.0, "clients": 6, "join_ratio": 0.5, "local_epochs": 1} if box.smoke else {}
    )
    config = configs.apply(cases.config(case), settings, "benchmark")
    return resolve.experiment.simulation(config, data=cases.arrays(case, None))


class Way(NamedTuple):
    """How a network computes."""

    conv: str
    """convolution algorithm"""
    precision: str = "default"
    """as `--precision`"""
    model: str | None = None
    """None: the section's"""
    side: int = 32
    """pixels"""
    graphs: str | None = None
    """`hardware.Choices.launch_graphs`"""


def make_task(box: Box, way: Way) -> Task:
    """Returns the task of a network."""
    changes = {"conv": way.conv, "precision": way.precision, "model": way.model or box.case}
    config = dataclasses.replace(cases.config(cases.CASES[box.case]), **changes)
    images, labels = np.zeros((2, way.side, way.side, 3), np.uint8), np.zeros(2, np.int32)
    arrays = Arrays("zeros", images, labels, tuple(map(str, range(10))), 2)
    return resolve.model.make_model(config, arrays).bound(None)


def median_seconds(box: Box, makers: Mapping[str, Callable[[], Call]]) -> dict[str, float | str]:
    """Returns name -> median seconds of a call, or its error.

    All are compiled at once, because compiling uses few of the cores, then timed one by one.

    Args:
        box: the section's limits.
        makers: name -> function that compiles and returns the call.
    """
    results: dict[str, float | str] = {}
    with concurrent.futures.ThreadPoolExecutor(1 if box.smoke else 8) as pool:
        futures = {name: pool.submit(make) for name, make in makers.items()}
        concurrent.futures.wait(futures.values())
    for name, future in futures.items():
        try:
            results[name] = machine.median_seconds(future.result(), 3)
        except (
            Exception
        ) as error:  # out of memory, or a kernel that XLA cannot compile: the others still count
            results[name] = f"{type(error).__name__}: {error}"[:200]
    return results


def step_milliseconds(box: Box, ways: Sequence[tuple[int, Way]]) -> dict[str, float | str]:
    """Returns "4 lanes, gemm" -> milliseconds per client and local step in the executor of lanes, or an error.

    Args:
        box: the section's limits.
        ways: (lanes, way) pairs.
    """
    count = 2 if box.smoke else 40
    names = {f"{lanes} lanes, {way.conv}": (lanes, way) for lanes, way in ways}
    makers = {
        name: functools.partial(_compiled_steps, box, count, *way) for name, way in names.items()
    }
    seconds = median_seconds(box, makers)
    return {
        name: s if isinstance(s, str) else round(1e3 * s / (count * names[name][0]), 4)
        for name, s in seconds.items()
    }


def _compiled_steps(box: Box, count: int, num_lanes: int, way: Way) -> Call:
    """Returns a call of a round's training, compiled, of as many clients as lanes with `count` steps each."""
    num_images = 64 if box.smoke else 2_000
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, num_images, (count, BATCH), np.int32) for _ in range(num_lanes)]
    clients = np.arange(num_lanes, dtype=np.int32)
    planned = schedules.pack(clients, rows, [num_images] * num_lanes, num_lanes=num_lanes)
    task = make_task(box, way)
    variables = jax.jit(task.init)(jax.random.key(0))
    state = SimState(jnp.int32(0), variables, (), tree.repeat((), num_lanes))
    data, hyper = _data(num_images, way.side), {"lr": jnp.float32(0.01)}
    make_client = functools.partial(local_training.make_client, task, fedavg(), local_training.sgd)

    def train(state, data, hyper, planned):
        return executors.lanes(num_lanes).train(make_client, (state, data, hyper), planned)

    options = (
        None if way.graphs is None or box.smoke else {"xla_gpu_enable_command_buffer": way.graphs}
    )
    compiled = jax.jit(train, compiler_options=options).lower(state, data, hyper, planned).compile()
    return lambda: jax.block_until_ready(compiled(state, data, hyper, planned))


def _data(num_images: int, side: int) -> Data:
    """Returns random images, all of them in D_val."""
    pixels = np.random.default_rng(0).integers(0, 256, (num_images, side, side, 3), np.uint8)
    rows = jnp.asarray(
        schedules.table(np.arange(num_images, dtype=np.int32), BATCH, -(-num_images // BATCH))
    )
    return Data(Batch(jnp.asarray(pixels), jnp.zeros(num_images, jnp.int32)), rows, rows, rows)


def scoring_rates(box: Box, way: Way, sizes: tuple[int, ...]) -> dict[str, float | str]:
    """Returns rows of a pass -> rows of D_val scored per second, of one client, or an error."""
    num_images = 128 if box.smoke else 6_000
    data, task = _data(num_images, way.side), make_task(box, way)
    variables = jax.jit(task.init)(jax.random.key(0))

    def compiled(rows: int) -> Call:
        measure = signals.validation_gradient(task, True, max(1, rows // BATCH))

        def score(variables: Variables, data: Data):
            return measure({}, ClientReturn(variables, jnp.int32(1), variables.params), data)

        run = jax.jit(score).lower(variables, data).compile()
        return lambda: jax.block_until_ready(run(variables, data))

    seconds = median_seconds(box, {str(rows): functools.partial(compiled, rows) for rows in sizes})
    return {
        rows: s if isinstance(s, str) else round(num_images / s, 1) for rows, s in seconds.items()
    }
