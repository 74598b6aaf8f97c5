"""Aggregation weights: stacked signals of the cohort -> one weight per client and tensor, and the weighted mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from fedvg_jax.core import checks, groups, norms, tree
from fedvg_jax.core.types import Grouping, Hyper, Norm, Returns, Signal, Tree, Variables, Weighting
from fedvg_jax.weightings import signals, streaming

Joined = list[tuple[groups.Layer, Array]]
"""layers, each with its norm [K]"""

ByMean = Callable[[Array, Array | bool], Array]
"""(mean norm of a group [K], who is there) -> weights [K]"""

FLOOR = 1e-6
"""Of the largest norm: a group below it holds rounding noise. LeNet5's biases before a BatchNorm in train mode, whose
gradient is 0, come to 2e-9 (L1) and 2e-7 (L2) in single precision, and no other tensor of it below 1e-4."""


def inverse_norm_weights(
    norms: Tree,
    granularity: str = "modelwise",
    eps: float | Array = 1e-8,
    block_of: Callable[[str], str] | None = None,
) -> Tree:
    """FedVG's weights from the clients' gradient norms: clients of small norm weigh more. No softmax.

        G_k = mean over the group's tensors of their norms,    s_k = (1 / (G_k + eps)) / sum_j (1 / (G_j + eps))

    A group whose norms are all below 1e-6 of the largest holds nothing but rounding noise, as biases before a
    BatchNorm in train mode do, and takes uniform weights.

    Args:
        norms: pytree of per-tensor norms, leaves [K], as `gradient_norms` returns.
        granularity: "modelwise" (one weight per client), "layerwise" (per tensor) or "blockwise" (per block).
        eps: added before inverting, in the unit of the norms.
        block_of: path of a tensor "a/b/kernel" -> name of its block; by default its first component.

    Returns:
        Weights: pytree of the same structure, leaves [K], each >= 0 and summing to 1.

    Raises:
        UsageError: for a leaf of another cohort or of integers, or an unknown granularity; it names the leaf.

    >>> inverse_norm_weights({"w": jnp.array([1.0, 3.0])}, eps=0.0)["w"].tolist()
    [0.75, 0.25]
    """
    checks.stacked(norms, "norms", per_tensor=True)
    norms = tree.arrays(norms)
    by_group = checks.named(groups.BY_NAME, granularity, "granularity")(
        Variables(norms, ()), block_of or first_component
    )
    return by_groups(inverse(eps), joined_norms(norms, groups.layers(tree.take(norms, 0))), by_group).params


def aggregate(params: Tree, client_params: Tree, weights: Tree) -> Tree:
    """The weighted mean of the clients as a step from the global model: theta_g - sum_k s_k (theta_g - theta_k).

    Args:
        params: global model, leaves [...].
        client_params: stacked clients, leaves [K, ...].
        weights: pytree of the same structure, leaves [K].

    Returns:
        Pytree like `params`.

    Raises:
        UsageError: for a leaf of another structure, cohort or shape, or of integers; it names the leaf.

    >>> aggregate({"w": jnp.zeros(1)}, {"w": jnp.array([[1.0], [5.0]])}, {"w": jnp.array([0.75, 0.25])})["w"].tolist()
    [2.0]
    """
    checks.same_structure(client_params, params, "client_params", "params")
    checks.same_structure(weights, params, "weights", "params")
    num_clients = checks.stacked(client_params, "client_params")
    checks.stacked(weights, "weights", num_clients, per_tensor=True)
    checks.shaped_like(
        jax.eval_shape(lambda clients: tree.take(clients, 0), client_params), params, "one client's params", "params"
    )
    params, client_params, weights = tree.arrays((params, client_params, weights))
    return jax.tree.map(_weighted_step, params, client_params, weights)


def samples() -> Weighting:
    """FedAvg's weights n_k / sum_j n_j."""
    return by_scalar(signals.num_samples)


def uniform() -> Weighting:
    """1 / K for every client: the control beside any other rule."""
    return by_scalar(signals.nothing)


def by_scalar(signal: Signal) -> Weighting:
    """Weights in proportion to one number per client >= 0, the same for every tensor; uniform where all are 0."""

    def weigh(hyper: Hyper, raw: Array, returns: Returns) -> Variables:
        return everywhere(shares(raw, returns.present), returns)

    return Weighting(signal, weigh, score=lambda raw: raw, detail=no_detail, terms=streaming.alone(weigh))


def everywhere(weights: Array, returns: Returns) -> Variables:
    """The same weights [K] for every tensor."""
    return jax.tree.map(lambda _: weights, returns.variables)


