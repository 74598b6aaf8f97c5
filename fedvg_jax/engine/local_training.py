"""One client's local training: E epochs of minibatch steps from the global model.

The optimiser is fresh each round, unless the state keeps its state between rounds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from fedvg_jax.core import checks, tree
from fedvg_jax.core.trained_part import NOTHING, LocalPart, whole
from fedvg_jax.core.types import (
    Algorithm,
    Anchor,
    Argument,
    Augment,
    Choice,
    Client,
    Data,
    Hyper,
    Loop,
    Range,
    Schedule,
    SimState,
    Task,
    Tree,
    Variables,
)
from fedvg_jax.engine import buffered

Optimiser = Callable[[Hyper, Array], optax.GradientTransformation]
"""(hyper, round) -> a client's optimiser"""

AUGMENT, LOSS, SEND = 2, 3, 4
"""Domains of a step's random streams; 0 and 1 are the halves that `jax.random.split` makes of the round's key."""


class Carry(NamedTuple):
    """A client during local training."""

    params: Tree
    stats: Tree
    """Running statistics."""
    optimiser: Tree
    """State of the optimiser."""
    loss: Array
    """[] sum of the minibatch losses over the steps, in at least float32."""
    personal: Tree = ()
    """`Variables` of the client's personal model; `optimiser` then has the states of both models. () without one."""


def sgd(hyper: Hyper, round: Array) -> optax.GradientTransformation:
    """Returns plain SGD at learning rate `hyper["lr"]`: theta <- theta - lr g. The clients' optimiser of `make_round`.

    Args:
        hyper: has "lr".
        round: number of the round, from 0, for optimisers with a rate that depends on it.

    >>> optimiser = sgd({"lr": 0.5}, jnp.int32(0))
    >>> updates, _ = optimiser.update({"w": jnp.ones(2)}, optimiser.init({"w": jnp.zeros(2)}))
    >>> updates["w"].tolist()
    [-0.5, -0.5]
    """
    return optax.sgd(hyper["lr"])


standard_promotion = functools.partial(jax.numpy_dtype_promotion, "standard")
"""Context in which optax's adaptive optimisers may mix their integer counters with floats."""


def constant_rate(hyper: Hyper, round: Array) -> Array:
    """Returns the factor 1 of the learning rate."""
    return jnp.ones_like(round)


def exponential_rate(decay: str) -> Callable[[Hyper, Array], Array]:
    """Returns the schedule of the factor decay^t in round t, from 0; `decay` names a hyperparameter."""
    return lambda hyper, round: hyper[decay] ** round


def cosine_rate(hyper: Hyper, round: Array) -> Array:
    """Returns the factor (1 + cos(pi t / T)) / 2 of the learning rate in round t of T, from 0."""
    return (1 + jnp.cos(jnp.pi * round / hyper["rounds"])) / 2


LR_SCHEDULES = {
    "constant": Choice(lambda: constant_rate),
    "exponential": Choice(
        exponential_rate, Argument(0.99, Range(0, 1, excludes_low=True), "lr_decay")
    ),
    "cosine": Choice(lambda: cosine_rate),
}
"""The schedules that the setting `lr_schedule` names: (hyper, round from 0) -> factor of the learning rate."""


class ClientState(NamedTuple):
    """What is kept of a client between rounds, where more than the algorithm keeps something."""

    algorithm: Tree
    """The algorithm's state."""
    local: Tree
    """The local part of its model, see `core.local_part`; or the `Variables` of its personal model; () without."""
    sent: Tree = ()
    """The state of `Algorithm.send`."""
    weighting: Tree = ()
    """The state of the weighting, which the server holds."""


def anchor(state: SimState, schedule: Schedule, data: Data, k: Array, local: LocalPart) -> Anchor:
    """Returns what client k of the cohort starts from: theta_g with its local part, states and its description."""
    client = tree.take(state.clients, schedule.state_rows[k])
    client = client.algorithm if isinstance(client, ClientState) else client
    described = tree.take(data.described.algorithm, schedule.clients[k])
    theta = start_of_client(state, schedule, k, local).params
    return Anchor(theta, state.server, client, described)


def start_of_client(state: SimState, schedule: Schedule, k: Array, local: LocalPart) -> Variables:
    """Returns the model that client k of the cohort starts from."""
    received = buffered.received_model(state, schedule, k)
    if local.is_local is None:
        return received
    return whole(received, tree.take(state.clients.local, schedule.state_rows[k]))


def counted(count: Array, body: Callable[[Array, Tree], Tree], carry: Tree) -> Tree:
    """Returns the carry after `count` times `body`. The trip count is data, so only forward mode differentiates it."""
    return lax.fori_loop(0, count, body, carry)


def displacement(
    optimiser: Optimiser,
    hyper: Hyper,
    round: Array,
    num_steps: Array,
    loop: Loop = counted,
    dtype=float,
    first: Array | int = 0,
) -> Array:
    """Returns the distance [] that the optimiser moves a scalar under a constant unit gradient.

    Under plain SGD it is num_steps x lr. The optimiser has to take a scalar as its parameters.

    Args:
        optimiser: the client's.
        hyper: name -> value.
        round: number of the round, from 0.
        num_steps: [] local steps.
        loop: runs the steps.
        dtype: of the scalar and the result; the distance is added up in at least float32.
        first: steps before the first gradient, in which an optimiser such as Adam counts already.

    >>> float(displacement(sgd, {"lr": jnp.float32(0.5)}, jnp.int32(0), jnp.int32(3)))
    1.5
    """
    rule = optimiser(hyper, round)
    zero = tree.wide(jnp.zeros((), dtype))

    def step(i, carry):
        with standard_promotion():
            updates, after = rule.update((i >= first).astype(zero.dtype), carry[1], carry[0])
        return carry[0] + jnp.asarray(updates, zero.dtype), after

    return -loop(num_steps, step, (zero, rule.init(zero)))[0].astype(dtype)


