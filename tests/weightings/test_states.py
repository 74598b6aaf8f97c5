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


def forgetful():
    """FedVG of fading sums of a client's norms: m_k <- m_k / 2 + x_k."""

    def init(hyper, params):
        return (), jax.tree.map(lambda _: jnp.zeros((), float), params)

    def recall(hyper, signals, state, server):
        sums = fv.tree.add(fv.tree.scale(0.5, state), signals)
        return sums, sums

    rule = worlds.weighting("fedvg", fedavg())
    return rule._replace(state=fv.WeightingState(init, recall))


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


def play(rule, plan):
    """States and metrics of rounds, from an initial state with the rule's states."""
    task = worlds.QUADRATIC
    values = worlds.hyper()
    results = []
    step = worlds.make_round(WORLD, fedavg(), rule)
    model = worlds.variables(task=task)
    state = fv.init_state(task, fedavg(), 5, values, variables=model, weighting=rule)
    for planned in plan:
        state, metrics = step(state, planned, WORLD.data(), values)
        results.append((state, metrics))
    return results


PLAN = [WORLD.schedule(number, 2) for number in range(3)]


def test_weights_are_those_of_the_rounds_in_which_clients_took_part(x64):
    """By hand; in the second round one client drops out, and it keeps its state."""
    first, second, third = PLAN
    plan = [first, second._replace(participating=np.array([True, False, True])), third]
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
    counting = REPUTATION.state._replace(update=lambda hyper, state, *_: state + 1)
    first, second, third = PLAN
    plan = [first, second._replace(participating=np.zeros(3, bool)), third]
    states = [state for state, _ in play(REPUTATION._replace(state=counting), plan)]
    assert [float(state.weighting) for state in states] == [1, 1, 2]
    np.testing.assert_array_equal(states[0].clients.weighting, states[1].clients.weighting)


def test_client_chunks_and_whole_cohorts_remember_the_same(x64):
    chunks = [WORLD.schedule(number, 2, client_chunk_size=2) for number in range(3)]
    for rule in (REPUTATION, forgetful()):
        (whole, of_whole), (held, of_held) = (play(rule, plan)[-1] for plan in (PLAN, chunks))
        np.testing.assert_allclose(of_held.weights, of_whole.weights, rtol=1e-9)
        worlds.assert_close((held.clients, held.weighting), (whole.clients, whole.weighting), 1e-9)


@functools.cache
def run(rounds=4, placement="device", **changes):
    config = fv.Config(
        clients=6,
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


def test_fixed_weights_by_the_clients_numbers_are_theirs_in_any_cohort():
    fixed = jnp.array([1.0, 2.0, 4.0, 8.0, 16.0])
    step = worlds.make_round(WORLD, fedavg(), fv.weightings.fixed())
    values = worlds.hyper() | {"fixed": fixed}
    state = fv.init_state(worlds.QUADRATIC, fedavg(), 5, values)
    for planned in PLAN:
        _, metrics = step(state, planned, WORLD.data(), values)
        expected = np.asarray(fixed)[planned.clients]
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
