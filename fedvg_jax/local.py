"""One client's local training: E epochs of minibatch steps from the global model, the optimiser fresh each round."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedvg_jax import tree
from fedvg_jax.types import Algorithm, Anchor, Client, Data, Hyper, Schedule, SimState, Task, Tree

Optimiser = Callable[[Hyper], optax.GradientTransformation]


class Carry(NamedTuple):
    """A client in training."""

    params: Tree
    stats: Tree
    optimiser: Tree
    loss: jax.Array
    """Sum over steps of the minibatch loss."""


def sgd(hyper: Hyper) -> optax.GradientTransformation:
    """Plain SGD at `lr`."""
    return optax.sgd(hyper["lr"])


def anchor(state: SimState, schedule: Schedule, k) -> Anchor:
    """What client k of the cohort knows of the federation."""
    return Anchor(state.variables.params, state.server, tree.take(state.clients, schedule.clients[k]))


def make_client(
    task: Task,
    algorithm: Algorithm,
    optimiser: Optimiser,
    state: SimState,
    schedule: Schedule,
    data: Data,
    hyper: Hyper,
) -> Client:
    """Local training as an executor runs it: theta <- optimiser(theta, correct(grad loss(theta))) on each minibatch."""
    rule = optimiser(hyper)

    def init(k) -> Carry:
        params, stats = state.variables
        return Carry(params, stats, rule.init(params), jnp.zeros((), tree.dtype(params)))

    def step(carry: Carry, k, minibatch) -> Carry:
        batch, mask = tree.gather(data.pool, schedule.rows[minibatch])
        gradient = jax.value_and_grad(task.loss, has_aux=True)
        (loss, stats), grads = gradient(carry.params, carry.stats, batch, mask, True)
        grads = algorithm.correct(hyper, grads, carry.params, anchor(state, schedule, k))
        updates, memory = rule.update(grads, carry.optimiser, carry.params)
        return Carry(optax.apply_updates(carry.params, updates), stats, memory, carry.loss + loss)

    return Client(init, step)
