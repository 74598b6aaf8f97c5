"""FedVG's weights: inversely proportional to the norm of a client's validation gradient.

    G_k = mean over the group's layers of their norms,    s_k = (1 / (G_k + eps)) / sum_j (1 / (G_j + eps))

Devkota et al., CVPR 2026. `inverse_norm_weights` is these equations, and `fedvg` measures the norms in a round. The
other functions are their parts: `inverse` is s_k of G_k, and `NormParts.weights` takes the mean over a group.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer

from fedvg_jax.core import checks, groups, norms, tree, types
from fedvg_jax.core.types import (
    Grouping,
    Hyperparameter,
    NamedWeighting,
    Option,
    Signal,
    Task,
    Tree,
    UsageError,
    Variables,
    Weighting,
)
from fedvg_jax.weightings import aggregation, signals
from fedvg_jax.weightings.basic import mean_over_tensors, reciprocal, shares, weigh_by_scalar

EPS = Hyperparameter(
    "fedvg.eps", 1e-8, 0, doc="Number added to each norm before it is inverted.", excludes_low=True
)
FROM_0 = Hyperparameter("eps", 1e-8, 0.0)
"""eps of the public functions, which may be 0."""

NORMS = tuple(norms.BY_NAME)
"""Norms of a signal that is measured; "delta" is the paper's name for the L1 norm of the update."""

OPTIONS = (
    Option(
        "fedvg.signal",
        "gradient",
        ("gradient", "delta", "fisher"),
        "Quantity that is measured for each client. gradient: of the loss on D_val; delta: of its model against the"
        " global model; fisher: trace of the empirical Fisher information.",
        used={"fedvg.norm": NORMS},
    ),
    Option(
        "fedvg.norm",
        "l1",
        (*NORMS, "delta"),
        "Norm of the signal. l1 is published; spectral uses matrices only; spectral_l2 adds the L2 norm of vectors;"
        " delta is the L1 norm of the signal delta.",
    ),
    Option(
        "fedvg.layer",
        "tensor",
        ("tensor", "module"),
        "Unit that has one norm. tensor: every tensor (published); module: weight and bias together.",
    ),
    Option(
        "fedvg.include",
        "",
        doc="Regular expression of the tensors that are measured, e.g. ^classifier/. It is searched for in each path"
        ' "a/b/kernel"; empty selects all tensors.',
        word="REGEX",
    ),
    Option(
        "fedvg.granularity",
        "modelwise",
        ("modelwise", "layerwise", "blockwise"),
        "Granularity of the weights. modelwise: one weight per client; layerwise: one per client and tensor; blockwise:"
        " one per client and network block.",
    ),
    Option(
        "fedvg.mode",
        "train",
        ("train", "eval"),
        "Mode of BatchNorm while scoring. train: statistics of each minibatch (published); eval: running statistics.",
        used={"fedvg.norm": NORMS, "fedvg.signal": ("gradient",)},
    ),
)
"""Options of the weightings of norms, by setting."""

WeightsOfMean = Callable[[Array, Array | bool], Array]
"""(mean norm of a group [K], participating [K]) -> weights [K]"""

FLOOR = 1e-6
"""Fraction of the largest norm below which a group holds rounding noise. LeNet5's biases before a BatchNorm in train
mode have gradient 0 and norms of 2e-9 (L1) and 2e-7 (L2) in single precision. No other tensor of it is below 1e-4."""

LAYERS: dict[str, Callable[[str], str]] = {"tensor": lambda path: path, "module": groups.module_of}
"""Name of a division into layers -> function (path of a tensor) -> name of its layer."""


