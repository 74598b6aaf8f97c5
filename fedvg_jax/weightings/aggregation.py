"""The weighted mean of the clients' models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from fedvg_jax.core import checks, tree
from fedvg_jax.core.types import Hyper, ServerView, Term, Tree, Variables, Weigh


def aggregate(
    params: Tree, client_params: Tree, weights: Tree, *, sharding: NamedSharding | None = None
) -> Tree:
    """Returns the clients' weighted mean, as a step from the global model: theta_g - sum_k s_k (theta_g - theta_k).

    The weights need not sum to 1: c times the weights is c times the step, like a server's learning rate, and the mean
    is differentiable by each weight. A run checks its weights.

    A client's non-finite entries count as theta_g where its weight is 0.

    Args:
        params: global model, leaves [...].
        client_params: stacked clients, leaves [K, ...].
        weights: pytree of the same structure, leaves [K].
        sharding: of the clients, axis K, over devices; None if one device holds all of them.

    Returns:
        Pytree like `params`.

    Raises:
        UsageError: a leaf has another structure, cohort size or shape, or an integer dtype. The message names the leaf.

    >>> aggregate({"w": jnp.zeros(1)}, {"w": jnp.array([[1.0], [5.0]])}, {"w": jnp.array([0.75, 0.25])})["w"].tolist()
    [2.0]
    """
    num_clients = checks.stacked(client_params, "client_params")
    checks.expect(tree.entry_shapes(client_params), params, "one client's params", any_float=True)
    checks.expect(
        weights,
        jax.tree.map(lambda _: tree.floats(num_clients), params),
        "weights",
        any_float=True,
    )
    params, client_params, weights = tree.arrays((params, client_params, weights))

    return tree.add(params, tree.weighted_sum(weights, client_params, params, sharding))


# --- sums of terms


def single_term(weigh: Weigh) -> tuple[Term, ...]:
    """Returns the term, c = 1, of weights raw_k / sum_j raw_j, if raw_k >= 0 depends on client k's signals only."""

    def share_of_one(hyper, measured, view):
        return jax.tree.map(lambda leaf: jnp.ones((), leaf.dtype), view.variables)

    return (Term(weigh, share_of_one),)


def mean_terms(*rules: tuple[Term, ...]) -> tuple[Term, ...]:
    """Returns the terms of the mean of two weightings with a pair of signals; () if either has no terms."""

    def half_of(i, term):
        share = with_signal(i, term.share)
        return Term(
            with_signal(i, term.weigh), lambda *args: jax.tree.map(lambda c: c / 2, share(*args))
        )

    return (
        tuple(half_of(i, term) for i, rule in enumerate(rules) for term in rule)
        if all(rules)
        else ()
    )


def with_signal(i: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function (hyper, signals, ...) of a weighting for a tuple of signals; its signal is entry `i`."""
    return functools.wraps(function)(
        lambda hyper, measured, *rest: function(hyper, measured[i], *rest)
    )


def select_terms(
    weigh: Weigh, otherwise: Weigh, takes_first: Callable[[Hyper, Tree, ServerView], Variables]
) -> tuple[Term, ...]:
    """Returns the terms of a weighting that uses `weigh` for some tensors and `otherwise` for the rest.

    Args:
        weigh: weights of the first term.
        otherwise: weights of the second term.
        takes_first: (hyper, signals, view) -> bool [] for every tensor: whether the first term's weights apply.
    """

    def share(first, hyper, measured, view):
        is_first = takes_first(hyper, measured, view)
        return jax.tree.map(
            lambda flag, leaf: (flag == first).astype(leaf.dtype), is_first, view.variables
        )

    return Term(weigh, functools.partial(share, True)), Term(
        otherwise, functools.partial(share, False)
    )


def combine_terms(shares: Sequence[Tree], of_terms: Sequence[Tree]) -> Tree:
    """Returns sum_t c_t x^t over the terms t. A single term has c = 1.

    Args:
        shares: c_t, a tree per term.
        of_terms: x^t, a tree per term, as `tree.scale_tensors` takes them.

    >>> combine_terms([{"w": 0.25}, {"w": 0.75}], [{"w": jnp.array([4.0])}, {"w": jnp.array([8.0])}])["w"].tolist()
    [7.0]
    """
    if len(of_terms) == 1:
        return of_terms[0]
    return tree.add(*map(tree.scale_tensors, shares, of_terms))
