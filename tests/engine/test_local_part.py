"""Tensors that stay with clients, and compressed updates: against the oracle, and in runs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import oracle, worlds

import fedvg_jax as fv
from fedvg_jax import compression, config
from fedvg_jax.core import trained_part, tree
from fedvg_jax.engine import attacks

WORLD = worlds.small()
HEAD, BODY = trained_part.local_part("^classifier/"), trained_part.local_part("^fc1/")
ALGORITHMS = ("fedprox", "scaffold", "moon", "elastic")
"""Their clients correct gradients, have losses and states, send messages and probe."""


plan_of = functools.partial(worlds.plan_with_dropouts, WORLD)


# --- against the oracle


@pytest.mark.parametrize(
    ("name", "part"), [*((name, BODY) for name in ALGORITHMS[:3]), ("elastic", HEAD)]
)
def test_three_rounds_equal_the_oracle_whose_clients_keep_their_tensors(
    x64, monkeypatch, name, part
):
    """In client chunks, too. The global model keeps its initial local tensors, as the oracle's clients send them back.

    MOON's client compares with its whole model, and Elastic's server knows no sensitivity of a local tensor.
    """
    mine, (params, stats) = oracle.ALGORITHMS[name], map(worlds.by_path, worlds.variables())

    def local(arrays):
        return {path: array for path, array in arrays.items() if part.is_local(path)}

    kept = [(local(params), local(stats))] * len(WORLD.train)

    def of_client(state, schedule, k):
        """Theta_g with the client's own tensors."""
        own_params, own_stats = kept[schedule.clients[k]]
        return state._replace(params=state.params | own_params, stats=state.stats | own_stats)

    def train(state, schedule, k, *arguments):
        """The oracle's; it returns the local tensors of theta_g in place of the client's."""
        trained = train_of_oracle(of_client(state, schedule, k), schedule, k, *arguments)
        if schedule.participating[k] and schedule.num_steps[k]:
            kept[schedule.clients[k]] = local(trained.params), local(trained.stats)
        return trained._replace(
            params=trained.params | local(state.params), stats=trained.stats | local(state.stats)
        )

    def probe(state, schedule, k, *arguments):
        measured = probe_of_oracle(of_client(state, schedule, k), schedule, k, *arguments)
        return measured and measured | dict.fromkeys(local(measured), 0.0)

    def loss(hyper, params, stats, batch, theta, client):
        previous = client | local(theta) if name == "moon" else client
        return loss_of_oracle(hyper, params, stats, batch, theta, previous)

    def correct(hyper, gradients, *arguments):
        return correct_of_oracle(hyper, gradients, *arguments) | local(gradients)

    train_of_oracle, probe_of_oracle, correct_of_oracle, loss_of_oracle = (
        oracle.train,
        oracle.probe,
        mine.correct,
        mine.loss,
    )
    monkeypatch.setattr(oracle, "train", train)
    monkeypatch.setattr(oracle, "probe", probe)
    monkeypatch.setattr(mine, "correct", correct)
    monkeypatch.setattr(mine, "loss", loss)
    plan = plan_of() if name == "elastic" else plan_of(client_chunk_size=2)
    algorithm = worlds.algorithm(name)
    played = worlds.play(WORLD, plan, algorithm, "uniform", worlds.TASK, local=part)
    of_oracle = worlds.rounds_of_oracle(WORLD, plan, mine, "uniform")
    for (actual, metrics), (state, expected) in zip(played, of_oracle, strict=True):
        worlds.assert_close(
            tuple(map(worlds.by_path, actual.variables)), (state.params, state.stats), 1e-9
        )
        worlds.assert_close(metrics.train_loss, expected.train_loss, 1e-9)
        for client, (own_params, own_stats) in enumerate(kept):
            own = {f"params/{p}": v for p, v in own_params.items()} | {
                f"stats/{p}": v for p, v in own_stats.items()
            }
            worlds.assert_close(tree.by_path(tree.take(actual.clients.local, client)), own, 1e-9)
        for path, initial in local(params).items():
            np.testing.assert_array_equal(worlds.by_path(actual.variables.params)[path], initial)


# --- laws


