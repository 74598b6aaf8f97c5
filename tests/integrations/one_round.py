"""A federation whose clients train outside the engine, on the minibatches of the engine's schedule."""

import functools

import jax
import numpy as np
import pytest
import worlds

from fedvg_jax import algorithms, config
from fedvg_jax.core import tree
from fedvg_jax.core.types import Variables
from fedvg_jax.runs import registry

WORLD = worlds.world([11, 5, 2, 8], batch_size=4, cohort_size=4, local_epochs=1)._replace(val=None)
"""Four clients, all in every round, each with a step or more."""

LR = 0.3

RULES = {
    "samples": ("samples", {}),
    "uniform": ("uniform", {}),
    "inverse_samples": ("inverse_samples", {}),
    "fedvg": ("fedvg", {}),
    "layerwise": ("fedvg", {"granularity": "layerwise"}),
    "blockwise": ("fedvg", {"granularity": "blockwise", "norm": "l2"}),
    "own statistics": ("fedvg", {"granularity": "layerwise", "stats": "layer"}),
    "delta": ("fedvg", {"signal": "delta"}),
    "eval": ("fedvg", {"mode": "eval"}),
    "mean": ("samples+fedvg", {}),
    "generalised": ("generalised", {"exponent": 2.0}),
    "permuted": ("permuted(fedvg)", {}),
    "val_loss": ("val_loss", {}),
    "val_accuracy": ("val_accuracy", {}),
    "fltrust": ("fltrust", {}),
    "fitted": ("fitted", {"fit_steps": 2}),
}
"""Case -> (weighting, FedVG's settings)."""


CHEAP = ("layerwise", "mean")
"""Cases of the quick tests, which share one program; the other cases share another."""


def every_case(*left_out):
    """Parametrizes a test by the cases; all except CHEAP are slow."""
    cases = [
        case if case in CHEAP else pytest.param(case, marks=pytest.mark.slow) for case in RULES if case not in left_out
    ]
    return pytest.mark.parametrize("case", cases)


def settings(case: str) -> config.Config:
    """Returns the config of a case."""
    weighting, options = RULES[case]
    return config.Config(weighting=weighting, fedvg=config.FedVG(**options), batch_size=WORLD.batch_size, lr=LR)


def validation():
    """Returns D_val in the order of scoring."""
    rows = WORLD.scoring[WORLD.scoring >= 0]
    return jax.tree.map(lambda leaf: leaf[rows], WORLD.pool)


@functools.cache
def _engine(cases: tuple[str, ...]):
    named = [RULES[case] for case in cases]
    rules = [worlds.weighting(rule, algorithms.fedavg(), worlds.TASK, WORLD.batch_size, **own) for rule, own in named]
    return worlds.make_round(WORLD, algorithms.fedavg(), worlds.any_of(rules), worlds.TASK)


def engine_round(case: str, variables: Variables, number: int = 0) -> tuple[Variables, np.ndarray]:
    """Returns the global model after one round of the engine, and the clients' weights."""
    cases = CHEAP if case in CHEAP else tuple(RULES)
    hyper = {**registry.make_hyper(settings("generalised")), "rule": np.int32(cases.index(case))}
    state = worlds.state(WORLD, algorithms.fedavg(), worlds.TASK)._replace(variables=variables)
    after, metrics = _engine(cases)(state, WORLD.schedule(number, num_lanes=2), WORLD.data(), hyper)
    return after.variables, np.asarray(metrics.weights)


def minibatches(client: int, number: int = 0) -> list[np.ndarray]:
    """Returns the rows of a client's local steps in a round, without padding."""
    schedule = WORLD.schedule(number)
    position = schedule.clients.tolist().index(client)
    first = schedule.start[position]
    return [rows[rows >= 0] for rows in schedule.rows[first : first + schedule.num_steps[position]]]


_gradient = jax.jit(jax.grad(worlds.TASK.loss, has_aux=True), static_argnums=4)


def trained(variables: Variables, client: int, number: int = 0) -> Variables:
    """Returns the model of a client after its local steps of plain SGD."""
    params, stats = variables
    for rows in minibatches(client, number):
        mask = np.arange(WORLD.batch_size) < len(rows)
        batch, _ = tree.gather(WORLD.pool, np.where(mask, np.resize(rows, WORLD.batch_size), -1))
        gradients, stats = _gradient(params, stats, batch, mask, True)
        params = tree.sub(params, tree.scale(LR, gradients))
    return Variables(params, stats)
