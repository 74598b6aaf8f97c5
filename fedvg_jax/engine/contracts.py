"""What the functions of a task, an algorithm and a weighting must return, checked whenever a round is traced.

`checked` wraps every function of a bundle, and `checked_function` a single one, such as a robust rule. A wrapper
compares a result with the arguments, by structure, shape and dtype alone, so nothing is computed, and a broken contract
is one line that names the function and the leaf.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from fedvg_jax.algorithms.base import no_correction, no_probe, no_report, no_residual, no_state
from fedvg_jax.core import checks, tree
from fedvg_jax.core.types import Algorithm, Send, Task, Term, Tree, Weighting, WeightingState

T = TypeVar("T")

RECOGNISED = (no_correction, no_state, no_probe, no_report, no_residual)
"""Functions that the round recognises by identity; they have no wrapper."""

Contract = Callable[..., Tree]
"""(what a function returned, *its arguments) -> arrays or shapes like those that it should return; floats may have any
dtype"""


def checked(bundle: T, name: str) -> T:
    """Returns a bundle of functions with wrappers that check what they return; other fields as they are.

    Args:
        bundle: a `Task`, an `Algorithm` or a `Weighting`.
        name: of the bundle in messages.

    >>> from fedvg_jax.algorithms import fedavg
    >>> total = fedavg()._replace(correct=lambda hyper, grads, params, anchor: grads["w"].sum())
    >>> checked(total, "algorithm").correct({}, {"w": jnp.ones(2)}, {"w": jnp.ones(2)}, None)
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: algorithm.correct leaf 'w' is absent; expected floats of shape (2,)
    """
    fields = {}
    for field, contract in CONTRACTS[type(bundle)].items():
        value = getattr(bundle, field)
        if type(value) in CONTRACTS:
            fields[field] = checked(value, f"{name}.{field}")
        elif isinstance(value, tuple):
            fields[field] = tuple(checked(each, f"{name}.{field}") for each in value)
        elif value is not None and value not in RECOGNISED:
            fields[field] = checked_function(value, contract, f"{name}.{field}")
    return bundle._replace(**fields)  # pyright: ignore[reportAttributeAccessIssue]


def checked_function(function: Callable, contract: Contract | None, name: str) -> Callable:
    """Returns a function with a wrapper that checks what it returns.

    >>> rule = lambda hyper, model, clients, weights: clients
    >>> checked = checked_function(rule, lambda returned, hyper, model, *_: model, "aggregate")
    >>> checked({}, {"w": jnp.ones(2)}, {"w": jnp.ones((3, 2))}, None)
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: aggregate leaf 'w' is floats of shape (3, 2); expected floats of shape (2,)
    """

    @functools.wraps(function, updated=())
    def call(*arguments: Any, **keywords: Any) -> Any:
        hyper = arguments[0] if arguments and isinstance(arguments[0], dict) else None
        with checks.calling(name, hyper):
            returned = function(*arguments, **keywords)
            expected = contract(returned, *arguments) if contract else returned
        checks.expect(returned, expected, name, any_float=True)
        return returned

    return call


def _report(returned: Tree, hyper: Any, theta: Tree, anchor: Any, *rest: Any) -> Tree:
    _, summed, averaged = returned
    if jax.tree.leaves(averaged):  # one entry for each tensor
        averaged = jax.tree.map(lambda _, entry: tree.floats_like(entry), theta, averaged)
    return anchor.client, summed, averaged


def _weights(returned: Tree, hyper: Any, measured: Tree, view: Any) -> Tree:
    # of the clients that are weighed together
    stacked = jax.tree.leaves(measured) or [view.shuffle]
    return jax.tree.map(lambda _: tree.floats(len(stacked[0])), view.variables)


def _of_clients(returned: Tree, measured: Tree) -> Tree:
    """Expects arrays [K, ...] with any entries, where signals say what K is."""
    count = [len(leaf) for leaf in jax.tree.leaves(measured)[:1]]

    def stacked(leaf: Any) -> jax.ShapeDtypeStruct:
        shape = jnp.shape(leaf)
        return jax.ShapeDtypeStruct((*(count or shape[:1]), *shape[1:]), jnp.result_type(leaf))

    return jax.tree.map(stacked, returned)


def _score(returned: Tree, measured: Tree) -> Tree:
    (score,) = jax.tree.leaves(_of_clients(returned, measured))
    return jax.ShapeDtypeStruct(score.shape[:1], score.dtype)


def _pair(returned: Tree, *arguments: Any) -> Tree:
    return returned[0], returned[1]


CONTRACTS: dict[type, dict[str, Contract | None]] = {
    Task: {"loss": lambda returned, params, stats, *_: (tree.floats(), stats)},
    Algorithm: {
        "init": _pair,
        "correct": lambda returned, hyper, grads, *_: grads,
        "personal": lambda returned, hyper, grads, *_: grads,
        "loss": lambda returned, hyper, task, params, stats, *_: (tree.floats(), stats),
        "report": _report,
        "residual": lambda returned, hyper, server, theta, *_: (theta, server),
        "probe": None,
        "send": None,
    },
    Send: {
        "init": None,
        "apply": lambda returned, hyper, key, delta, state: (delta, state),
        "num_bytes": None,
    },
    Weighting: {
        "signal": None,
        "weigh": _weights,
        "score": _score,
        "detail": _of_clients,
        "terms": None,
        "state": None,
    },
    Term: {
        "weigh": _weights,
        "share": lambda returned, hyper, measured, view: jax.tree.map(
            lambda _: tree.floats(), view.variables
        ),
    },
    WeightingState: {
        "init": _pair,
        "recall": lambda returned, hyper, measured, state, *_: (returned[0], state),
        "update": lambda returned, hyper, state, *_: state,
    },
}
"""Type of a bundle -> field -> contract; None for any result."""