def test_fedvg_scores_a_client_s_body_with_its_own_head(x64):
    """In the first round all start alike, so the scores are those without local tensors."""
    algorithm, plan = worlds.algorithm("fedavg"), plan_of(1)
    rule = worlds.weighting("fedvg", algorithm, worlds.TASK, WORLD.batch_size)
    ((_, metrics),) = worlds.play(WORLD, plan, algorithm, rule, worlds.TASK, local=HEAD)
    ((_, expected),) = worlds.rounds_of_oracle(WORLD, plan, oracle.ALGORITHMS["fedavg"], "fedvg")
    worlds.assert_close(
        (metrics.scores, metrics.weights), (expected.scores, expected.weights), 1e-9
    )


PHASES = {0.5: {1: (1, 1), 3: (2, 1), 10: (5, 5)}, 0.999: {3: (2, 1)}, 0.001: {3: (1, 2)}}
"""Share of the steps -> number of steps -> those of the local tensor and of the other one."""


@pytest.mark.parametrize("first", PHASES)
def test_both_phases_have_a_step_and_a_single_step_trains_all_tensors(first):
    part, ones = (
        trained_part.local_part("^head/", first),
        {"body": jnp.ones(()), "head": {"w": jnp.ones(())}},
    )
    for num_steps, expected in PHASES[first].items():
        steps = [
            part.mask_phase(jnp.int32(i), jnp.int32(num_steps), ones) for i in range(num_steps)
        ]
        assert (
            sum(step["head"]["w"] for step in steps),
            sum(step["body"] for step in steps),
        ) == expected


# --- runs


OWN = {
    "data": worlds.images(120),
    "task": fv.models.classification(fv.models.MLP(3, hidden=(4,)), 3, (2, 2, 1)),
}
FEDPER = config.Config(
    clients=4, rounds=2, local_epochs=1, lanes="1", alpha=10.0, method="fedper+fedvg"
)


def run(**settings):
    """Returns the history of two rounds of FedPer under FedVG's weights."""
    return fv.run(dataclasses.replace(FEDPER, **settings), **OWN)


def models(history):
    return jax.tree.map(np.asarray, history.variables)


def test_a_resumed_run_goes_on_with_the_local_tensors_and_the_errors_of_what_was_sent(tmp_path):
    settings = {"record": "personal_accuracy", "checkpoint_every": 1, "send": "topk:0.5"}
    whole = run(**settings, out=tmp_path / "whole")
    run(**settings, rounds=1, out=tmp_path / "part")
    part = run(**settings, resume=str(tmp_path / "part"))
    worlds.assert_close(models(part), models(whole), 0)
    names = ("train_loss", "personal_accuracy", "personal_worst_decile", "test_accuracy")
    assert [part.records[-1][name] for name in names] == [whole.records[-1][name] for name in names]
    num_sent = (4 * 4 + 4) // 2  # of the body, each with its place
    assert whole.records[-1]["bytes_up"] == 2 * num_sent * (4 + 4), "of two clients"


# --- constant gradients, which show every step: 1 and 3 of the two clients, for a sent and for a local scalar


def linear_loss(params, stats, batch, mask, train):
    products = jnp.where(mask, (params["body"]["w"] + params["head"]["w"].sum()) * batch, 0)
    return products.sum() / jnp.maximum(mask.sum(), 1).astype(products.dtype), stats


LINEAR = fv.Task(
    lambda key: fv.Variables({"body": {"w": jnp.zeros(())}, "head": {"w": jnp.zeros(())}}, {}),
    linear_loss,
    *[None] * 4,
)


def first_round(algorithm, optimiser=fv.sgd, **options):
    """(state, clients' local tensors, metrics) after a round of four local steps: two train the local tensor alone."""
    part, hyper = (
        fv.local_part("^head/", first=0.5),
        {"lr": 0.1, "scaffold.eta_g": 1.0, "attack_scale": 10.0},
    )
    data = fv.Data(jnp.repeat(jnp.array([1.0, 3.0]), 4), *[jnp.zeros((1, 1), int)] * 3)
    options |= {"num_clients": 2, "local": part}
    make = fv.make_round(
        LINEAR, algorithm, fv.weightings.uniform(), fv.executors.lanes(1), optimiser, **options
    )
    schedule = fv.make_schedule(0, [np.arange(4), np.arange(4, 8)], batch_size=1)
    state, metrics = jax.jit(make)(
        fv.init_state(LINEAR, algorithm, 2, hyper, local=part), schedule, data, hyper
    )
    clients = np.argsort(schedule.clients)
    return state, np.asarray(tree.take(state.clients, clients).local.params["head"]["w"]), metrics


