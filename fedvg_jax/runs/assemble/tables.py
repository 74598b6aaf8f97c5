"""The pool of a run, its tables of rows, and the schedules of its rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedvg_jax.core import tree
from fedvg_jax.core.types import Data, Schedule, SimState, Task, UsageError, Variables
from fedvg_jax.data.partitions import client_rows
from fedvg_jax.engine import evaluate, schedule
from fedvg_jax.host import hardware as hw
from fedvg_jax.models import layers
from fedvg_jax.runs.assemble import programs
from fedvg_jax.runs.experiment import Cohorts, Experiment

if TYPE_CHECKING:
    from fedvg_jax.runs.assemble.arrivals import Arrive
    from fedvg_jax.runs.assemble.selection import Select

MAX_ROUNDS = 64
"""R, rounds a chunk can hold."""


def stays_on_host(placement: str, num_bytes: int) -> bool:
    """Returns whether a pool of so many bytes stays on the host.

    Args:
        placement: "auto", "device" or "host".
        num_bytes: of the pool.
    """
    return placement == "host" or (placement == "auto" and hw.auto_pool(num_bytes) == "host")


def make_data(experiment: Experiment, task: Task, is_on_host: bool = False) -> Data:
    """Returns the pool and the tables of rows; their shapes do not depend on the partition.

    D_val is scored in groups of `batch_size` rows. A last group of one row is left out only where BatchNorm would take
    the statistics of a single value, in train mode: there the published code raises, and otherwise it scores that row
    too.

    Args:
        experiment: its rows.
        task: the model that scores.
        is_on_host: whether pool and tables stay NumPy arrays.
    """
    population, batch_size = experiment.population, experiment.cohorts.batch_size
    shared, pool = population.shared, population.pool
    skips_lone_row = (
        experiment.skips_lone_row
        and len(shared.rows) % batch_size == 1
        and layers.lone_row_is_undefined(task.init)  # a model is traced only where it matters
    )

    def table(rows, max_rows, group_size=evaluate.ROWS, keep_single=True):
        num_rows = max(len(rows), max_rows)
        width = fitting_width(group_size, num_rows)
        numbered = schedule.table(rows, width, -(-num_rows // width), keep_single)
        return numbered if is_on_host else jax.device_put(numbered)

    return Data(
        pool if is_on_host else tree.copies(pool),  # whatever becomes of the caller's arrays
        table(shared.rows, shared.most, batch_size, keep_single=not skips_lone_row),
        table(shared.rows, shared.most),
        table(client_rows.joined(population.partition.test), population.most_tested),
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


# --- schedules --------------------------------------------------------------------------------------------------------
def make_training(experiment: Experiment, program: programs.Program) -> dict[str, Any]:
    """Returns how clients train: the arguments that `schedule.make` shares with `schedule.num_local_steps`.

    Args:
        experiment: its cohorts, and the partition.
        program: has the model that is trained, and the algorithm.
    """
    cohorts = experiment.cohorts
    sizes = client_rows.sizes(experiment.population.partition.train)
    return {
        "seed": cohorts.seed,
        "local_epochs": cohorts.local_epochs,
        "batch_size": fitting_width(cohorts.batch_size, int(sizes.max())),
        "probe_ratio": cohorts.probe_ratio,
        "keep_single": keeps_single_rows(cohorts, sizes, program.model.init),
        "probe_apart": cohorts.probe_apart,
        "single_batches": program.algorithm.single_batches,
    }


def keeps_single_rows(
    cohorts: Cohorts, sizes: np.ndarray, init: Callable[[jax.Array], Variables]
) -> bool:
    """Returns whether clients train on minibatches of a single row.

    They skip them as the published code does, and where BatchNorm would have undefined statistics.

    Args:
        cohorts: of the run.
        sizes: training rows of each client.
        init: of the model that is trained.

    Raises:
        UsageError: if all minibatches have a single row and BatchNorm would have undefined statistics.
    """
    # a model is traced only where it matters; a probe leaves other numbers of rows
    batch_size = cohorts.batch_size
    is_possible = cohorts.probe_ratio > 0 or bool((sizes % batch_size == 1).any())
    if cohorts.skips_single_rows or not (batch_size == 1 or is_possible):
        return False
    is_undefined = layers.lone_row_is_undefined(init)
    if is_undefined and batch_size == 1:
        raise UsageError(
            "batch_size 1 leaves BatchNorm a single value; use --batch-size 2 or more, or no BatchNorm"
        )
    return not is_undefined


def table_capacity(experiment: Experiment, batch_size: int) -> int:
    """Returns F, the minibatches that the table of a chunk can hold."""
    cohorts, population = experiment.cohorts, experiment.population
    largest = int(client_rows.sizes(population.partition.train).max())
    most_epochs = cohorts.local_epochs[1] + (cohorts.probe_ratio > 0)  # a probe reads further rows
    num_rows = max(len(population.arrays.y), largest)
    return schedule.capacity(num_rows, cohorts.size, most_epochs, batch_size, largest)


def make_schedule(
    experiment: Experiment,
    program: programs.Program,
    training: Mapping[str, Any],
    select: Select | None = None,
    arrive: Arrive | None = None,
) -> Callable[..., Schedule]:
    """Returns the schedule of a round, from its number, from 0, and perhaps the state before it. See `Simulation.draw`.

    Args:
        experiment: its cohorts, and the partition.
        program: has the executor.
        training: see `make_training`.
        select: selects the clients that are asked; None draws them uniformly.
        arrive: the clients that arrive of those; None without virtual time.
    """
    cohorts, population = experiment.cohorts, experiment.population
    rows_by_client, published = population.partition.train, None
    if cohorts.is_published:
        published = schedule.official_cohorts(cohorts.seed, cohorts.num_clients, cohorts.size)

    def schedule_of(number: int, state: SimState | None = None) -> Schedule:
        clients = published(number) if published else None
        clients = select(number, state) if select else clients
        trainings, fields = None, {}
        if arrive:
            clients, trainings, fields = arrive(number, clients)
        drawn = schedule.make(
            number,
            rows_by_client,
            **training,
            cohort_size=cohorts.size,
            num_lanes=program.executor.num_lanes,
            lanes_together=program.executor.lanes_together,
            dropout=cohorts.dropout,
            clients=clients,
            trainings=trainings,
            client_chunk_size=cohorts.chunk_size,
        )
        return drawn._replace(**fields)

    return schedule_of
