"""Aggregation rules: the weighted mean of the cohort's models, and rules that resist some corrupt clients.

Every rule leaves out clients with weight 0 (dropped out, diverged or untrained), and returns theta_g if none remains.
The rank-based rules (median, trimmed mean, Krum) ignore the values of the other weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding

from fedvg_jax.core import norms, tree
from fedvg_jax.core.types import Argument, Choice, Hyper, Range, Tree, Variables, hyper_or_number
from fedvg_jax.weightings import aggregation, basic

__all__ = ("BY_NAME", "clipped_mean", "krum", "median", "trimmed_mean", "weighted_mean")

Rule = Callable[..., Variables]
"""(hyper, global model, stacked clients [K, ...], weights [K]) -> new global model, floats of its shapes"""


class Facts(NamedTuple):
    """What is known of a rule of this file; a caller's has the defaults."""

    text: str = ""
    """as the setting `robust` names it"""
    ignores_weights: bool = False
    """whether it leaves out clients of weight 0 and otherwise ignores the weights"""
    adds_on_devices: bool = False
    """whether it takes the `sharding` of clients that several devices hold: each device adds up its clients"""


def facts(rule: Rule) -> Facts:
    """Returns what is known of a rule.

    >>> facts(krum(1)).text, facts(krum(1)).ignores_weights, facts(clipped_mean(2)).ignores_weights
    ('krum:1,1', True, False)
    """
    return getattr(inspect.unwrap(rule), "facts", Facts())


def _with(**known: str | bool) -> Callable[[Rule], Rule]:
    """Returns a decorator that attaches `Facts` to a rule."""

    def attach(rule: Rule) -> Rule:
        vars(rule)["facts"] = Facts(**known)  # pyright: ignore[reportArgumentType]
        return rule

    return attach


@_with(text="mean", adds_on_devices=True)
def weighted_mean(
    hyper: Hyper,
    variables: Variables,
    clients: Variables,
    weights: Variables,
    sharding: NamedSharding | None = None,
) -> Variables:
    """Returns the weighted mean theta_g - sum_k s_k (theta_g - theta_k).

    Args:
        hyper: not used.
        variables: theta_g.
        clients: leaves [K, ...].
        weights: leaves [K].
        sharding: of the clients over devices; None if one device holds all of them.
    """
    return aggregation.aggregate(variables, clients, weights, sharding=sharding)


@_with(text="median", ignores_weights=True)
def median(hyper: Hyper, variables: Variables, clients: Variables, weights: Variables) -> Variables:
    """Returns the median of every coordinate; for an even number of clients, the mean of the middle two.

    Source: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.
    """

    def middle(ordered, count):
        return (ordered[jnp.maximum(count - 1, 0) // 2] + ordered[count // 2]) / 2

    return _by_coordinate(middle, variables, clients, weights)


def trimmed_mean(ratio: float) -> Rule:
    """Returns the rule that averages every coordinate without its floor(ratio n) smallest and largest of n values.

    Args:
        ratio: share left out at each end, in [0, 0.5).

    Source: Yin et al., as `median`.
    """
    ratio = RATIO.require("trimmed_mean: ratio", ratio)

    def mean(ordered, count):
        cut = jnp.asarray(_cuts(ratio, len(ordered)))[count]
        rank = jnp.arange(len(ordered), dtype=count.dtype)
        kept = (rank >= cut) & (rank < count - cut)
        total = tree.where(kept, ordered, jnp.zeros_like(ordered)).sum(0)
        return total / jnp.maximum(count - 2 * cut, 1).astype(total.dtype)

    @_with(text=f"trimmed_mean:{ratio}", ignores_weights=True)
    def rule(hyper, variables, clients, weights):
        return _by_coordinate(mean, variables, clients, weights)

    return rule


def krum(num_bad: int, num_kept: int = 1) -> Rule:
    """Returns Multi-Krum, the mean of the models closest to their neighbours.

        score_k = sum of ||theta_k - theta_j||^2 over the n - num_bad - 2 nearest of the n - 1 others
        theta <- mean of the num_kept models with the smallest scores

    Distances are over trained tensors. Its guarantee needs n >= 2 num_bad + 3. With fewer than num_bad + 3
    participating clients, the score is over the nearest neighbour alone.

    Args:
        num_bad: corrupt clients of a cohort that the rule resists.
        num_kept: models averaged; 1 is Krum.

    Source: Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017.
    """
    COUNT.require("krum: num_bad", num_bad)
    Range(1).require("krum: num_kept", num_kept)

    @_with(text=f"krum:{num_bad},{num_kept}", ignores_weights=True)
    def rule(hyper, variables, clients, weights):
        participating = basic.mean_over_tensors(weights.params) > 0
        scores = krum_scores(clients.params, participating, num_bad)
        order = jnp.lexsort((scores, ~participating))
        rank = jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=order.dtype))
        chosen = ((rank < num_kept) & participating).astype(scores.dtype)
        share = chosen / jnp.maximum(chosen.sum(), 1)
        return aggregation.aggregate(variables, clients, jax.tree.map(lambda _: share, weights))

    return rule