def fedvg(
    signal: Signal,
    grouping: Grouping,
    block_of: Callable[[str], str],
    layers: Sequence[groups.Layer] | None = None,
    join: Norm = norms.l1,
    floor: float = FLOOR,
) -> Weighting:
    """FedVG: `inverse_norm_weights` of `signal`, a client's norm per tensor; `eps` is read from `hyper["eps"]`.

    Args:
        grouping: which tensors share a weight; a group without a layer takes uniform weights.
        block_of: path of a tensor -> name of its block.
        layers: what the mean is over; by default every tensor is a layer.
        join: norm of a layer from the norms of its tensors.
        floor: share of the largest norm below which a group holds rounding noise and takes uniform weights.
    """

    def joined(measured: Tree) -> Joined:
        return joined_norms(measured, groups.layers(tree.take(measured, 0)) if layers is None else layers, join)

    def norms_of(measured: Tree) -> Array:
        return jnp.stack([layer.factor * norm for layer, norm in joined(measured)], -1)

    def grouped(measured: Tree, returns: Returns) -> Variables:
        return grouping(Variables(measured, returns.variables.stats), block_of)

    def weigh(hyper: Hyper, measured: Tree, returns: Returns, floor: float = floor) -> Variables:
        of_mean = inverse(hyper["eps"])
        return by_groups(of_mean, joined(measured), grouped(measured, returns), returns.present, floor)

    def equal(hyper: Hyper, measured: Tree, returns: Returns) -> Variables:
        ones = jnp.ones_like(jax.tree.leaves(measured)[0])
        return everywhere(shares(ones, returns.present), returns)

    def is_loud(hyper: Hyper, measured: Tree, returns: Returns) -> Variables:
        by_group = grouped(measured, returns)
        loud = loud_groups(groups.members(joined(measured), by_group), returns.present, floor)
        return jax.tree.map(lambda group: loud.get(group, jnp.array(False)), by_group)

    def detail(measured: Tree) -> dict[str, Array]:
        return {"layer_shares": layer_shares(norms_of(measured))}

    # whether another group is loud shows at the end only; one alone is, or all its norms are 0
    found = (
        streaming.alone(weigh)
        if grouping is groups.modelwise
        else streaming.split(partial(weigh, floor=0), equal, is_loud)
    )
    return Weighting(signal, weigh, lambda measured: norms_of(measured).mean(-1), detail, found)


def inverse(eps: float | Array) -> ByMean:
    """(1 / (G_k + eps)) / sum_j (1 / (G_j + eps))"""
    return lambda mean, present: shares(reciprocal(mean + jnp.asarray(eps, mean.dtype)), present)


def by_groups(
    of_mean: ByMean, joined: Joined, by_group: Variables, present: Array | bool = True, floor: float = FLOOR
) -> Variables:
    """The weights `of_mean` gives every group's mean norm, handed to the group's tensors.

    A group whose norms are all below `floor` of the largest takes those of equal norms. Weights are computed in float32
    at least, and have the dtype of the norms.
    """
    dtype = joined[0][1].dtype
    joined = [(layer, tree.wide(norm)) for layer, norm in joined]
    members = groups.members(joined, by_group)
    loud = loud_groups(members, present, floor)
    weights = dict.fromkeys(jax.tree.leaves(by_group), shares(jnp.ones_like(joined[0][1]), present))
    for group, found in members.items():
        mean = _mean([layer.factor * norm for layer, norm in found])
        # equal norms for noise, not equal weights: the slope of an inverse of 0 would be NaN
        weights[group] = of_mean(jnp.where(loud[group], mean, 1), present)
    return jax.tree.map(lambda group: weights[group].astype(dtype), by_group)


def loud_groups(members: dict[int, Joined], present: Array | bool = True, floor: float = FLOOR) -> dict[int, Array]:
    """Which groups hold more than noise: bool [], of the clients that are there."""

    def most(found: Joined) -> Array:
        norms = jnp.stack([norm for _, norm in found])
        return norms.max(where=jnp.broadcast_to(present, norms.shape), initial=0)

    loudest = {group: most(found) for group, found in members.items()}
    noise = floor * jnp.stack(list(loudest.values())).max()
    return {group: norm > noise for group, norm in loudest.items()}


