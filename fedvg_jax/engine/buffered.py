"""The update of a buffered server, which averages clients that trained from different versions of its model.

    theta <- theta - sum_k s_k (1 + tau_k)^(-a) (theta_{v_k} - theta_k) + R

theta_{v_k} is the model that client k received, tau_k the updates of the server since then, and s_k the weights of any
weighting, of sum 1 (FedBuff, Nguyen et al. 2022, with s_k = 1 / B). With B = 1 the server updates after every client,
as FedAsync does (Xie et al. 2019), which moves theta towards theta_k, not by the client's update. A round of such a
server is a synchronous one in which

- client k starts from theta_{v_k}, which the state keeps in a slot of `versions`;
- client k counts as theta - (theta_{v_k} - theta_k), its update applied to the present model, with the discount
  (1 + tau_k)^(-a) of the update once the clients are weighed;
- the new model takes a slot.

Running statistics are averaged without a discount. The host knows which versions are still needed, so
slots are reused.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import Array

from fedvg_jax.core import tree
from fedvg_jax.core.types import Hyper, Schedule, SimState, Variables

DISCOUNT = "buffered.discount"
"""The hyperparameter a."""


def received_model(state: SimState, schedule: Schedule, k: Array) -> Variables:
    """Returns the model that client k of the cohort received: theta_{v_k}, or theta_g in a synchronous round."""
    if schedule.received is None:
        return state.variables
    return tree.take(state.versions, schedule.received[k])


def applied(state: SimState, schedule: Schedule, clients: Variables) -> Variables:
    """Returns theta - (theta_{v_k} - theta_k) of models theta_k, leaves [H, ...]; theta_k in a synchronous round."""
    return _moved(
        state, schedule, clients, lambda theta, received, trained: theta + (trained - received)
    )


def returned(state: SimState, schedule: Schedule, models: Variables) -> Variables:
    """Returns the theta_k for which `applied` returns `models`."""
    return _moved(
        state, schedule, models, lambda theta, received, applied: received + (applied - theta)
    )


def _moved(state: SimState, schedule: Schedule, clients: Variables, rule: Callable) -> Variables:
    """Returns the clients with parameters rule(theta, theta_{v_k}, theta_k), unless the round is synchronous."""
    if schedule.received is None:
        return clients
    received = tree.take(state.versions.params, schedule.received)
    theta = jax.tree.map(lambda leaf: leaf[None], state.variables.params)
    return clients._replace(params=jax.tree.map(rule, theta, received, clients.params))


def discounted(hyper: Hyper, state: SimState, schedule: Schedule, models: Variables) -> Variables:
    """Returns models [H, ...] with their updates to theta times (1 + tau_k)^(-a); the same in a synchronous round."""
    if schedule.staleness is None:
        return models
    exponent = hyper[DISCOUNT]
    factors = (1 + schedule.staleness.astype(exponent.dtype)) ** -exponent

    def toward(theta, applied):
        factor = factors.astype(applied.dtype).reshape(-1, *theta.ndim * [1])
        return theta[None] + factor * (applied - theta[None])

    params = jax.tree.map(toward, state.variables.params, models.params)
    return models._replace(params=params)


def with_version(state: SimState, schedule: Schedule) -> SimState:
    """Returns the state after an update, with the new model in its slot."""
    if schedule.stored is None:
        return state
    return state._replace(versions=tree.put(state.versions, schedule.stored, state.variables))
