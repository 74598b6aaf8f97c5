"""Where names become objects: a config -> everything a run needs. The only place that knows which pieces exist."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedvg_jax import data as datasets
from fedvg_jax import evaluate, executors, groups, local, norms, round, schedule, signals, weighting
from fedvg_jax.algorithms import fedavg
from fedvg_jax.config import Config, check, cohort_size
from fedvg_jax.data import partition as partitions
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.models import cnn, conv, lenet, mlp
from fedvg_jax.models import task as tasks
from fedvg_jax.types import (
    Algorithm,
    Batch,
    Data,
    Executor,
    Hyper,
    RoundStep,
    Schedule,
    SimState,
    Task,
    UsageError,
    Weighting,
)

MAX_ROUNDS = 64
"""R, rounds a chunk can hold."""

EVAL_BATCH = 64
"""Rows per evaluation step; the result does not depend on it."""

ALGORITHMS: dict[str, Callable[[], Algorithm]] = {"fedavg": fedavg.fedavg}

MODELS: dict[str, Callable] = {
    "tinycnn": lambda classes, convolution: cnn.TinyCNN(classes, convolution),
    "mlp": lambda classes, convolution: mlp.MLP(classes),
    "cnn": lambda classes, convolution: cnn.CNN(classes, convolution),
    "lenet5": lambda classes, convolution: lenet.LeNet5(classes, convolution),
}

SMALLEST_IMAGE = {"tinycnn": 4, "mlp": 1, "cnn": 16, "lenet5": 16}
"""Pixels a side below which a model has nothing left to flatten."""


class Simulation(NamedTuple):
    """A run, ready to start."""

    config: Config
    arrays: Arrays
    partition: partitions.Partition
    task: Task
    state: SimState
    data: Data
    hyper: Hyper
    schedule: Callable[[int], Schedule]
    """round -> its schedule, on the host"""
    chunk: Callable
    """jitted; the state is donated"""
    evaluate: Callable
    """jitted"""


def simulation(
    config: Config,
    *,
    data: Arrays | None = None,
    partition: partitions.Partition | None = None,
    task: Task | None = None,
    algorithm: Algorithm | None = None,
    weighting: Weighting | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Simulation:
    """Everything a run needs; what is given replaces what the config names.

    Raises:
        UsageError: for any setting or file that cannot work.
    """
    check(config)
    arrays = data or datasets.load(config.dataset, config.data_dir, config.cache_dir / "data")
    parts = partition or make_partition(config, arrays, progress)
    task = task or make_task(config, arrays)
    algorithm = algorithm or ALGORITHMS[config.algorithm]()
    weighting = weighting or make_weighting(config, task)
    executor = make_executor(config)
    state = round.init(task, algorithm, config.clients, jax.random.key(config.seed))
    step = round.make_round(task, algorithm, weighting, executor, local.sgd, config.clients)
    return Simulation(
        config,
        arrays,
        parts,
        task,
        state,
        make_data(config, arrays, parts),
        make_hyper(config),
        make_schedule(config, arrays, parts, executor),
        jax.jit(round.make_chunk(traced_once(step)), donate_argnums=0),
        jax.jit(evaluate.make_evaluate(task)),
    )


def traced_once(step: RoundStep) -> RoundStep:
    """`step`, which raises if this simulation ever traces it again."""
    step.__name__ = f"round_step_{uuid.uuid4().hex}"  # chex counts by name; another simulation has a count of its own
    return chex.assert_max_traces(step, n=1)


def make_partition(config: Config, arrays: Arrays, progress=None) -> partitions.Partition:
    """Who holds which rows."""
    return partitions.make(
        arrays.y,
        kind=config.partition,
        num_clients=config.clients,
        alpha=config.alpha,
        seed=config.partition_seed,
        min_samples=config.min_samples,
        rule=config.min_samples_rule,
        test_ratio=config.test_ratio,
        val_ratio=config.val_ratio,
        cache_dir=config.cache_dir / "partitions",
        progress=progress,
    )


def make_task(config: Config, arrays: Arrays) -> Task:
    """The named model for this data set's images and classes."""
    shape, least = arrays.x.shape[1:], SMALLEST_IMAGE[config.model]
    if min(shape[:2]) < least:
        fitting = [name for name, pixels in SMALLEST_IMAGE.items() if pixels <= min(shape[:2])]
        raise UsageError(
            f"model {config.model} needs images of {least} x {least} or more; {arrays.name} has"
            f" {shape[0]} x {shape[1]}; try --model {fitting[0]}"
        )
    classes = len(arrays.class_names)
    return tasks.classification(MODELS[config.model](classes, conv.by_name(config.conv)), classes, shape)


def make_weighting(config: Config, task: Task) -> Weighting:
    """One named weighting, or the mean of two."""
    named = {
        "samples": weighting.samples,
        "uniform": weighting.uniform,
        "fedvg": lambda: make_fedvg(config, task),
    }
    parts = [named[name]() for name in config.weighting.split("+")]
    return parts[0] if len(parts) == 1 else weighting.mix(*parts)


def make_fedvg(config: Config, task: Task) -> Weighting:
    """FedVG with its norm, granularity and scoring mode."""
    options = config.fedvg
    groups_per_pass = 1 if jax.default_backend() == "cpu" else max(1, 1024 // config.batch_size)
    signal = signals.validation_norms(
        task, norms.BY_NAME[options.norm], train=options.mode == "train", groups_per_pass=groups_per_pass
    )
    return weighting.fedvg(signal, groups.BY_NAME[options.granularity], task.block_of)


def make_executor(config: Config) -> Executor:
    """`lanes`: a number, all, or auto: one lane on the CPU, up to four elsewhere."""
    if config.lanes == "all":
        return executors.vmapped()
    automatic = 1 if jax.default_backend() == "cpu" else 4
    wanted = automatic if config.lanes == "auto" else int(config.lanes)
    return executors.lanes(min(wanted, cohort_size(config)))


def make_data(config: Config, arrays: Arrays, parts: partitions.Partition) -> Data:
    """The pool on the device as uint8, and the row tables; their shapes do not depend on the partition."""
    val, test = np.concatenate(parts.val), np.concatenate(parts.test)
    size = len(arrays.y)

    def table(rows, ratio, batch_size, keep_single):
        fitting = max(len(rows), int(size * ratio))
        return jnp.asarray(schedule.table(rows, batch_size, -(-fitting // batch_size), keep_single))

    return Data(
        Batch(jnp.asarray(arrays.x), jnp.asarray(arrays.y)),
        table(val, config.val_ratio, config.batch_size, keep_single=config.fedvg.mode == "eval"),
        table(val, config.val_ratio, EVAL_BATCH, keep_single=True),
        table(test, config.test_ratio, EVAL_BATCH, keep_single=True),
    )


def make_hyper(config: Config) -> Hyper:
    """The continuous hyper-parameters, as traced scalars."""
    return {"lr": jnp.float32(config.lr), "eps": jnp.float32(config.fedvg.eps)}


def make_schedule(config: Config, arrays: Arrays, parts: partitions.Partition, executor: Executor):
    """round -> Schedule."""
    size = cohort_size(config)

    def of_round(number: int) -> Schedule:
        return schedule.make(
            number,
            parts.train,
            seed=config.seed,
            cohort_size=size,
            local_epochs=config.local_epochs,
            batch_size=config.batch_size,
            num_lanes=executor.num_lanes,
            capacity=schedule.capacity(len(arrays.y), size, config.local_epochs, config.batch_size),
        )

    return of_round