def test_momentum_of_the_sent_tensors_begins_where_their_steps_begin():
    state, heads, _ = first_round(
        fv.algorithms.fedavg(), lambda hyper, round: optax.sgd(hyper["lr"], 0.9)
    )
    moved = -0.1 * (1 + 1.9)
    np.testing.assert_allclose(state.variables.params["body"]["w"], 2 * moved, rtol=1e-6)
    assert np.all(heads <= moved * np.array([1, 3]) + 1e-6)


@pytest.mark.parametrize("rule", [optax.sgd, optax.adam])
def test_corrections_count_the_steps_in_which_the_sent_tensors_move(rule):
    """Scaffold's c_k is the mean gradient of the client. Adam counts the steps before, too."""
    state, *_ = first_round(fv.algorithms.scaffold(), lambda hyper, round: rule(hyper["lr"]))
    if rule is optax.adam:  # its steps do not depend on the size of a gradient
        np.testing.assert_allclose(state.clients.algorithm["body"]["w"], [1, 1], rtol=1e-4)
        return
    np.testing.assert_allclose(np.sort(state.clients.algorithm["body"]["w"]), [1, 3], rtol=1e-6)


def test_attack_changes_no_tensor_that_stays_with_the_client():
    attack = attacks.disturbance(attacks.scaling("attack_scale"), np.arange(2), 2)
    (plain, heads, _), (state, own, _) = (
        first_round(fv.algorithms.fedavg(), **o) for o in ({}, {"disturb": attack})
    )
    np.testing.assert_allclose(
        state.variables.params["body"]["w"], 10 * plain.variables.params["body"]["w"], rtol=1e-6
    )
    np.testing.assert_array_equal(own, heads)


def test_server_steps_change_no_tensor_that_stays_with_clients():
    def refine(hyper, round, variables, data):
        return jax.tree.map(lambda leaf: leaf + 1, variables)

    state, *_ = first_round(fv.algorithms.fedavg(), refine=refine)
    plain, *_ = first_round(fv.algorithms.fedavg())
    assert state.variables.params["head"]["w"] == 0
    assert state.variables.params["body"]["w"] == plain.variables.params["body"]["w"] + 1


# --- rounds whose clients compress their updates


HALF = compression.top_k(0.5)


@functools.cache
def fedavg(send=HALF):
    return worlds.algorithm("fedavg")._replace(send=send)


def rounds(send=HALF, **options):
    """(state, metrics) after each of three rounds; in the second, two of the five clients drop out."""
    plan = worlds.plan_with_dropouts(WORLD, **options.pop("plan", {}))
    return worlds.play(WORLD, plan, fedavg(send), "uniform", worlds.TASK, **options)


def test_three_rounds_equal_the_oracle_whose_clients_keep_their_errors(x64, monkeypatch):
    """In client chunks. What arrives is theta_g minus the largest entries of update and error, which a dropped client
    keeps."""
    errors = [0.0] * len(WORLD.train)

    def train(state, schedule, k, *arguments):
        trained, client = train_of_oracle(state, schedule, k, *arguments), schedule.clients[k]
        update = np.concatenate(
            [np.ravel(state.params[path] - trained.params[path]) for path in sorted(state.params)]
        )
        total = update + errors[client]
        sent = np.zeros_like(total)
        largest = np.argsort(-np.abs(total))[: round(0.5 * len(total))]
        sent[largest] = total[largest]
        if schedule.participating[k] and schedule.num_steps[k]:
            errors[client] = total - sent
        parts = np.split(
            sent, np.cumsum([state.params[path].size for path in sorted(state.params)])[:-1]
        )
        arrived = {
            p: state.params[p] - x.reshape(state.params[p].shape)
            for p, x in zip(sorted(state.params), parts, strict=False)
        }
        return trained._replace(params=arrived)

    train_of_oracle = oracle.train
    monkeypatch.setattr(oracle, "train", train)
    expected = worlds.rounds_of_oracle(
        WORLD, worlds.plan_with_dropouts(WORLD), oracle.ALGORITHMS["fedavg"], "uniform"
    )
    for (actual, _), (state, _) in zip(
        rounds(plan={"client_chunk_size": 2}), expected, strict=True
    ):
        worlds.assert_close(worlds.by_path(actual.variables.params), state.params, 1e-9)
        for client, error in enumerate(errors):
            kept = np.concatenate(
                [np.ravel(x[client]) for x in jax.tree.leaves(actual.clients.sent)]
            )
            np.testing.assert_allclose(kept, error + np.zeros_like(kept), atol=1e-9)
