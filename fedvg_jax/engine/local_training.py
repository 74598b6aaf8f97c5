"""One client's local training: E epochs of minibatch steps from the global model; the optimiser is fresh each round,
unless the state holds its memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from fedvg_jax.core import tree
from fedvg_jax.core.gradient_support import EVERYTHING
from fedvg_jax.core.types import (
    Algorithm,
    Anchor,
    Augment,
    Client,
    Data,
    GradientSupport,
    Hyper,
    Loop,
    Schedule,
    SimState,
    Task,
    Tree,
)

Optimiser = Callable[[Hyper, Array], optax.GradientTransformation]
"""(hyper, round) -> a client's optimiser"""

_AUGMENT = 2  # domain of the random stream: 0 and 1 are the halves that `jax.random.split` makes of the key


class Carry(NamedTuple):
    """A client in training."""

    params: Tree
    """their live part"""
    stats: Tree
    optimiser: Tree
    loss: Array
    """Sum over steps of the minibatch loss."""


def sgd(hyper: Hyper, round: Array) -> optax.GradientTransformation:
    """Plain SGD at `lr`."""
    return optax.sgd(hyper["lr"])


standard_promotion = functools.partial(jax.numpy_dtype_promotion, "standard")
"""For optax's adaptive optimisers, which mix counters of their own in."""

LR_SCHEDULES: dict[str, Callable[[Hyper, Array], Array]] = {
    "constant": lambda hyper, round: jnp.ones_like(round),
    "exponential": lambda hyper, round: hyper["lr_decay"] ** round,
    "cosine": lambda hyper, round: (1 + jnp.cos(jnp.pi * round / hyper["rounds"])) / 2,
}
"""(hyper, round from 0) -> factor of the learning rate"""


def anchor(state: SimState, schedule: Schedule, k: Array) -> Anchor:
    """What client k of the cohort knows of the federation."""
    return Anchor(state.variables.params, state.server, tree.take(state.clients, schedule.clients[k]))


def counted(count: Array, body: Callable[[Array, Tree], Tree], carry: Tree) -> Tree:
    """A loop that takes no step too many; it has a slope in forward mode only."""
    return lax.fori_loop(0, count, body, carry)


def displacement(optimiser: Optimiser, hyper: Hyper, round: Array, num_steps: Array, loop: Loop = counted) -> Array:
    """How far the optimiser carries a scalar under a constant unit gradient, [], in units of lr for plain SGD."""
    rule = optimiser(hyper, round)
    zero = jnp.zeros((), hyper["lr"].dtype)

    def step(_, carry):
        with standard_promotion():
            updates, memory = rule.update(jnp.ones_like(zero), carry[1], carry[0])
        return carry[0] + updates, memory

    return -loop(num_steps, step, (zero, rule.init(zero)))[0]


def make_client(
    task: Task,
    algorithm: Algorithm,
    optimiser: Optimiser,
    state: SimState,
    schedule: Schedule,
    data: Data,
    hyper: Hyper,
    augment: Augment | None = None,
    live: GradientSupport = EVERYTHING,
) -> Client:
    """Local training as an executor runs it: theta <- optimiser(theta, correct(grad loss(theta))) on each minibatch,
    which `augment` may change before, by a key of its own.

    Args:
        live: what is carried of the parameters; the rest stays that of theta_g.
    """
    rule = optimiser(hyper, state.round)

    def init(k) -> Carry:
        params, stats = live.of(state.variables.params), state.variables.stats
        known = tree.take(state.optimisers, schedule.clients[k]) if state.optimisers else rule.init(params)
        return Carry(params, stats, known, jnp.zeros((), tree.dtype(params)))

    def step(carry: Carry, k, minibatch) -> Carry:
        batch, mask = tree.gather(data.pool, schedule.rows[minibatch])
        if augment is not None:
            batch = augment(minibatch_key(schedule, k, minibatch), batch)
        params = live.within(state.variables.params, carry.params)
        (loss, stats), grads = jax.value_and_grad(task.loss, has_aux=True)(params, carry.stats, batch, mask, True)
        grads = algorithm.correct(hyper, grads, params, tree.params_of(anchor(state, schedule, k)))
        with standard_promotion():
            updates, memory = rule.update(live.of(grads), carry.optimiser, carry.params)
        return Carry(optax.apply_updates(carry.params, updates), stats, memory, carry.loss + loss)

    return Client(init, step)


def minibatch_key(schedule: Schedule, k: Array, minibatch: Array) -> Array:
    """The key of one step of a client, from (seed, round, client id, step): the same wherever its lane and its rows
    lie."""
    key = jax.random.wrap_key_data(schedule.key, impl="threefry2x32")
    for number in (_AUGMENT, schedule.clients[k], minibatch - schedule.start[k]):
        key = jax.random.fold_in(key, number)
    return key
