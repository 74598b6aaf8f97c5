"""Buffered servers on the device: against synchronous rounds, a heap and a float64 replay in NumPy."""

import dataclasses
import heapq
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds
from support.small_sweeps import assert_equal_runs

import fedvg_jax as fv
from fedvg_jax import config as configs
from fedvg_jax.algorithms import fedavg
from fedvg_jax.core.types import Data, Task, Variables
from fedvg_jax.engine import (
    executors,
    federated_round,
    local_training,
    schedule as schedules,
    virtual_time,
)
from fedvg_jax.engine.virtual_time import timeline
from fedvg_jax.weightings import basic

SMALL = fv.Config(
    clients=10,
    rounds=6,
    local_epochs=1,
    alpha=1.0,
    model="linear",
    eval_every=6,
    clock={"step": 1.0, "speeds": "lognormal"},
    buffered={"size": 3, "concurrency": 6},
)


def changed(**settings):
    return dataclasses.replace(SMALL, **settings)


# --- slots


@pytest.mark.parametrize(("concurrency", "buffer"), [(20, 10), (50, 10), (7, 1)])
def test_every_client_finds_its_version_and_slots_are_reused(concurrency, buffer):
    durations = virtual_time.factors("lognormal", (1.0,), 100, 0)
    made = timeline(durations, concurrency=concurrency, buffer=buffer, updates=300)
    slots = virtual_time.assign_slots(made.staleness, made.pending)
    content = np.zeros(slots.count, int)  # the version in each slot
    for update in range(300):
        expected = update - made.staleness[update]
        assert content[slots.received[update]].tolist() == expected.tolist()
        if slots.stored[update] < slots.count:
            content[slots.stored[update]] = update + 1
    assert slots.count <= min(concurrency + 1, made.staleness.max() + 1)
    assert {*made.pending.tolist()} <= {*content.tolist()}


def test_the_first_updates_of_a_longer_run_have_the_same_slots():
    durations = virtual_time.factors("lognormal", (1.0,), 30, 0)
    few, many = (
        timeline(durations, concurrency=9, buffer=2, updates=updates) for updates in (20, 60)
    )
    for limit in (np.inf, 3):
        short, long = (
            virtual_time.assign_slots(made.staleness, made.pending, limit) for made in (few, many)
        )
        assert (long.received[:20] == short.received).all() and short.count <= long.count
        is_stored = short.stored < short.count
        assert (long.stored[:20][is_stored] == short.stored[is_stored]).all()


# --- laws of a run


def test_a_run_of_all_clients_with_equal_durations_is_the_synchronous_one():
    synchronous = changed(join_ratio=1.0, weighting="fedvg", clock={"fixed": 2.0}, buffered={})
    run = fv.run(dataclasses.replace(synchronous, buffered={"size": 10}))
    expected = fv.run(synchronous)
    worlds.assert_close(run.variables, expected.variables, 2e-6)
    for record, other in zip(run.records, expected.records, strict=True):
        assert record["staleness"] == [0] * 10
        assert record["virtual_seconds"] == other["virtual_seconds"]
        assert sorted(record["clients"]) == sorted(other["clients"])


QUADRATIC = Task(
    lambda key: Variables({"w": jnp.zeros(2)}, {}),
    lambda params, stats, batch, mask, train: (
        jnp.where(mask, ((params["w"][None] - batch) ** 2).sum(-1) / 2, 0).sum()
        / jnp.maximum(mask.sum().astype(batch.dtype), 1),
        stats,
    ),
    None,
    None,
    None,
    str,
)
ROWS = np.random.default_rng(0).normal(size=(24, 2))
CLIENTS = np.split(np.arange(20), [2, 9, 13])
VALIDATION = np.arange(20, 24)
RATE = 0.3


def weights_of(rule, clients, models, sizes):
    """The weights of an update, from equations."""
    if rule == "samples":
        raw = sizes[clients].astype(float)
    elif rule == "uniform":
        raw = np.ones(len(clients))
    else:
        gradients = models - ROWS[VALIDATION].mean(0)
        raw = 1 / (np.abs(gradients).sum(-1) + 1e-8)
    return raw / raw.sum()


