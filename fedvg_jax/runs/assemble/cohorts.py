"""The cohorts of a run whose clients are not sampled uniformly, and the losses that some selections measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fedvg_jax.config import Config, cohort_size
from fedvg_jax.config.departures import departs
from fedvg_jax.config.options import choice
from fedvg_jax.core import checks, trained_part
from fedvg_jax.core.types import Data, Population, Selection, SimState, UsageError, Variables
from fedvg_jax.data.partitions import client_rows
from fedvg_jax.engine import evaluate, schedule, selection
from fedvg_jax.runs.assemble import programs

Cohorts = Callable[[int, SimState | None], np.ndarray]
"""(round from 0, state before it) -> ids int32 [K]. Without a state all losses count as equal."""


def choose_selection(config: Config, given: Selection | None, pool_is_on_host: bool) -> Selection | None:
    """Returns the given selection, or else the one that the config names; None for uniform sampling.

    Raises:
        UsageError: it breaks its contract, or the settings of the run do not allow it.
    """
    name, num_candidates = choice(config, "selection")
    num_candidates = num_candidates or min(config.clients, 2 * cohort_size(config))
    named = {"size": selection.by_size(), "power_of_choice": selection.power_of_choice(num_candidates)}
    chosen = named.get(name) if given is None else given
    if chosen is None:
        return None
    if not isinstance(chosen, Selection) or not callable(chosen.choose):
        raise UsageError(f"selection must be a fedvg_jax.Selection of a function; got {type(chosen).__name__}")
    checks.takes(chosen.choose, ("population",), "selection.choose")
    if departs(config, "cohorts"):
        raise UsageError("--departures cohorts and a selection both choose the cohorts; leave one out")
    if chosen.num_candidates and pool_is_on_host:
        raise UsageError("this selection measures losses on the device, and rows are on the host; use placement device")
    return chosen


def make_cohorts(
    config: Config, chosen: Selection, program: programs.Program, data: Data, rows: Sequence[np.ndarray]
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
            return np.array([loss(state.variables, client) if state else 0.0 for client in clients], np.float64)

        known = Population(number, schedule.selection_stream(config.seed, number), sizes, count, losses)
        clients = np.asarray(chosen.choose(known))
        is_whole = clients.shape == (count,) and np.issubdtype(clients.dtype, np.integer)
        if not is_whole or len({*clients.tolist()} & {*range(len(sizes))}) < count:
            expected, got = f"{count} different clients from 0 to {len(sizes) - 1}", str(clients.tolist())[:100]
            raise UsageError(f"selection.choose must return {expected}; got {got}")
        return clients.astype(np.int32)

    return cohort
