"""Elastic aggregation: the server takes smaller steps in tensors that the model's outputs are sensitive to.

    client   O_k^(t): moving average over its probe batches of the squared gradient of the tensor, at theta_g
    server   O^(t) = sum_k s_k O_k^(t),    zeta^(t) = 1 + tau - O^(t) / max over tensors of O
             theta^(t) <- theta_g^(t) - zeta^(t) u^(t),   that is   R^(t) = (1 - zeta^(t)) u^(t)

Source: Chen et al., "Elastic Aggregation for Federated Optimization", CVPR 2023. Sensitivity is measured without
labels, as the change of the output: the gradient of ||f(x)||^2. Their abstract states this, and that it is online. Two
details could not be checked against their algorithm: the range of the maximum, and the moving average. This
implementation makes three choices:

- The maximum runs over tensors, as "sensitive parameters move less" requires.
- O is a mean over the tensor's entries, so that size does not count as sensitivity.
- The average over H batches is divided by 1 - mu^H.

The published FedVG code (`official`) uses labels, adds gradients over batches and squares over entries, corrects no
bias, takes the maximum over clients, and trains only on the rows it did not probe. Its single vector of sensitivities,
shared by all clients and rounds, is not reproduced.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fedvg_jax.algorithms.base import PLAIN
from fedvg_jax.core import tree
from fedvg_jax.core.types import (
    Algorithm,
    Cohort,
    Hyper,
    Hyperparameter,
    NamedAlgorithm,
    Option,
    Probe,
    Published,
    Range,
    Tree,
    Variables,
)

RATIO = Option(
    "elastic.ratio",
    0.3,
    Range(0, 1, excludes_low=True),
    "Fraction of a client's rows on which sensitivity is measured.",
    is_compiled=False,
)
TAU = Hyperparameter(
    "elastic.tau",
    0.5,
    0,
    doc="Factor of the update of the most sensitive tensors. The least sensitive move by 1 + tau.",
)
MU = Hyperparameter(
    "elastic.mu",
    0.95,
    0,
    1,
    "Decay of the moving average of sensitivities over minibatches.",
    excludes_high=True,
)


def elastic(official: bool = False, ratio: float = RATIO.value) -> Algorithm:
    """Returns Elastic, which reads `elastic.tau` and `elastic.mu`. At tau = 1 and equal sensitivities it is FedAvg.

    Args:
        official: whether sensitivities follow the published FedVG code. Only these have running statistics, which
            `make_round(..., stats_too=True)` needs.
        ratio: share of a client's rows on which sensitivity is measured.
    """
    relative = over_clients if official else over_tensors
    probe = official_sensitivity if official else sensitivity

    def residual(hyper, server, params, cohort):
        """Returns R = (1 - zeta) u."""
        return jax.tree.map(
            lambda o, u: (o - hyper[TAU.name]) * u, relative(cohort), cohort.update
        ), server

    return PLAIN._replace(
        residual=residual, probe=probe, hyperparameters=(TAU, MU), probe_ratio=ratio
    )


def sensitivity(hyper: Hyper, probe: Probe) -> Tree:
    """Returns every tensor's O_k: the bias-corrected moving average of its mean squared gradient; 0 without a batch."""
    params, stats = probe.variables
    mu = hyper[MU.name]

    def output(params, batch, mask):
        squares = jnp.square(probe.task.predict(params, stats, batch))
        squares = squares.reshape(len(mask), -1).sum(1)
        return jnp.where(mask, squares, 0).sum() / jnp.maximum(mask.sum(), 1).astype(squares.dtype)

    def average(i, averages):
        grads = jax.grad(output)(params, *probe.batch(i))
        return jax.tree.map(lambda o, g: mu * o + (1 - mu) * _mean_square(g), averages, grads)

    averages = probe.loop(probe.num_batches, average, _scalars(params))
    bias = 1 - mu ** probe.num_batches.astype(mu.dtype)
    return tree.scale(jnp.where(bias > 0, 1 / jnp.where(bias > 0, bias, 1), 0), averages)


def official_sensitivity(hyper: Hyper, probe: Probe) -> Variables:
    """Returns the published code's moving average of ||sum of loss gradients so far||^2; 1 for running statistics."""
    params, stats = probe.variables
    mu = hyper[MU.name]

    def average(i, carry):
        grads = jax.grad(lambda p: probe.task.loss(p, stats, *probe.batch(i), False)[0])(params)
        total = tree.add(carry[1], grads)
        return jax.tree.map(
            lambda o, g: mu * o + (1 - mu) * jnp.square(tree.wide(g)).sum(), carry[0], total
        ), total

    averages, _ = probe.loop(
        probe.num_batches, average, (_scalars(params), tree.zeros_like(params))
    )
    return Variables(averages, jax.tree.map(jnp.ones_like, _scalars(stats)))


def over_tensors(cohort: Cohort) -> Tree:
    """Returns O^(t) / max over tensors of O; 1 for every tensor if all sensitivities are 0."""
    mean = jax.tree.map(lambda s, o: s @ o, cohort.weights, cohort.probes)
    largest = jnp.stack(jax.tree.leaves(mean)).max()
    return jax.tree.map(lambda o: _ratio(o, largest), mean)


def over_clients(cohort: Cohort) -> Tree:
    """Returns O^(t) / max over clients of O_k^(t); 1 where the maximum is 0."""
    return jax.tree.map(lambda s, o: _ratio(s @ o, o.max()), cohort.weights, cohort.probes)


def _scalars(like: Tree) -> Tree:
    return jax.tree.map(lambda p: jnp.zeros((), tree.wide_dtype(p)), like)


def _mean_square(g: Array) -> Array:
    """Returns the mean of g^2, 0 for a tensor without entries."""
    return jnp.square(tree.wide(g)).sum() / max(1, g.size)


def _ratio(o: Array, largest: Array) -> Array:
    return jnp.where(largest > 0, o / jnp.where(largest > 0, largest, 1), 1)


ENTRY = NamedAlgorithm(
    "Elastic",
    elastic,
    (TAU, MU),
    (RATIO,),
    published={"elastic-sensitivity": Published({"official": True}), "elastic-rows": Published()},
)