def krum_scores(clients: Tree, participating: Array, num_bad: int) -> Array:
    """Returns Krum's scores [K], sums of squared distances to the nearest others.

    Args:
        clients: stacked models, leaves [K, ...].
        participating: bool [K].
        num_bad: as in `krum`.
    """
    squared = lax.map(lambda model: _squared_distances(clients, model), clients)
    others = participating[None] & ~jnp.eye(len(participating), dtype=bool)
    ordered = jnp.sort(jnp.where(others, squared, jnp.inf), axis=1)
    count = participating.sum(dtype=jnp.int32)
    near = jnp.arange(len(participating), dtype=jnp.int32) < jnp.minimum(
        jnp.maximum(count - num_bad - 2, 1), count - 1
    )
    return jnp.where(near[None], ordered, 0).sum(1)


def clipped_mean(max_norm: float | str) -> Rule:
    """Returns the rule that averages updates clipped to norm C, with the weights.

        theta <- theta_g - sum_k s_k delta_k min(1, C / ||delta_k||)

    The norm is over trained tensors. Running statistics are averaged without clipping.

    Args:
        max_norm: C > 0, or the name of a hyperparameter that has it.

    Source: Sun et al., "Can You Really Backdoor Federated Learning?", 2019.
    """
    text = ""
    if not isinstance(max_norm, str):
        max_norm = NORM.require("clipped_mean: max_norm", max_norm)
        text = f"clipped_mean:{max_norm}"

    @_with(text=text, adds_on_devices=True)
    def rule(hyper, variables, clients, weights, sharding=None):
        most = hyper_or_number(hyper, max_norm)
        deltas = jax.tree.map(
            lambda theta, stack: theta[None] - stack, variables.params, clients.params
        )
        factor = most / jnp.maximum(jax.vmap(norms.joint_l2)(deltas), most)
        clipped = weights._replace(
            params=jax.tree.map(lambda w: jnp.where(w > 0, factor * w, 0), weights.params)
        )
        return aggregation.aggregate(variables, clients, clipped, sharding=sharding)

    return rule


def _trims_none(cohort_size: int, ratio: float) -> str:
    if ratio == 0 or _cuts(ratio, cohort_size)[cohort_size] > 0:
        return ""
    return f"leaves out none of {cohort_size} clients; use a larger F or --join-ratio, or mean"


def _krum_problem(cohort_size: int, num_bad: int, num_kept: int) -> str:
    if cohort_size < 2 * num_bad + 3:
        return f"takes at most (K - 3) / 2 corrupt clients of a cohort of K = {cohort_size}; got {num_bad}"
    if not 1 <= num_kept <= cohort_size - num_bad:
        return f"averages 1 to K - F = {cohort_size - num_bad} models; got {num_kept}"
    return ""


RATIO, COUNT, NORM = Range(0, 0.5, excludes_high=True), Range(0), Range(0, excludes_low=True)

BY_NAME = {
    "mean": Choice(lambda: weighted_mean),
    "median": Choice(lambda: median),
    "trimmed_mean": Choice(trimmed_mean, Argument(0.1, RATIO), _trims_none),
    "krum": Choice(krum, Argument((1, 1), COUNT), _krum_problem),
    "clipped_mean": Choice(clipped_mean, Argument(10.0, NORM, "clip_norm")),
}
"""The rules that the setting `robust` names."""


def _by_coordinate(
    value: Callable[[Array, Array], Array],
    variables: Variables,
    clients: Variables,
    weights: Variables,
) -> Variables:
    """Returns a value of every coordinate, of theta_g where no client has a weight.

    Args:
        value: (a coordinate's values in ascending order, [K, ...], dropped clients last; how many are not) -> [...].
        variables, clients, weights: as of a rule.
    """

    def of_tensor(theta, stack, w):
        participating = w > 0
        present = tree.where(participating, stack, jnp.full_like(stack, jnp.inf))
        count = participating.sum(dtype=jnp.int32)
        return jnp.where(count > 0, value(jnp.sort(present, axis=0), count), theta)

    return jax.tree.map(of_tensor, variables, clients, weights)


def _cuts(ratio: float, most: int) -> np.ndarray:
    """Returns floor(ratio n) for n = 0, ..., K, [K + 1], such that at least one client is kept.

    A margin of 1e-9 corrects floating point: 0.1 x 30 gives 3.
    """
    n = np.arange(most + 1)
    return np.minimum(np.floor(ratio * n + 1e-9), np.maximum(n - 1, 0) // 2).astype(np.int32)


def _squared_distances(clients: Tree, model: Tree) -> Array:
    """Returns ||theta_k - model||^2, [K], from squared differences: a Gram matrix would cancel for close models."""
    squares = jax.tree.map(
        lambda stack, x: (tree.wide(stack - x[None]) ** 2).reshape(len(stack), -1).sum(1),
        clients,
        model,
    )
    return jnp.stack(jax.tree.leaves(squares)).sum(0)
