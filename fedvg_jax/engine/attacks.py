"""Attacks: what corrupt clients return in place of the models they trained. Their ids are fixed for a run.

    theta_k <- theta_g - c delta_k,   delta_k = theta_g - theta_k

Attacks change trained tensors only, because a running variance with its sign flipped is negative and makes the client
diverge. Corrupt rows (labels, pixels) are in `data`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fedvg_jax.core import norms, tree
from fedvg_jax.core.types import Argument, Choice, Hyper, Range, Tree, Variables, hyper_or_number
from fedvg_jax.engine import contracts

__all__ = ("BY_NAME", "noise", "scaling", "sign_flip")

Disturb = Callable[[Hyper, Array, Array, Variables, Variables], Variables]
"""(hyper, key, ids of the cohort [K], global model, trained models [K, ...]) -> returned models [K, ...]"""

Attack = Callable[[Hyper, Array, Tree, Tree], Tree]
"""(hyper, key, theta_g, delta_k) -> what one corrupt client returns"""

_CORRUPT = 100  # domain of the random stream, distinct from the schedule's domains


def disturbance(attack: Attack, corrupt: np.ndarray, num_clients: int) -> Disturb:
    """Returns the models after `attack` by some clients.

    Args:
        attack: what one corrupt client returns.
        corrupt: int, ids of the corrupt clients.
        num_clients: N.
    """
    attack = contracts.checked_function(
        attack, lambda returned, hyper, key, theta, *_: theta, "attack"
    )
    is_corrupt = np.isin(np.arange(num_clients), corrupt)

    def disturb(hyper, key, ids, variables, clients):
        def attacked_params(client, params):
            delta = tree.sub(variables.params, params)
            return attack(hyper, jax.random.fold_in(key, client), variables.params, delta)

        attacked = jax.vmap(attacked_params)(ids, clients.params)
        return clients._replace(
            params=tree.where(jnp.asarray(is_corrupt)[ids], attacked, clients.params)
        )

    return disturb


def corrupt_clients(seed: int, num_clients: int, num_corrupt: int) -> np.ndarray:
    """Draws the ids of a run's corrupt clients, int [num_corrupt] ascending, from the seed alone."""
    rng = np.random.default_rng([_CORRUPT, seed])
    return np.sort(rng.choice(num_clients, num_corrupt, replace=False))


def sign_flip(scale: float | str = 1.0) -> Attack:
    """Returns the attack theta_g + scale delta_k, the update in the opposite direction: c = -scale.

    Args:
        scale: at least 0, or the name of a hyperparameter that has it.

    Source: Li et al., "RSA: Byzantine-Robust Stochastic Aggregation Methods", AAAI 2019.
    """

    def attack(scale, key, params, delta):
        return tree.add(params, tree.scale(scale, delta))

    return _scaled("sign_flip", scale, attack)


def scaling(scale: float | str = 1.0) -> Attack:
    """Returns the attack theta_g - scale delta_k, a longer update in the same direction: c = scale.

    Args:
        scale: as in `sign_flip`.

    Source: Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS 2020.
    """

    def attack(scale, key, params, delta):
        return tree.sub(params, tree.scale(scale, delta))

    return _scaled("scaling", scale, attack)


def noise(scale: float | str = 1.0) -> Attack:
    """Returns the attack that puts Gaussian noise in place of the update, of about its length.

    theta_g + scale ||delta_k|| / sqrt(d) N(0, I),   d the number of scalars

    Args:
        scale: as in `sign_flip`.
    """

    def attack(scale, key, params, delta):
        length = scale * norms.joint_l2(delta)
        std = length / jnp.sqrt(jnp.asarray(tree.size(delta), length.dtype))
        return tree.add(params, tree.scale(std, optax.tree.random_like(key, params)))

    return _scaled("noise", scale, attack)


def _scaled(name: str, scale: float | str, attack: Callable[..., Tree]) -> Attack:
    """Returns an attack that reads its scale; a number is checked, and part of the text that names the attack."""
    text = ""
    if not isinstance(scale, str):
        scale = SCALE.require(f"{name}: scale", scale)
        text = f"{name}:{scale}"

    def scaled(hyper, key, params, delta):
        return attack(hyper_or_number(hyper, scale), key, params, delta)

    vars(scaled)["text"] = text
    return scaled


SCALE = Range(0)

_SCALED = Argument(1.0, SCALE, "attack_scale")

BY_NAME = {
    "none": None,
    "sign_flip": Choice(sign_flip, _SCALED),
    "scaling": Choice(scaling, _SCALED),
    "noise": Choice(noise, _SCALED),
}
"""The attacks that the setting `attack` names."""
