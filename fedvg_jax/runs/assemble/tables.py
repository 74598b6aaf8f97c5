"""The pool of a run, its tables of rows, and the cohorts and schedules of its rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fedvg_jax.config import Config, client_chunk_size, cohort_size, epochs_range
from fedvg_jax.config.fidelity import departs
from fedvg_jax.config.options import choice, partition_seed
from fedvg_jax.config.uses import unmet
from fedvg_jax.core import checks, trained_part, tree, types
from fedvg_jax.core.types import (
    Algorithm,
    Batch,
    Data,
    Schedule,
    Selection,
    SimState,
    Task,
    UsageError,
    Variables,
)
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions import client_rows
from fedvg_jax.data.partitions.client_rows import Partition
from fedvg_jax.data.validation import halves
from fedvg_jax.engine import evaluate, schedule, selection
from fedvg_jax.models import layers
from fedvg_jax.runs.assemble import programs, registry
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
    arrays, parts, shared = population.arrays, population.partition, population.shared
    pool = Batch(np.asarray(shared.x), np.asarray(shared.y))
    max_test = int(len(arrays.y) * config.test_ratio)
    is_split = config.best_on == "held_out"
    scored, selected = (
        halves(shared.rows, partition_seed(config)) if is_split else (shared.rows, None)
    )
    max_selected = shared.most // 2 if is_split else 0
    max_scored = shared.most - max_selected
    is_read_in_training = config.tuning.steps or "fltrust" in config.weighting
    only_evaluated = (
        config.fedvg.mode == "eval"
        and unmet(config, "fedvg.mode") is None
        and not is_read_in_training
    )
    keeps_lone_row = only_evaluated or len(scored) % config.batch_size != 1
    if not keeps_lone_row:  # a model is traced only where it matters
        keeps_lone_row = not layers.lone_row_is_undefined(task.init)

    def table(rows, max_rows, batch_size=evaluate.ROWS, keep_single=True):
        num_rows = max(len(rows), max_rows)
        batch_size = fitting_width(batch_size, num_rows)
        numbered = schedule.table(rows, batch_size, -(-num_rows // batch_size), keep_single)
        return numbered if is_on_host else jax.device_put(numbered)

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


def table_shape(
    config: Config, num_rows: int, largest: int, algorithm: Algorithm
) -> tuple[int, int]:
    """Returns F and B of a chunk's table of minibatches, its rows and columns.

    Args:
        num_rows: T, rows of the data set.
        largest: training rows of the largest client.
        algorithm: its probe may read further minibatches.
    """
    width = fitting_width(config.batch_size, largest)
    epochs = epochs_range(config)[1] + (registry.probe_ratio(config, algorithm) > 0)
    return schedule.capacity(
        max(num_rows, largest), cohort_size(config), epochs, width, largest
    ), width


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
    is_possible = registry.probe_ratio(config, algorithm) > 0 or bool(
        (sizes % config.batch_size == 1).any()
    )
    if departs(config, "single-rows") or not (config.batch_size == 1 or is_possible):
        return False
    is_undefined = layers.lone_row_is_undefined(init)
    if is_undefined and config.batch_size == 1:
        raise UsageError(
            "batch_size 1 leaves BatchNorm a single value; use --batch-size 2 or more, or no BatchNorm"
        )
    return not is_undefined


def make_schedule(
    config: Config,
    arrays: Arrays,
    parts: Partition,
    program: programs.Program,
    select: Cohorts | None = None,
    origin: Sequence[int] = (),
) -> Callable[..., Schedule]:
    """Returns a function from the number of a round, from 0, and perhaps the state before it, to its schedule.

    Args:
        program: has the model that is trained, the executor, and the algorithm; its probe may read rows.
        select: the cohorts; by default the config's selection.
        origin: see `privacy.origin`.
    """
    sizes = client_rows.sizes(parts.train)
    keep_single = keeps_single_rows(config, sizes, program.algorithm, program.model.init)
    size = cohort_size(config)
    capacity, batch_size = table_shape(config, len(arrays.y), int(sizes.max()), program.algorithm)
    is_official = departs(config, "cohorts")
    official = (
        schedule.official_cohorts(config.seed + sum(origin), config.clients, size)
        if is_official
        else None
    )
    cohort_of = select or (lambda number, state: official(number) if official else None)

    def schedule_of(number: int, state: SimState | None = None) -> Schedule:
        drawn = schedule.make(
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
            client_chunk_size=client_chunk_size(config),
            origin=origin,
        )
        noise_seed = config.dp.noise_seed
        return drawn._replace(key=schedule.key(noise_seed, number, origin)) if noise_seed else drawn

    return schedule_of


# --- cohorts


Cohorts = Callable[[int, SimState | None], np.ndarray]
"""(round from 0, state before it) -> ids int32 [K]. Without a state all losses count as equal."""


def choose_selection(
    config: Config, given: Selection | None, pool_is_on_host: bool
) -> Selection | None:
    """Returns the given selection, or else the one that the config names; None for uniform sampling.

    Raises:
        UsageError: it breaks its contract, or the settings of the run do not allow it.
    """
    name, num_candidates = choice(config, "selection")
    num_candidates = num_candidates or min(config.clients, 2 * cohort_size(config))
    chosen = selection.BY_NAME[name].made(num_candidates) if given is None else given
    if chosen is None:
        return None
    if not isinstance(chosen, Selection) or not callable(chosen.choose):
        raise UsageError(
            f"selection must be a fedvg_jax.Selection of a function; got {type(chosen).__name__}"
        )
    if departs(config, "cohorts"):
        raise UsageError(
            "--departures cohorts and a selection both choose the cohorts; leave one out"
        )
    if chosen.num_candidates and pool_is_on_host:
        raise UsageError(
            "this selection measures losses on the device, and rows are on the host; use placement device"
        )
    return chosen


def make_cohorts(
    config: Config,
    chosen: Selection,
    program: programs.Program,
    data: Data,
    rows: Sequence[np.ndarray],
) -> Cohorts:
    """Returns the cohorts of a selection.

    Args:
        config: of the run.
        chosen: the selection.
        program: evaluates the model.
        data: on the devices.
        rows: training rows of every client.
    """
    sizes, count = client_rows.sizes(rows), cohort_size(config)
    most = -(-int(sizes.max()) // evaluate.ROWS)

    def loss(variables: Variables, client: int) -> float:
        table = schedule.table(rows[client], evaluate.ROWS, most)
        sums = program.evaluate(trained_part.whole(variables, data.base), data.pool, table)
        return program.task.metrics(jax.device_get(sums))["loss"] if sizes[client] else -np.inf

    def cohort(number: int, state: SimState | None) -> np.ndarray:
        def losses(clients: Any) -> np.ndarray:
            if len(clients) > chosen.num_candidates:
                most = chosen.num_candidates
                raise UsageError(
                    f"selection.choose asks for {len(clients)} losses; at most num_candidates, {most}, are allowed:"
                    " raise it"
                )
            return np.array(
                [loss(state.variables, client) if state else 0.0 for client in clients], np.float64
            )

        population = types.Population(
            number, schedule.selection_stream(config.seed, number), sizes, count, losses
        )
        with checks.calling("selection.choose"):
            clients = np.asarray(chosen.choose(population))
        is_whole = clients.shape == (count,) and np.issubdtype(clients.dtype, np.integer)
        if not is_whole or len({*clients.tolist()} & {*range(len(sizes))}) < count:
            expected, got = (
                f"{count} different clients from 0 to {len(sizes) - 1}",
                str(clients.tolist())[:100],
            )
            raise UsageError(f"selection.choose must return {expected}; got {got}")
        return clients.astype(np.int32)

    return cohort
