"""The weighted mean of the clients' models."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from fedvg_jax.core import checks, tree
from fedvg_jax.core.types import Tree, UsageError


def aggregate(params: Tree, client_params: Tree, weights: Tree, *, sharding: NamedSharding | None = None) -> Tree:
    """Returns the clients' weighted mean, as a step from the global model: theta_g - sum_k s_k (theta_g - theta_k).

    The weights need not sum to 1: c times the weights is c times the step, as a server's learning rate is, and a
    gradient may be taken in each of them. The weights of a run are checked.

    A client's non-finite entries count as theta_g where its weight is 0.

    Args:
        params: global model, leaves [...].
        client_params: stacked clients, leaves [K, ...].
        weights: pytree of the same structure, leaves [K].
        sharding: of the clients, axis K, over devices; None if one device holds all of them.

    Returns:
        Pytree like `params`.

    Raises:
        UsageError: a leaf has another structure, cohort size or shape, or an integer dtype. The message names the leaf.

    >>> aggregate({"w": jnp.zeros(1)}, {"w": jnp.array([[1.0], [5.0]])}, {"w": jnp.array([0.75, 0.25])})["w"].tolist()
    [2.0]
    """
    _refuse_unstacked(params, client_params, weights)
    num_clients = checks.stacked(client_params, "client_params")
    checks.expect(tree.entry_shapes(client_params), params, "one client's params", any_float=True)
    checks.expect(weights, jax.tree.map(lambda _: checks.floats(num_clients), params), "weights", any_float=True)
    params, client_params, weights = tree.arrays((params, client_params, weights))

    return tree.add(params, tree.weighted_sum(weights, client_params, params, sharding))


def _refuse_unstacked(params: Tree, client_params: Tree, weights: Tree) -> None:
    """Raises UsageError, with the remedy, for one vector of weights or a list of models."""
    structure = jax.tree.structure(params)
    is_list = isinstance(client_params, list | tuple) and len(client_params) > 0
    if is_list and all(jax.tree.structure(client) == structure for client in client_params):
        raise UsageError(
            f"client_params is a {type(client_params).__name__} of {len(client_params)} models; expected one pytree"
            " with leaves [K, ...]; use jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *client_params)"
        )
    if jax.tree.structure(weights) == jax.tree.structure(0) != structure:
        raise UsageError(
            f"weights is one array of shape {jnp.shape(weights)}; expected a pytree like params with leaves [K]; use"
            " jax.tree.map(lambda _: weights, params)"
        )
