"""What a weighting by norms is made of: a signal, groups that share a weight, and the layers of a group's mean."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedvg_jax.core import checks, groups, norms, tree
from fedvg_jax.core.types import Grouping, Norm, Signal, Task, Tree, UsageError, Variables, Weighting
from fedvg_jax.weightings import signals
from fedvg_jax.weightings.basic import mean_over_tensors, shares, with_own_statistics

FLOOR = 1e-6
"""Fraction of the largest norm below which a group holds rounding noise. LeNet5's biases before a BatchNorm in train
mode have gradient 0 and norms of 2e-9 (L1) and 2e-7 (L2) in single precision. No other tensor of it is below 1e-4."""

LayerNorms = list[tuple[groups.Layer, Array]]
"""Layers, each with its norm [K]."""

WeightsOfMean = Callable[[Array, Array | bool], Array]
"""(mean norm of a group [K], present [K]) -> weights [K]"""

FACTORS: dict[str, Callable[[int], float]] = {
    "l1": lambda size: 1 / size,
    "l2": lambda size: 1 / math.sqrt(size),
    "spectral": lambda size: 1 / math.sqrt(size),
    "spectral_l2": lambda size: 1 / math.sqrt(size),
}
"""Norm -> function (number of entries of a layer) -> factor that makes its norm one per element."""

LAYERS: dict[str, Callable[[str], str]] = {"tensor": lambda path: path, "module": groups.module_of}
"""Name of a division into layers -> function (path of a tensor) -> name of its layer."""


class NormParts(NamedTuple):
    """What a weighting by norms is made of."""

    signal: Signal
    """(hyper, report, data) -> the client's norm of each tensor."""
    grouping: Grouping
    """Which tensors share a weight; group -1, and a group without a layer, take uniform weights."""
    block_of: Callable[[str], str]
    """Path of a tensor -> name of its block."""
    layers: Sequence[groups.Layer] | None = None
    """The layers that G_k averages over; None for every tensor."""
    join: Norm = norms.l1
    """Norm of a layer from the norms of its tensors."""
    floor: float = FLOOR

    def weights(
        self, weights_of_mean: WeightsOfMean, measured: Tree, stats: Tree, present: Array | bool = True
    ) -> Variables:
        """The weights of norms with leaves [K], in the structure of the norms and of the running statistics."""
        by_group = self.group_numbers(measured, stats)
        return weights_by_group(weights_of_mean, self.layer_norms(measured), by_group, present, self.floor)

    def group_numbers(self, measured: Tree, stats: Tree) -> Variables:
        """A group number in every leaf."""
        return self.grouping(Variables(measured, stats), self.block_of)

    def layer_norms(self, measured: Tree) -> LayerNorms:
        """Every layer with its norm [K]."""
        layers = groups.layers(tree.take(measured, 0)) if self.layers is None else self.layers
        return layer_norms(measured, layers, self.join)

    def score(self, measured: Tree) -> Array:
        """G_k over all layers, [K]."""
        return self._stacked(measured).mean(-1)

    def detail(self, measured: Tree) -> dict[str, Array]:
        """Each layer's share of its client's sum of norms, [K, layers]."""
        return {"layer_shares": layer_shares(self._stacked(measured))}

    def _stacked(self, measured: Tree) -> Array:
        return jnp.stack([layer.factor * norm for layer, norm in self.layer_norms(measured)], -1)


def of_task(
    rule: Callable[[NormParts], Weighting],
    task: Task,
    norm: str,
    granularity: str,
    *,
    stats: str = "uniform",
    **options: Any,
) -> Weighting:
    """The weighting that a rule makes of a task; arguments as in `fedvg.fedvg`."""
    weighting = rule(norm_parts(task, norm, granularity, **options))
    of_stats = {"uniform": lambda weighting: weighting, "layer": with_own_statistics}
    return checks.named(of_stats, stats, "stats")(weighting)


def norm_parts(
    task: Task,
    norm: str = "l1",
    granularity: str = "modelwise",
    *,
    signal: str | Signal = "gradient",
    layer: str = "tensor",
    include: str = "",
    exclude: str = "",
    per_element: bool = False,
    mode: str = "train",
    groups_per_pass: signals.GroupsPerPass = 1,
) -> NormParts:
    """The parts of a weighting by norms of a task; arguments and errors as in `fedvg.fedvg`."""
    is_train = checks.named({"train": True, "eval": False}, mode, "mode")
    tensors = {
        "gradient": lambda: signals.validation_gradient(task, is_train, groups_per_pass),
        "delta": lambda: signals.delta,
        "fisher": lambda: signals.fisher(task),
    }
    measure = signal if callable(signal) else checks.named(tensors, signal, "signal")()
    grouping = _grouping(norm, granularity, layer)
    return NormParts(
        signals.normed(measure, checks.named(norms.BY_NAME, norm, "norm")),
        grouping,
        task.block_of,
        layers_of(task, norm, granularity, layer, include, exclude, per_element),
        norms.JOINED[norm],
        FLOOR ** (2 if signal == "fisher" else 1),  # a squared gradient
    )


def layers_of(
    task: Task,
    norm: str = "l1",
    granularity: str = "modelwise",
    layer: str = "tensor",
    include: str = "",
    exclude: str = "",
    per_element: bool = False,
) -> tuple[groups.Layer, ...]:
    """The layers that G_k averages over, in the order of the history's `layer_shares`; arguments as in `norm_parts`."""
    with jax.enable_x64(False):  # models start in single precision
        shapes = jax.eval_shape(task.init, jax.eval_shape(jax.random.key, 0))  # a key's shape, without drawing it
    sizes = dict(zip(tree.paths(shapes.params), jax.tree.leaves(shapes.params), strict=True))
    candidates = [path for path in sizes if not (exclude and re.search(exclude, path))]
    included = {path for path in candidates if re.search(include, path)}
    if not included:
        beside = f" beside those of local {exclude}, which no client sends" if exclude else ""
        raise UsageError(f"fedvg.include {include} matches no tensor{beside}; there are {', '.join(candidates)}")
    # vectors have no spectral norm
    counted = {path for path in included if sizes[path].ndim > 1 or norm != "spectral"}
    _check_groups(counted, included, _grouping(norm, granularity, layer)(shapes, task.block_of))
    factor = FACTORS[norm] if per_element else lambda size: 1.0
    return groups.layers(shapes.params, counted.__contains__, checks.named(LAYERS, layer, "layer"), factor)


def _grouping(norm: str, granularity: str, layer: str) -> Grouping:
    """The grouping of a name. A vector has no spectral norm: layerwise it takes the weight of its module's matrix."""
    by_module = {"layerwise": groups.modulewise} if layer == "module" or norm == "spectral" else {}
    return checks.named(groups.BY_NAME | by_module, granularity, "granularity")


def _check_groups(counted: set[str], included: set[str], by_group: Variables) -> None:
    group_of = dict(zip(tree.paths(by_group.params), jax.tree.leaves(by_group.params), strict=True))
    measured = {group_of[path] for path in counted}
    missing = sorted(path for path in included if group_of[path] not in measured)
    if missing:
        raise UsageError(
            f"fedvg.norm spectral needs a matrix in every group, and there is none for {', '.join(missing)};"
            " use --fedvg.norm spectral_l2, --fedvg.granularity modelwise, or --fedvg.include to leave them out"
        )


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