def replay(durations, rule, applied, updates, size, discount):
    """(seconds, clients, staleness, model) of every update, by a heap of all clients in flight; full batches."""
    theta = np.zeros(2)
    now = 0.0
    version = 0
    heap = [(seconds, client, 0, theta) for client, seconds in enumerate(durations)]
    heapq.heapify(heap)
    buffer, result = [], []
    while version < updates:
        now, client, received, start = heapq.heappop(heap)
        model = start - RATE * (start - ROWS[CLIENTS[client]].mean(0))
        buffer.append((client, version - received, start, model))
        if len(buffer) == size:
            ids, staleness, starts, models = (np.array(x) for x in zip(*buffer, strict=True))
            sizes = np.array([len(rows) for rows in CLIENTS])
            moved = starts - models
            scored = theta - moved if applied else models
            weights = weights_of(rule, ids, scored, sizes)
            theta = theta - (weights * (1.0 + staleness) ** -discount) @ moved
            version += 1
            result.append((now, ids.tolist(), staleness.tolist(), weights, theta))
            buffer = []
        heapq.heappush(heap, (now + durations[client], client, version, theta))
    return result


WEIGHTINGS = {
    "samples": basic.samples(),
    "uniform": basic.uniform(),
    "fedvg": fv.weightings.fedvg(QUADRATIC),
}


def rounds(rule, made, applied, discount, executor):
    """Yields (model, weights) of every update of a buffered server on the quadratics."""
    hyper = {"lr": RATE, "buffered.discount": discount, "fedvg.eps": 1e-8}
    slots = virtual_time.assign_slots(made.staleness, made.pending)
    parts = QUADRATIC, fedavg(), WEIGHTINGS[rule], executor, local_training.sgd, 4
    step = jax.jit(federated_round.make_round(*parts, scores_applied=applied))
    state = federated_round.init_state(QUADRATIC, fedavg(), 4, hyper, num_versions=slots.count)
    data = Data(jnp.asarray(ROWS), *[jnp.asarray(VALIDATION[None])] * 3)
    for number, clients in enumerate(made.clients):
        planned = schedules.make(
            number,
            CLIENTS,
            seed=0,
            cohort_size=len(clients),
            local_epochs=(1, 1),
            batch_size=20,
            num_lanes=executor.num_lanes,
            lanes_together=executor.lanes_together,
            clients=clients,
            trainings=made.training[number],
        )
        planned = schedules.padded(planned, 8)._replace(
            received=slots.received[number],
            stored=slots.stored[number],
            staleness=made.staleness[number],
        )
        state, metrics = step(state, planned, data, hyper)
        yield np.asarray(state.variables.params["w"]), np.asarray(metrics.weights)


@pytest.mark.parametrize(
    ("rule", "applied", "discount", "executor"),
    [
        ("samples", False, 0.5, executors.lanes(2)),
        ("uniform", False, 0.0, executors.vmapped()),
        ("fedvg", False, 0.5, executors.sharded(2, 1)),
        ("fedvg", True, 1.0, executors.lanes(1)),
    ],
    ids=["two lanes", "vmapped", "two devices", "scores of applied updates"],
)
def test_a_run_of_all_clients_in_flight_equals_a_heap_and_a_replay(
    x64, rule, applied, discount, executor
):
    durations = [1.0, 2.75, 1.53, 6.1]
    updates = 9
    size = 2
    made = timeline(durations, concurrency=4, buffer=size, updates=updates)
    expected = replay(durations, rule, applied, updates, size, discount)
    actual = rounds(rule, made, applied, discount, executor)
    for number, (update, (model, shares)) in enumerate(zip(expected, actual, strict=True)):
        seconds, clients, staleness, weights, theta = update
        assert made.virtual_seconds[number] == pytest.approx(seconds, abs=1e-12)
        assert made.clients[number].tolist() == clients
        assert made.staleness[number].tolist() == staleness
        np.testing.assert_allclose(shares, weights, atol=1e-9)
        np.testing.assert_allclose(model, theta, atol=1e-9)


