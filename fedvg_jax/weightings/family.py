"""The generalised inverse-norm family: FedVG's weights with continuous parameters that can be swept or learned.

    G_k = mean over the group's tensors of a_t ||g_k^t||
    raw_k = (G_k + eps)^(-p)
    s_k = [(1 - m) raw_k / sum raw + m n_k / sum n]^(1/T),  normalised

p = 1, T = 1, m = 0, a = 1 is FedVG; m = 1/2 is the paper's FedAvg + FedVG; m = 1 is FedAvg; p = 0 is uniform.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.core import checks, tree
from fedvg_jax.core.types import Hyperparameter, Task, Tree, UsageError, Variables, Weighting
from fedvg_jax.weightings import signals
from fedvg_jax.weightings.basic import reciprocal, shares
from fedvg_jax.weightings.fedvg import (
    ENTRY as FEDVG,
    EPS,
    FROM_0,
    WeightsOfMean,
    norm_parts,
    weights_of_norms,
)

EXPONENT = Hyperparameter(
    "generalised.exponent",
    1.0,
    doc="Exponent of the inverse norm. 1 is published, 0 gives uniform weights; below 0, clients with large norms weigh"
    " more.",
)
TEMPERATURE = Hyperparameter(
    "generalised.temperature",
    1.0,
    0,
    doc="Temperature. Weights are raised to the power 1 / temperature; large values approach uniform weights.",
    excludes_low=True,
)
MIX = Hyperparameter(
    "generalised.mix",
    0.0,
    0,
    1,
    "Fraction of n_k / sum_j n_j in the weights. 0.5 is FedAvg + FedVG.",
)

HYPERPARAMETERS = (EPS, EXPONENT, TEMPERATURE, MIX)


def generalised_weights(
    norms: Tree,
    num_samples: Array | None = None,
    granularity: str = "modelwise",
    *,
    exponent: float | Array = 1.0,
    temperature: float | Array = 1.0,
    eps: float | Array = 1e-8,
    mix: float | Array = 0.0,
    multipliers: Tree | None = None,
    block_of: Callable[[str], str] | None = None,
) -> Tree:
    """Returns FedVG's weights with an exponent, a temperature, a part of sample counts, and factors of tensors' norms.

        s_k = [(1 - m) raw_k / sum raw + m n_k / sum n]^(1/T), normalised;    raw_k = (G_k + eps)^(-p)

    With the defaults it equals `inverse_norm_weights`. All parameters are traced and differentiable.

    Args:
        norms: pytree of per-tensor norms, leaves [K], as `gradient_norms` returns.
        num_samples: [K] n_k; by default equal.
        granularity: "modelwise", "layerwise" or "blockwise".
        exponent: p; 0 is uniform, 1 published; below 0, clients with large norms weigh more.
        temperature: T > 0; large is uniform, small gives all weight to the client with the smallest norm.
        eps: added before inverting, > 0, in the unit of the norms.
        mix: m in [0, 1], the part of n_k / sum n; 1/2 is the paper's FedAvg + FedVG.
        multipliers: pytree like `norms`, scalars >= 0: a_t of every tensor.
        block_of: path of a tensor "a/b/kernel" -> name of its block; by default its first component.

    Returns:
        Weights: pytree like `norms`, leaves [K], each >= 0 and summing to 1; 0 for a client with a norm that is not
        finite.

    Raises:
        UsageError: a leaf has another cohort size or an integer dtype (the message names it), a name is unknown, a
            number is out of range, or no client is finite. Traced numbers cannot be checked.

    >>> norms = {"w": jnp.array([1.0, 3.0, 3.0])}
    >>> generalised_weights(norms, eps=0.0)["w"].round(3)  # 3 : 1 : 1
    Array([0.6, 0.2, 0.2], dtype=float32)
    >>> generalised_weights(norms, jnp.array([1, 1, 2]), mix=1.0)["w"].tolist()
    [0.25, 0.25, 0.5]
    """
    num_clients = checks.stacked(norms, "norms", per_tensor=True)
    counts = jnp.ones(num_clients) if num_samples is None else jnp.asarray(num_samples, float)
    if counts.shape != (num_clients,):
        raise UsageError(
            f"num_samples has shape {counts.shape}; expected ({num_clients},), one number per client"
        )
    checks.in_range(FROM_0, eps)
    checks.in_range(EXPONENT, exponent)
    checks.in_range(TEMPERATURE, temperature)
    checks.in_range(MIX, mix)
    weights_of_mean = make_weights_of_mean(exponent, temperature, eps, mix, counts)
    measured = Variables(_multiplied(tree.arrays(norms), multipliers), ())
    return weights_of_norms(weights_of_mean, measured, granularity, block_of).params


def generalised(
    task: Task, norm: str = "l1", granularity: str = "modelwise", **options: Any
) -> Weighting:
    """Returns `generalised_weights` as a weighting of a task; arguments as in `fedvg`.

    It reads `generalised.exponent`, `generalised.temperature`, `generalised.mix` and `fedvg.eps`, and `multipliers` if
    present: a pytree of scalars like the parameters.
    """
    parts = norm_parts(task, norm, granularity, **options)

    def signal(hyper, client, data):
        tensor_norms = _multiplied(parts.signal(hyper, client, data), hyper.get("multipliers"))
        return tensor_norms, signals.num_samples(hyper, client, data)

    def weigh(hyper, measured, view):
        eps, exponent, temperature, mix = (hyper[p.name] for p in HYPERPARAMETERS)
        weights_of_mean = make_weights_of_mean(exponent, temperature, eps, mix, measured[1])
        return parts.weights(weights_of_mean, measured[0], view.variables.stats, view.participating)

    return Weighting(
        signal,
        weigh,
        score=lambda measured: parts.score(measured[0]),
        detail=lambda measured: parts.detail(measured[0]),
        hyperparameters=HYPERPARAMETERS,
        layers=parts.layer_names(),
    )


def make_weights_of_mean(exponent, temperature, eps, mix, counts: Array) -> WeightsOfMean:
    """Returns the function (mean norm of a group [K], participating [K]) -> weights [K].

    Args:
        exponent, temperature, eps, mix: see `generalised_weights`.
        counts: [K] n_k.
    """

    def weights_of_mean(mean, participating):
        p, t, epsilon, part, rows = (
            jnp.asarray(x, mean.dtype) for x in (exponent, temperature, eps, mix, counts)
        )
        inverted = reciprocal(jnp.where(participating, mean, 1) + epsilon)
        # smaller numbers may count as 0
        exponents = -jnp.log(jnp.maximum(inverted, jnp.finfo(mean.dtype).tiny))
        is_participating = jnp.broadcast_to(participating, exponents.shape)
        # a dropped client's measurement must neither set the scale nor overflow
        exponents = jnp.where(
            is_participating,
            exponents,
            _largest(jnp.where(is_participating, exponents, exponents.min())),
        )
        # p x = |p| (sign x), less the smallest sign x: every exponential is at most 1
        sign = jnp.where(p < 0, jnp.asarray(-1, p.dtype), 1)
        exponents = sign * exponents
        raw = shares(jnp.exp(-(sign * p) * (exponents + _largest(-exponents))), participating)
        return sharpened((1 - part) * raw + part * shares(rows, participating), t, participating)

    return weights_of_mean


def sharpened(weights: Array, temperature, participating: Array | bool = True) -> Array:
    """Returns s_k^(1/T) / sum_j s_j^(1/T), [K]; a weight of 0 stays 0, and a NaN makes all weights NaN, as in `shares`.

    >>> sharpened(jnp.array([0.5, 0.5, 0.0]), 2.0).tolist()
    [0.5, 0.5, 0.0]
    """
    is_zero = weights <= 0  # False for NaN
    logs = jnp.log(jnp.where(is_zero, 1, weights))
    logs = jnp.where(is_zero, 0, logs - _largest(jnp.where(is_zero, -jnp.inf, logs)))
    return shares(jnp.where(is_zero, 0, jnp.exp(logs / temperature)), participating)


def _largest(exponents: Array) -> Array:
    """Returns the maximum without a gradient: it cancels in shares, and only keeps exponentials in range."""
    return lax.stop_gradient(exponents.max())


def _multiplied(norms: Tree, multipliers: Tree | None) -> Tree:
    if multipliers is None:
        return norms
    for_norms, for_multipliers = (
        jax.tree.map(lambda _: 0.0, pytree) for pytree in (norms, multipliers)
    )
    checks.expect(for_multipliers, for_norms, "multipliers")
    return jax.tree.map(
        lambda norm, factor: norm * jnp.asarray(factor, norm.dtype), norms, multipliers
    )


ENTRY = FEDVG._replace(make=generalised, label="", hyperparameters=HYPERPARAMETERS, streams=False)
