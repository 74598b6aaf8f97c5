"""Weightings with a state: of every client, and of the server."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import linear, worlds
from support.small_sweeps import assert_equal_runs

import fedvg_jax as fv
from fedvg_jax.algorithms import fedavg

WORLD = worlds.uneven()
FEDVG = worlds.weighting("fedvg", fedavg())


def averaged(rule, like):
    """The exponential averages of a rule's signals: m_k <- f m_k + (1 - f) x_k, from the first x_k on."""

    def init(hyper, params):
        return (), (jax.tree.map(lambda _: jnp.zeros((), float), like(params)), jnp.zeros((), bool))

    def recall(hyper, signals, state, server):
        mean, is_known = state
        factor = jnp.where(is_known, hyper["generalised.mix"], 0)
        mean = jax.tree.map(lambda m, x: factor * m + (1 - factor) * x, mean, signals)
        return mean, (mean, jnp.ones((), bool))

    return rule._replace(state=fv.WeightingState(init, recall))


FORGETFUL = averaged(FEDVG, lambda params: params)


def of_reputation():
    """Counts a client's rounds, and on the server those of all: s_k is proportional to 1 + own / all so far."""

    def init(hyper, params):
        return jnp.zeros((), float), jnp.zeros((), float)

    def recall(hyper, signals, state, server):
        return 1 + state / jnp.maximum(server, 1), state + 1

    def update(hyper, state, signals, view):
        return state + view.participating.sum(dtype=state.dtype)

    rule = fv.weightings.by_scalar(lambda hyper, client, data: jnp.ones((), float))
    return rule._replace(state=fv.WeightingState(init, recall, update))


REPUTATION = of_reputation()


def play(rule, plan, **options):
    """States and metrics of rounds, from an initial state with the rule's states."""
    values = worlds.hyper(**{"generalised.mix": options.pop("factor", 0.0)})
    step = worlds.make_round(WORLD, fedavg(), rule, **options)
    state = fv.init_state(
        worlds.QUADRATIC,
        fedavg(),
        5,
        values,
        variables=worlds.variables(task=worlds.QUADRATIC),
        weighting=rule,
    )
    results = []
    for planned in plan:
        state, metrics = step(state, planned, WORLD.data(), values)
        results.append((state, metrics))
    return results


PLAN = [WORLD.schedule(number, 2) for number in range(3)]


def test_weights_are_those_of_the_rounds_in_which_clients_took_part(x64):
    """By hand; in the second round one client drops out, and it keeps its state."""
    participating = np.array([True, False, True])
    plan = [
        each._replace(participating=participating) if number == 1 else each
        for number, each in enumerate(PLAN)
    ]
    own, total = np.zeros(5), 0
    for planned, (state, metrics) in zip(plan, play(REPUTATION, plan), strict=True):
        participating = planned.participating
        raw = np.where(participating, 1 + own[planned.clients] / max(total, 1), 0)
        np.testing.assert_allclose(metrics.weights, raw / raw.sum(), rtol=1e-12)
        own[planned.clients[participating]] += 1
        total += participating.sum()
        np.testing.assert_array_equal(state.clients.weighting, own)
        assert float(state.weighting) == total


def test_a_round_without_clients_changes_no_memory_of_a_weighting():
    counting = REPUTATION._replace(
        state=REPUTATION.state._replace(update=lambda hyper, state, *_: state + 1)
    )
    nobody = np.zeros(3, bool)
    plan = [
        each._replace(participating=nobody) if number == 1 else each
        for number, each in enumerate(PLAN)
    ]
    states = [state for state, _ in play(counting, plan)]
    assert [float(state.weighting) for state in states] == [1, 1, 2]
    np.testing.assert_array_equal(states[0].clients.weighting, states[1].clients.weighting)


def test_client_chunks_and_whole_cohorts_remember_the_same(x64):
    chunks = [WORLD.schedule(number, 2, client_chunk_size=2) for number in range(3)]
    for rule in (REPUTATION, FORGETFUL):
        (whole, of_whole), (held, of_held) = (
            play(rule, plan, factor=0.5)[-1] for plan in (PLAN, chunks)
        )
        np.testing.assert_allclose(of_held.weights, of_whole.weights, rtol=1e-9)
        worlds.assert_close((held.clients, held.weighting), (whole.clients, whole.weighting), 1e-9)


@functools.cache
def run(rounds=4, placement="device", **changes):
    config = fv.Config(
        clients=6,
        join_ratio=0.5,
        partition="iid",
        rounds=rounds,
        eval_every=1,
        lr=0.05,
        devices="1",
    )
    return fv.run(
        replace(config, placement=placement, **changes), **linear.GIVEN, weighting=REPUTATION
    )


@pytest.mark.parametrize("placement", ["device", "host"])
def test_a_resumed_run_remembers_to_the_bit(tmp_path, placement):
    run(2, placement, out=tmp_path)
    assert_equal_runs(run(4, placement, out=tmp_path, resume=str(tmp_path)), run())


def test_weights_given_by_the_clients_numbers_are_theirs_in_any_cohort():
    given = jnp.array([1.0, 2.0, 4.0, 8.0, 16.0])
    step = worlds.make_round(WORLD, fedavg(), fv.weightings.given())
    values = worlds.hyper() | {"given": given}
    state = fv.init_state(worlds.QUADRATIC, fedavg(), 5, values)
    for planned in PLAN:
        _, metrics = step(state, planned, WORLD.data(), values)
        expected = np.asarray(given)[planned.clients]
        np.testing.assert_allclose(metrics.weights, expected / expected.sum(), rtol=1e-6)


def test_rounds_without_the_memory_in_their_state_private_ones_and_means_are_refused():
    values = worlds.hyper()
    with pytest.raises(fv.UsageError, match="weighting="):
        worlds.make_round(WORLD, fedavg(), REPUTATION)(
            fv.init_state(worlds.QUADRATIC, fedavg(), 5, values), PLAN[0], WORLD.data(), values
        )
    private = fv.Config(clients=6, partition="iid", rounds=1, dp={"clip": 1.0})
    with pytest.raises(fv.UsageError, match="state"):
        fv.simulation(private, **linear.GIVEN, weighting=REPUTATION)
    with pytest.raises(fv.UsageError, match="without a state"):
        fv.weightings.mix(REPUTATION, fv.weightings.samples())