@pytest.mark.parametrize(
    "options",
    [{"lanes": "3"}, {"devices": "2"}, {"client_chunk": 2}, {"placement": "host"}],
    ids=str,
)
def test_executors_chunks_and_placements_agree(options):
    random = {"send": "qsgd:2"}  # draws from the key of each training
    run = fv.run(changed(**random))
    other = fv.run(changed(**random, **options))
    worlds.assert_close(run.variables, other.variables, 2e-5)


def test_a_resumed_run_is_equal_to_the_bit(tmp_path):
    whole = fv.run(changed(eval_every=2))
    fv.run(changed(eval_every=2, rounds=2, out=tmp_path, keep=1))
    resumed = fv.run(changed(eval_every=2, resume=str(tmp_path)))
    assert_equal_runs(resumed, whole)


def test_clients_over_the_largest_staleness_are_dropped_and_recorded():
    limited = {**dataclasses.asdict(SMALL.buffered), "max_staleness": 0}
    run = fv.run(changed(buffered=limited, weighting="uniform"))
    assert any(any(record["staleness"]) for record in run.records)
    for record in run.records:
        entries = zip(record["clients"], record["staleness"], record["weights"], strict=True)
        stale = []
        for client, staleness, weight in entries:
            assert (weight == 0) == (staleness > 0)
            stale += [client] * (staleness > 0)
        assert record.get("dropped", []) == stale
        assert record["bytes_up"] > 0


def test_two_trainings_of_a_client_in_one_buffer_have_other_minibatches():
    sim = fv.simulation(
        changed(rounds=60, clock={"step": 1.0, "speeds": "lognormal:2"}, batch_size=4)
    )
    found = 0
    for number in range(60):
        planned = sim.schedule(number)
        ids = planned.clients.tolist()
        twice = [k for k, client in enumerate(ids) if ids.count(client) > 1]
        if len(twice) < 2 or planned.num_steps[twice[0]] < 2:
            continue
        found += 1
        first, second = (
            planned.rows[planned.start[k] : planned.start[k] + planned.num_steps[k]]
            for k in twice[:2]
        )
        assert sorted(first.ravel()) == sorted(second.ravel()) and (first != second).any()
        assert (planned.keys[twice[0]] != planned.keys[twice[1]]).any()
    assert found


@pytest.mark.parametrize("weighting", configs.WEIGHTINGS)
def test_any_weighting_weighs_late_updates(weighting):
    for score in ("trained", "applied"):
        settings = {**dataclasses.asdict(SMALL.buffered), "score": score}
        run = fv.run(changed(weighting=weighting, buffered=settings, rounds=3))
        assert np.isfinite(run.summary["test_loss_final"])


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "fedadam", "weighting": "fedvg"},
        {"algorithm": "elastic"},
        {"algorithm": "fednova"},
        {"robust": "median", "weighting": "uniform"},
        {"attack": "sign_flip", "robust": "clipped_mean:1"},
        {"send": "qsgd:4"},
        {"model": "tinycnn", "augment": "flip"},
    ],
    ids=json.dumps,
)
def test_rules_attacks_and_compressions_act_on_updates_of_late_clients(settings):
    run = fv.run(changed(rounds=3, **settings))
    assert np.isfinite(run.summary["test_loss_final"])


def test_a_buffered_round_is_differentiable():
    sim = fv.simulation(SMALL)
    planned = sim.schedule(2)
    step = sim.bind(sim.base).step

    def loss(discount):
        hyper = {**sim.hyper, "buffered.discount": discount}
        after, _ = step(sim.state, planned, sim.data, hyper)
        return sum((leaf**2).sum() for leaf in jax.tree.leaves(after.variables.params))

    derivative = jax.jvp(loss, (jnp.float32(0.5),), (jnp.float32(1.0),))[1]
    assert np.isfinite(derivative)
