"""Selections of the cohort other than uniform sampling. NumPy only."""

from __future__ import annotations

import numpy as np

from fedvg_jax.core.types import Argument, Choice, Population, Range, Selection

__all__ = ["BY_NAME", "by_size", "power_of_choice"]


def by_size() -> Selection:
    """Clients drawn one after another without replacement, each with probability n_k / sum_j n_j over those left."""
    return Selection(lambda p: draw_by_size(p, p.cohort_size), text="size")


def power_of_choice(num_candidates: int) -> Selection:
    """Returns a selection that draws candidates as `by_size` does and takes the K with the largest training loss.

    Source: Cho, Wang, Joshi, "Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice
    Selection Strategies", arXiv:2010.01243, 2020, pow-d. Of equal losses the client that is drawn first is chosen.

    Args:
        num_candidates: d, from K to N; K is `by_size`, N takes the largest losses of all.
    """
    Range(1).require("power_of_choice: num_candidates", num_candidates)

    def choose(population):
        candidates = draw_by_size(population, num_candidates)
        order = np.argsort(-population.losses(candidates), kind="stable")
        return candidates[order[: population.cohort_size]]

    return Selection(choose, num_candidates, f"power_of_choice:{num_candidates}")


def draw_by_size(population: Population, count: int) -> np.ndarray:
    """Returns the ids of `count` clients; those without rows come last.

    The first arrivals of exponential clocks with rates n_k are such a draw (Efraimidis and Spirakis 2006).
    """
    with np.errstate(divide="ignore"):
        arrivals = (
            population.rng.exponential(size=len(population.num_samples)) / population.num_samples
        )
    return np.argsort(arrivals, kind="stable")[:count]


BY_NAME = {
    "uniform": None,
    "size": Choice(by_size),
    "power_of_choice": Choice(power_of_choice, Argument(0, Range(0))),
}
"""The selections that the setting `selection` names."""
