"""The server's own training on D_val, a baseline that uses the same validation set as FedVG without its weights."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.core.types import Data, Hyper, Task, Variables
from fedvg_jax.weightings.baselines import sgd_step

Refine = Callable[[Hyper, Array, Variables, Data], Variables]
"""(hyper, number of the round, global model, data) -> global model"""


def none(hyper: Hyper, number: Array, variables: Variables, data: Data) -> Variables:
    """Returns the global model unchanged."""
    return variables


def sgd(task: Task, num_steps: int) -> Refine:
    """Returns a few steps of plain SGD on the minibatches of D_val, with BatchNorm in train mode.

        theta <- theta - lr grad loss(theta, batch_i),   i = round x num_steps, ..., round x num_steps + num_steps - 1

    with i modulo the number of minibatches and the learning rate `tuning_lr`. D_val is then training data: loss and
    accuracy on it no longer estimate generalisation.

    Args:
        task: the model and its loss, which gets no key.
        num_steps: steps per round.
    """

    def refine(hyper: Hyper, number: Array, variables: Variables, data: Data) -> Variables:
        num_used = (data.scoring >= 0).any(1).sum(dtype=number.dtype)

        def step(i: Array, model: Variables) -> Variables:
            rows = data.scoring[(number * num_steps + i) % jnp.maximum(num_used, 1)]
            return sgd_step(task, hyper["tuning_lr"], model, data.pool, rows)

        return lax.cond(num_used > 0, lambda: lax.fori_loop(0, num_steps, step, variables), lambda: variables)

    return refine
