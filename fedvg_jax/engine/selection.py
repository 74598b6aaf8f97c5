"""Selections of the cohort other than uniform sampling: functions of a population. NumPy only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedvg_jax.core.types import Population, Selection, UsageError
from fedvg_jax.engine import schedule

__all__ = ["by_size"]


def by_size(population: Population) -> np.ndarray:
    """Clients drawn one after another without replacement, each with probability n_k / sum_j n_j over those left.

    Clients without rows come last. The first arrivals of exponential clocks with rates n_k are such a draw (Efraimidis
    and Spirakis 2006).
    """
    with np.errstate(divide="ignore"):
        arrivals = population.rng.exponential(size=len(population.num_samples)) / population.num_samples
    return np.argsort(arrivals, kind="stable")[: population.cohort_size]


def cohorts(select: Selection, seed: int, num_samples: np.ndarray, cohort_size: int) -> Callable[[int], np.ndarray]:
    """Returns round, from 0 -> the clients that a selection chooses, int32 [K].

    Raises:
        UsageError: on a call, if the selection returns something else.
    """

    def cohort(number: int) -> np.ndarray:
        stream = schedule.selection_stream(seed, number)
        clients = np.asarray(select(Population(number, stream, num_samples, cohort_size)))
        is_whole = clients.shape == (cohort_size,) and np.issubdtype(clients.dtype, np.integer)
        if not is_whole or len({*clients.tolist()} & {*range(len(num_samples))}) < cohort_size:
            expected, got = f"{cohort_size} different clients from 0 to {len(num_samples) - 1}", str(clients.tolist())
            raise UsageError(f"selection must return {expected}; got {got[:100]}")
        return clients.astype(np.int32)

    return cohort
