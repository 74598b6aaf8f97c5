"""Rounds whose clients compress their updates: memories, absent clients, executors, cohort blocks, every algorithm."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from support import oracle, worlds

import fedvg_jax as fv
from fedvg_jax import compression
from fedvg_jax.core import tree
from fedvg_jax.runs.assemble import simulation

WORLD = worlds.small()
HALF = compression.top_k(0.5)


@functools.cache
def fedavg(send=HALF):
    return worlds.algorithm("fedavg")._replace(send=send)


def rounds(send=HALF, **options):
    """(state, metrics) after each of three rounds; in the second, two of the five clients drop out."""
    plan = worlds.plan_with_dropouts(WORLD, **options.pop("plan", {}))
    return worlds.play(WORLD, plan, fedavg(send), "uniform", worlds.TASK, **options)


def test_three_rounds_equal_the_oracle_whose_clients_keep_their_errors(x64, monkeypatch):
    """In cohort blocks. What arrives is theta_g minus the largest entries of update and error, which an absent client
    keeps."""
    errors = [0.0] * len(WORLD.train)

    def train(state, schedule, k, *arguments):
        trained, client = train_of_oracle(state, schedule, k, *arguments), schedule.clients[k]
        update = np.concatenate([np.ravel(state.params[path] - trained.params[path]) for path in sorted(state.params)])
        total = update + errors[client]
        sent = np.zeros_like(total)
        largest = np.argsort(-np.abs(total))[: round(0.5 * len(total))]
        sent[largest] = total[largest]
        if schedule.heard[k] and schedule.num_steps[k]:
            errors[client] = total - sent
        parts = np.split(sent, np.cumsum([state.params[path].size for path in sorted(state.params)])[:-1])
        arrived = {p: state.params[p] - x.reshape(state.params[p].shape) for p, x in zip(sorted(state.params), parts)}  # noqa: B905
        return trained._replace(params=arrived)

    train_of_oracle = oracle.train
    monkeypatch.setattr(oracle, "train", train)
    expected = worlds.rounds_of_oracle(WORLD, worlds.plan_with_dropouts(WORLD), oracle.ALGORITHMS["fedavg"], "uniform")
    for (actual, _), (state, _) in zip(rounds(plan={"block_size": 2}), expected, strict=True):
        worlds.assert_close(worlds.by_path(actual.variables.params), state.params, 1e-9)
        for client, error in enumerate(errors):
            kept = np.concatenate([np.ravel(x[client]) for x in jax.tree.leaves(actual.clients.sent)])
            np.testing.assert_allclose(kept, error + np.zeros_like(kept), atol=1e-9)


def test_local_tensors_are_not_sent():
    part = fv.local_part("^classifier/")
    clients = fv.init_state(worlds.TASK, fedavg(), 7, worlds.hyper(), variables=worlds.variables(), local=part).clients
    assert {*clients.sent} == {path for path in tree.paths(worlds.variables().params) if "classifier" not in path}
    assert {*clients.local} == {"params/classifier/bias", "params/classifier/kernel"}


# --- runs

CONFIG = fv.Config(clients=4, rounds=2, alpha=10.0, local_epochs=1, model="linear", weighting="fedvg", eval_every=1)
SIZE = 64 * 10 + 10
BYTES = {"topk": 65 * (4 + 4), "qsgd": -(-SIZE * (1 + 3) // 8) + 2 * 4}


@pytest.mark.parametrize("kind", BYTES)
def test_bytes_up_count_what_is_sent(kind):
    config = dataclasses.replace(CONFIG, send={"topk": "topk:0.1"}.get(kind, kind), algorithm="scaffold")
    sim = simulation.simulation(config)
    assert sim.traffic == (2 * 4 * SIZE, BYTES[kind] + 4 * SIZE, 0, 0)  # c goes down, its change up
