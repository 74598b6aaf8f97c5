"""The rows of a pool that stays on the host.

Each chunk's rows are copied to the devices while the chunk before it runs. D_val, which every round
scores on, stays on the devices. Evaluations copy their rows piece by piece. All shapes are fixed before the first
round, so nothing is compiled between chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import numpy as np

from fedvg_jax.core import tree
from fedvg_jax.core.types import Data, Executor, Schedule, Tree, Variables
from fedvg_jax.data.partitions import client_rows
from fedvg_jax.host import processes
from fedvg_jax.runs.experiment import Experiment
from fedvg_jax.runs.placement.client_states import copied_rows, round_up, shapes_of_rows

CHUNK_BYTES = 2**28
"""Bytes of the rows of a chunk of several rounds; a single round may need more."""

PIECE_BYTES = 2**26
"""Bytes of a piece of an evaluation."""


class HostRows(NamedTuple):
    """The rows of a pool that stays on the host."""

    pool: Tree
    """NumPy arrays or memory maps [T, ...]"""
    resident: Data
    """D_val, on the devices; its tables number the rows of its pool"""
    capacity: int
    """C, rows of a chunk"""
    piece: int
    """rows of a piece of an evaluation; at least one minibatch is evaluated at a time"""
    placement: Any
    """sharding of what the devices get; None for one device"""

    def fit(self, planned: list[Schedule]) -> list[Schedule]:
        """Returns as many of the first planned rounds as have rows that fit on the devices together, at least one."""
        if self.capacity >= len(self.pool.y):
            return planned
        needed = np.zeros(0, np.int32)
        for number, schedule in enumerate(planned):
            needed = np.union1d(needed, tree.real_rows(schedule.rows))
            if number and len(needed) > self.capacity:
                return planned[:number]
        return planned

    def take(self, rounds: Schedule) -> tuple[Schedule, Data]:
        """Starts to copy the rows of a chunk; returns its stacked schedules with their numbers, and its data.

        Args:
            rounds: the rounds' schedules, stacked.
        """
        rows = np.unique(tree.real_rows(rounds.rows))
        training = processes.place(copied_rows(self.pool, rows, self.capacity), self.placement)
        numbered = rounds._replace(rows=renumber(rounds.rows, rows))
        return numbered, self.resident._replace(training=training)

    def shapes(self) -> Data:
        """Returns the data of a chunk as `take` does, with shapes for the rows that are copied."""
        training = shapes_of_rows(self.pool, self.capacity, self.placement)
        return self.resident._replace(training=training)

    def evaluating(
        self, evaluate: Callable[..., Tree]
    ) -> Callable[[Variables, Tree, np.ndarray], Tree]:
        """Returns a function as `evaluate.make_evaluate` does, for tables on the host; it copies their rows by pieces.

        Args:
            evaluate: such a function, jitted.
        """

        def evaluate_pieces(variables: Variables, _: Tree, table: np.ndarray) -> Tree:
            table, width = np.asarray(table), np.shape(table)[1]
            used, length = table[(table >= 0).any(1)], max(1, self.piece // width)
            before = totals = None
            for first in range(0, max(1, len(used)), length):
                minibatches = np.full((length, width), -1, np.int32)
                minibatches[: len(used) - first] = used[first : first + length]
                rows = np.unique(tree.real_rows(minibatches))
                copies = copied_rows(self.pool, rows, length * width)
                copied = processes.place(copies, self.placement)
                numbers = renumber(minibatches, rows)
                if totals is None:
                    sums = jax.eval_shape(evaluate, variables, copied, numbers)
                    totals = processes.place(
                        jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), sums), self.placement
                    )
                processes.wait(before)  # two pieces at a time
                before, totals = totals, evaluate(variables, copied, numbers, totals)
            return totals

        return evaluate_pieces


def renumber(table: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns a table of minibatches with positions in `rows` in place of rows of the pool.

    Args:
        table: int32 [.., B] minibatches, -1 for padding.
        rows: ascending; they include all of the minibatches.

    >>> renumber(np.array([[7, 3], [9, -1]]), np.array([3, 7, 9])).tolist()
    [[1, 0], [2, -1]]
    """
    return np.where(table < 0, -1, np.searchsorted(rows, table)).astype(np.int32)


def resident_data(data: Data, recorded: Collection[str]) -> Data:
    """Returns the rows that every round may read and the tables of their numbers, NumPy arrays.

    Its shapes do not depend on the partition.

    Args:
        data: the whole pool and its tables, on the host.
        recorded: what is recorded on demand; the accuracies of a round's clients need the test rows.
    """
    tables = {"scoring": data.scoring, "val": data.val}
    num_rows = data.scoring.size
    if "client_accuracy" in recorded:
        tables["test"] = data.test
        num_rows += data.test.size
    rows = np.unique(np.concatenate([tree.real_rows(table) for table in tables.values()]))
    pool = copied_rows(data.pool, rows, min(len(data.pool.y), num_rows))
    numbers = {name: renumber(table, rows) for name, table in tables.items()}
    return data._replace(**{"pool": pool, "test": None, **numbers})


def make(experiment: Experiment, data: Data, executor: Executor) -> HostRows:
    """Returns the rows of a run that keeps its pool on the host, with D_val on the devices.

    Args:
        experiment: of the run.
        data: the whole pool and its tables, NumPy arrays.
        executor: of the run.
    """
    sizes = np.sort(client_rows.sizes(experiment.population.partition.train))
    needed = int(sizes[-experiment.cohorts.size :].sum())  # of any round
    row_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(data.pool)) / len(data.pool.y)
    fitting = round_up(max(needed, int(CHUNK_BYTES / row_bytes), 1))
    piece = max(1, min(int(PIECE_BYTES / row_bytes), max(data.val.size, data.test.size)))
    resident = resident_data(data, experiment.recorded)
    return HostRows(
        data.pool,
        processes.place(resident, executor.placement),
        min(len(data.pool.y), fitting),
        piece,
        executor.placement,
    )
