"""FedVG's weights: inversely proportional to the norm of a client's validation gradient.

    G_k = mean over the group's layers of their norms,    s_k = (1 / (G_k + eps)) / sum_j (1 / (G_j + eps))

Devkota et al., CVPR 2026.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer

from fedvg_jax.core import checks, groups, tree
from fedvg_jax.core.types import (
    Hyper,
    Hyperparameter,
    Returns,
    Task,
    Tree,
    UsageError,
    Variables,
    Weighting,
)
from fedvg_jax.weightings import streaming
from fedvg_jax.weightings.basic import broadcast_weights, reciprocal, shares
from fedvg_jax.weightings.norm_parts import NormParts, WeightsOfMean, groups_above_noise, of_task

FROM_0 = Hyperparameter("eps", 1e-8, 0.0)
"""eps of the public functions, which may be 0."""

DEFAULTS = (Hyperparameter("eps", 1e-8, 0.0, doc="added to G_k before inverting", excludes_low=True),)


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
    return weights_of_norms(inverse(eps), norms, granularity, block_of)


def weights_of_norms(
    weights_of_mean: WeightsOfMean, norms: Tree, granularity: str, block_of: Callable[[str], str] | None
) -> Tree:
    """The weights of the clients that are finite, 0 for others; arguments as in `inverse_norm_weights`."""
    checks.stacked(norms, "norms", per_tensor=True)
    norms, present = finite_clients(tree.arrays(norms))
    grouping = checks.named(groups.BY_NAME, granularity, "granularity")
    parts = NormParts(lambda *report: norms, grouping, block_of or first_component)
    return parts.weights(weights_of_mean, norms, (), present).params


def fedvg(task: Task, norm: str = "l1", granularity: str = "modelwise", **options: Any) -> Weighting:
    """FedVG's weighting of a task: `inverse_norm_weights` of `gradient_norms` of each client's validation gradient.

    It reads `hyper["eps"]`.

    Args:
        task: the model and its loss.
        norm: "l1" (published), "l2", "spectral" (of matrices only), or "spectral_l2" (and the L2 norm of vectors).
        granularity: "modelwise", "layerwise" or "blockwise".
        **options: as below.

    Options, the default first where there is one:

    - `signal`: "gradient" of the loss on D_val, "delta", the client's update, "fisher", the trace of the empirical
      Fisher information, or a function (hyper, report, data) -> tensors like the parameters.
    - `layer`: "tensor" (published), or "module": weight and bias together.
    - `include`: regular expression of the paths of the tensors that are measured; by default all are.
    - `exclude`: regular expression of those that are not measured, the local part of the model; by default none.
    - `per_element`: whether a norm is divided by the layer's number of entries (l1), or its square root (others).
    - `mode`: "train" (published: BatchNorm takes the statistics of each minibatch of D_val), or "eval".
    - `stats`: weights of running statistics at layerwise and blockwise granularity: "uniform" (published), or "layer",
      the mean of the weights of their own layer.
    - `groups_per_pass`: minibatches of D_val that are scored together; the result is the same.

    Raises:
        UsageError: a name is unknown, `include` matches no tensor, or a group has no matrix for the spectral norm.

    Clients with the rows 1 and 5 train to w = 1 and 5; on D_val, the row 2, their gradients are -1 and 3:

    >>> import fedvg_jax as fv
    >>> def loss(params, stats, batch, mask, train):
    ...     return jnp.where(mask, (params["w"] - batch) ** 2 / 2, 0).sum() / len(batch), stats
    >>> task = fv.Task(lambda key: fv.Variables({"w": jnp.zeros(1)}, {}), loss, None, None, None, str)
    >>> step = fv.make_round(task, fv.algorithms.fedavg(), fedvg(task), fv.executors.lanes(1), fv.sgd, num_clients=2)
    >>> hyper, clients = {"lr": 1.0, "eps": 0.0}, [jnp.array([0]), jnp.array([1])]
    >>> data = fv.Data(jnp.array([1.0, 5.0, 2.0]), *[jnp.array([[2]])] * 3)
    >>> state = fv.init_state(task, fv.algorithms.fedavg(), 2, hyper)
    >>> state, metrics = step(state, fv.make_schedule(0, clients, batch_size=1), data, hyper)
    >>> sorted(metrics.weights.tolist()), state.variables.params["w"].tolist()
    ([0.25, 0.75], [2.0])
    """
    return of_task(inverse_norms, task, norm, granularity, **options)


def inverse_norms(parts: NormParts) -> Weighting:
    """The weighting with the weights of `inverse_norm_weights` of a signal. It reads `hyper["eps"]`."""

    def weigh(hyper: Hyper, measured: Tree, returns: Returns, parts: NormParts = parts) -> Variables:
        return parts.weights(inverse(hyper["eps"]), measured, returns.variables.stats, returns.present)

    def weigh_uniformly(hyper: Hyper, measured: Tree, returns: Returns) -> Variables:
        ones = jnp.ones_like(jax.tree.leaves(measured)[0])
        return broadcast_weights(shares(ones, returns.present), returns)

    def is_above_noise(hyper: Hyper, measured: Tree, returns: Returns) -> Variables:
        by_group = parts.group_numbers(measured, returns.variables.stats)
        members = groups.members(parts.layer_norms(measured), by_group)
        above = groups_above_noise(members, returns.present, parts.floor)
        return jax.tree.map(lambda group: above.get(group, jnp.array(False)), by_group)

    # Which groups are above the noise depends on the whole cohort. A single group always is, or all its norms are 0.
    terms = (
        streaming.single_term(weigh)
        if parts.grouping is groups.modelwise
        else streaming.select_terms(partial(weigh, parts=parts._replace(floor=0)), weigh_uniformly, is_above_noise)
    )
    return Weighting(parts.signal, weigh, parts.score, parts.detail, terms, DEFAULTS)


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
        UsageError: eps is not a finite number >= 0; a traced one is not checked.

    >>> inverse(0.0)(jnp.array([1.0, 3.0]), True).tolist()
    [0.75, 0.25]
    """
    checks.in_range(FROM_0, eps)
    return lambda mean, present: shares(reciprocal(mean + jnp.asarray(eps, mean.dtype)), present)


def first_component(path: str) -> str:
    """The default block of a tensor: "a/b/kernel" -> "a"."""
    return path.partition("/")[0]
