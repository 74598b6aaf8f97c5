"""The cohorts that a selection chooses, perhaps by the losses of candidates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedvg_jax.core import checks, trained_part
from fedvg_jax.core.types import Data, Population, Selection, SimState, UsageError, Variables
from fedvg_jax.data.partitions import client_rows
from fedvg_jax.engine import evaluate, schedule
from fedvg_jax.runs.assemble import programs
from fedvg_jax.runs.experiment import Experiment

Select = Callable[[int, SimState | None], np.ndarray]
"""(round from 0, state before it) -> ids int32 [K]. Without a state all losses count as equal."""


def make_select(
    experiment: Experiment, chosen: Selection, program: programs.Program, data: Data
) -> Select:
    """Returns the cohorts of a selection.

    Args:
        experiment: of the run.
        chosen: its selection.
        program: evaluates the model.
        data: on the devices.
    """
    rows_by_client = experiment.population.partition.train
    sizes, count = client_rows.sizes(rows_by_client), experiment.cohorts.num_asked
    num_groups = -(-int(sizes.max()) // evaluate.ROWS)

    def loss(variables: Variables, client: int) -> float:
        table = schedule.table(rows_by_client[client], evaluate.ROWS, num_groups)
        sums = program.evaluate(trained_part.whole(variables, data.base), data.pool, table)
        return program.task.metrics(jax.device_get(sums))["loss"] if sizes[client] else -np.inf

    def cohort(number: int, state: SimState | None) -> np.ndarray:
        def losses(clients: Any) -> np.ndarray:
            if len(clients) > chosen.num_candidates:
                raise UsageError(
                    f"selection.choose asks for {len(clients)} losses; at most num_candidates,"
                    f" {chosen.num_candidates}, are allowed: raise it"
                )
            return np.array(
                [loss(state.variables, client) if state else 0.0 for client in clients], np.float64
            )

        stream = schedule.selection_stream(experiment.cohorts.seed, number)
        population = Population(number, stream, sizes, count, losses)
        with checks.calling("selection.choose"):
            clients = np.asarray(chosen.choose(population))
        is_whole = clients.shape == (count,) and np.issubdtype(clients.dtype, np.integer)
        if not is_whole or len({*clients.tolist()} & {*range(len(sizes))}) < count:
            raise UsageError(
                f"selection.choose must return {count} different clients from 0 to {len(sizes) - 1};"
                f" got {str(clients.tolist())[:100]}"
            )
        return clients.astype(np.int32)

    return cohort