def inverse_norm_weights(
    norms: Tree,
    granularity: str = "modelwise",
    eps: float | Array = 1e-8,
    block_of: Callable[[str], str] | None = None,
) -> Tree:
    """Returns FedVG's weights from the clients' gradient norms: clients with a small norm weigh more. No softmax.

        G_k = mean over the group's tensors of their norms,    s_k = (1 / (G_k + eps)) / sum_j (1 / (G_j + eps))

    If all norms of a group are below 1e-6 of the largest, they are rounding noise, and the group takes uniform weights.
    Biases before a BatchNorm in train mode are such a group.

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
    return weights_of_norms(inverse(eps), Variables(norms, ()), granularity, block_of).params


def weights_of_norms(
    weights_of_mean: WeightsOfMean,
    measured: Variables,
    granularity: str,
    block_of: Callable[[str], str] | None,
) -> Variables:
    """Returns the weights of the clients that are finite, 0 for others; arguments as in `inverse_norm_weights`."""
    checks.stacked(measured.params, "norms", per_tensor=True)
    norms, participating = finite_clients(tree.arrays(measured.params))
    grouping = types.named(groups.BY_NAME, granularity, "granularity")
    parts = NormParts(lambda *client: norms, grouping, block_of or groups.first_component)
    return parts.weights(weights_of_mean, norms, measured.stats, participating)


def finite_clients(norms: Tree) -> tuple[Tree, Array]:
    """Returns the norms, with 1 for clients that are not finite, and which clients are finite, bool [K].

    Args:
        norms: leaves [K].

    Raises:
        UsageError: no client is finite, or a norm is negative. Traced numbers cannot be checked.

    >>> finite_clients({"w": jnp.array([2.0, jnp.nan]), "b": jnp.array([3.0, 4.0])})[0]["b"].tolist()
    [3.0, 1.0]
    """
    participating = tree.is_finite(norms)
    norms = jax.tree.map(lambda norm: jnp.where(participating, norm, 1), norms)
    if isinstance(participating, Tracer):
        return norms, participating
    if not participating.any():
        raise UsageError(
            "norms of all clients are NaN or infinite; expected finite norms of at least one client"
        )
    least = float(jnp.stack(jax.tree.leaves(norms)).min())
    if least < 0:
        raise UsageError(f"norms must be >= 0, see gradient_norms; got {least:g}")
    return norms, participating


def fedvg(
    task: Task, norm: str = "l1", granularity: str = "modelwise", **options: Any
) -> Weighting:
    """Returns FedVG's weighting: `inverse_norm_weights` of `gradient_norms` of each client's validation gradient.

    It reads `hyper["fedvg.eps"]`.

    Args:
        task: the model and its loss.
        norm: "l1" (published), "l2", "spectral" (of matrices only), "spectral_l2" (and the L2 norm of vectors), or
            "delta", the paper's name for the L1 norm of the signal "delta".
        granularity: "modelwise", "layerwise" or "blockwise".
        **options: as below.

    Options, the default first where there is one:

    - `signal`: "gradient" of the loss on D_val, "delta", the client's update, "fisher", the trace of the empirical
      Fisher information, or a function (hyper, client, data) -> tensors like the parameters.
    - `layer`: "tensor" (published), or "module": weight and bias together.
    - `include`: regular expression of the paths of the tensors that are measured; by default all are.
    - `exclude`: regular expression of those that are not measured, the local part of the model; by default none.
    - `mode`: "train" (published: BatchNorm takes the statistics of each minibatch of D_val), or "eval".
    - `groups_per_pass`: minibatches of D_val that are scored together; the result is the same.

    Raises:
        UsageError: a name is unknown, `include` matches no tensor, or a group has no matrix for the spectral norm.

    Clients with the rows 1 and 5 train to w = 1 and 5; on D_val, the row 2, their gradients are -1 and 3:

    >>> import fedvg_jax as fv
    >>> def loss(params, stats, batch, mask, train):
    ...     return jnp.where(mask, (params["w"] - batch) ** 2 / 2, 0).sum() / len(batch), stats
    >>> task = fv.Task(lambda key: fv.Variables({"w": jnp.zeros(1)}, {}), loss, None, None, None, str)
    >>> step = fv.make_round(task, fv.algorithms.fedavg(), fedvg(task), fv.executors.lanes(1), fv.sgd, num_clients=2)
    >>> step = jax.jit(step)
    >>> hyper, clients = {"lr": 1.0, "fedvg.eps": 0.0}, [jnp.array([0]), jnp.array([1])]
    >>> data = fv.Data(jnp.array([1.0, 5.0, 2.0]), *[jnp.array([[2]])] * 3)
    >>> state = fv.init_state(task, fv.algorithms.fedavg(), 2, hyper)
    >>> state, metrics = step(state, fv.make_schedule(0, clients, batch_size=1), data, hyper)
    >>> sorted(metrics.weights.tolist()), state.variables.params["w"].tolist()
    ([0.25, 0.75], [2.0])
    """
    return inverse_norms(norm_parts(task, norm, granularity, **options))


def inverse_norms(parts: NormParts) -> Weighting:
    """Returns the weighting with the weights of `inverse_norm_weights` of a signal. It reads `hyper["fedvg.eps"]`."""

    def weigh(hyper, measured, view, parts=parts):
        return parts.weights(
            inverse(hyper[EPS.name]), measured, view.variables.stats, view.participating
        )

    def weigh_uniformly(hyper, measured, view):
        return weigh_by_scalar(hyper, jnp.ones_like(jax.tree.leaves(measured)[0]), view)

    def is_above_noise(hyper, measured, view):
        by_group, members = parts.members(measured, view.variables.stats)
        above = parts.above_noise(members, view.participating)
        return jax.tree.map(lambda group: above.get(group, jnp.array(False)), by_group)

    # Which groups are above the noise depends on the whole cohort. A single group always is, or all its norms are 0.
    if parts.grouping is groups.modelwise:
        terms = aggregation.single_term(weigh)
    else:
        terms = aggregation.select_terms(
            partial(weigh, parts=parts._replace(floor=0)), weigh_uniformly, is_above_noise
        )
    return Weighting(
        parts.signal, weigh, parts.score, parts.detail, terms, (EPS,), layers=parts.layer_names()
    )


# --- the equations ----------------------------------------------------------------------------------------------------
def inverse(eps: float | Array) -> WeightsOfMean:
    """Returns the function G -> (1 / (G_k + eps)) / sum_j (1 / (G_j + eps)).

    Raises:
        UsageError: eps is not a finite number >= 0; a traced one is not checked.

    >>> inverse(0.0)(jnp.array([1.0, 3.0]), True).tolist()
    [0.75, 0.25]
    """
    checks.in_range(FROM_0, eps)
    return lambda mean, participating: shares(
        reciprocal(mean + jnp.asarray(eps, mean.dtype)), participating
    )


# --- the parts of a weighting by norms --------------------------------------------------------------------------------
class NormParts(NamedTuple):
    """What a weighting by norms is made of."""

    signal: Signal
    """(hyper, client, data) -> the client's norm of each tensor."""
    grouping: Grouping
    """Which tensors share a weight; group -1, and a group without a layer, take the weights of equal norms."""
    block_of: Callable[[str], str]
    """Path of a tensor -> name of its block."""
    layers: Sequence[groups.Layer] | None = None
    """The layers that G_k averages over; None for every tensor."""
    join: types.Norm = norms.l1
    """Norm of a layer from the norms of its tensors."""
    floor: float = FLOOR

    def weights(
        self,
        weights_of_mean: WeightsOfMean,
        measured: Tree,
        stats: Tree,
        participating: Array | bool = True,
    ) -> Variables:
        """Returns the weights of every tensor, from its group's mean norm.

        If all norms of a group are noise, it takes the weights of equal norms. Weights are computed in at least float32
        and returned in the dtype of the norms.

        Args:
            weights_of_mean: (mean norm of a group [K], participating) -> weights [K].
            measured: norms [K] of every tensor.
            stats: the running statistics; the weights have their structure, too.
            participating: bool [K].
        """
        by_group, members = self.members(measured, stats)
        is_above = self.above_noise(members, participating)
        norm = jax.tree.leaves(measured)[0]
        equal = weights_of_mean(jnp.ones_like(tree.wide(norm)), participating)
        weights = dict.fromkeys(jax.tree.leaves(by_group), equal)
        for group, of_group in members.items():
            mean = mean_over_tensors(of_group)
            # equal norms for noise, not equal weights: the gradient of an inverse of 0 would be NaN
            weights[group] = weights_of_mean(jnp.where(is_above[group], mean, 1), participating)
        return jax.tree.map(lambda group: weights[group].astype(norm.dtype), by_group)

    def above_noise(
        self, members: dict[int, list[Array]], participating: Array | bool
    ) -> dict[int, Array]:
        """Returns whether each group's largest norm over participating clients exceeds `floor` times the largest.

        Args:
            members: group number -> the norms [K] of its layers.
            participating: bool [K].

        Returns:
            Group number -> bool [].
        """
        largest = {}
        for group, of_group in members.items():
            stacked = jnp.stack(of_group)
            is_participating = jnp.broadcast_to(participating, stacked.shape)
            largest[group] = stacked.max(where=is_participating, initial=0)
        noise = self.floor * jnp.stack(list(largest.values())).max()
        return {group: norm > noise for group, norm in largest.items()}

    def members(self, measured: Tree, stats: Tree) -> tuple[Variables, dict[int, list[Array]]]:
        """Returns a group number in every leaf, and the norms [K] of each group's layers, in at least float32."""
        by_group = self.grouping(Variables(measured, stats), self.block_of)
        group_of = tree.by_path(by_group.params)
        norms_of = collections.defaultdict(list)
        for layer, norm in self.layer_norms(measured):
            norms_of[group_of[layer.tensors[0]]].append(tree.wide(norm))
        return by_group, norms_of

    def layer_norms(self, measured: Tree) -> list[tuple[groups.Layer, Array]]:
        """Returns every layer with its norm [K], joined from the norms of its tensors."""
        norm_of = tree.by_path(measured)

        def joined_norm(layer):
            parts = [norm_of[path] for path in layer.tensors]
            return parts[0] if len(parts) == 1 else jax.vmap(self.join, -1)(jnp.stack(parts))

        layers = groups.layers(measured) if self.layers is None else self.layers
        return [(layer, joined_norm(layer)) for layer in layers]

    def score(self, measured: Tree) -> Array:
        """Returns G_k over all layers, [K]."""
        return self._stacked(measured).mean(-1)

    def detail(self, measured: Tree) -> dict[str, Array]:
        """Returns each layer's share of its client's sum of norms, [K, layers]."""
        return {"layer_shares": layer_shares(self._stacked(measured))}

    def layer_names(self) -> tuple[str, ...]:
        """Returns the names of `layers`; () for every tensor."""
        return tuple(layer.name for layer in self.layers or ())

    def _stacked(self, measured: Tree) -> Array:
        return jnp.stack([norm for _, norm in self.layer_norms(measured)], -1)


