"""Tensors that stay with clients, and compressed updates: against the oracle, and in runs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from support import oracle, worlds
from support.small_sweeps import assert_equal_runs

import fedvg_jax as fv
from fedvg_jax import compression, config
from fedvg_jax.core import trained_part, tree
from fedvg_jax.engine import attacks

WORLD = worlds.small()
HEAD = trained_part.local_part("^classifier/")
BODY = trained_part.local_part("^fc1/")
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
    mine = oracle.ALGORITHMS[name]

    def local(arrays):
        return {path: array for path, array in arrays.items() if part.is_local(path)}

    initial = local(worlds.by_path(worlds.variables().params))
    kept = [initial] * len(WORLD.train)

    def of_client(state, schedule, k):
        """Theta_g with the client's own tensors."""
        return state._replace(params=state.params | kept[schedule.clients[k]])

    def train(state, schedule, k, *arguments):
        """The oracle's; it returns the local tensors of theta_g in place of the client's."""
        trained = train_of_oracle(of_client(state, schedule, k), schedule, k, *arguments)
        if schedule.participating[k] and schedule.num_steps[k]:
            kept[schedule.clients[k]] = local(trained.params)
        return trained._replace(params=trained.params | initial)

    def probe(state, schedule, k, *arguments):
        measured = probe_of_oracle(of_client(state, schedule, k), schedule, k, *arguments)
        return measured and measured | dict.fromkeys(initial, 0.0)

    def loss(hyper, params, stats, batch, theta, client):
        previous = client and client | local(theta)
        return loss_of_oracle(hyper, params, stats, batch, theta, previous)

    def correct(hyper, gradients, *arguments):
        return correct_of_oracle(hyper, gradients, *arguments) | local(gradients)

    train_of_oracle = oracle.train
    probe_of_oracle = oracle.probe
    correct_of_oracle = mine.correct
    loss_of_oracle = mine.loss
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
        for client, own in enumerate(kept):
            params, stats = tree.take(actual.clients.local, client)
            worlds.assert_close(worlds.by_path(params), own, 1e-9)
            assert not tree.paths(stats)
        worlds.assert_close(local(worlds.by_path(actual.variables.params)), initial, 0)


# --- laws


def test_fedvg_scores_a_client_s_body_with_its_own_head(x64):
    """In the first round all start alike, so the scores are those without local tensors."""
    algorithm = worlds.algorithm("fedavg")
    plan = plan_of(1)
    rule = worlds.weighting("fedvg", algorithm, worlds.TASK, WORLD.batch_size)
    ((_, metrics),) = worlds.play(WORLD, plan, algorithm, rule, worlds.TASK, local=HEAD)
    ((_, expected),) = worlds.rounds_of_oracle(WORLD, plan, oracle.ALGORITHMS["fedavg"], "fedvg")
    worlds.assert_close(
        (metrics.scores, metrics.weights), (expected.scores, expected.weights), 1e-9
    )


@pytest.mark.parametrize(
    ("first", "num_steps", "head", "body"),
    [(0.5, 1, 1, 1), (0.5, 3, 2, 1), (0.5, 10, 5, 5), (0.999, 3, 2, 1), (0.001, 3, 1, 2)],
)
def test_both_phases_have_a_step_and_a_single_step_trains_all_tensors(first, num_steps, head, body):
    part = trained_part.local_part("^head", first)
    ones = {"head": jnp.ones(num_steps), "body": jnp.ones(num_steps)}
    steps = jnp.arange(num_steps)
    masked = jax.vmap(part.mask_phase, (0, None, 0))(steps, jnp.int32(num_steps), ones)
    assert (masked["head"].sum(), masked["body"].sum()) == (head, body)


# --- runs


def test_a_resumed_run_goes_on_with_the_local_tensors_and_the_errors_of_what_was_sent(tmp_path):
    settings = config.Config(
        clients=4, rounds=2, eval_every=1, local_epochs=1, lanes="1", alpha=10.0, method="fedper+fedvg",
        record="personal_accuracy", checkpoint_every=1, send="topk:0.5",
    )  # fmt: skip
    task = fv.models.classification(fv.models.MLP(3, hidden=(4,)), 3, (2, 2, 1))
    run = functools.partial(fv.run, data=worlds.images(120), task=task)
    whole = run(settings)
    run(dataclasses.replace(settings, rounds=1, out=tmp_path))
    part = run(dataclasses.replace(settings, resume=str(tmp_path)))
    assert_equal_runs(part, whole)
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
    """(state, sent tensor, clients' local tensors) after four local steps, of which two train the local tensor."""
    part = fv.local_part("^head/", first=0.5)
    hyper = {"lr": 0.1, "scaffold.eta_g": 1.0, "attack_scale": 10.0}
    data = fv.Data(jnp.repeat(jnp.array([1.0, 3.0]), 4), *[jnp.zeros((1, 1), int)] * 3)
    arguments = LINEAR, algorithm, fv.weightings.uniform(), fv.executors.lanes(1), optimiser, 2
    step = jax.jit(fv.make_round(*arguments, local=part, **options))
    schedule = fv.make_schedule(0, [np.arange(4), np.arange(4, 8)], batch_size=1)
    start = fv.init_state(LINEAR, algorithm, 2, hyper, local=part)
    state, _ = step(start, schedule, data, hyper)
    return state, state.variables.params["body"]["w"], state.clients.local.params["head"]["w"]


