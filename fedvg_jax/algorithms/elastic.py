"""Elastic aggregation: the more a tensor's outputs depend on it, the less the server moves it.

    client   O_k^(t): moving average over its probe batches of the squared gradient of the tensor, at theta_g
    server   O^(t) = sum_k s_k O_k^(t),    zeta^(t) = 1 + tau - O^(t) / max over tensors of O
             theta^(t) <- theta_g^(t) - zeta^(t) u^(t),   that is   R^(t) = (1 - zeta^(t)) u^(t)

Chen et al., "Elastic Aggregation for Federated Optimization", CVPR 2023: sensitivity is measured without labels, as the
change of the output, the gradient of ||f(x)||^2. Their abstract says that and that it is online; whether the maximum
runs over parameters or over clients, and the moving average, could not be checked against their algorithm: here the
maximum runs over tensors, as "sensitive parameters move less" needs, an O is a mean over the tensor's entries, so that
a large tensor is not taken for a sensitive one, and the average over H batches is divided by 1 - mu^H.

The published FedVG code uses labels, adds up gradients over batches and squares over entries, corrects no bias, takes
the maximum over clients, and trains on only the rows it did not probe (`official`). Its one vector of sensitivities,
carried over all clients and rounds, is not reproduced.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fedvg_jax.algorithms.base import no_correction, no_memory, no_report
from fedvg_jax.core import tree
from fedvg_jax.core.types import Algorithm, Cohort, Hyper, Hyperparameter, Probe, Tree, Variables

DEFAULTS = (
    Hyperparameter("tau", 0.5, 0.0, doc="tau, least factor zeta of a tensor's step"),
    Hyperparameter("sensitivity_decay", 0.95, 0.0, 1.0, doc="mu of the moving average", excludes_high=True),
)


def elastic(official: bool = False) -> Algorithm:
    """Elastic; reads `tau` and `sensitivity_decay` (mu). At tau = 1 and equal sensitivities it is FedAvg."""
    relative = over_clients if official else over_tensors
    probe = official_sensitivity if official else sensitivity

    def residual(hyper: Hyper, server: Tree, params: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        """R = (1 - zeta) u"""
        return jax.tree.map(lambda o, u: (o - hyper["tau"]) * u, relative(cohort), cohort.update), server

    return Algorithm(no_memory, no_correction, no_report, residual, probe, "samples", DEFAULTS)


def sensitivity(hyper: Hyper, probe: Probe) -> Tree:
    """O_k: per tensor, the bias-corrected moving average of its mean squared gradient; 0 without a batch."""
    params, stats = probe.variables
    mu = hyper["sensitivity_decay"]

    def output(params: Tree, batch: Tree, mask: Array) -> Array:
        squares = jnp.square(probe.task.predict(params, stats, batch))
        squares = squares.reshape(len(mask), -1).sum(1)
        return jnp.where(mask, squares, 0).sum() / jnp.maximum(mask.sum(), 1).astype(squares.dtype)

    def average(i: Array, averages: Tree) -> Tree:
        grads = jax.grad(output)(params, *probe.batch(i))
        return jax.tree.map(lambda o, g: mu * o + (1 - mu) * jnp.square(g).mean(), averages, grads)

    averages = probe.loop(probe.num_batches, average, _scalars(params))
    known = 1 - mu ** probe.num_batches.astype(mu.dtype)
    return tree.scale(jnp.where(known > 0, 1 / jnp.where(known > 0, known, 1), 0), averages)


def official_sensitivity(hyper: Hyper, probe: Probe) -> Variables:
    """The published moving average of ||sum of the loss gradients so far||^2; 1 for running statistics."""
    params, stats = probe.variables
    mu = hyper["sensitivity_decay"]

    def average(i: Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        grads = jax.grad(lambda p: probe.task.loss(p, stats, *probe.batch(i), False)[0])(params)
        total = tree.add(carry[1], grads)
        return jax.tree.map(lambda o, g: mu * o + (1 - mu) * jnp.square(g).sum(), carry[0], total), total

    averages, _ = probe.loop(probe.num_batches, average, (_scalars(params), tree.zeros_like(params)))
    return Variables(averages, jax.tree.map(jnp.ones_like, _scalars(stats)))


def over_tensors(cohort: Cohort) -> Tree:
    """O^(t) / max over tensors; 1 for all where nothing is sensitive."""
    mean = jax.tree.map(lambda s, o: s @ o, cohort.weights, cohort.probes)
    most = jnp.stack(jax.tree.leaves(mean)).max()
    return jax.tree.map(lambda o: _ratio(o, most), mean)


def over_clients(cohort: Cohort) -> Tree:
    """O^(t) / max over clients of O_k^(t)."""
    return jax.tree.map(lambda s, o: _ratio(s @ o, o.max()), cohort.weights, cohort.probes)


def _scalars(like: Tree) -> Tree:
    return jax.tree.map(lambda p: jnp.zeros((), p.dtype), like)


def _ratio(o: Array, most: Array) -> Array:
    return jnp.where(most > 0, o / jnp.where(most > 0, most, 1), 1)
