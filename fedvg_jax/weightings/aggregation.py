"""The weighted mean of the clients' models."""

from __future__ import annotations

import functools

import jax
from jax import Array
from jax.sharding import NamedSharding

from fedvg_jax.core import checks, tree
from fedvg_jax.core.hardware import Hardware
from fedvg_jax.core.types import Tree


def aggregate(
    params: Tree,
    client_params: Tree,
    weights: Tree,
    *,
    hardware: Hardware | None = None,
    sharding: NamedSharding | None = None,
) -> Tree:
    """Weighted mean of the clients, as a step from the global model: theta_g - sum_k s_k (theta_g - theta_k).

    Args:
        params: global model, leaves [...].
        client_params: stacked clients, leaves [K, ...].
        weights: pytree of the same structure, leaves [K].
        hardware: what it will run on; defaults to the hardware of this process.
        sharding: of the clients, axis K, over devices; None if one device holds all of them.

    Returns:
        Pytree like `params`.

    Raises:
        UsageError: a leaf has another structure, cohort size or shape, or an integer dtype. The message names the leaf.

    >>> import jax.numpy as jnp
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
    return jax.tree.map(functools.partial(_weighted_step, hardware, sharding), params, client_params, weights)


def _weighted_step(
    hardware: Hardware | None, sharding: NamedSharding | None, theta: Array, clients: Array, weights: Array
) -> Array:
    return theta + tree.weighted_sum(weights, clients, theta, hardware, sharding)
