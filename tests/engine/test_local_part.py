"""Tensors that stay with clients, against the oracle, and through every algorithm, executor and placement."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import worlds

import fedvg_jax as fv
from fedvg_jax import config
from fedvg_jax.core import local_part, tree
from fedvg_jax.runs import simulation
from fedvg_jax.weightings.fedvg import layers_of

WORLD = worlds.small()
HEAD = local_part.local_part("^classifier/")
ALGORITHMS = ("fedprox", "scaffold", "moon", "elastic")
"""Their clients correct gradients, have losses and memories, send messages and probe."""


plan_of = functools.partial(worlds.plan_with_dropouts, WORLD)


def after(name, local=HEAD, plan=None, **options):
    """(state, metrics) after every round."""
    return worlds.play(WORLD, plan or plan_of(), worlds.algorithm(name), "uniform", worlds.TASK, local=local, **options)


@functools.cache
def any_algorithm():
    """One program for them."""
    return worlds.any_algorithm({name: worlds.algorithm(name) for name in ALGORITHMS})


# --- against the oracle


@pytest.mark.parametrize("name", ALGORITHMS)
def test_three_rounds_equal_the_oracle_whose_clients_keep_their_tensors(x64, monkeypatch, name):
    """The global model keeps its initial local tensors, as the oracle's clients send them back."""
    mine, hyper = oracle.ALGORITHMS[name], {key: float(value) for key, value in worlds.hyper().items()}
    params, stats = map(worlds.by_path, worlds.variables())
    state = oracle.init(mine, hyper, params, stats, len(WORLD.train))
    is_local = HEAD.is_local
    kept = [({p: v for p, v in params.items() if is_local(p)}, {p: v for p, v in stats.items() if is_local(p)})] * 7

    def train(state, schedule, k, pool, hyper, algorithm):
        """The oracle's, from theta_g with the client's tensors; it returns those of theta_g in their place."""
        client, losses = int(schedule.clients[k]), []
        start = state.params | kept[client][0]
        params, stats = start, state.stats | kept[client][1]
        first, steps = schedule.start[k], schedule.num_steps[k]
        for batch in oracle.batches(pool, schedule.rows[first : first + steps]):
            memory = state.clients[client]
            loss, gradients, stats = algorithm.loss(hyper, params, stats, batch, start, memory)
            shared = algorithm.correct(hyper, gradients, params, start, state.server, memory)
            gradients = {p: gradients[p] if is_local(p) else shared[p] for p in gradients}
            params = oracle.each(lambda p, g: p - hyper["lr"] * g, params, gradients)
            losses.append(loss)
        if schedule.heard[k] and steps:
            kept[client] = tuple({p: v for p, v in part.items() if is_local(p)} for part in (params, stats))
        sent = [
            {p: theirs[p] if is_local(p) else v for p, v in part.items()}
            for part, theirs in ((params, state.params), (stats, state.stats))
        ]
        return oracle.Return(*sent, int(schedule.num_samples[k]), float(np.mean(losses)) if losses else 0.0)

    def probe(state, schedule, k, *arguments):
        client = int(schedule.clients[k])
        own = state._replace(params=state.params | kept[client][0], stats=state.stats | kept[client][1])
        return of_oracle(own, schedule, k, *arguments)

    of_oracle = oracle.probe
    monkeypatch.setattr(oracle, "train", train)
    monkeypatch.setattr(oracle, "probe", probe)
    scoring = oracle.Scoring("l1", "modelwise", "train")
    chosen, plan = worlds.hyper() | {"algorithm": jnp.int32(ALGORITHMS.index(name))}, plan_of()
    played = worlds.play(WORLD, plan, any_algorithm(), "uniform", worlds.TASK, chosen, local=HEAD)
    for (actual, metrics), schedule in zip(played, plan, strict=True):
        state, expected = oracle.round_step(state, schedule, WORLD.pool, WORLD.scoring, hyper, mine, "uniform", scoring)
        worlds.assert_close(tuple(map(worlds.by_path, actual.variables)), (state.params, state.stats), 1e-9)
        worlds.assert_close(metrics.train_loss, expected.train_loss, 1e-9)
        for client, (own_params, own_stats) in enumerate(kept):
            own = {f"params/{p}": v for p, v in own_params.items()} | {f"stats/{p}": v for p, v in own_stats.items()}
            worlds.assert_close(tree.take(actual.clients.local, client), own, 1e-9)
        np.testing.assert_array_equal(actual.variables.params["classifier"]["kernel"], params["classifier/kernel"])


