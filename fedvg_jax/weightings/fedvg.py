"""FedVG's weights: inversely proportional to the norm of a client's validation gradient.

    G_k = mean over the group's layers of their norms,    s_k = (1 / (G_k + eps)) / sum_j (1 / (G_j + eps))

Devkota et al., CVPR 2026.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedvg_jax.core import checks, groups, norms, tree
from fedvg_jax.core.types import (
    Grouping,
    Hyper,
    Hyperparameter,
    Norm,
    Returns,
    Signal,
    Tree,
    UsageError,
    Variables,
    Weighting,
)
from fedvg_jax.weightings import streaming
from fedvg_jax.weightings.basic import broadcast_weights, mean_over_tensors, reciprocal, shares

LayerNorms = list[tuple[groups.Layer, Array]]
"""Layers, each with its norm [K]."""

WeightsOfMean = Callable[[Array, Array | bool], Array]
"""(mean norm of a group [K], present [K]) -> weights [K]"""

DEFAULTS = (Hyperparameter("eps", 1e-8, 0.0, doc="added to G_k before inverting", excludes_low=True),)

FLOOR = 1e-6
"""Fraction of the largest norm below which a group holds rounding noise. LeNet5's biases before a BatchNorm in train
mode have gradient 0 and norms of 2e-9 (L1) and 2e-7 (L2) in single precision. No other tensor of it is below 1e-4."""


def inverse_norm_weights(
    norms: Tree,
    granularity: str = "modelwise",
    eps: float | Array = 1e-8,
    block_of: Callable[[str], str] | None = None,
) -> Tree:
    """FedVG's weights from the clients' gradient norms: clients with a small norm weigh more. No softmax.

        G_k = mean over the group's tensors of their norms,    s_k = (1 / (G_k + eps)) / sum_j (1 / (G_j + eps))

    A group whose norms are all below 1e-6 of the largest holds only rounding noise and takes uniform weights. Biases
    before a BatchNorm in train mode are such a group.

    Args:
        norms: pytree of per-tensor norms, leaves [K], as `gradient_norms` returns.
        granularity: "modelwise" (one weight per client), "layerwise" (per tensor) or "blockwise" (per block).
        eps: added before inverting, >= 0, in the unit of the norms.
        block_of: path of a tensor "a/b/kernel" -> name of its block; by default its first component.

    Returns:
        Weights: pytree of the same structure, leaves [K], each >= 0 and summing to 1. A client with a norm that is not
        finite has weight 0; if no client is finite, all weights are 0.

    Raises:
        UsageError: a leaf has another cohort size or an integer dtype (the message names it), the granularity is
            unknown, eps is negative or NaN, or no client is finite. Traced numbers cannot be checked.

    >>> inverse_norm_weights({"w": jnp.array([1.0, 3.0])}, eps=0.0)["w"].tolist()
    [0.75, 0.25]
    """
    checks.stacked(norms, "norms", per_tensor=True)
    norms, present = finite_clients(tree.arrays(norms))
    by_group = checks.named(groups.BY_NAME, granularity, "granularity")(
        Variables(norms, ()), block_of or first_component
    )
    layers = groups.layers(tree.take(norms, 0))
    return weights_by_group(inverse(eps), layer_norms(norms, layers), by_group, present).params


def fedvg(
    signal: Signal,
    grouping: Grouping,
    block_of: Callable[[str], str],
    layers: Sequence[groups.Layer] | None = None,
    join: Norm = norms.l1,
    floor: float = FLOOR,
) -> Weighting:
    """FedVG's weighting: `inverse_norm_weights` of `signal`. It reads `hyper["eps"]`.

    Args:
        signal: (hyper, report, data) -> the client's norm of each tensor.
        grouping: which tensors share a weight; group -1, and a group without a layer, take uniform weights.
        block_of: path of a tensor -> name of its block.
        layers: the layers that G_k averages over; by default every tensor is a layer.
        join: norm of a layer from the norms of its tensors.
        floor: fraction of the largest norm below which a group holds rounding noise and takes uniform weights.
    """

    def per_layer(measured: Tree) -> LayerNorms:
        return layer_norms(measured, groups.layers(tree.take(measured, 0)) if layers is None else layers, join)

    def stacked_norms(measured: Tree) -> Array:
        return jnp.stack([layer.factor * norm for layer, norm in per_layer(measured)], -1)

    def group_numbers(measured: Tree, returns: Returns) -> Variables:
        return grouping(Variables(measured, returns.variables.stats), block_of)

    def weigh(hyper: Hyper, measured: Tree, returns: Returns, floor: float = floor) -> Variables:
        by_group = group_numbers(measured, returns)
        return weights_by_group(inverse(hyper["eps"]), per_layer(measured), by_group, returns.present, floor)

    def weigh_uniformly(hyper: Hyper, measured: Tree, returns: Returns) -> Variables:
        ones = jnp.ones_like(jax.tree.leaves(measured)[0])
        return broadcast_weights(shares(ones, returns.present), returns)

    def is_above_noise(hyper: Hyper, measured: Tree, returns: Returns) -> Variables:
        by_group = group_numbers(measured, returns)
        above = groups_above_noise(groups.members(per_layer(measured), by_group), returns.present, floor)
        return jax.tree.map(lambda group: above.get(group, jnp.array(False)), by_group)

    def detail(measured: Tree) -> dict[str, Array]:
        return {"layer_shares": layer_shares(stacked_norms(measured))}

    # Which groups are above the noise depends on the whole cohort. A single group always is, or all its norms are 0.
    terms = (
        streaming.single_term(weigh)
        if grouping is groups.modelwise
        else streaming.select_terms(partial(weigh, floor=0), weigh_uniformly, is_above_noise)
    )
    return Weighting(signal, weigh, lambda measured: stacked_norms(measured).mean(-1), detail, terms, DEFAULTS)


def finite_clients(norms: Tree) -> tuple[Tree, Array]:
    """Returns the norms with 1 in place of those of clients that are not finite, and which clients are, bool [K].

    Args:
        norms: leaves [K].

    Raises:
        UsageError: no client is finite, or a norm is negative. Traced numbers cannot be checked.

    >>> finite_clients({"w": jnp.array([2.0, jnp.nan]), "b": jnp.array([3.0, 4.0])})[0]["b"].tolist()
    [3.0, 1.0]
    """
    present = tree.is_finite(norms)
    if not isinstance(present, Tracer) and not present.any():
        raise UsageError("norms of all clients are NaN or infinite; expected finite norms of at least one client")
    norms = jax.tree.map(lambda norm: jnp.where(present, norm, 1), norms)
    for path, norm in zip(tree.paths(norms), jax.tree.leaves(norms), strict=True):
        if not isinstance(norm, Tracer) and (least := norm.min()) < 0:
            raise UsageError(
                f"norms leaf '{path}' has {float(least):g}; expected norms >= 0, as gradient_norms returns"
            )
    return norms, present


def inverse(eps: float | Array) -> WeightsOfMean:
    """Returns the function G -> (1 / (G_k + eps)) / sum_j (1 / (G_j + eps)).

    Raises:
        UsageError: eps is negative or NaN; jax's numbers are not checked, because they may be traced.

    >>> inverse(0.0)(jnp.array([1.0, 3.0]), True).tolist()
    [0.75, 0.25]
    """
    if isinstance(eps, (int, float, np.number)) and not eps >= 0:
        raise UsageError(f"eps must be a number >= 0; got {float(eps):g}")
    return lambda mean, present: shares(reciprocal(mean + jnp.asarray(eps, mean.dtype)), present)


def weights_by_group(
    weights_of_mean: WeightsOfMean,
    norms: LayerNorms,
    by_group: Variables,
    present: Array | bool = True,
    floor: float = FLOOR,
) -> Variables:
    """Weights of every tensor: those of its group's mean norm.

    A group whose norms are all below `floor` of the largest takes the weights of equal norms. Weights are computed in
    at least float32 and returned in the dtype of the norms.

    Args:
        weights_of_mean: (mean norm of a group [K], present) -> weights [K].
        norms: the layers with their norms [K].
        by_group: the model's structure with a group number in every leaf; -1 takes uniform weights.
        present: bool [K].
        floor: see `FLOOR`.
    """
    dtype = norms[0][1].dtype
    norms = [(layer, tree.wide(norm)) for layer, norm in norms]
    members = groups.members(norms, by_group)
    is_above = groups_above_noise(members, present, floor)
    weights = dict.fromkeys(jax.tree.leaves(by_group), shares(jnp.ones_like(norms[0][1]), present))
    for group, of_group in members.items():
        mean = mean_over_tensors([layer.factor * norm for layer, norm in of_group])
        # equal norms for noise, not equal weights: the gradient of an inverse of 0 would be NaN
        weights[group] = weights_of_mean(jnp.where(is_above[group], mean, 1), present)
    return jax.tree.map(lambda group: weights[group].astype(dtype), by_group)


def groups_above_noise(
    members: dict[int, LayerNorms], present: Array | bool = True, floor: float = FLOOR
) -> dict[int, Array]:
    """Whether each group's largest norm over present clients exceeds `floor` times the largest of all groups.

    Returns:
        Group number -> bool [].
    """

    def largest_norm(of_group: LayerNorms) -> Array:
        norms = jnp.stack([norm for _, norm in of_group])
        return norms.max(where=jnp.broadcast_to(present, norms.shape), initial=0)

    largest = {group: largest_norm(of_group) for group, of_group in members.items()}
    if not largest:
        return {}
    noise = floor * jnp.stack(list(largest.values())).max()
    return {group: norm > noise for group, norm in largest.items()}


def layer_norms(measured: Tree, layers: Sequence[groups.Layer], join: Norm = norms.l1) -> LayerNorms:
    """Every layer with its norm [K], joined from the norms of its tensors."""
    norm_of = dict(zip(tree.paths(measured), jax.tree.leaves(measured), strict=True))

    def joined_norm(layer: groups.Layer) -> Array:
        parts = [norm_of[path] for path in layer.tensors]
        return parts[0] if len(parts) == 1 else jax.vmap(join, -1)(jnp.stack(parts))

    return [(layer, joined_norm(layer)) for layer in layers]


def layer_shares(norms: Array) -> Array:
    """Each layer's share of its client's sum of norms, [K, layers]; 0 where all are 0.

    >>> layer_shares(jnp.array([[1.0, 3.0], [0.0, 0.0]])).tolist()
    [[0.25, 0.75], [0.0, 0.0]]
    """
    total = norms.sum(-1, keepdims=True)
    return norms / jnp.where(total > 0, total, 1)


def first_component(path: str) -> str:
    """The default block of a tensor: "a/b/kernel" -> "a"."""
    return path.partition("/")[0]
