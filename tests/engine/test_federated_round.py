"""The round where clients drop out, diverge or straggle, and the clients' optimisers."""

import json
from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import linear, worlds

import fedvg_jax as fv
from fedvg_jax import resolve
from fedvg_jax.config import Config
from fedvg_jax.core import tree
from fedvg_jax.core.types import Metrics, Weighting
from fedvg_jax.runs.record import history
from fedvg_jax.weightings import basic

WORLD = worlds.uneven(cohort_size=5)
TASK = worlds.QUADRATIC
every_algorithm = pytest.mark.parametrize("name", worlds.ON_QUADRATICS)
THREE = WORLD._replace(cohort_size=3)


def schedule_of(number, world=WORLD):
    return world.schedule(number, 2, probe_ratio=0.5)


def without(schedule, position):
    """`schedule` where the client at a position drops out."""
    return schedule._replace(participating=np.arange(len(schedule.clients)) != position)


# --- clients that diverge; `test_oracle.py` has clients that drop out


def with_nan(client):
    """A world in which one client's data are not finite."""
    pool = jax.tree.map(np.copy, WORLD.pool)
    for leaf in jax.tree.leaves(pool[1]):
        leaf[WORLD.train[client]] = np.nan
    return WORLD._replace(pool=pool)


@every_algorithm
def test_a_client_that_diverges_equals_one_that_drops_out(x64, name):
    """In every bit, including the states; its metrics mark it as diverged."""
    algorithm = worlds.algorithm(name)
    schedule = schedule_of(0, THREE)
    bad = 2
    step = worlds.shared_round(algorithm)
    start = worlds.shared_state(THREE, algorithm)
    hyper = worlds.by_rule("samples+fedvg")
    expected, expected_metrics = step(start, without(schedule, bad), WORLD.data(), hyper)
    state, metrics = step(start, schedule, with_nan(schedule.clients[bad]).data(), hyper)
    actual, expected = (state, metrics.weights), (expected, expected_metrics.weights)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
    assert metrics.weights[bad] == 0 and metrics.weights.sum() == pytest.approx(1)
    assert metrics.finite.tolist() == [True, True, False] and np.isnan(metrics.train_loss[bad])


def test_a_client_with_a_nonfinite_score_or_weight_diverges(x64):
    """The client with the most rows, whose model and loss are finite; the round equals one in which it drops out."""
    schedule = schedule_of(0)
    algorithm = worlds.algorithm("scaffold")
    position = int(np.argmax(schedule.num_samples))
    most = int(schedule.num_samples[position])

    def signal(hyper, client, data):
        return jnp.where(
            client.num_samples == most, hyper["signal"], client.num_samples.astype(float)
        )

    def weigh(hyper, raw, view):
        weights = basic.broadcast_weights(basic.shares(raw, view.participating), view)
        factors = jnp.where(jnp.arange(5) == position, hyper["factor"], 1)
        return jax.tree.map(lambda w: jnp.where(view.participating, factors * w, 0), weights)

    rule = Weighting(signal, weigh)
    step = worlds.make_round(WORLD, algorithm, rule)
    state = worlds.state(WORLD, algorithm, TASK)
    dropped = without(schedule, position)
    for signal_of_most, factor in ((np.inf, 1.0), (most, np.nan)):
        own = {"signal": signal_of_most, "factor": factor}
        hyper = worlds.hyper() | jax.tree.map(jnp.float64, own)
        after, metrics = step(state, schedule, WORLD.data(), hyper)
        expected, expected_metrics = step(state, dropped, WORLD.data(), hyper)
        worlds.assert_close((after, metrics.weights), (expected, expected_metrics.weights), 1e-12)
        assert metrics.finite.tolist() == [k != position for k in range(5)]


