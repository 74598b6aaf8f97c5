"""A federation whose clients train outside the engine, on the minibatches of the engine's schedule."""

import functools

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from support import worlds

from fedvg_jax import algorithms, config, resolve
from fedvg_jax.core import tree
from fedvg_jax.core.types import Variables
from fedvg_jax.integrations import named_arrays

WORLD = worlds.world([11, 5, 2, 8], batch_size=4, cohort_size=4, local_epochs=1)._replace(val=None)
"""Four clients, all in every round, each with a step or more."""

LR = 0.3

RULES = {
    "samples": ("samples", {}), "uniform": ("uniform", {}), "inverse_samples": ("inverse_samples", {}),
    "fedvg": ("fedvg", {}), "layerwise": ("fedvg", {"granularity": "layerwise"}),
    "blockwise": ("fedvg", {"granularity": "blockwise", "norm": "l2"}), "delta": ("fedvg", {"signal": "delta"}),
    "mean": ("samples+fedvg", {"granularity": "layerwise"}), "generalised": ("generalised", {"exponent": 2.0}),
    "permuted": ("permuted(fedvg)", {}),
}  # fmt: skip
"""Case -> (weighting, settings of its group)."""


CHEAP = ("mean",)
"""Cases that are not slow, in one program; the other cases share another."""


def every_case(*left_out):
    """Parametrizes a test by the cases; all except CHEAP are slow."""
    cases = [
        case if case in CHEAP else pytest.param(case, marks=pytest.mark.slow)
        for case in RULES
        if case not in left_out
    ]
    return pytest.mark.parametrize("case", cases)


def settings(case: str) -> config.Config:
    """Returns the config of a case."""
    weighting, options = RULES[case]
    group = {"generalised" if case == "generalised" else "fedvg": options}
    return config.check(
        config.Config(weighting=weighting, **group, batch_size=WORLD.batch_size, lr=LR)
    )


def named(variables: Variables) -> dict[str, np.ndarray]:
    """Returns the arrays of a model by name; statistics stand beside the parameters of their layer."""
    return {
        name: np.asarray(leaf)
        for part in variables
        for name, leaf in flatten_dict(part, sep=".").items()
    }


def variables_of(arrays) -> Variables:
    """Returns the model whose arrays `named` returned."""
    parts = {"params": {}, "stats": {}}
    for name, array in arrays.items():
        parts["stats" if name.endswith(("mean", "var")) else "params"][name] = np.asarray(array)
    return Variables(**{part: unflatten_dict(leaves, sep=".") for part, leaves in parts.items()})


def gradient(arrays) -> dict[str, np.ndarray]:
    """Returns the gradient of the mean loss on D_val, one minibatch of the engine after the other."""
    params, stats = variables_of(arrays)
    total, count = tree.zeros_like(params), 0
    for rows in WORLD.scoring:
        mask = rows >= 0
        batch, _ = tree.gather(WORLD.pool, rows)
        gradients, _ = _gradient(params, stats, batch, mask)
        total, count = tree.add(total, tree.scale(float(mask.sum()), gradients)), count + mask.sum()
    return named(Variables(tree.scale(1 / float(count), total), {}))


def scheme(case: str, model) -> named_arrays.Scheme:
    """Returns the weighting of a case for named arrays, whose blocks are the modules."""
    return named_arrays.make_scheme(settings(case), gradient, model, block_of=block_of)


def block_of(name: str) -> str:
    """Returns the block of a tensor, as the task of `worlds` names it."""
    return worlds.TASK.block_of(name.replace(".", "/"))


@functools.cache
def _engine(cases: tuple[str, ...]):
    rules = [
        resolve.method.make_weighting(settings(case), worlds.TASK, algorithms.fedavg())
        for case in cases
    ]
    return worlds.make_round(WORLD, algorithms.fedavg(), worlds.any_of(rules), worlds.TASK)


def engine_round(case: str, variables: Variables, number: int = 0) -> tuple[Variables, np.ndarray]:
    """Returns the global model after one round of the engine, and the clients' weights."""
    cases = CHEAP if case in CHEAP else tuple(RULES)
    hyper = {
        **resolve.hyperparameters.scalars(settings("generalised")),
        "rule": np.int32(cases.index(case)),
    }
    state = worlds.state(WORLD, algorithms.fedavg(), worlds.TASK)._replace(variables=variables)
    after, metrics = _engine(cases)(state, WORLD.schedule(number, num_lanes=2), WORLD.data(), hyper)
    return after.variables, np.asarray(metrics.weights)


def minibatches(client: int, number: int = 0) -> list[np.ndarray]:
    """Returns the rows of a client's local steps in a round, without padding."""
    schedule = WORLD.schedule(number)
    position = schedule.clients.tolist().index(client)
    first = schedule.start[position]
    return [rows[rows >= 0] for rows in schedule.rows[first : first + schedule.num_steps[position]]]


_of_batch = worlds.jit(jax.grad(worlds.TASK.loss, has_aux=True), static_argnums=4)


def _gradient(*arguments):
    """Returns the gradient and the statistics after it, in NumPy, so that tests compute with them without compiling."""
    return jax.device_get(_of_batch(*arguments, True))


def trained(variables: Variables, client: int, number: int = 0) -> Variables:
    """Returns the model of a client after its local steps of plain SGD."""
    params, stats = jax.device_get(variables)
    for rows in minibatches(client, number):
        mask = np.arange(WORLD.batch_size) < len(rows)
        batch, _ = tree.gather(WORLD.pool, np.where(mask, np.resize(rows, WORLD.batch_size), -1))
        gradients, stats = _gradient(params, stats, batch, mask)
        params = tree.sub(params, tree.scale(LR, gradients))
    return Variables(params, stats)
