"""What the functions of a task, an algorithm and a weighting must return, checked whenever a round is traced.

`checked` wraps every function of a bundle. A wrapper compares a result with the arguments, by structure, shape and
dtype alone, so nothing is computed, and a broken contract is one line that names the function and the leaf.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from fedvg_jax.algorithms.base import no_correction, no_probe, no_report, no_residual, no_state
from fedvg_jax.core import checks
from fedvg_jax.core.types import (
    Algorithm,
    Send,
    Task,
    Term,
    Tree,
    UsageError,
    Weighting,
    WeightingState,
)

T = TypeVar("T")

RECOGNISED = (no_correction, no_state, no_probe, no_report, no_residual)
"""Functions that the round recognises by identity; they have no wrapper."""

CHECKED = "is_checked"
"""Attribute of a wrapper."""

Rule = Callable[..., None]
"""(name of the function, what it returned, *its arguments) -> None, or UsageError"""


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
    fedvg_jax.UsageError: algorithm.correct: gradients leaf 'w' is absent; expected floats of shape (2,)
    """
    fields = {}
    for field, rule in RULES[type(bundle)].items():
        value = getattr(bundle, field)
        if type(value) in RULES:
            fields[field] = checked(value, f"{name}.{field}")
        elif isinstance(rule, tuple):
            fields[field] = tuple(checked(each, f"{name}.{field}") for each in value)
        elif value is not None and value not in RECOGNISED and not hasattr(value, CHECKED):
            fields[field] = _wrapped(value, rule, f"{name}.{field}")
    return bundle._replace(**fields)  # pyright: ignore[reportAttributeAccessIssue]


def _wrapped(function: Callable, rule: Rule, name: str) -> Callable:
    @functools.wraps(function, updated=())
    def call(*arguments: Any, **keywords: Any) -> Any:
        hyper = arguments[0] if arguments and isinstance(arguments[0], dict) else None
        with checks.calling(name, hyper):
            returned = function(*arguments, **keywords)
        rule(name, returned, *arguments)
        return returned

    call.__dict__[CHECKED] = True  # so that a bundle is wrapped once
    return call


def _results(name: str, returned: Any, count: int) -> tuple:
    """Returns several results; UsageError for another number of them."""
    if not isinstance(returned, tuple | list):
        raise UsageError(f"{name} returned a {type(returned).__name__}; expected {count} results")
    if len(returned) != count:
        raise UsageError(f"{name} returned {len(returned)} results; expected {count}")
    return tuple(returned)


# --- a task


def _loss(name: str, returned: Any, params: Tree, stats: Tree, *rest: Any) -> None:
    loss, after = _results(name, returned, 2)
    checks.expect(jnp.asarray(loss), checks.floats(), f"{name}: loss", any_float=True)
    checks.expect(after, stats, f"{name}: stats", any_float=True)


# --- an algorithm


def _init(name: str, returned: Any, *arguments: Any) -> None:
    _results(name, returned, 2)


def _gradients(name: str, returned: Any, hyper: Any, grads: Tree, *rest: Any) -> None:
    checks.expect(returned, grads, f"{name}: gradients", any_float=True)


def _own_loss(
    name: str, returned: Any, hyper: Any, task: Task, params: Tree, stats: Tree, *rest: Any
) -> None:
    _loss(name, returned, params, stats)


def _report(name: str, returned: Any, hyper: Any, theta: Tree, anchor: Any, *rest: Any) -> None:
    client, _, averaged = _results(name, returned, 3)
    checks.expect(client, anchor.client, f"{name}: client state", any_float=True)
    if jax.tree.leaves(averaged):
        message = f"{name}: the message to be averaged"
        with checks.calling(f"{message}, () or one entry for each tensor,"):
            jax.tree.map(lambda _, entry: None, theta, averaged)
        checks.floating(averaged, message)


def _residual(name: str, returned: Any, hyper: Any, server: Tree, theta: Tree, *rest: Any) -> None:
    residual, after = _results(name, returned, 2)
    checks.expect(residual, theta, f"{name}: R", any_float=True)
    checks.expect(after, server, f"{name}: server state", any_float=True)


def _arrived(
    name: str, returned: Any, hyper: Any, key: Any, delta: Tree, state: Tree, *rest: Any
) -> None:
    arrived, after = _results(name, returned, 2)
    checks.expect(arrived, delta, f"{name}: delta", any_float=True)
    checks.expect(after, state, f"{name}: client state", any_float=True)


def _bytes(name: str, returned: Any, *arguments: Any) -> None:
    if not isinstance(returned, int) or returned < 0:
        raise UsageError(f"{name} returned {returned!r:.99}; expected a whole number >= 0")


# --- a weighting


def _weights(name: str, returned: Any, hyper: Any, measured: Tree, view: Any) -> None:
    # of the clients that are weighed together
    stacked = jax.tree.leaves(measured) or [view.shuffle]
    each = checks.floats(len(stacked[0]))
    like = jax.tree.map(lambda _: each, view.variables)
    checks.expect(returned, like, f"{name}: weights", any_float=True)


def _share(name: str, returned: Any, hyper: Any, measured: Tree, view: Any) -> None:
    like = jax.tree.map(lambda _: checks.floats(), view.variables)
    checks.expect(returned, like, f"{name}: share", any_float=True)


def _score(name: str, returned: Any, measured: Tree) -> None:
    score, leaves = jnp.asarray(returned), jax.tree.leaves(measured)
    count = leaves[0].shape[:1] if leaves else score.shape[:1]
    checks.expect(jax.ShapeDtypeStruct(score.shape, jnp.float32), checks.floats(*count), name)


def _detail(name: str, returned: Any, measured: Tree) -> None:
    if not isinstance(returned, dict) or not all(isinstance(key, str) for key in returned):
        raise UsageError(f"{name} must return a dict with texts as names; got {returned!r:.99}")
    count = [len(leaf) for leaf in jax.tree.leaves(measured)][:1]
    for key, leaf in returned.items():
        if count and list(jnp.shape(leaf)[:1]) != count:
            expected = f"({count[0]}, ...)"
            raise UsageError(
                f"{name} leaf '{key}' has shape {jnp.shape(leaf)}; expected {expected}"
            )


def _recalled(
    name: str, returned: Any, hyper: Any, measured: Tree, client: Tree, *rest: Any
) -> None:
    _, after = _results(name, returned, 2)
    checks.expect(after, client, f"{name}: client state", any_float=True)


def _updated(name: str, returned: Any, hyper: Any, server: Tree, *rest: Any) -> None:
    checks.expect(returned, server, f"{name}: server state", any_float=True)


def _any(name: str, returned: Any, *arguments: Any) -> None:
    """Allows every result."""


RULES: dict[type, dict[str, Any]] = {
    Task: {"loss": _loss},
    Algorithm: {
        "init": _init,
        "correct": _gradients,
        "personal": _gradients,
        "loss": _own_loss,
        "report": _report,
        "residual": _residual,
        "send": _any,
    },
    Send: {"init": _any, "apply": _arrived, "num_bytes": _bytes},
    Weighting: {
        "signal": _any,
        "weigh": _weights,
        "score": _score,
        "detail": _detail,
        "terms": (Term,),
        "state": _any,
    },
    Term: {"weigh": _weights, "share": _share},
    WeightingState: {"init": _init, "recall": _recalled, "update": _updated},
}
"""Type of a bundle -> field -> rule."""
