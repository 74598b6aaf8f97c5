"""The pool of a run, its tables of rows, and the cohorts and schedules of its rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedvg_jax.core import checks, trained_part, tree, types
from fedvg_jax.core.types import (
    Batch,
    Data,
    Schedule,
    Selection,
    SimState,
    Task,
    UsageError,
    Variables,
    Waited,
)
from fedvg_jax.data.partitions import client_rows
from fedvg_jax.data.partitions.client_rows import Partition
from fedvg_jax.engine import clock, evaluate, schedule
from fedvg_jax.models import layers
from fedvg_jax.runs.assemble import programs
from fedvg_jax.runs.assemble.updates import Updates, make_updates
from fedvg_jax.runs.experiment import Cohorts, Population, Tables

MAX_ROUNDS = 64
"""R, rounds a chunk can hold."""


def make_data(
    tables: Tables,
    batch_size: int,
    population: Population,
    task: Task,
    is_on_host: bool = False,
) -> Data:
    """Returns the pool and the tables of rows; their shapes do not depend on the partition.

    D_val is scored in groups of `batch_size` rows. A last group of one row is left out only where BatchNorm would take
    the statistics of a single value, in train mode: there the published code raises, and otherwise it scores that row
    too.

    Args:
        tables: how rows are arranged.
        batch_size: rows of a group of D_val in scoring.
        population: the rows.
        task: the model that scores.
        is_on_host: whether pool and tables stay NumPy arrays.
    """
    arrays, parts, shared = population.arrays, population.partition, population.shared
    pool = Batch(np.asarray(shared.x), np.asarray(shared.y))
    max_test = int(len(arrays.y) * tables.test_ratio)
    keeps_lone_row = not tables.skips_lone_row or len(shared.rows) % batch_size != 1
    if not keeps_lone_row:  # a model is traced only where it matters
        keeps_lone_row = not layers.lone_row_is_undefined(task.init)

    def table(rows, max_rows, group_size=evaluate.ROWS, keep_single=True):
        num_rows = max(len(rows), max_rows)
        width = fitting_width(group_size, num_rows)
        numbered = schedule.table(rows, width, -(-num_rows // width), keep_single)
        return numbered if is_on_host else jax.device_put(numbered)

    return Data(
        pool if is_on_host else tree.copies(pool),  # whatever becomes of the caller's arrays
        table(shared.rows, shared.most, batch_size, keep_single=keeps_lone_row),
        table(shared.rows, shared.most),
        table(client_rows.joined(parts.test), max_test),
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
    size = cohorts.batch_size
    # a model is traced only where it matters; a probe leaves other numbers of rows
    is_possible = cohorts.probe_ratio > 0 or bool((sizes % size == 1).any())
    if cohorts.skips_single_rows or not (size == 1 or is_possible):
        return False
    is_undefined = layers.lone_row_is_undefined(init)
    if is_undefined and size == 1:
        raise UsageError(
            "batch_size 1 leaves BatchNorm a single value; use --batch-size 2 or more, or no BatchNorm"
        )
    return not is_undefined


def make_schedule(
    cohorts: Cohorts,
    num_rows: int,
    parts: Partition,
    program: programs.Program,
    traffic: tuple[int, int] = (0, 0),
    select: Select | None = None,
    rounds: int = 1,
) -> tuple[Callable[..., Schedule], Updates | None]:
    """Returns the schedules of a run, and the updates of a buffered server, None of a synchronous one.

    Schedules are a function from the number of a round, from 0, and perhaps the state before it.

    Args:
        cohorts: of the run.
        num_rows: T, rows of the data set.
        parts: the partition.
        program: has the model that is trained, the executor, and the algorithm; its probe may read rows.
        traffic: bytes that a client of a cohort receives and sends in a round.
        select: selects the clients that are asked; None draws them uniformly.
        rounds: R, of which a buffered server plans all.
    """
    sizes = client_rows.sizes(parts.train)
    keep_single = keeps_single_rows(cohorts, sizes, program.model.init)
    largest = int(sizes.max())
    batch_size = fitting_width(cohorts.batch_size, largest)
    most_epochs = cohorts.local_epochs[1] + (cohorts.probe_ratio > 0)  # a probe reads further rows
    capacity = schedule.capacity(
        max(num_rows, largest), cohorts.size, most_epochs, batch_size, largest
    )
    published = None
    if cohorts.is_published:
        published = schedule.official_cohorts(cohorts.seed, cohorts.num_clients, cohorts.size)

    training = {
        "seed": cohorts.seed,
        "local_epochs": cohorts.local_epochs,
        "batch_size": batch_size,
        "probe_ratio": cohorts.probe_ratio,
        "keep_single": keep_single,
        "probe_apart": cohorts.probe_apart,
        "single_batches": program.algorithm.single_batches,
    }
    arrivals = make_arrivals(cohorts, cohorts.clock, sizes, training, traffic)
    buffered = make_updates(cohorts, rounds, sizes, training, traffic)

    def schedule_of(number: int, state: SimState | None = None) -> Schedule:
        clients = published(number) if published else None
        clients = select(number, state) if select else clients
        waited = trainings = None
        if buffered:
            clients, trainings = buffered.clients_and_trainings(number)
        elif arrivals:
            clients, is_averaged, waited = arrivals(number, clients)
        drawn = schedule.make(
            number,
            parts.train,
            **training,
            cohort_size=cohorts.size,
            num_lanes=program.executor.num_lanes,
            lanes_together=program.executor.lanes_together,
            capacity=capacity,
            dropout=cohorts.dropout,
            clients=clients,
            trainings=trainings,
            client_chunk_size=cohorts.chunk_size,
        )
        if buffered:
            drawn = buffered.scheduled(number, drawn)
        if waited:
            return drawn._replace(participating=is_averaged, waited=waited)
        return drawn

    return schedule_of, buffered


# --- cohorts


def make_arrivals(
    cohorts: Cohorts,
    of_clients: clock.Clock | None,
    sizes: np.ndarray,
    training: Mapping[str, Any],
    traffic: tuple[int, int],
) -> Callable[[int, np.ndarray | None], tuple[np.ndarray, np.ndarray, Waited]] | None:
    """Returns the clients that a server averages, of those that it asks; None without a clock.

    Args:
        cohorts: of the run.
        of_clients: how long clients take.
        sizes: training rows of each client.
        training: keyword arguments of `schedule.num_local_steps`.
        traffic: bytes that a client receives and sends.

    Returns:
        (round, clients that are asked, or None to draw them) -> (the cohort, whether each is averaged, what the server
        waited for).

    Raises:
        UsageError: nobody meets the deadline.
    """
    if of_clients is None:
        return None
    num_asked = cohorts.num_asked or cohorts.size
    if not np.any(of_clients.jitter):  # which may be of any length
        # a bound for any rule on single rows
        fewest_steps = np.maximum(sizes // training["batch_size"], 1) * cohorts.local_epochs[0]
        least = of_clients.seconds(np.arange(len(sizes)), fewest_steps, *traffic, 0, 0).min()
        if least > cohorts.deadline:
            raise UsageError(
                f"deadline {cohorts.deadline:g}: the fastest client takes {least:.3g} s; use a longer one"
            )

    def arrivals(number: int, clients: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, Waited]:
        of_asked = cohorts.seed, number, cohorts.num_clients, num_asked, cohorts.dropout
        sampled, responds, _ = schedule.cohort(*of_asked)
        clients = sampled if clients is None else clients
        steps = schedule.num_local_steps(number, clients.tolist(), sizes, **training)
        seconds = of_clients.seconds(clients, steps, *traffic, number, cohorts.seed)
        got = clock.wait(seconds, responds, cohorts.size, cohorts.deadline)
        waited = Waited(got.seconds, clients[got.late], len(clients), int(responds.sum()))
        return clients[got.taken], responds[got.taken] & got.in_time, waited

    return arrivals


Select = Callable[[int, SimState | None], np.ndarray]
"""(round from 0, state before it) -> ids int32 [K]. Without a state all losses count as equal."""


def make_select(
    cohorts: Cohorts,
    chosen: Selection,
    program: programs.Program,
    data: Data,
    rows: Sequence[np.ndarray],
) -> Select:
    """Returns the cohorts of a selection.

    Args:
        cohorts: of the run.
        chosen: the selection.
        program: evaluates the model.
        data: on the devices.
        rows: training rows of every client.
    """
    sizes, count = client_rows.sizes(rows), cohorts.num_asked or cohorts.size
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
            number, schedule.selection_stream(cohorts.seed, number), sizes, count, losses
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
