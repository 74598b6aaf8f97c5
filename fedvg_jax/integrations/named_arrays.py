"""FedVG's weights and average for models that are arrays by name, as PyTorch and Flower exchange them.

A model's floating arrays are trained tensors, which have a gradient, and running statistics, which have none. Its
integer arrays, such as BatchNorm's counters, are averaged with the clients' mean weights and rounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedvg_jax.core import checks, norms, types
from fedvg_jax.core.types import UsageError, Variables
from fedvg_jax.weightings.fedvg import inverse, weights_of_norms

Arrays = dict[str, np.ndarray]
"""A model: name -> array."""

Gradient = Callable[[Arrays], Mapping[str, Any]]
"""the floating arrays of a model -> gradient of its loss on D_val, by name of the trained tensors"""

NORMS = {"l1": norms.l1, "l2": norms.l2}

TOLERANCE = 1e-2
"""Largest difference of a sum of weights from 1, which weights in half precision keep to."""


def first_component(name: str) -> str:
    """Returns the default block of a tensor: "layer1.0.weight" -> "layer1", and "layer1/kernel" likewise."""
    return re.split("[./]", name)[0]


def inverse_norm_weights(
    gradients: Sequence[Mapping[str, Any]],
    model: Arrays,
    granularity: str = "modelwise",
    norm: str = "l1",
    eps: float = 1e-8,
    block_of: Callable[[str], str] | None = None,
) -> Arrays:
    """Returns FedVG's weights, name of a floating array -> [K]: clients with a small gradient weigh more.

        G_k = mean over the group's tensors of their norms,    s_k = (1 / (G_k + eps)) / sum_j (1 / (G_j + eps))

    Running statistics take the client's weight modelwise, their block's blockwise, and uniform weights layerwise.
    A client with a gradient that is not finite has weight 0.

    Args:
        gradients: of the K clients, by name of the trained tensors.
        model: the global model.
        granularity: "modelwise", "layerwise" or "blockwise".
        norm: "l1" (published) or "l2".
        eps: added before inverting, in the unit of the norms.
        block_of: name of a tensor -> name of its block; defaults to `first_component`.

    Raises:
        UsageError: no client is finite, names or shapes differ, or an argument is not allowed.

    >>> model = {"w": np.zeros(1, np.float32)}
    >>> inverse_norm_weights([{"w": np.ones(1)}, {"w": np.full(1, 3.0)}], model, eps=0.0)["w"].tolist()
    [0.75, 0.25]
    """
    floats = [name for name, array in model.items() if is_floating(array)]
    trained = {name: model[name] for name in floats if gradients and name in gradients[0]}
    if not trained:
        raise UsageError("gradients: expected a dict name -> gradient for each client")
    for client, gradient in enumerate(gradients):
        checks.expect({**gradient}, trained, f"gradient of client {client}", any_float=True)
    measure = types.named(NORMS, norm, "norm")
    measured = {}
    for name in trained:
        of_clients = [measure(jnp.asarray(g[name], jnp.float32)) for g in gradients]
        measured[name] = jnp.stack(of_clients)
    statistics = {name: 0 for name in floats if name not in trained}
    weights = weights_of_norms(
        inverse(eps), Variables(measured, statistics), granularity, block_of or first_component
    )
    return {name: np.asarray(w) for part in weights for name, w in part.items()}


def average(model: Arrays, clients: Sequence[Arrays], weights: Arrays) -> Arrays:
    """Returns theta_g - sum_k s_k (theta_g - theta_k) of every array, computed in float64, in the dtypes of `model`.

    Args:
        model: theta_g.
        clients: the models of the K clients; those with weight 0 are not read.
        weights: name of a floating array -> [K].

    Raises:
        UsageError: names, shapes or numbers of clients differ, or weights are negative or do not sum to 1.
    """
    floats = {name: np.zeros(len(clients)) for name, array in model.items() if is_floating(array)}
    checks.expect(weights, floats, "weights", any_float=True)
    for number, client in enumerate(clients):
        checks.expect(client, model, f"model of client {number}", any_float=True)
    for name, of_clients in weights.items():
        if not (np.min(of_clients) >= 0 and abs(np.sum(of_clients) - 1) <= TOLERANCE):
            raise UsageError(f"weights leaf '{name}' must be numbers >= 0 with sum 1")
    mean_weight: np.ndarray = np.mean(list(weights.values()), 0)
    averaged = {}
    for name, theta in model.items():
        of_clients = weights.get(name, mean_weight)
        mean = origin = theta.astype(np.float64)
        for k in np.flatnonzero(of_clients).tolist():
            mean = mean - float(of_clients[k]) * (origin - clients[k][name].astype(np.float64))
        averaged[name] = np.asarray(mean if is_floating(theta) else np.rint(mean), theta.dtype)
    return averaged


def is_floating(array: Any) -> bool:
    """Returns whether an array is of floats, also of bfloat16."""
    return jnp.issubdtype(array.dtype, jnp.floating)
