"""The server's own training on D_val: what a method without FedVG's weights can make of the same validation set."""

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
    """The model as it is."""
    return variables


def sgd(task: Task, num_steps: int) -> Refine:
    """A few steps of plain SGD at `tuning_lr` on the minibatches of D_val, BatchNorm in train mode.

        theta <- theta - lr grad loss(theta, batch_i),   i = round x num_steps, ... one after the other, over and over

    D_val is then trained on: its loss and accuracy no longer tell how well the model generalises.
    """
    gradient = jax.grad(task.loss, has_aux=True)

    def refine(hyper: Hyper, number: Array, variables: Variables, data: Data) -> Variables:
        used = (data.scoring >= 0).any(1).sum(dtype=number.dtype)

        def step(i: Array, now: Variables) -> Variables:
            batch, mask = tree.gather(data.pool, data.scoring[(number * num_steps + i) % jnp.maximum(used, 1)])
            grads, stats = gradient(now.params, now.stats, batch, mask, True)
            return Variables(tree.sub(now.params, tree.scale(hyper["tuning_lr"], grads)), stats)

        return lax.cond(used > 0, lambda: lax.fori_loop(0, num_steps, step, variables), lambda: variables)

    return refine
