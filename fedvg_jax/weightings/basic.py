"""Weightings from one number per client, means of two weightings, and the functions that weightings are built from."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer

from fedvg_jax.core import tree
from fedvg_jax.core.types import (
    Hyper,
    Hyperparameter,
    NamedWeighting,
    ServerView,
    Signal,
    Tree,
    UsageError,
    Variables,
    Weighting,
)
from fedvg_jax.weightings import aggregation, signals

FIXED = Hyperparameter("fixed", 1.0, 0.0, doc="weights of the clients, by their numbers")


def samples() -> Weighting:
    """Returns FedAvg's weights n_k / sum_j n_j."""
    return by_scalar(signals.num_samples)


def uniform() -> Weighting:
    """Returns the weight 1 / K for every client: the control for any other weighting."""
    return by_scalar(signals.nothing)


def fixed(weights: Any = None) -> Weighting:
    """Returns fixed weights by the clients' numbers, such as learnt ones; they need not sum to 1.

        s_k = w_k / sum_j w_j, over the clients j of the cohort

    Args:
        weights: w, floats [N] >= 0. None reads `hyper["fixed"]`, [N] or one number for all clients, by which rounds
            can be differentiated; a client past its end then has the weight NaN.

    >>> from fedvg_jax.core.types import ClientReturn
    >>> client = ClientReturn(Variables({"w": jnp.zeros(1)}, {}), jnp.int32(7), {}, id=jnp.int32(2))
    >>> fixed([1.0, 3.0, 5.0]).signal({}, client, None).tolist()
    5.0
    """

    def signal(hyper, client, data):
        values = hyper[FIXED.name] if weights is None else weights
        values = jnp.asarray(values, tree.wide_dtype(client.variables.params))
        return values.at[client.id].get(mode="fill", fill_value=jnp.nan) if values.ndim else values

    if weights is None:
        return by_scalar(signal)._replace(hyperparameters=(FIXED,))
    return by_scalar(signal)._replace(num_clients=len(weights))


def by_scalar(signal: Signal) -> Weighting:
    """Returns weights proportional to one number per client, the same for every tensor.

        s_k = m_k / sum_j m_j

    Args:
        signal: (hyper, client, data) -> m_k >= 0, a scalar. If all are 0, the weights are uniform.

    >>> rule = by_scalar(lambda hyper, client, data: client.num_samples)
    >>> model = Variables({"w": jnp.zeros(1)}, {})
    >>> rule.weigh({}, jnp.array([1.0, 3.0]), ServerView(model, model, jnp.arange(2), None)).params["w"].tolist()
    [0.25, 0.75]
    """
    return Weighting(signal, weigh_by_scalar, terms=aggregation.single_term(weigh_by_scalar))


def weigh_by_scalar(hyper: Hyper, raw: Array, view: ServerView) -> Variables:
    """Returns the weights raw_k / sum_j raw_j, for every tensor."""
    return broadcast_shares(raw, view)


def mix(first: Weighting, second: Weighting) -> Weighting:
    """Returns the mean of two weightings, as the paper's FedAvg + FedVG: (s_k + n_k / sum_j n_j) / 2.

    The score is the second's.

    Raises:
        UsageError: one of them has a state, or both describe clients.
    """
    if first.state or second.state or (first.describe and second.describe):
        raise UsageError(
            "a mean takes weightings without a state, of which one may describe clients; use one of them alone"
        )

    def weigh(hyper, measured, view):
        of_first = first.weigh(hyper, measured[0], view)
        of_second = second.weigh(hyper, measured[1], view)
        return jax.tree.map(lambda x, y: (x + y) / 2, of_first, of_second)

    def signal(hyper, client, data):
        return first.signal(hyper, client, data), second.signal(hyper, client, data)

    return Weighting(
        signal=signal,
        weigh=weigh,
        score=lambda measured: second.score(measured[1]),
        detail=lambda measured: first.detail(measured[0]) | second.detail(measured[1]),
        terms=aggregation.mean_terms(first.terms, second.terms),
        hyperparameters=tuple(dict.fromkeys((*first.hyperparameters, *second.hyperparameters))),
        num_clients=first.num_clients or second.num_clients,
        describe=first.describe or second.describe,
        layers=second.layers or first.layers,
    )


def shares(raw: Array, participating: Array | bool = True) -> Array:
    """Returns raw_k / sum_j raw_j over the participating clients, [K]; uniform where all raw are 0.

    A non-finite `raw` gives NaN weights, which the round detects and reports.

    Args:
        raw: [K], >= 0.
        participating: bool [K]. Dropped clients get 0.

    Raises:
        UsageError: a number is negative. Traced numbers cannot be checked: a negative one gets a negative weight, and
            a run reports it.

    >>> shares(jnp.array([1.0, 3.0, 5.0]), jnp.array([True, True, False])).tolist()
    [0.25, 0.75, 0.0]
    """
    is_participating = jnp.broadcast_to(participating, raw.shape).astype(raw.dtype)
    raw = jnp.where(participating, raw, 0)
    if not isinstance(raw, Tracer) and (least := raw.min(initial=0)) < 0:
        raise UsageError(
            f"weights are proportional to numbers >= 0; got {float(least):.3g}; for -loss use jax.numpy.exp(-loss)"
        )
    # of absolute values, so that signs do not cancel
    # a larger sum overflows, or its inverse is 0
    raw = raw * jnp.where(jnp.abs(raw).sum() > 2.0**100, 2.0**-64, 1)
    raw = jnp.where(jnp.abs(raw).sum() == 0, is_participating, raw)
    total = jnp.abs(raw).sum()
    return raw / jnp.where(total == 0, 1, total)


def reciprocal(score: Array) -> Array:
    """Returns 1 / score for scores >= 0, at most 1e30.

    The bound keeps a zero or denormal score from giving an infinite weight. Scores below 1e-30 count as equal and have
    gradient 0. The sum over 1e8 clients still fits single precision.
    """
    least = jnp.asarray(1e-30, score.dtype)
    is_below = score < least  # False for NaN, which stays NaN
    # not a maximum: its gradient of 0 would be multiplied by the infinite gradient of the inverse
    return jnp.where(is_below, 1 / least, 1 / jnp.where(is_below, 1, score))


def broadcast_weights(weights: Array, view: ServerView) -> Variables:
    """Returns the same weights [K] for every tensor of the model."""
    return jax.tree.map(lambda _: weights, view.variables)


def broadcast_shares(raw: Array, view: ServerView) -> Variables:
    """Returns `shares` of the participating clients, the same for every tensor of the model."""
    return broadcast_weights(shares(raw, view.participating), view)


def renormalise_over_participating(participating: Array, weights: Variables) -> Variables:
    """Sets dropped clients' weights to 0 and rescales the others of each tensor to sum to 1.

    If no client participates, all weights are 0 and the model does not change.

    Args:
        participating: bool [K].
        weights: leaves [K].
    """

    def renormalise(w):
        w = jnp.where(participating, w, 0)
        total = w.sum()
        return w / jnp.where(total > 0, total, 1)

    return jax.tree.map(lambda w: jnp.where(participating.all(), w, renormalise(w)), weights)


def mean_over_tensors(per_tensor: Tree) -> Array:
    """Returns the mean over the leaves of a pytree, each [K]."""
    return jnp.stack(jax.tree.leaves(per_tensor)).mean(0)


BY_NAME = {
    "samples": NamedWeighting(samples, takes=(), reads_rows=False),
    "uniform": NamedWeighting(uniform, takes=(), reads_rows=False),
}
"""The weightings of this file that settings name."""
