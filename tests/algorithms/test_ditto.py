"""Ditto's personal models against the oracle, on every executor and placement; its global model is the base's."""

import functools

import jax
import numpy as np
import optax
import pytest
from support import oracle, worlds

import fedvg_jax as fv
from fedvg_jax import config
from fedvg_jax.core import tree

WORLD = worlds.small()


plan_of = functools.partial(worlds.plan_with_dropouts, WORLD)


def rounds(base="fedavg", plan=None, own=True, values=None, **options):
    """(state, metrics) after every round; without personal models unless `own`."""
    algorithm, plan = worlds.algorithm(base), plan or plan_of()
    rule = worlds.weighting("samples", algorithm, worlds.TASK, WORLD.batch_size)
    algorithm = ditto_of(algorithm) if own else algorithm
    return worlds.play(WORLD, plan, algorithm, rule, worlds.TASK, values, **options)


ditto_of = functools.cache(fv.algorithms.ditto)


@functools.cache
def of_fedavg():
    """In cohort blocks; all others here hold the whole cohort."""
    return rounds(plan=plan_of(block_size=2))


# --- against the oracle


class TowardsGlobal(oracle.Algorithm):
    """A personal model's steps, where the server's memory is theta_g."""

    def correct(self, hyper, gradients, params, theta, server, client):
        return oracle.each(lambda g, v, t: g + hyper["ditto_lam"] * (v - t), gradients, params, server)


def oracles_personal_models(params, stats, theta_of_round):
    """The personal models of all clients after each round, from theta_g before it."""
    hyper = {name: float(value) for name, value in worlds.hyper().items()}
    models, by_round = [(params, stats)] * len(WORLD.train), []
    for schedule, theta in zip(plan_of(), theta_of_round, strict=True):
        for k in np.flatnonzero(schedule.heard):
            start = oracle.State(*models[schedule.clients[k]], theta, models)
            trained = oracle.train(start, schedule, k, WORLD.pool, hyper, TowardsGlobal())
            models[schedule.clients[k]] = trained.params, trained.stats
        by_round.append(list(models))
    return by_round


def test_three_rounds_equal_the_oracle(x64):
    states = [state for state, _ in worlds.rounds_of_oracle(WORLD, plan_of(), oracle.ALGORITHMS["ditto"])]
    start = tuple(map(worlds.by_path, worlds.variables()))
    expected = oracles_personal_models(*start, [start[0], *(state.params for state in states[:-1])])
    for (actual, _), state, models in zip(of_fedavg(), states, expected, strict=True):
        worlds.assert_close(tuple(map(worlds.by_path, actual.variables)), (state.params, state.stats), 1e-9)
        for client, model in enumerate(models):
            own = tree.take(actual.clients.local, client)
            worlds.assert_close(tuple(map(worlds.by_path, own)), model, 1e-9)


# --- laws


def clipped(hyper, round):
    return optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(hyper["lr"]))


def test_the_global_model_and_the_memories_are_those_of_the_base(x64):
    """Also where a rule clips, which sees the gradients of one model. Personal models do not depend on the base in the
    first round."""
    own = rounds("moon", optimiser=clipped)
    ((first, _),) = rounds(plan=plan_of(1), optimiser=clipped)
    worlds.assert_close(own[0][0].clients.local, first.clients.local, 1e-12)
    for (state, metrics), (expected, plain) in zip(own, rounds("moon", own=False, optimiser=clipped), strict=True):
        worlds.assert_close(state._replace(clients=state.clients.memory), expected, 1e-12)
        worlds.assert_close(metrics, plain, 1e-12)


def test_a_diverged_personal_model_marks_its_client_and_is_not_kept(x64):
    ((state, metrics),) = rounds(plan=plan_of(1), values=worlds.hyper(ditto_lam=float("inf")))
    worlds.assert_close(metrics.finite, WORLD.schedule(0, 2).num_steps == 0, 0)
    worlds.assert_close(state.clients.local, tree.repeat(worlds.variables(), len(WORLD.train)), 0)


# --- runs


@pytest.mark.usefixtures("traced")
def test_a_run_sends_the_global_model_only():
    settings = config.Config(algorithm="ditto", clients=4, rounds=1, local_epochs=1, lanes="1", alpha=10.0)
    history = fv.run(settings, data=worlds.images(120))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(history.variables))
    assert history.records[0]["bytes_down"] == history.records[0]["bytes_up"] == 2 * size
