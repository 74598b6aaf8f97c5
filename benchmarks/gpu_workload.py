"""The workload of `benchmarks.gpu_sections`: ResNet-18, 60,000 images, 100 clients; tiny sizes in a smoke test."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import cases, machine
from fedvg_jax import config as configs
from fedvg_jax.algorithms import fedavg
from fedvg_jax.core import tree
from fedvg_jax.core.types import Batch, Data, Report, SimState, Task, Variables
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.engine import executors, local_training
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.runs import registry
from fedvg_jax.runs import simulation as build
from fedvg_jax.weightings import signals

BATCH = 32


class Box(NamedTuple):
    """The limits of a section."""

    deadline: float
    """by `time.monotonic()`"""
    smoke: bool
    """whether to use tiny sizes, which only test that the section runs"""

    @property
    def case(self) -> str:
        return "lenet5" if self.smoke else "resnet18"


def simulation(box: Box, rounds: int = 200) -> build.Simulation:
    """Returns the paper's CIFAR-10 run, on noise of the same shape."""
    case = cases.CASES[box.case]._replace(images=600 if box.smoke else 60_000)
    settings = {"alpha": 0.05, "clients": 100, "join_ratio": 0.1, "min_samples": 10, "eval_every": 20, "rounds": rounds}
    settings |= {"alpha": 1.0, "clients": 6, "join_ratio": 0.5, "local_epochs": 1} if box.smoke else {}
    config = configs.apply(cases.config(case), settings, "benchmark")
    return build.simulation(config, data=cases.arrays(case, None))


class Step(NamedTuple):
    """A way to compute local steps."""

    num_lanes: int
    """clients side by side, with equally many steps"""
    conv: str
    """convolution algorithm"""
    precision: str = "tensorfloat32"
    """of matmuls and convolutions"""
    model: str | None = None
    """None: the section's"""
    side: int = 32
    """pixels"""

    @property
    def name(self) -> str:
        """Name in the results."""
        return f"{self.num_lanes} lanes, {self.conv}"


def make_task(box: Box, step: Step) -> Task:
    """Returns the task of a step."""
    config = dataclasses.replace(cases.config(cases.CASES[box.case]), conv=step.conv, model=step.model or box.case)
    images, labels = np.zeros((2, step.side, step.side, 3), np.uint8), np.zeros(2, np.int32)
    return registry.make_task(config, Arrays("zeros", images, labels, tuple(map(str, range(10))), 2))


def step_milliseconds(box: Box, steps: Sequence[Step]) -> dict[str, float | str]:
    """Returns name of a step -> its milliseconds per client and local step in the executor of lanes, or its error.

    All are compiled at once, because compiling uses few of the cores, then timed one by one.
    """
    results: dict[str, float | str] = {}
    with concurrent.futures.ThreadPoolExecutor(1 if box.smoke else 8) as pool:
        futures = {step: pool.submit(_compiled_step, box, step) for step in steps}
        concurrent.futures.wait(futures.values())
    for step, future in futures.items():
        try:
            call, num_steps = future.result()
            results[step.name] = round(1e3 * machine.median_seconds(call, 3) / num_steps, 4)
        except Exception as error:  # out of memory, or a kernel that XLA cannot compile: the others still count
            results[step.name] = f"{type(error).__name__}: {error}"[:200]
    return results


def _compiled_step(box: Box, step: Step) -> tuple[Callable[[], object], int]:
    """Returns a call of a round's training, compiled, and the local steps of its clients together."""
    count, num_images, num_lanes = (2, 64, step.num_lanes) if box.smoke else (40, 2_000, step.num_lanes)
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, num_images, (count, BATCH), np.int32) for _ in range(num_lanes)]
    clients = np.arange(num_lanes, dtype=np.int32)
    capacity = num_lanes * count
    planned = schedules.pack(clients, rows, [num_images] * num_lanes, num_lanes=num_lanes, capacity=capacity)
    task = make_task(box, step)
    variables = jax.jit(task.init)(jax.random.key(0))
    state = SimState(jnp.int32(0), variables, (), tree.repeat((), num_lanes))
    pixels = rng.integers(0, 256, (num_images, step.side, step.side, 3), np.uint8)
    images = Batch(jnp.asarray(pixels), jnp.zeros(num_images, jnp.int32))
    data, hyper = Data(images, rows[0], rows[0], rows[0]), {"lr": jnp.float32(0.01)}
    parts = (task, fedavg(), local_training.sgd)
    make_client = functools.partial(local_training.make_client, *parts)

    def train(state, data, hyper, planned):
        return executors.lanes(num_lanes).train(make_client, (state, data, hyper), planned)

    with jax.default_matmul_precision(step.precision):
        compiled = jax.jit(train).lower(state, data, hyper, planned).compile()
    return lambda: jax.block_until_ready(compiled(state, data, hyper, planned)), capacity


def difference(record: dict, other: dict) -> dict[str, float]:
    """Returns the largest relative differences of two records of a round, of the weights and of the losses."""
    weights = np.abs(np.array(record["weights"]) / np.array(other["weights"]) - 1).max()
    losses = max(abs(record[name] / other[name] - 1) for name in ("train_loss", "test_loss"))
    return {"weights": float(weights), "losses": float(losses)}


def scoring_rate(box: Box, images: int, precision: str) -> float:
    """Returns the images per second of a forward and backward pass, when one client is scored.

    Args:
        box: the section's limits.
        images: in one pass.
        precision: of matmuls and convolutions.
    """
    pool = 128 if box.smoke else 6_000
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(0, 256, (pool, 32, 32, 3), np.uint8))
    scoring = jnp.asarray(schedules.table(np.arange(pool, dtype=np.int32), BATCH, -(-pool // BATCH)))
    data = Data(Batch(x, jnp.zeros(pool, jnp.int32)), scoring, scoring, scoring)
    task = make_task(box, Step(1, "auto"))
    variables = jax.jit(task.init)(jax.random.key(0))
    measure = signals.validation_gradient(task, True, max(1, images // BATCH))

    def score(variables: Variables, data: Data):
        return measure({}, Report(variables, jnp.int32(1), variables.params), data)

    with jax.default_matmul_precision(precision):
        compiled = jax.jit(score).lower(variables, data).compile()
    return pool / machine.median_seconds(lambda: jax.block_until_ready(compiled(variables, data)), 3)
