"""A config -> everything a run needs."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedvg_jax import contracts, evaluate, executors, round, schedule
from fedvg_jax import data as datasets
from fedvg_jax.build.pieces import (
    ALGORITHMS,
    MODELS,
    corrupt_clients,
    make_hooks,
    make_hyper,
    make_optimiser,
    make_task,
)
from fedvg_jax.build.weightings import layer_names, make_fedvg, make_multipliers, make_weighting
from fedvg_jax.config import Config, check, cohort_size, default_cache_dir, epochs_range
from fedvg_jax.data import partition as partitions
from fedvg_jax.data.arrays import Arrays
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
    Variables,
    Weighting,
)

MAX_ROUNDS = 64
"""R, rounds a chunk can hold."""

EVAL_BATCH = 64
"""Rows per evaluation step; the result does not depend on it."""


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
    metrics: Mapping[str, Callable[[Variables, Data], Any]] = {}
    """a user's own, by name"""


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
    config = check(dataclasses.replace(config, cache_dir=config.cache_dir or default_cache_dir()))
    arrays = data or datasets.load(config.dataset, config.data_dir, config.cache_dir / "data")
    parts = partition or make_partition(config, arrays, progress)
    tables = make_data(config, arrays, parts)
    if task:
        contracts.check_task(task, tables.pool)
    task = task or make_task(config, arrays)
    algorithm = algorithm or ALGORITHMS[config.algorithm](config)
    hyper = make_hyper(config) | make_multipliers(config, task)
    if weighting:
        contracts.check_weighting(weighting, task, tables, hyper)
    weighting = weighting or make_weighting(config, task, algorithm)
    executor = make_executor(config)
    stats_too = config.server_stats == "official"
    state = round.init(task, algorithm, config.clients, jax.random.key(config.seed), hyper, stats_too)
    optimiser = make_optimiser(config)
    hooks = make_hooks(config, task) | {"stats_too": stats_too}
    step = round.make_round(task, algorithm, weighting, executor, optimiser, config.clients, **hooks)
    return Simulation(
        config,
        arrays,
        parts,
        task,
        state,
        tables,
        hyper,
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


def make_schedule(config: Config, arrays: Arrays, parts: partitions.Partition, executor: Executor):
    """round -> Schedule."""
    size, epochs = cohort_size(config), epochs_range(config)
    official = config.cohorts == "official"
    cohorts = schedule.official_cohorts(config.seed, config.clients, size, config.rounds) if official else None
    probe_ratio = config.elastic.ratio if config.algorithm == "elastic" else 0.0

    def of_round(number: int) -> Schedule:
        return schedule.make(
            number,
            parts.train,
            seed=config.seed,
            cohort_size=size,
            local_epochs=epochs,
            batch_size=config.batch_size,
            num_lanes=executor.num_lanes,
            capacity=schedule.capacity(len(arrays.y), size, epochs[1] + (probe_ratio > 0), config.batch_size),
            probe_ratio=probe_ratio,
            probe_apart=config.elastic.rows == "rest",
            single_batches=config.algorithm == "scaffold" and config.scaffold.steps == "single",
            dropout=config.dropout,
            clients=cohorts[number] if cohorts else None,
        )

    return of_round


__all__ = [
    "ALGORITHMS",
    "EVAL_BATCH",
    "MAX_ROUNDS",
    "MODELS",
    "Simulation",
    "corrupt_clients",
    "layer_names",
    "make_fedvg",
    "make_hyper",
    "make_optimiser",
    "make_task",
    "make_weighting",
    "simulation",
    "traced_once",
]
