"""One federated round, and a chunk of rounds, as pure functions.

    theta <- theta_g - sum_k s_k (theta_g - theta_k) + R

The round never learns which algorithm, weighting, model or data set it is running.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fedvg_jax import local, tree, weighting
from fedvg_jax import schedule as schedules
from fedvg_jax.types import (
    Algorithm,
    Cohort,
    Data,
    Executor,
    Hyper,
    Metrics,
    Report,
    RoundStep,
    Schedule,
    SimState,
    Task,
    Tree,
    Variables,
    Weighting,
)


def init(task: Task, algorithm: Algorithm, num_clients: int, key: jax.Array) -> SimState:
    """The state before the first round."""
    variables = task.init(key)
    server, client = algorithm.init(variables.params)
    return SimState(jnp.zeros((), jnp.int32), variables, server, tree.repeat(client, num_clients))


def make_round(
    task: Task,
    algorithm: Algorithm,
    weighting_: Weighting,
    executor: Executor,
    optimiser: local.Optimiser,
    num_clients: int,
) -> RoundStep:
    """round_step(state, schedule, data, hyper) -> (state, metrics), pure and jittable."""

    def round_step(state: SimState, schedule: Schedule, data: Data, hyper: Hyper) -> tuple[SimState, Metrics]:
        client = local.make_client(task, algorithm, optimiser, state, schedule, data, hyper)
        trained: local.Carry = executor.train(client, schedule)
        returned = Variables(trained.params, trained.stats)

        reports = Report(returned, schedule.num_samples)
        measured = executor.map(lambda report: weighting_.signal(report, data, hyper), reports)
        weights = weighting_.weigh(measured, state.variables, hyper)

        averaged = weighting.aggregate(state.variables, returned, weights)
        messages, clients = _collect(algorithm, state, schedule, trained.params, hyper)
        update = tree.sub(state.variables.params, averaged.params)
        cohort = Cohort(update, messages, weights.params, num_clients)
        residual, server = algorithm.residual(hyper, state.server, state.variables.params, cohort)

        variables = Variables(tree.add(averaged.params, residual), averaged.stats)
        state = SimState(state.round + 1, variables, server, clients)
        steps = jnp.maximum(schedule.num_steps, 1).astype(trained.loss.dtype)
        return state, Metrics(_mean_weight(weights), weighting_.score(measured), trained.loss / steps)

    return round_step


def _collect(algorithm: Algorithm, state: SimState, schedule: Schedule, trained: Tree, hyper: Hyper):
    """The clients' messages [K, ...], and all clients' memories with the cohort's renewed."""

    def report(k, params):
        return algorithm.report(hyper, params, local.anchor(state, schedule, k), schedule.num_steps[k])

    memories, messages = jax.vmap(report)(jnp.arange(len(schedule.clients)), trained)
    return messages, tree.put(state.clients, schedule.clients, memories)


def _mean_weight(weights: Variables) -> jax.Array:
    """[K]: a client's weight, averaged over the trained tensors."""
    return jnp.stack(jax.tree.leaves(weights.params)).mean(0)


def make_chunk(round_step: RoundStep):
    """chunk(state, num_rounds, stacked schedules, data, hyper) -> (state, metrics [R, K]): rounds without a host trip.

    The number of rounds is data, so one program serves every length; entries past it are zero.
    """

    def chunk(state: SimState, num_rounds, rounds: Schedule, data: Data, hyper: Hyper) -> tuple[SimState, Metrics]:
        def one(r, carry: tuple[SimState, Metrics]) -> tuple[SimState, Metrics]:
            state, metrics = round_step(carry[0], schedules.at(rounds, r), data, hyper)
            return state, tree.put(carry[1], r, metrics)

        empty = jnp.zeros(rounds.clients.shape, tree.dtype(state.variables.params))
        return lax.fori_loop(0, num_rounds, one, (state, Metrics(empty, empty, empty)))

    return chunk
