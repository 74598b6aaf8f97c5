"""The server's own training on D_val, a baseline that uses the same validation set as FedVG without its weights."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.core import tree
from fedvg_jax.core.types import Data, Hyper, Task, Variables

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
    gradient = jax.grad(task.loss, has_aux=True)

    def refine(hyper: Hyper, number: Array, variables: Variables, data: Data) -> Variables:
        num_used = (data.scoring >= 0).any(1).sum(dtype=number.dtype)

        def step(i: Array, model: Variables) -> Variables:
            batch, mask = tree.gather(data.pool, data.scoring[(number * num_steps + i) % jnp.maximum(num_used, 1)])
            grads, stats = gradient(model.params, model.stats, batch, mask, True)
            return tree.like(Variables(tree.sub(model.params, tree.scale(hyper["tuning_lr"], grads)), stats), model)

        return lax.cond(num_used > 0, lambda: lax.fori_loop(0, num_steps, step, variables), lambda: variables)

    return refine
