"""The workload of `benchmarks.gpu_sections`: ResNet-18, 60,000 images, 100 clients; tiny sizes in a smoke test."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import cases, machine
from fedvg_jax import config as configs
from fedvg_jax.algorithms import fedavg
from fedvg_jax.core import tree
from fedvg_jax.core.types import Batch, Data, GradientSupport, Report, SimState, Task, Variables
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

    @property
    def convs(self) -> tuple[str, ...]:
        return ("lax", "gemm")


def simulation(box: Box, rounds: int = 200) -> build.Simulation:
    """Returns the paper's CIFAR-10 run, on noise of the same shape."""
    case = cases.CASES[box.case]._replace(images=600 if box.smoke else 60_000)
    settings = {"alpha": 0.05, "clients": 100, "join_ratio": 0.1, "min_samples": 10, "eval_every": 20, "rounds": rounds}
    settings |= {"alpha": 1.0, "clients": 6, "join_ratio": 0.5, "local_epochs": 1} if box.smoke else {}
    config = configs.apply(cases.config(case), settings, "benchmark")
    return build.simulation(config, data=cases.arrays(case, None))


def make_task(box: Box, conv: str) -> Task:
    """Returns the task with a convolution algorithm."""
    case = cases.CASES[box.case]._replace(images=2)
    return registry.make_task(dataclasses.replace(cases.config(case), conv=conv), cases.arrays(case, None))


def step_milliseconds(
    box: Box, num_lanes: int, conv: str, precision: str, support: GradientSupport | None = None
) -> float:
    """Returns the milliseconds per client and local step of training in the executor of lanes.

    Args:
        box: the section's limits.
        num_lanes: clients side by side, with equally many steps.
        conv: convolution algorithm.
        precision: of matmuls and convolutions.
        support: the parameters that the loop carries; default: those that can have a gradient.
    """
    steps, pool = (2, 64) if box.smoke else (40, 10_000)
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, pool, (steps, BATCH), np.int32) for _ in range(num_lanes)]
    clients = np.arange(num_lanes, dtype=np.int32)
    capacity = num_lanes * steps
    planned = schedules.pack(clients, rows, [pool] * num_lanes, num_lanes=num_lanes, capacity=capacity)
    task = make_task(box, conv)
    variables = jax.jit(task.init)(jax.random.key(0))
    memory = tree.repeat((), num_lanes)
    state = SimState(jnp.int32(0), variables, (), memory)
    images = Batch(jnp.asarray(rng.integers(0, 256, (pool, 32, 32, 3), np.uint8)), jnp.zeros(pool, jnp.int32))
    data, hyper = Data(images, rows[0], rows[0], rows[0]), {"lr": jnp.float32(0.01)}

    parts, live = (task, fedavg(), local_training.sgd), support or task.support
    make_client = functools.partial(local_training.make_client, *parts, support=live)

    def train(state, data, hyper, planned):
        return executors.lanes(num_lanes).train(make_client, (state, data, hyper), planned)

    with jax.default_matmul_precision(precision):
        compiled = jax.jit(train).lower(state, data, hyper, planned).compile()
    seconds = machine.median_seconds(lambda: jax.block_until_ready(compiled(state, data, hyper, planned)), 3)
    return round(1e3 * seconds / (num_lanes * steps), 4)


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
    task = make_task(box, "auto")
    variables = jax.jit(task.init)(jax.random.key(0))
    measure = signals.validation_gradient(task, True, max(1, images // BATCH))

    def score(variables: Variables, data: Data):
        return measure({}, Report(variables, jnp.int32(1), variables.params), data)

    with jax.default_matmul_precision(precision):
        compiled = jax.jit(score).lower(variables, data).compile()
    return pool / machine.median_seconds(lambda: jax.block_until_ready(compiled(variables, data)), 3)