# --- laws


def start():
    return worlds.by_path(worlds.variables().params)


def test_cohort_blocks_equal_the_whole_cohort(x64):
    plan = plan_of(block_size=2)
    (actual, _), (expected, _) = after("scaffold", plan=plan)[-1], after("scaffold")[-1]
    worlds.assert_close(actual, expected, 1e-9)


def test_fedvg_scores_a_client_s_body_with_its_own_head(x64):
    """Head norms are left out; here by `include`, as a run of --local does."""
    algorithm, plan = worlds.algorithm("fedavg"), plan_of(1)
    rule = fv.weightings.fedvg(worlds.TASK, include="^(?!classifier/)")
    ((_, metrics),) = worlds.play(WORLD, plan, algorithm, rule, worlds.TASK, local=HEAD)
    ((_, expected),) = worlds.play(WORLD, plan, algorithm, rule, worlds.TASK)
    worlds.assert_close(metrics.scores, expected.scores, 1e-12)  # in the first round all start alike
    worlds.assert_close(metrics.weights, expected.weights, 1e-12)


def heavy(hyper, round):
    return worlds.with_momentum(hyper | {"momentum": jnp.float64(0.9)}, round)


@pytest.mark.parametrize(("first", "moves"), [(0.999, (True, False)), (0.5, (True, True))])
def test_the_first_local_steps_train_local_tensors_and_the_others_the_rest(x64, first, moves):
    local, before = local_part.local_part("^classifier/", first), start()
    state, _ = after("fedavg", local, plan_of(1), optimiser=heavy)[0]
    heads, body = worlds.by_path(state.clients.local), worlds.by_path(state.variables.params)
    head = np.abs(heads["params/classifier/bias"] - before["classifier/bias"][None]).max()
    body = np.abs(body["fc1/kernel"] - before["fc1/kernel"]).max()
    assert (bool(head > 1e-6), bool(body > 1e-6)) == moves


# --- runs


OWN = {"data": worlds.images(120), "task": fv.models.classification(fv.models.MLP(3, hidden=(4,)), 3, (2, 2, 1))}
FEDPER = config.Config(clients=4, rounds=2, local_epochs=1, lanes="1", alpha=10.0, method="fedper+fedvg")


def run(**settings):
    """Returns the history of two rounds of FedPer under FedVG's weights."""
    return fv.run(dataclasses.replace(FEDPER, **settings), **OWN)


def models(history):
    return jax.tree.map(np.asarray, history.variables)


def test_a_resumed_run_goes_on_with_the_local_tensors(tmp_path):
    settings = {"record": "personal_accuracy", "checkpoint_every": 1}
    whole = run(**settings, out=tmp_path / "whole")
    run(**settings, rounds=1, out=tmp_path / "part")
    part = run(**settings, resume=str(tmp_path / "part"))
    worlds.assert_close(models(part), models(whole), 0)
    names = ("train_loss", "personal_accuracy", "personal_worst_decile", "test_accuracy")
    assert [part.records[-1][name] for name in names] == [whole.records[-1][name] for name in names]


def test_a_run_says_that_its_accuracy_is_the_global_model_s(caplog):
    run(rounds=1)
    assert "whose local tensors keep their initial values; --record personal_accuracy" in caplog.text


def test_personal_accuracies_are_those_of_the_global_model_with_each_client_s_tensors():
    """Of every client that has test rows, its own model on them."""
    made = config.Config(clients=4, rounds=2, local_epochs=1, lanes="1", method="fedper", record="personal_accuracy")
    sim, states = simulation.simulation(made), []
    record = fv.run(made, callbacks=[lambda record, state: states.append(jax.tree.map(jnp.copy, state))]).records[-1]
    for client, rows in enumerate(sim.partition.test):
        own = HEAD.within(states[-1].variables, tree.take(states[-1].clients.local, client))
        if len(rows):
            expected = fv.evaluate(sim.task, own, (sim.arrays.x[rows], sim.arrays.y[rows]))["accuracy"]
            assert record["personal_accuracy"][client] == pytest.approx(expected)
    assert record["personal_accuracy_mean"] > record["test_accuracy"] and any(map(len, sim.partition.test))


def test_the_expression_of_scored_tensors_may_have_flags_beside_a_local_part():
    one, other = (layers_of(worlds.TASK, include=regex, exclude="^classifier/") for regex in ("(?i)^FC|^BN", ""))
    assert [layer.name for layer in one] == [layer.name for layer in other]
