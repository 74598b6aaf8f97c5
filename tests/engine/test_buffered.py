"""Buffered servers on the device: against synchronous rounds, a heap and a float64 replay in NumPy."""

import dataclasses
import heapq
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


def assert_models_equal(run, other, **tolerance):
    pairs = zip(jax.tree.leaves(run.variables), jax.tree.leaves(other.variables), strict=True)
    for a, b in pairs:
        if tolerance:
            np.testing.assert_allclose(a, b, **tolerance)
        else:
            assert (np.asarray(a) == np.asarray(b)).all()


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
    assert_models_equal(run, expected, rtol=2e-6, atol=2e-6)
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
    theta, now, version = np.zeros(2), 0.0, 0
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


def rounds(rule, made=None, applied=False, executor=None, chunk=None, count=3, discount=0.5):
    """Yields (model, weights) of every round of quadratics; with a timeline, of a buffered server."""
    executor = executor or executors.lanes(1)
    hyper = {"lr": RATE, "buffered.discount": discount, "fedvg.eps": 1e-8}
    slots = made and virtual_time.assign_slots(made.staleness, made.pending)
    parts = QUADRATIC, fedavg(), WEIGHTINGS[rule], executor, local_training.sgd, 4
    step = jax.jit(federated_round.make_round(*parts, scores_applied=applied))
    num_versions = slots.count if slots else 0
    state = federated_round.init_state(QUADRATIC, fedavg(), 4, hyper, num_versions=num_versions)
    data = Data(jnp.asarray(ROWS), *[jnp.asarray(VALIDATION[None])] * 3)
    for number in range(count):
        planned = schedules.make(
            number,
            CLIENTS,
            seed=0,
            cohort_size=made.clients.shape[1] if made else 4,
            local_epochs=(1, 1),
            batch_size=20,
            num_lanes=executor.num_lanes,
            lanes_together=executor.lanes_together,
            capacity=8,
            client_chunk_size=chunk,
            clients=made.clients[number] if made else None,
            trainings=made.training[number] if made else None,
        )
        if slots:
            planned = planned._replace(
                received=slots.received[number],
                stored=slots.stored[number],
                staleness=made.staleness[number],
            )
        state, metrics = step(state, planned, data, hyper)
        yield np.asarray(state.variables.params["w"]), np.asarray(metrics.weights)


@pytest.mark.parametrize(
    ("rule", "applied", "discount"),
    [
        ("samples", False, 0.5),
        ("uniform", False, 0.0),
        ("fedvg", False, 0.5),
        ("fedvg", True, 1.0),
    ],
)
def test_a_run_of_all_clients_in_flight_equals_a_heap_and_a_replay(x64, rule, applied, discount):
    durations, updates, size = [1.0, 2.75, 1.53, 6.1], 9, 2
    expected = replay(durations, rule, applied, updates, size, discount)
    made = timeline(durations, concurrency=4, buffer=size, updates=updates)
    replayed = zip(
        expected, rounds(rule, made, applied, count=updates, discount=discount), strict=True
    )
    for number, ((seconds, clients, staleness, weights, theta), (model, shares)) in enumerate(
        replayed
    ):
        assert made.virtual_seconds[number] == pytest.approx(seconds, abs=1e-12)
        assert made.clients[number].tolist() == clients
        assert made.staleness[number].tolist() == staleness
        np.testing.assert_allclose(shares, weights, atol=1e-9)
        np.testing.assert_allclose(model, theta, atol=1e-9)


@pytest.mark.parametrize(
    ("executor", "chunk"),
    [
        (executors.lanes(1), None),
        (executors.lanes(2), None),
        (executors.vmapped(), None),
        (executors.sharded(2, 1), None),
        (executors.lanes(2), 2),
    ],
    ids=["one lane", "two lanes", "vmapped", "two devices", "client chunks"],
)
def test_all_clients_with_equal_durations_are_synchronous_rounds(x64, executor, chunk):
    made = timeline([2.0] * 4, concurrency=4, buffer=4, updates=3)
    options = {"executor": executor, "chunk": chunk}
    late, synchronous = (list(rounds("fedvg", each, **options)) for each in (made, None))
    for (model, _), (expected, _) in zip(late, synchronous, strict=True):
        np.testing.assert_allclose(model, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [{"lanes": "3"}, {"devices": "2"}, {"client_chunk": 2}, {"placement": "host"}],
    ids=str,
)
def test_executors_chunks_and_placements_agree(options):
    random = {"send": "qsgd:2"}  # draws from the key of each training
    run, other = fv.run(changed(**random)), fv.run(changed(**random, **options))
    assert_models_equal(run, other, rtol=2e-5, atol=2e-6)


def test_a_resumed_run_is_equal_to_the_bit(tmp_path):
    whole = fv.run(SMALL)
    fv.run(changed(rounds=2, out=tmp_path / "run", keep=1))
    resumed = fv.run(changed(resume=str(tmp_path / "run")))
    assert_models_equal(whole, resumed)
    keys = ("clients", "weights", "staleness", "virtual_seconds", "bytes_up")
    for record, other in zip(whole.records, resumed.records, strict=True):
        assert [record[key] for key in keys] == [other[key] for key in keys]


def test_weights_sum_to_one_before_the_discount_which_shortens_stale_updates():
    run, undiscounted = (
        fv.run(SMALL),
        fv.run(changed(buffered={"size": 3, "concurrency": 6, "discount": 0.0})),
    )
    for record in run.records:
        assert sum(record["weights"]) == pytest.approx(1, abs=1e-5)
    is_fresh = [not any(record["staleness"]) for record in run.records]
    first = is_fresh.index(False)
    assert undiscounted.records[first]["weights"] == run.records[first]["weights"]
    with pytest.raises(AssertionError):
        assert_models_equal(run, undiscounted)


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