def make_client(
    task: Task,
    algorithm: Algorithm,
    optimiser: Optimiser,
    shared: tuple[SimState, Data, Hyper],
    schedule: Schedule,
    *,
    augment: Augment | None = None,
    local: LocalPart = NOTHING,
) -> Client:
    """Returns one client's local training as two functions that an executor runs.

    A step is

        theta <- optimiser(theta, correct(grad loss(theta)))

    on one minibatch, and a personal model takes one on the same minibatch. `augment` may change the minibatch, with a
    key of the step. A loss with a parameter `key`, and the loss of an algorithm, get another key of the step.

    Args:
        task: the model and its loss.
        algorithm: its `loss` may replace the task's, its `correct` changes gradients, and its `personal` changes the
            gradients of a personal model.
        optimiser: the client's.
        shared: what all clients share: the state, with theta_g and client states; the data; and the hyperparameters.
        schedule: gives the minibatches.
        augment: (key, batch) -> batch, or None.
        local: the part of the model that stays with the client, which no `correct` changes.
    """
    state, data, hyper = shared
    rule = optimiser(hyper, state.round)
    if algorithm.personal:  # each model alone: the rule may clip by the norm of all gradients
        rule = optax.partition({"sent": rule, "kept": rule}, ("sent", "kept"))

    def init(k):
        params, stats = start_of_client(state, schedule, k, local)
        trained, personal = params, ()
        if algorithm.personal:
            personal = tree.take(state.clients.local, schedule.state_rows[k])
            trained = (params, personal.params)
        loss = tree.wide(jnp.zeros((), tree.dtype(params)))
        return Carry(params, stats, rule.init(trained), loss, personal)

    def step(carry, k, minibatch):
        batch, mask = training_minibatch(data, schedule, minibatch)
        if augment is not None:
            batch = augment(minibatch_key(schedule, k, minibatch), batch)
        received = tree.params_of(anchor(state, schedule, data, k, local))
        make_key = functools.partial(minibatch_key, schedule, k, minibatch, LOSS)
        rows = batch, mask, make_key
        model = Variables(carry.params, carry.stats)
        if algorithm.loss is None:
            (loss, stats), grads = _task_gradients(task, model, rows)
        else:
            loss_and_grads = jax.value_and_grad(algorithm.loss, argnums=2, has_aux=True)
            (loss, stats), grads = loss_and_grads(
                hyper, task, *model, batch, mask, make_key(), received
            )
        corrected = algorithm.correct(hyper, grads, carry.params, received)
        place = minibatch - schedule.start[k], schedule.num_steps[k]
        grads = local.mask_phase(*place, local.restored(corrected, grads))
        trained, personal_stats = carry.params, ()
        if algorithm.personal:
            (_, personal_stats), personal_grads = _task_gradients(task, carry.personal, rows)
            personal_grads = algorithm.personal(
                hyper, personal_grads, carry.personal.params, received
            )
            grads, trained = (grads, personal_grads), (carry.params, carry.personal.params)
        with standard_promotion():
            decayed = local.mask_phase(*place, trained)  # decay enters the momentum
            updates, optimiser_state = rule.update(grads, carry.optimiser, decayed)
        updates = local.mask_phase(*place, updates)  # momentum and decay move all tensors
        params: Tree = optax.apply_updates(trained, updates)
        personal = ()
        if algorithm.personal:
            params, personal = params[0], Variables(params[1], personal_stats)
        optimiser_state, loss = tree.like((optimiser_state, loss), (carry.optimiser, carry.loss))
        return Carry(params, stats, optimiser_state, carry.loss + loss, personal)

    return Client(init, step)


Rows = tuple[Tree, Array, Callable[[], Array]]
"""A minibatch, its mask bool [B], and a function that returns the key of its step."""


def _task_gradients(task: Task, model: Variables, rows: Rows) -> tuple[tuple[Array, Tree], Tree]:
    """Returns ((loss, new statistics), gradients) of the task."""
    batch, mask, key = rows
    randomness = {"key": key()} if checks.takes_key(task.loss) else {}
    return jax.value_and_grad(task.loss, has_aux=True)(*model, batch, mask, True, **randomness)


def training_minibatch(data: Data, schedule: Schedule, minibatch: Array) -> tuple[Tree, Array]:
    """Returns the rows of a minibatch of `Schedule.rows` and their mask, bool [B]."""
    return tree.gather(
        data.pool if data.training is None else data.training, schedule.rows[minibatch]
    )


def minibatch_key(schedule: Schedule, k: Array, minibatch: Array, domain: int = AUGMENT) -> Array:
    """Returns a key of one local step, from (seed, round, domain, client id, step) alone.

    It depends neither on the lane nor on where the minibatch is in the table.
    """
    return jax.random.fold_in(client_key(schedule, k, domain), minibatch - schedule.start[k])


def client_key(schedule: Schedule, k: Array, domain: int) -> Array:
    """Returns a key of a client's training, from (seed, round or training, domain, client id) alone."""
    data = schedule.key if schedule.keys is None else schedule.keys[k]
    key = jax.random.wrap_key_data(data, impl="threefry2x32")
    return jax.random.fold_in(jax.random.fold_in(key, domain), schedule.clients[k])
