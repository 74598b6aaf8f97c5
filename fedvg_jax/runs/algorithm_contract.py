"""Checks of a user's own algorithm before training: a trial by structures, shapes and dtypes that computes nothing."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fedvg_jax.core import checks, tree
from fedvg_jax.core.types import Algorithm, Anchor, Cohort, Hyper, Probe, Task, Tree, UsageError, Variables
from fedvg_jax.engine import local_training

_CLIENTS, _ROWS = 3, 2

_ARGUMENTS = {
    "init": ("hyper", "params"),
    "correct": ("hyper", "gradients", "params", "anchor"),
    "report": ("hyper", "params", "anchor", "displacement"),
    "residual": ("hyper", "server", "params", "cohort"),
    "probe": ("hyper", "probe"),
}
"""Function of an algorithm -> its arguments."""


def check_algorithm(
    algorithm: Algorithm, task: Task, pool: Tree, hyper: Hyper, *, num_clients: int = _CLIENTS, stats_too: bool = False
) -> None:
    """Checks the functions of an algorithm against `types.Algorithm`, on three clients of shapes alone.

    Args:
        algorithm: the algorithm to check.
        task: the model and its loss.
        pool: the examples, leaves [T, ...].
        hyper: the hyperparameters of the run.
        num_clients: N.
        stats_too: whether the server treats running statistics like parameters.

    Raises:
        UsageError: a function takes other arguments, fails, or returns another structure, shape or dtype. The message
            names the function and the leaf.

    >>> from fedvg_jax.algorithms import fedavg
    >>> task = Task(lambda key: Variables({"w": jnp.ones(2)}, {}), *[None] * 5)
    >>> total = fedavg()._replace(residual=lambda hyper, server, params, cohort: (params["w"].sum(), server))
    >>> check_algorithm(total, task, jnp.ones((4, 2)), {"lr": 0.1})
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: algorithm.residual: R has no leaf 'w'; expected the structure of the params: w
    """
    for name, arguments in _ARGUMENTS.items():
        checks.takes(getattr(algorithm, name), arguments, f"algorithm.{name}")
    trial = functools.partial(_run_trial, algorithm, task, num_clients, stats_too)
    with checks.without_notes():
        jax.eval_shape(trial, jax.random.key(0), pool, dict(hyper))


def _run_trial(
    algorithm: Algorithm, task: Task, num_clients: int, stats_too: bool, key: jax.Array, pool: Tree, hyper: Hyper
) -> None:
    """Calls every function of the algorithm as a round does, and checks what it returns."""
    model = task.init(key)
    hyper = tree.arrays(dict(hyper), tree.dtype(model))
    theta, whose = (model, "the variables") if stats_too else (model.params, "the params")
    server, client = _returned(algorithm, "init", 2, "(the server's memory, the memory of one client)", hyper, theta)
    with checks.calling("algorithm.init", hyper=hyper):
        server, client = tree.arrays((server, client), tree.dtype(model))
    anchor = Anchor(model.params, server, client)
    with checks.calling("algorithm.correct", hyper=hyper):
        grads = algorithm.correct(hyper, model.params, model.params, tree.params_of(anchor))
    checks.shaped_like(grads, model.params, "algorithm.correct: gradients", "the params")
    checks.floating(grads, "algorithm.correct: gradients")
    memory, summed, averaged = _returned(
        algorithm,
        "report",
        3,
        "(the client's memory, message to be summed, message to be averaged)",
        hyper,
        theta,
        anchor._replace(params=theta),
        jnp.ones((), tree.dtype(model)),
    )
    checks.same_arrays(memory, client, "algorithm.report: memory", "algorithm.init's memory of a client")
    _check_averaged(averaged, theta, whose)
    probe = Probe(task, model, functools.partial(_minibatch, pool), jnp.int32(1), jnp.int32(0), local_training.counted)
    with checks.calling("algorithm.probe", hyper=hyper):
        measured = tree.arrays(algorithm.probe(hyper, probe))
    probes = tree.repeat(measured if stats_too else tree.params_of(measured), _CLIENTS)
    weights = jax.tree.map(lambda leaf: jnp.ones(_CLIENTS, leaf.dtype), theta)
    cohort = Cohort(theta, summed, averaged, weights, probes, num_clients)
    residual, memory = _returned(algorithm, "residual", 2, "(R, the server's memory)", hyper, server, theta, cohort)
    checks.shaped_like(residual, theta, "algorithm.residual: R", whose)
    checks.floating(residual, "algorithm.residual: R")
    checks.same_arrays(memory, server, "algorithm.residual: memory", "algorithm.init's memory of the server")


def _returned(algorithm: Algorithm, name: str, count: int, expected: str, hyper: Hyper, *arguments: Any) -> tuple:
    """Returns what a function of the algorithm returns, a tuple of `count`.

    Raises:
        UsageError: it fails, or returns something else.
    """
    with checks.calling(f"algorithm.{name}", hyper=hyper):
        returned = getattr(algorithm, name)(hyper, *arguments)
    if not isinstance(returned, tuple | list) or isinstance(returned, Variables) or len(returned) != count:
        kind = type(returned).__name__
        got = f"a {kind} of {len(returned)}" if isinstance(returned, tuple | list) else kind
        raise UsageError(f"algorithm.{name} returned {got}; expected {expected}")
    return tuple(returned)


def _check_averaged(message: Tree, theta: Tree, whose: str) -> None:
    """Raises UsageError unless a message is empty or has an entry of floats for each tensor."""
    if not jax.tree.leaves(message):
        return
    try:
        jax.tree.map(lambda _, entry: None, theta, message)
    except (TypeError, ValueError):
        raise UsageError(
            f"algorithm.report: the message to be averaged has {', '.join(tree.paths(message))}; expected (), or an"
            f" entry for each leaf of {whose}: {', '.join(tree.paths(theta))}"
        ) from None
    checks.floating(message, "algorithm.report: the message to be averaged")


def _minibatch(pool: Tree, number: jax.Array) -> tuple[Tree, jax.Array]:
    """Returns a minibatch of the first row; the number of the minibatch is not used."""
    return tree.gather(pool, jnp.zeros(_ROWS, jnp.int32))