def poisoned(on_records=None, **settings):
    """Runs two rounds of linear regression, in which the loss of client 3 is not finite."""
    train, *others = (np.array_split(rows, 5) for rows in np.split(np.arange(240), [160, 200]))
    x, y = linear.data()
    x[train[3]] = 1e30
    config = Config(clients=5, join_ratio=1.0, rounds=2, local_epochs=1, weighting="samples")
    arguments = {"data": (x, y), "partition": (train, *others), "task": linear.TASK}
    return fv.run(replace(config, **settings), on_records=on_records, **arguments)


def test_a_run_stops_at_a_diverged_client_and_names_round_and_client(tmp_path):
    """The record of the round reaches callbacks before the run stops."""
    records, out = [], tmp_path / "run"
    with pytest.raises(fv.DivergedError) as error:
        poisoned(records.extend, out=out)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["stopped_by"], summary["rounds"]) == ("diverged", 1)
    assert [record["diverged"] for record in records] == [[3]]
    assert error.value.history.records == records
    assert "round 1" in str(error.value) and "[3]" in str(error.value)


def test_a_run_skips_a_diverged_client_under_nonfinite_skip():
    first, second = poisoned(nonfinite="skip").records
    assert first["diverged"] == [3] and "dropped" not in first
    weights = dict(zip(first["clients"], first["weights"], strict=True))
    assert weights[3] == 0 and sum(weights.values()) == pytest.approx(1, abs=1e-6)
    assert np.isfinite(second["test_loss"])


# --- the clients' optimisers


A = np.array([0.5, 1.0, 2.0])
B = np.array([1.0, -1.0, 3.0])
RATES = {
    "exponential": lambda r: 0.25 * 0.75**r,
    "cosine": lambda r: 0.25 * (1 + np.cos(np.pi * r / 4)) / 2,
}


def numpy_sgd(x, momentum, decay, rate):
    """Three steps on sum A x^2 / 2 - B x: v <- momentum v + g + decay x and x <- x - rate v."""
    v = np.zeros(3)
    for _ in range(3):
        v = momentum * v + A * x - B + decay * x
        x = x - rate * v
    return x


def numpy_adam(x, decay, decay_of_step, rate):
    """m <- .9 m + .1 g, v <- .999 v + .001 g^2, x <- x - lr m^ / (sqrt v^ + 1e-8), corrected by 1 - b^t; adam adds the
    decay d x to g, adamw (Loshchilov and Hutter 2019) lr d x to the step."""
    m = np.zeros(3)
    v = np.zeros(3)
    for t in (1, 2, 3):
        g = A * x - B + decay * x
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        x = x - rate * (m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8) + decay_of_step * x)
    return x


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"momentum": 0.5, "lr_schedule": "cosine"}, (numpy_sgd, 0.5, 0.125)),
        ({"optimiser": "adam", "lr_schedule": "exponential"}, (numpy_adam, 0.125, 0.0)),
        ({"optimiser": "adamw", "lr_schedule": "exponential"}, (numpy_adam, 0.0, 0.125)),
    ],
    ids=["sgd", "adam", "adamw"],
)
def test_an_optimiser_equals_numpy_and_restarts_every_round(x64, settings, steps):
    """A client of three minibatches is the whole cohort."""
    config, (numpy_steps, *options) = Config(weight_decay=0.125, **settings), steps
    world = worlds.quadratics(A[None], B[None], [6], 1)
    algorithm = worlds.algorithm("fedavg")
    step = worlds.make_round(world, algorithm, optimiser=resolve.method.make_optimiser(config))
    hyper = worlds.hyper(lr=0.25, momentum=0.5, weight_decay=0.125, lr_decay=0.75, rounds=4)
    state = worlds.state(world, algorithm, TASK)
    x = np.concatenate(jax.tree.leaves(state.variables))
    for number in range(3):
        state, _ = step(state, world.schedule(number, 2), world.data(), hyper)
        x = numpy_steps(x, *options, RATES[config.lr_schedule](number))
        np.testing.assert_allclose(np.concatenate(jax.tree.leaves(state.variables)), x, rtol=1e-9)


# --- what the server does with the average


