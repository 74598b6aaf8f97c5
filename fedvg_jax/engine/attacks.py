"""Corrupt clients: what they return in place of what they trained, by the same few ids in every round.

    theta_k <- theta_g - c delta_k,   delta_k = theta_g - theta_k

Trained tensors only: a running variance that is turned round is negative, and gives the client away as diverged.
Corrupt rows (labels, pixels) are a matter of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fedvg_jax.core import tree
from fedvg_jax.core.types import Hyper, Tree, Variables

Disturb = Callable[[Hyper, Array, Array, Variables, Variables], Variables]
"""(hyper, key, ids of the cohort [K], global model, stacked clients [K, ...]) -> the models the clients return"""

Attack = Callable[[Array, Array, Tree, Tree], Tree]
"""(scale, key, theta_g, delta_k) -> what one corrupt client returns"""

_CORRUPT = 100  # domain of the random stream, apart from those of the schedule


def none(hyper: Hyper, key: Array, ids: Array, variables: Variables, clients: Variables) -> Variables:
    """Every client is honest."""
    return clients


def by(attack: Attack, corrupt: np.ndarray, num_clients: int) -> Disturb:
    """`attack` by the clients with ids `corrupt`; reads `attack_scale`."""
    is_corrupt = np.isin(np.arange(num_clients), corrupt)

    def disturb(hyper: Hyper, key: Array, ids: Array, variables: Variables, clients: Variables) -> Variables:
        def one(client: Array, params: Tree) -> Tree:
            delta = tree.sub(variables.params, params)
            return attack(hyper["attack_scale"], jax.random.fold_in(key, client), variables.params, delta)

        attacked = jax.vmap(one)(ids, clients.params)
        return clients._replace(params=tree.where(jnp.asarray(is_corrupt)[ids], attacked, clients.params))

    return disturb


def corrupt_clients(seed: int, num_clients: int, num_corrupt: int) -> np.ndarray:
    """Ids of the corrupt clients, ascending: a fixed choice for the whole run, from the seed alone."""
    rng = np.random.default_rng([_CORRUPT, seed])
    return np.sort(rng.choice(num_clients, num_corrupt, replace=False))


def sign_flip(scale: Array, key: Array, params: Tree, delta: Tree) -> Tree:
    """theta_g + scale delta_k, c = -scale: the way back.

    Source: Li et al., "RSA: Byzantine-Robust Stochastic Aggregation Methods", AAAI 2019.
    """
    return tree.add(params, tree.scale(scale, delta))


def scaling(scale: Array, key: Array, params: Tree, delta: Tree) -> Tree:
    """theta_g - scale delta_k, c = scale: its own way, further.

    Source: Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS 2020.
    """
    return tree.sub(params, tree.scale(scale, delta))


def noise(scale: Array, key: Array, params: Tree, delta: Tree) -> Tree:
    """theta_g + scale ||delta_k|| / sqrt(number of scalars) N(0, 1): noise in place of the update, about as long."""
    std = scale * optax.tree.norm(delta) / jnp.sqrt(jnp.asarray(tree.size(delta), scale.dtype))
    return tree.add(params, tree.scale(std, optax.tree.random_like(key, params)))


BY_KIND: dict[str, Callable[[np.ndarray, int], Disturb]] = {
    "none": lambda corrupt, num_clients: none,
    "sign_flip": partial(by, sign_flip),
    "scaling": partial(by, scaling),
    "noise": partial(by, noise),
}
"""kind -> (ids of the corrupt clients, N) -> disturb"""