def norm_parts(
    task: Task,
    norm: str,
    granularity: str,
    *,
    signal: str | Signal = "gradient",
    layer: str = "tensor",
    include: str = "",
    exclude: str = "",
    mode: str = "train",
    groups_per_pass: signals.GroupsPerPass = 1,
) -> NormParts:
    """Returns the parts of a weighting by norms of a task; arguments and errors as in `fedvg`."""
    if norm == "delta":
        norm, signal = "l1", "delta"
    is_train = types.named({"train": True, "eval": False}, mode, "mode")
    tensors = {
        "gradient": signals.validation_gradient(task, is_train, groups_per_pass),
        "delta": signals.delta,
        "fisher": signals.fisher(task),
    }
    measure = signal if callable(signal) else types.named(tensors, signal, "signal")
    grouping = _grouping(norm, granularity, layer)
    return NormParts(
        signals.normed(measure, types.named(norms.BY_NAME, norm, "norm")),
        grouping,
        task.block_of,
        _layers(task, norm, grouping, layer, include, exclude),
        norms.JOINED[norm],
        FLOOR ** (2 if signal == "fisher" else 1),  # a squared gradient
    )


def _layers(
    task: Task, norm: str, grouping: Grouping, layer: str, include: str, exclude: str
) -> tuple[groups.Layer, ...]:
    """Returns the layers that G_k averages over, in the order of `layer_shares`; arguments as in `norm_parts`."""
    # a key's shape, without drawing it
    shapes = jax.eval_shape(task.init, jax.eval_shape(jax.random.key, 0))
    sizes = tree.by_path(shapes.params)
    is_included = types.compiled(include, "fedvg.include").search
    is_excluded = types.compiled(exclude, "local").search
    candidates = [path for path in sizes if not (exclude and is_excluded(path))]
    included = list(filter(is_included, candidates))
    if not included:
        raise UsageError(
            f"fedvg.include {include} matches no tensor that is sent; there are {', '.join(candidates)}"
        )
    # vectors have no spectral norm
    counted = {path for path in included if sizes[path].ndim > 1 or norm != "spectral"}
    group_of = tree.by_path(grouping(shapes, task.block_of).params)
    measured = {group_of[path] for path in counted}
    if missing := [path for path in included if group_of[path] not in measured]:
        raise UsageError(
            f"fedvg.norm spectral needs a matrix in every group, and there is none for {', '.join(missing)};"
            " use --fedvg.norm spectral_l2, --fedvg.granularity modelwise, or --fedvg.include to leave them out"
        )
    return groups.layers(shapes.params, counted.__contains__, types.named(LAYERS, layer, "layer"))


def _grouping(norm: str, granularity: str, layer: str) -> Grouping:
    """Returns the grouping of a name. A vector without a spectral norm takes the weight of its module's matrix."""
    by_module = {"layerwise": groups.modulewise} if layer == "module" or norm == "spectral" else {}
    return types.named(groups.BY_NAME | by_module, granularity, "granularity")


def layer_shares(norms: Array) -> Array:
    """Returns each layer's share of its client's sum of norms, [K, layers]; 0 where all are 0.

    >>> layer_shares(jnp.array([[1.0, 3.0], [0.0, 0.0]])).tolist()
    [[0.25, 0.75], [0.0, 0.0]]
    """
    total = norms.sum(-1, keepdims=True)
    return norms / jnp.where(total > 0, total, 1)


ENTRY = NamedWeighting(
    fedvg,
    "FedVG",
    (EPS,),
    OPTIONS,
    takes=("task", "exclude", "groups_per_pass"),
    granularity="fedvg.granularity",
)
