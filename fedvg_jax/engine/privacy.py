"""Client-level differential privacy: clipped updates, and Gaussian noise on their aggregate.

    delta_k <- delta_k min(1, C / ||delta_k||)        of what arrives of the client, over all its tensors
    u       <- sum_k s_k delta_k + N(0, (z Delta)^2 I)

All of it is computed of updates and in at least float32, so that theta_g - u is rounded once, after the noise: rounding
theta_k or their mean near theta_g would move one client by more than C where the model is of half precision or large.

C is `dp.clip`, z is `dp.noise_multiplier`, and Delta bounds ||u - u'|| where one client is replaced by another. Every
client is in a ball of radius C, so Delta depends on the weights alone:

    fixed        s_k = 1/K, whoever is dropped          2 C / K
    modelwise    any s_k >= 0 of sum 1                 2 C: both u and u' are in the ball
    tensorwise   the same, apart for L tensors         2 C sqrt(min(K, L)): ||u||^2 <= sum_l max_k ||delta_k^(l)||^2

Source: McMahan, Ramage, Talwar and Zhang, "Learning Differentially Private Recurrent Language Models", ICLR 2018, for
clipping, noise and fixed denominators.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fedvg_jax.core import norms, tree
from fedvg_jax.core.types import Hyper, Tree

Sensitivity = Callable[[int, int], float]
"""(K, number of tensors L) -> Delta / C"""


def fixed(cohort_size: int, num_tensors: int) -> float:
    """Returns 2 / K, for uniform weights in which a dropped client counts as an update 0."""
    return 2 / cohort_size


def modelwise(cohort_size: int, num_tensors: int) -> float:
    """Returns 2, for weights that may depend on the clients, one for all tensors of a client."""
    return 2.0


def tensorwise(cohort_size: int, num_tensors: int) -> float:
    """Returns 2 sqrt(min(K, L)), for weights that may depend on the clients and differ between tensors.

    >>> tensorwise(4, 100), tensorwise(100, 9)
    (4.0, 6.0)
    """
    return 2 * math.sqrt(min(cohort_size, num_tensors))


def clip(hyper: Hyper, theta: Tree, clients: Tree) -> Tree:
    """Returns -delta_k min(1, C / ||delta_k||) of clients' parameters [K, ...], in at least float32.

    >>> clip({"dp.clip": 1.0}, {"w": jnp.zeros(2)}, {"w": jnp.array([[3.0, 4.0], [0.0, 0.5]])})["w"].round(6).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.5]]
    """
    most = hyper["dp.clip"]

    def clipped(params):
        move = jax.tree.map(lambda p, t: tree.wide(p) - tree.wide(t), params, theta)
        # squares of a small C are 0
        factor = 1 / jnp.maximum(norms.joint_l2(tree.scale(1 / most, move)), 1)
        return jax.tree.map(lambda m: jnp.where(factor < 1, factor * m, m), move)

    return jax.vmap(clipped)(clients)


def add_noise(
    hyper: Hyper, key: Array, update: Tree, sensitivity: Sensitivity, cohort_size: int
) -> Tree:
    """Returns an update plus Gaussian noise of standard deviation z Delta in every coordinate."""
    std = (
        hyper["dp.noise_multiplier"]
        * hyper["dp.clip"]
        * sensitivity(cohort_size, len(jax.tree.leaves(update)))
    )
    return tree.add(update, tree.scale(std, optax.tree.random_like(key, update)))


def moved(theta: Tree, update: Tree) -> Tree:
    """Returns parameters plus an update, in the dtype of the parameters."""
    return jax.tree.map(lambda t, u: (tree.wide(t) + u).astype(t.dtype), theta, update)
