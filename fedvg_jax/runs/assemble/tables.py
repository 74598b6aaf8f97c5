"""The pool of a run, its tables of rows, and the schedules of its rounds."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from fedvg_jax.config import Config, block_size, cohort_size, epochs_range
from fedvg_jax.config.departures import departs
from fedvg_jax.config.uses import unmet
from fedvg_jax.core import tree
from fedvg_jax.core.types import Algorithm, Batch, Data, Schedule, SimState, Task, UsageError, Variables
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions import client_rows
from fedvg_jax.data.partitions.client_rows import Partition
from fedvg_jax.data.validation import halves
from fedvg_jax.engine import evaluate, schedule
from fedvg_jax.models import layers
from fedvg_jax.runs.assemble import cohorts, programs, registry
from fedvg_jax.runs.assemble.population import Population

MAX_ROUNDS = 64
"""R, rounds a chunk can hold."""


def make_data(config: Config, population: Population, task: Task, is_on_host: bool = False) -> Data:
    """Returns the pool and the tables of rows; their shapes do not depend on the partition.

    D_val is scored in groups of `batch_size` rows. A last group of one row is left out only where BatchNorm would take
    the statistics of a single value, in train mode: there the published code raises, and otherwise it scores that row
    too.

    Args:
        config: settings.
        population: the rows.
        task: the model that scores.
        is_on_host: whether pool and tables stay NumPy arrays.
    """
    arrays, parts, shared = population
    pool = Batch(np.asarray(shared.x), np.asarray(shared.y))
    max_test = int(len(arrays.y) * config.test_ratio)
    is_split = config.best_on == "held_out"
    scored, selected = halves(shared.rows, config.partition_seed) if is_split else (shared.rows, None)
    max_selected = shared.most // 2 if is_split else 0
    max_scored = shared.most - max_selected
    is_read_in_training = config.tuning.steps or "fltrust" in config.weighting
    only_evaluated = config.fedvg.mode == "eval" and unmet(config, "fedvg.mode") is None and not is_read_in_training
    keeps_lone_row = only_evaluated or len(scored) % config.batch_size != 1
    if not keeps_lone_row:  # a model is traced only where it matters
        keeps_lone_row = not layers.lone_row_is_undefined(task.init)

    def table(rows, max_rows, batch_size=evaluate.ROWS, keep_single=True):
        num_rows = max(len(rows), max_rows)
        batch_size = fitting_width(batch_size, num_rows)
        made = schedule.table(rows, batch_size, -(-num_rows // batch_size), keep_single)
        return made if is_on_host else jax.device_put(made)

    return Data(
        pool if is_on_host else tree.copies(pool),  # whatever becomes of the caller's arrays
        table(scored, max_scored, config.batch_size, keep_single=keeps_lone_row),
        table(scored, max_scored),
        table(client_rows.joined(parts.test), max_test),
        table(selected, max_selected) if is_split else None,
    )


def fitting_width(batch_size: int, largest: int) -> int:
    """Returns B, the columns of a table of minibatches: `batch_size`, or the next power of two of `largest`.

    Powers of two keep the number of compiled programs small: another partition has another largest client.

    Args:
        largest: rows of the largest client.

    >>> fitting_width(32, 1000), fitting_width(4294967295, 171), fitting_width(32, 20), fitting_width(32, 1)
    (32, 256, 32, 2)
    """
    return min(batch_size, 1 << (max(2, largest) - 1).bit_length())


def table_shape(config: Config, num_rows: int, largest: int, algorithm: Algorithm) -> tuple[int, int]:
    """Returns F and B of a chunk's table of minibatches, its rows and columns.

    Args:
        num_rows: T, rows of the data set.
        largest: training rows of the largest client.
        algorithm: whose probe may read further minibatches.
    """
    width = fitting_width(config.batch_size, largest)
    epochs = epochs_range(config)[1] + (registry.probe_ratio(config, algorithm) > 0)
    return schedule.capacity(max(num_rows, largest), cohort_size(config), epochs, width, largest), width


def keeps_single_rows(
    config: Config, sizes: np.ndarray, algorithm: Algorithm, init: Callable[[jax.Array], Variables]
) -> bool:
    """Returns whether clients train on minibatches of a single row.

    They skip them by the departure single-rows, and where BatchNorm would have undefined statistics.

    Args:
        config: the run's settings.
        sizes: training rows of each client.
        algorithm: of the run.
        init: of the model that is trained.

    Raises:
        UsageError: if all minibatches have a single row and BatchNorm would have undefined statistics.
    """
    # a model is traced only where it matters; a probe leaves other numbers of rows
    is_possible = registry.probe_ratio(config, algorithm) > 0 or bool((sizes % config.batch_size == 1).any())
    if departs(config, "single-rows") or not (config.batch_size == 1 or is_possible):
        return False
    is_undefined = layers.lone_row_is_undefined(init)
    if is_undefined and config.batch_size == 1:
        raise UsageError("batch_size 1 leaves BatchNorm a single value; use --batch-size 2 or more, or no BatchNorm")
    return not is_undefined


def make_schedule(
    config: Config,
    arrays: Arrays,
    parts: Partition,
    program: programs.Program,
    largest: int | None = None,
    select: cohorts.Cohorts | None = None,
) -> Callable[..., Schedule]:
    """Returns a function from the number of a round, from 0, and perhaps the state before it, to its schedule.

    Args:
        program: has the model that is trained, the executor, and the algorithm, whose probe may read rows.
        largest: rows of the largest client of all partitions that share a program; by default of `parts`.
        select: the cohorts; by default those of the config.
    """
    sizes = client_rows.sizes(parts.train)
    keep_single = keeps_single_rows(config, sizes, program.algorithm, program.model.init)
    size = cohort_size(config)
    capacity, batch_size = table_shape(config, len(arrays.y), largest or int(sizes.max()), program.algorithm)
    is_official = departs(config, "cohorts")
    official = schedule.official_cohorts(config.seed, config.clients, size) if is_official else None
    cohort_of = select or (lambda number, state: official(number) if official else None)

    def schedule_of(number: int, state: SimState | None = None) -> Schedule:
        made = schedule.make(
            number,
            parts.train,
            seed=config.seed,
            cohort_size=size,
            local_epochs=epochs_range(config),
            batch_size=batch_size,
            num_lanes=program.executor.num_lanes,
            lanes_together=program.executor.lanes_together,
            capacity=capacity,
            probe_ratio=registry.probe_ratio(config, program.algorithm),
            keep_single=keep_single,
            probe_apart=departs(config, "elastic-rows"),
            single_batches=program.algorithm.single_batches,
            dropout=config.dropout,
            clients=cohort_of(number, state),
            block_size=block_size(config),
        )
        noise_seed = config.dp.noise_seed
        return made._replace(key=schedule.key(noise_seed, number)) if noise_seed else made

    return schedule_of