def test_momentum_of_the_sent_tensors_begins_where_their_steps_begin():
    optimiser = lambda hyper, round: optax.sgd(hyper["lr"], 0.9)  # noqa: E731
    _, body, heads = first_round(fv.algorithms.fedavg(), optimiser)
    moved = -0.1 * (1 + 1.9)
    np.testing.assert_allclose(body, 2 * moved, rtol=1e-6)
    assert np.all(heads <= moved * np.array([1, 3]) + 1e-6)


@pytest.mark.parametrize(
    ("rule", "expected", "tolerance"), [(optax.sgd, [1, 3], 1e-6), (optax.adam, [1, 1], 1e-4)]
)
def test_corrections_count_the_steps_in_which_the_sent_tensors_move(rule, expected, tolerance):
    """Scaffold's c_k is the mean gradient of the client. Adam counts the steps before, too; its steps do not depend on
    the size of a gradient."""
    state, *_ = first_round(fv.algorithms.scaffold(), lambda hyper, round: rule(hyper["lr"]))
    corrections = np.sort(state.clients.algorithm["body"]["w"])
    np.testing.assert_allclose(corrections, expected, rtol=tolerance)


def test_attack_changes_no_tensor_that_stays_with_the_client():
    attack = attacks.disturbance(attacks.scaling("attack_scale"), np.arange(2), 2)
    _, plain, heads = first_round(fv.algorithms.fedavg())
    _, body, own = first_round(fv.algorithms.fedavg(), disturb=attack)
    np.testing.assert_allclose(body, 10 * plain, rtol=1e-6)
    np.testing.assert_array_equal(own, heads)


def test_server_steps_change_no_tensor_that_stays_with_clients():
    def refine(hyper, round, variables, data):
        return jax.tree.map(lambda leaf: leaf + 1, variables)

    _, plain, _ = first_round(fv.algorithms.fedavg())
    state, body, _ = first_round(fv.algorithms.fedavg(), refine=refine)
    assert state.variables.params["head"]["w"] == 0 and body == plain + 1


# --- rounds whose clients compress their updates


def test_three_rounds_equal_the_oracle_whose_clients_keep_their_errors(x64, monkeypatch):
    """In client chunks. What arrives is theta_g minus the largest entries of update and error, which a dropped client
    keeps."""
    errors = [0.0] * len(WORLD.train)

    def train(state, schedule, k, *arguments):
        trained = train_of_oracle(state, schedule, k, *arguments)
        client = schedule.clients[k]
        update, unravel = ravel_pytree(oracle.each(np.subtract, state.params, trained.params))
        total = update + errors[client]
        order = np.argsort(-np.abs(total))
        sent = total.at[order[round(0.5 * len(total)) :]].set(0)
        if schedule.participating[k] and schedule.num_steps[k]:
            errors[client] = total - sent
        return trained._replace(params=oracle.each(np.subtract, state.params, unravel(sent)))

    train_of_oracle = oracle.train
    monkeypatch.setattr(oracle, "train", train)
    algorithm = worlds.algorithm("fedavg")._replace(send=compression.top_k(0.5))
    plan = plan_of(client_chunk_size=2)
    played = worlds.play(WORLD, plan, algorithm, "uniform", worlds.TASK)
    of_oracle = worlds.rounds_of_oracle(WORLD, plan, oracle.ALGORITHMS["fedavg"], "uniform")
    for (actual, _), (state, _) in zip(played, of_oracle, strict=True):
        worlds.assert_close(worlds.by_path(actual.variables.params), state.params, 1e-9)
        for client, error in enumerate(errors):
            kept, _ = ravel_pytree(tree.take(actual.clients.sent, client))
            np.testing.assert_allclose(kept, error, atol=1e-9)
