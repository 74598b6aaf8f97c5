"""Aggregation weights: stacked signals of the cohort -> one weight per client and tensor, and the weighted mean."""

from __future__ import annotations

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax import groups, signals
from fedvg_jax.types import Grouping, Hyper, Signal, Tree, Variables, Weighting


def inverse_norm_weights(
    norms: Tree,
    granularity: str = "modelwise",
    eps: float | Array = 1e-8,
    block_of: Callable[[str], str] | None = None,
) -> Tree:
    """FedVG's weights from the clients' gradient norms: flat clients weigh more. No softmax.

        G_k = mean over the group's tensors of their norms,    s_k = (1 / (G_k + eps)) / sum_j (1 / (G_j + eps))

    Args:
        norms: pytree of per-tensor norms, leaves [K], as `gradient_norms` returns.
        granularity: "modelwise" (one weight per client), "layerwise" (per tensor) or "blockwise" (per block).
        eps: added before inverting, in the unit of the norms.
        block_of: path of a tensor "a/b/kernel" -> name of its block; by default its first component.

    Returns:
        Weights: pytree of the same structure, leaves [K], each >= 0 and summing to 1.

    >>> inverse_norm_weights({"w": jnp.array([1.0, 3.0])}, eps=0.0)["w"].tolist()
    [0.75, 0.25]
    """
    chex.assert_tree_shape_prefix(norms, jax.tree.leaves(norms)[0].shape)
    by_group = groups.BY_NAME[granularity](Variables(norms, ()), block_of or _first_component)
    return _inverse(norms, by_group, eps).params


def aggregate(params: Tree, client_params: Tree, weights: Tree) -> Tree:
    """The weighted mean of the clients as a step from the global model: theta_g - sum_k s_k (theta_g - theta_k).

    Args:
        params: global model, leaves [...].
        client_params: stacked clients, leaves [K, ...].
        weights: pytree of the same structure, leaves [K].

    Returns:
        Pytree like `params`.

    >>> aggregate({"w": jnp.zeros(1)}, {"w": jnp.array([[1.0], [5.0]])}, {"w": jnp.array([0.75, 0.25])})["w"].tolist()
    [2.0]
    """
    chex.assert_trees_all_equal_structs(params, client_params, weights)
    chex.assert_tree_shape_prefix((client_params, weights), jax.tree.leaves(weights)[0].shape)
    return jax.tree.map(_weighted_step, params, client_params, weights)


def samples() -> Weighting:
    """FedAvg's weights n_k / sum_j n_j."""
    return _by_scalar(signals.num_samples)


def uniform() -> Weighting:
    """1 / K for every client: the control beside any other rule."""
    return _by_scalar(signals.nothing)


def fedvg(signal: Signal, grouping: Grouping, block_of: Callable[[str], str]) -> Weighting:
    """FedVG: `inverse_norm_weights` of `signal`, a client's norm per tensor; `eps` is read from `hyper["eps"]`."""

    def weigh(norms: Tree, variables: Variables, hyper: Hyper) -> Variables:
        return _inverse(norms, grouping(Variables(norms, variables.stats), block_of), hyper["eps"])

    return Weighting(signal, weigh, score=_mean)


def mix(first: Weighting, second: Weighting) -> Weighting:
    """The mean of two weightings, as the paper's FedAvg + FedVG: (s_k + n_k / N) / 2. The score is the second's."""

    def weigh(measured: Tree, variables: Variables, hyper: Hyper) -> Variables:
        a, b = (w.weigh(m, variables, hyper) for w, m in zip((first, second), measured, strict=True))
        return jax.tree.map(lambda x, y: (x + y) / 2, a, b)

    return Weighting(
        signal=lambda *report: (first.signal(*report), second.signal(*report)),
        weigh=weigh,
        score=lambda measured: second.score(measured[1]),
    )


def _by_scalar(signal: Signal) -> Weighting:
    """Weights in proportion to one number per client, the same for every tensor."""

    def weigh(raw: Array, variables: Variables, hyper: Hyper) -> Variables:
        return jax.tree.map(lambda _: raw / raw.sum(), variables)

    return Weighting(signal, weigh, score=lambda raw: raw)


def _inverse(norms: Tree, by_group: Variables, eps) -> Variables:
    """The weights of every group, handed to its tensors."""
    members: dict[int, list[Array]] = {}
    for group, norm in zip(jax.tree.leaves(by_group.params), jax.tree.leaves(norms), strict=True):
        members.setdefault(group, []).append(norm)
    raw = {group: 1 / (_mean(tensors) + eps) for group, tensors in members.items()}
    weights = {group: r / r.sum() for group, r in raw.items()}
    weights[-1] = jnp.full_like(next(iter(raw.values())), 1 / len(raw[0]))
    return jax.tree.map(lambda group: weights[group], by_group)


def _mean(norms: Tree) -> Array:
    """[K]: mean over tensors."""
    return jnp.stack(jax.tree.leaves(norms)).mean(0)


def _weighted_step(p: Array, clients: Array, w: Array) -> Array:
    return p - jnp.tensordot(w, p[None] - clients, 1, precision=lax.Precision.HIGHEST)


def _first_component(path: str) -> str:
    return path.split("/")[0]