def test_running_statistics_are_averaged_or_take_the_server_step(x64):
    """FedAvgM's first step is (1 + beta) u at rate 1."""

    def moved(name, stats_too):
        values = worlds.hyper(**{"fedavgm.lr": 1.0, "fedavgm.momentum": 0.9})
        plan = [schedule_of(0, THREE)]
        arguments = worlds.algorithm(name), "samples", worlds.STATISTIC, values
        ((after, _),) = worlds.play(THREE, plan, *arguments, stats_too=stats_too)
        return jax.tree.map(np.subtract, after.variables, worlds.variables(task=worlds.STATISTIC))

    plain = moved("fedavg", False)
    assert np.abs(plain.stats["mean"]).min() > 1e-3
    for stats_too in (False, True):
        far = moved("fedavgm", stats_too)
        worlds.assert_close(far.params, tree.scale(1.9, plain.params), 1e-12)
        worlds.assert_close(far.stats, tree.scale(1.9 if stats_too else 1.0, plain.stats), 1e-12)


# --- dtypes


@every_algorithm
def test_a_round_of_half_precision_takes_hyperparameters_and_a_loss_of_single_precision(name):
    """As those of a run are; model and states keep their dtypes."""
    algorithm = worlds.algorithm(name)

    def loss(*arguments):
        value, stats = TASK.loss(*arguments)
        return value.astype(jnp.float32), stats

    def in_half(arrays):
        return jax.tree.map(
            lambda x: x.astype(jnp.bfloat16) if jnp.issubdtype(x.dtype, jnp.floating) else x, arrays
        )

    data = WORLD.data()._replace(pool=in_half(WORLD.data().pool))
    start = worlds.state(WORLD, algorithm, TASK)._replace(
        variables=in_half(worlds.variables(task=TASK))
    )
    server, client = in_half(algorithm.init(worlds.hyper(), start.variables.params))
    start = start._replace(server=server, clients=tree.repeat(client, 5))
    with jax.numpy_dtype_promotion("standard"):
        step = worlds.round_step(WORLD, algorithm, "samples+fedvg", TASK._replace(loss=loss))
        after, _ = jax.eval_shape(
            step,
            start,
            schedule_of(0),
            data,
            worlds.hyper(**{"tuning.lr": 0.1, "fitted.rate": 0.1}),
        )
    chex.assert_trees_all_equal_shapes_and_dtypes(after, start)


# --- rounds without a participating client

UNTRAINED = THREE._replace(train=[rows[:0] for rows in THREE.train])


@every_algorithm
def test_round_without_a_participating_client_changes_neither_model_nor_states(x64, name):
    """The server's momentum and duals stay too, because there is no update."""
    algorithm = worlds.algorithm(name)
    step = worlds.shared_round(algorithm)
    hyper = worlds.by_rule("samples+fedvg", momentum=0.5)
    before = worlds.shared_state(THREE, algorithm)
    for number in range(2):
        before, _ = step(before, schedule_of(number, THREE), THREE.data(), hyper)
    dropped = schedule_of(2, THREE)._replace(participating=np.zeros(3, bool))
    for schedule in (dropped, schedule_of(2, UNTRAINED)):
        after, metrics = step(before, schedule, THREE.data(), hyper)
        jax.tree.map(np.testing.assert_array_equal, after._replace(round=before.round), before)
        assert after.round == before.round + 1 and not metrics.weights.any()


# --- the history


def test_a_record_has_the_mean_loss_of_trained_clients_and_lists_the_others():
    """The loss is 0 without a step and NaN after divergence."""
    num_steps = np.array([2, 4, 0, 3, 0])
    ones = np.ones(5)
    schedule = schedule_of(0)._replace(num_steps=num_steps, clients=np.arange(5))
    for first, mean in ((3.0, 4.0), (np.nan, 4.5)):
        loss = np.array([first, 5.0, 0.0, 4.0, 0.0])
        metrics = Metrics(ones, ones, loss, np.isfinite(loss), {})
        record = history.record(1, schedule, metrics, 0.0)
        assert (record["train_loss"], record["untrained"]) == (mean, [2, 4])
        assert "dropped" not in record
