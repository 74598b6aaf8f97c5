"""A config -> everything a run needs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedvg_jax import data as datasets
from fedvg_jax.config import Config, block_size, check, cohort_size, default_cache_dir, epochs_range
from fedvg_jax.core import files
from fedvg_jax.core.types import (
    Algorithm,
    Batch,
    Data,
    Executor,
    Hyper,
    Schedule,
    SimState,
    Task,
    UsageError,
    Variables,
)
from fedvg_jax.data import user_data
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.images import parse_size
from fedvg_jax.data.partitions.split import Partition
from fedvg_jax.data.validation import Shared, halves
from fedvg_jax.engine import federated_round, schedule
from fedvg_jax.models import norm, pretrained
from fedvg_jax.runs import contracts, memory, programs
from fedvg_jax.runs.devices import make_executor, num_devices
from fedvg_jax.runs.hyperparameters import merge_hyperparameters
from fedvg_jax.runs.population import describe, make_partition, make_shared, take_partition
from fedvg_jax.runs.registry import (
    ALGORITHMS,
    MODELS,
    check_images,
    corrupt_clients,
    make_hyper,
    make_live,
    make_optimiser,
    make_task,
    make_variables,
)
from fedvg_jax.runs.weighting_registry import layer_names, make_fedvg, make_multipliers, make_weighting

MAX_ROUNDS = 64
"""R, rounds a chunk can hold."""

EVAL_BATCH = 64
"""Rows per evaluation step; the result does not depend on it."""


class Simulation(NamedTuple):
    """A run, ready to start."""

    config: Config
    arrays: Arrays
    partition: Partition
    statistics: dict[str, Any]
    """the partition and the shared validation set in numbers"""
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
    data: Arrays | tuple | None = None,
    partition: tuple | Sequence[np.ndarray] | None = None,
    task: Task | None = None,
    algorithm: Algorithm | None = None,
    weighting: programs.WeightingOrFactory | None = None,
    hyper: Mapping[str, float] | None = None,
    progress: Callable[[int, int], None] | None = None,
    reading: Callable[[int, int], None] | None = None,
) -> Simulation:
    """Everything a run needs; what is given replaces what the config names.

    Args:
        data: `Arrays`, or a pair (x, y) of arrays of any rank; see `data.user_data.as_arrays`.
        partition: (train, val, test), each with one array of rows per client; or a list of the rows of every client,
            which are then split as the config says.
        weighting: a `Weighting`, or a function task -> Weighting.
        hyper: name -> value of hyperparameters that the given algorithm or weighting declares.
        progress, reading: hear of drawn partitions, and of decoded images: (done, all).

    Raises:
        UsageError: for any setting or file that cannot work.
    """
    config = check(dataclasses.replace(config, cache_dir=config.cache_dir or default_cache_dir()))
    files.private_folder(config.cache_dir, config.trust_cache)
    if config.pretrained:  # refused before the data are read, which may take minutes
        pretrained.read(config.pretrained)
    arrays = user_data.as_arrays(load_data(config, reading) if data is None else data)
    user_data.check_augmentation_fits(arrays, config)
    is_given = partition is not None
    parts = take_partition(config, arrays, partition) if is_given else make_partition(config, arrays, progress)
    shared = make_shared(config, arrays, parts)
    if task:
        contracts.check_task(task, Batch(shared.x, shared.y))
    else:
        check_images(config, arrays)
    images = None if task else programs.Images(arrays.x.shape[1:], len(arrays.class_names))
    program = programs.make_program(config, images, task, algorithm, weighting)
    tables = make_data(config, arrays, parts, shared, program.task)
    own = (*([program.algorithm] if algorithm else []), *([program.weighting] if weighting else []))
    scalars = merge_hyperparameters(config, program.algorithm, program.weighting, hyper, own)
    hyper = scalars | make_multipliers(config, program.task)
    if weighting:
        contracts.check_weighting(program.weighting, program.task, tables, hyper)
        if block_size(config) < cohort_size(config):
            contracts.check_terms(program.weighting, program.task, tables, hyper)
    elif "val_accuracy" in config.weighting:
        user_data.class_labels(arrays, "weighting val_accuracy", "use val_loss")
    state = make_state(config, program, hyper, len(arrays.y), tables, max(map(len, parts.train)))
    placement = program.executor.placement
    return Simulation(
        config,
        arrays,
        parts,
        describe(config, arrays, parts, shared, is_given),
        program.task,
        jax.device_put(state, placement),
        jax.device_put(tables, placement),
        hyper,
        make_schedule(config, arrays, parts, program.executor, task=program.task),
        program.chunk,
        program.evaluate,
    )


def make_state(
    config: Config, program: programs.Program, hyper: Hyper, num_rows: int, tables: Data, largest: int
) -> SimState:
    """The state before the first round.

    Args:
        num_rows: T, of the data set.
        largest: training rows of the largest client.

    Raises:
        UsageError: where the run would not fit in memory.
    """
    variables = make_variables(config, program.init)
    kept = program.optimiser if config.optimiser_state == "kept" else None
    stats_too = config.server_stats == "official"
    init = functools.partial(federated_round.init_state, program.task, program.algorithm, config.clients)
    start = (jax.random.key(config.seed), hyper, stats_too, kept, variables)
    shapes, width = jax.eval_shape(lambda: init(*start)), fitting_width(config.batch_size, largest)
    parts = memory.estimate(config, tables.pool, num_rows, shapes, width, program.executor)
    memory.refuse_unfitting(config, parts)
    return init(*start)


def load_data(config: Config, reading: Callable[[int, int], None] | None = None) -> Arrays:
    """The data set the config names."""
    return datasets.load(
        config.dataset,
        config.data_dir,
        config.cache_dir / "data",
        size=parse_size(config.image_size),
        splits=config.splits,
        progress=reading,
    )


def make_data(
    config: Config,
    arrays: Arrays,
    parts: Partition,
    shared: Shared | None = None,
    task: Task | None = None,
) -> Data:
    """The pool on the device as uint8, and the row tables; their shapes do not depend on the partition.

    D_val is scored in groups of `batch_size` rows. A last group of one row is left out only where BatchNorm would take
    the statistics of a single value, in train mode: there the published code raises, and otherwise it scores that row
    too.

    Args:
        shared: D_val with the pool it is part of; made here where it is not given.
        task: the model that scores; by default the config's.
    """
    shared = shared or make_shared(config, arrays, parts)
    most_test = int(len(arrays.y) * config.test_ratio)
    is_split = config.select == "held_out"
    scored, selected = halves(shared.rows, config.partition_seed) if is_split else (shared.rows, None)
    most_selected = shared.most // 2 if is_split else 0
    most_scored = shared.most - most_selected
    has_lone_row = config.fedvg.mode == "train" and len(scored) % config.batch_size == 1
    keeps_lone_row = not (has_lone_row and norm.lone_row_is_undefined((task or make_task(config, arrays)).init))

    def table(rows, most, batch_size, keep_single):
        fitting = max(len(rows), most)
        batch_size = fitting_width(batch_size, fitting)
        return jnp.asarray(schedule.table(rows, batch_size, -(-fitting // batch_size), keep_single))

    return Data(
        Batch(jnp.asarray(shared.x), jnp.asarray(shared.y)),
        table(scored, most_scored, config.batch_size, keep_single=keeps_lone_row),
        table(scored, most_scored, EVAL_BATCH, keep_single=True),
        table(np.concatenate(parts.test), most_test, EVAL_BATCH, keep_single=True),
        table(selected, most_selected, EVAL_BATCH, keep_single=True) if is_split else None,
    )


def fitting_width(batch_size: int, largest: int) -> int:
    """Columns B of a table of minibatches: `batch_size`, or the power of two that holds the most rows of any minibatch.

    Few widths keep programs few: with another partition the largest client is another.

    >>> fitting_width(32, 1000), fitting_width(4294967295, 171), fitting_width(32, 20), fitting_width(32, 1)
    (32, 256, 32, 2)
    """
    return min(batch_size, 1 << (max(2, largest) - 1).bit_length())


def keeps_single_rows(config: Config, arrays: Arrays, sizes: Sequence[int], task: Task | None = None) -> bool:
    """Returns whether clients train on minibatches of a single row.

    They skip them under `single_rows` skipped, and where BatchNorm would have undefined statistics.

    Args:
        config: the run's settings.
        arrays: the data set.
        sizes: training rows of each client.
        task: the model that is trained; None for the config's.

    Raises:
        UsageError: if all minibatches have a single row and BatchNorm would have undefined statistics.
    """
    # a model is traced only where it matters; a probe leaves other numbers of rows
    is_possible = config.algorithm == "elastic" or any(size % config.batch_size == 1 for size in sizes)
    if config.single_rows == "skipped" or not (config.batch_size == 1 or is_possible):
        return False
    is_undefined = norm.lone_row_is_undefined((task or make_task(config, arrays)).init)
    if is_undefined and config.batch_size == 1:
        raise UsageError(
            "batch_size 1 leaves BatchNorm a single value, whose variance is undefined; use --batch-size 2 or more, or"
            " a model without BatchNorm"
        )
    return not is_undefined


def make_schedule(
    config: Config,
    arrays: Arrays,
    parts: Partition,
    executor: Executor,
    width: int | None = None,
    task: Task | None = None,
) -> Callable[[int], Schedule]:
    """Returns round -> Schedule.

    Args:
        config: the run's settings.
        arrays: the data set.
        parts: rows of the clients.
        executor: its lanes are planned.
        width: B, columns of the table of minibatches; None for `fitting_width` for the largest client.
        task: the model that is trained; None for the config's.
    """
    keep_single = keeps_single_rows(config, arrays, [len(rows) for rows in parts.train], task)
    size, epochs = cohort_size(config), epochs_range(config)
    batch_size = width or fitting_width(config.batch_size, max(map(len, parts.train)))
    official = config.cohorts == "official"
    cohort_of = schedule.official_cohorts(config.seed, config.clients, size) if official else None
    probe_ratio = config.elastic.ratio if config.algorithm == "elastic" else 0.0

    def of_round(number: int) -> Schedule:
        return schedule.make(
            number,
            parts.train,
            seed=config.seed,
            cohort_size=size,
            local_epochs=epochs,
            batch_size=batch_size,
            num_lanes=executor.num_lanes,
            lanes_together=executor.lanes_together,
            capacity=schedule.capacity(len(arrays.y), size, epochs[1] + (probe_ratio > 0), batch_size),
            probe_ratio=probe_ratio,
            keep_single=keep_single,
            probe_apart=config.elastic.rows == "rest",
            single_batches=config.algorithm == "scaffold" and config.scaffold.steps == "single",
            dropout=config.dropout,
            clients=cohort_of(number) if cohort_of else None,
            block_size=block_size(config),
        )

    return of_round


__all__ = [
    "ALGORITHMS",
    "EVAL_BATCH",
    "MAX_ROUNDS",
    "MODELS",
    "Simulation",
    "corrupt_clients",
    "fitting_width",
    "layer_names",
    "make_executor",
    "make_fedvg",
    "make_hyper",
    "make_live",
    "make_optimiser",
    "make_partition",
    "make_shared",
    "make_task",
    "make_variables",
    "make_weighting",
    "memory",
    "num_devices",
    "programs",
    "simulation",
]