def joined_norms(measured: Tree, layers: Sequence[groups.Layer], join: Norm = norms.l1) -> Joined:
    """Every layer with its norm [K] from those of its tensors."""
    found = dict(zip(tree.paths(measured), jax.tree.leaves(measured), strict=True))

    def norm(layer: groups.Layer) -> Array:
        parts = [found[path] for path in layer.tensors]
        return parts[0] if len(parts) == 1 else jax.vmap(join, -1)(jnp.stack(parts))

    return [(layer, norm(layer)) for layer in layers]


def layer_shares(norms: Array) -> Array:
    """Each layer's share of its client's sum, [K, layers]; 0 where all are 0."""
    total = norms.sum(-1, keepdims=True)
    return norms / jnp.where(total > 0, total, 1)


def with_own_statistics(rule: Weighting) -> Weighting:
    """`rule`, and running statistics take the mean weight of the trained tensors of their own layer, if it has any."""

    def weigh(hyper: Hyper, measured: Tree, returns: Returns) -> Variables:
        weights = rule.weigh(hyper, measured, returns)
        members: dict[str, list[Array]] = {}
        for path, w in zip(tree.paths(weights.params), jax.tree.leaves(weights.params), strict=True):
            members.setdefault(groups.module_of(path), []).append(w)
        paths, leaves = tree.paths(weights.stats), jax.tree.leaves(weights.stats)
        own = [_mean(members.get(groups.module_of(path), w)) for path, w in zip(paths, leaves, strict=True)]
        return weights._replace(stats=jax.tree.structure(weights.stats).unflatten(own))

    return rule._replace(weigh=weigh, terms=())


def mix(first: Weighting, second: Weighting) -> Weighting:
    """The mean of two weightings, as the paper's FedAvg + FedVG: (s_k + n_k / N) / 2. The score is the second's."""

    def weigh(hyper: Hyper, measured: Tree, returns: Returns) -> Variables:
        a, b = (w.weigh(hyper, m, returns) for w, m in zip((first, second), measured, strict=True))
        return jax.tree.map(lambda x, y: (x + y) / 2, a, b)

    return Weighting(
        signal=lambda *report: (first.signal(*report), second.signal(*report)),
        weigh=weigh,
        score=lambda measured: second.score(measured[1]),
        detail=lambda measured: first.detail(measured[0]) | second.detail(measured[1]),
        terms=streaming.halves(first.terms, second.terms),
    )


def shares(raw: Array, present: Array | bool = True) -> Array:
    """raw_k / sum_j raw_j among the clients that are there, [K]; equal shares where all raw are 0.

    What is not finite gives NaN, which the round finds and tells of.
    """
    there = jnp.broadcast_to(present, raw.shape).astype(raw.dtype)
    raw = jnp.where(present, raw, 0)
    raw = raw * jnp.where(raw.sum() > 2.0**100, 2.0**-64, 1)  # a larger sum overflows, or its inverse is 0
    raw = jnp.where(raw.sum() == 0, there, raw)
    total = raw.sum()
    return raw / jnp.where(total == 0, 1, total)


def reciprocal(score: Array) -> Array:
    """1 / score, for scores >= 0: bounded, so that no score, 0 or denormal, weighs more than all, or NaN.

    Below 1e-30 scores count as equal, with gradient 0; the sum of 1e8 clients then still fits single precision.
    """
    least = jnp.asarray(1e-30, score.dtype)
    is_below = score < least  # False for NaN, which stays NaN
    # not a maximum, whose gradient of 0 would be multiplied by the infinite one of the inverse
    return jnp.where(is_below, 1 / least, 1 / jnp.where(is_below, 1, score))


def among(present: Array, weights: Variables) -> Variables:
    """The weights of the clients that are there, [K] bool: the others' are 0, and each tensor's sum to 1 again.

    Without any such client all are 0, and the model stays where it is.
    """

    def kept(w: Array) -> Array:
        w = jnp.where(present, w, 0)
        total = w.sum()
        return w / jnp.where(total > 0, total, 1)

    return jax.tree.map(lambda w: jnp.where(present.all(), w, kept(w)), weights)


def mean_weight(weights: Variables) -> Array:
    """[K]: a client's weight, averaged over the trained tensors."""
    return _mean(weights.params)


def no_detail(measured: Tree) -> dict[str, Array]:
    """Nothing more for the history."""
    return {}


def _mean(norms: Tree) -> Array:
    """[K]: mean over tensors."""
    return jnp.stack(jax.tree.leaves(norms)).mean(0)


def _weighted_step(p: Array, clients: Array, w: Array) -> Array:
    return p + tree.weighted_sum(w, clients, p)


def first_component(path: str) -> str:
    """The block of a tensor where none is named, "a/b/kernel" -> "a"."""
    return path.split("/")[0]
