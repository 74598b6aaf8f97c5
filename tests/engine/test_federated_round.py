"""The round where clients drop out, diverge or straggle, and the clients' optimisers."""

import itertools
import json
import warnings
from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import resolved, worlds

from fedvg_jax import resolve
from fedvg_jax.config import Config
from fedvg_jax.core import tree
from fedvg_jax.core.types import Metrics, UsageError, Weighting
from fedvg_jax.data import user_data
from fedvg_jax.engine import attacks, federated_round, local_training, robust
from fedvg_jax.runs import loop
from fedvg_jax.runs.record import history
from fedvg_jax.weightings import baselines, basic

WORLD = worlds.uneven(cohort_size=5)
TASK = worlds.QUADRATIC
RULES = [("uniform", "modelwise"), ("samples+fedvg", "layerwise")]
ANY_RULE = worlds.any_of(
    [
        worlds.weighting(rule, worlds.full_algorithm(), granularity=granularity)
        for rule, granularity in RULES
    ]
)
every_algorithm = pytest.mark.parametrize("name", worlds.ON_QUADRATICS)
THREE = WORLD._replace(cohort_size=3)


def schedule_of(number, world=WORLD, **changes):
    return world.schedule(number, 2, probe_ratio=0.5, **changes)


def without(schedule, dropped):
    """`schedule` where the clients at some positions drop out."""
    return schedule._replace(participating=~np.isin(np.arange(len(schedule.clients)), dropped))


def assert_same(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


# --- clients that drop out


@pytest.mark.parametrize("number", range(2))
def test_a_client_that_drops_out_counts_as_not_sampled(x64, number):
    """The round equals that of the other clients alone, with N unchanged, for an algorithm with every part and every
    rule and granularity, from the start and from any states."""
    algorithm, schedule, present = worlds.full_algorithm(), schedule_of(number), [0, 1, 2]
    step, before = (
        worlds.make_round(WORLD, algorithm, ANY_RULE),
        worlds.state(WORLD, algorithm, TASK),
    )
    if number:
        before, _ = step(
            before, schedule_of(0), WORLD.data(), worlds.hyper() | {"rule": jnp.int32(0)}
        )
    dropped, others = (
        without(schedule, [3, 4]),
        schedule_of(number, clients=schedule.clients[present], cohort_size=3),
    )
    left_out = schedule.clients[[3, 4]]
    for rule in range(len(RULES)):
        hyper = worlds.hyper() | {"rule": jnp.int32(rule)}
        state, metrics = step(before, dropped, WORLD.data(), hyper)
        expected, expected_metrics = step(before, others, WORLD.data(), hyper)
        worlds.assert_close(state, expected, 1e-12)
        np.testing.assert_allclose(
            metrics.weights[jnp.array(present)], expected_metrics.weights, rtol=1e-12
        )
        assert metrics.weights[3] == metrics.weights[4] == 0 and metrics.finite.all(), RULES[rule]
        assert_same(*(jax.tree.map(lambda x: x[left_out], s.clients) for s in (state, before)))
        changed = (
            np.asarray(state.clients["c"]["left"]["x"]) != before.clients["c"]["left"]["x"]
        ).any(1)
        assert changed.sum() == 3


# --- clients that diverge


def with_nan(client):
    """A world in which one client's data are not finite."""
    pool = jax.tree.map(np.copy, WORLD.pool)
    for leaf in jax.tree.leaves(pool[1]):
        leaf[WORLD.train[client]] = np.nan
    return WORLD._replace(pool=pool)


@every_algorithm
def test_a_client_that_diverges_equals_one_that_drops_out(x64, name):
    """In every bit, including the states; its metrics mark it as diverged."""
    algorithm, schedule, bad = worlds.algorithm(name), schedule_of(0, THREE), 2
    step, start = worlds.any_shared_round(algorithm), worlds.shared_state(THREE, algorithm)
    hyper = worlds.by_rule("samples+fedvg")
    expected, expected_metrics = step(start, without(schedule, [bad]), WORLD.data(), hyper)
    state, metrics = step(start, schedule, with_nan(schedule.clients[bad]).data(), hyper)
    assert_same(state, expected)
    assert_same(metrics.weights, expected_metrics.weights)
    assert metrics.weights[bad] == 0 and metrics.weights.sum() == pytest.approx(1)
    assert metrics.finite.tolist() == [k != bad for k in range(3)] and np.isnan(
        metrics.train_loss[bad]
    )


def test_a_client_with_a_nonfinite_probe_diverges(x64):
    elastic, schedule = worlds.algorithm("elastic"), schedule_of(0, THREE)

    def probe(hyper, probed):
        is_bad = probed.position == 2
        return jax.tree.map(lambda x: jnp.where(is_bad, jnp.nan, x), elastic.probe(hyper, probed))

    start, hyper = worlds.shared_state(THREE, elastic), worlds.by_rule("samples")
    expected, _ = worlds.any_shared_round(elastic)(
        start, without(schedule, [2]), WORLD.data(), hyper
    )
    state, metrics = worlds.shared_round(elastic._replace(probe=probe))(
        start, schedule, WORLD.data(), hyper
    )
    worlds.assert_close(state, expected, 1e-12)
    assert metrics.finite.tolist() == [True, True, False]


def test_a_client_whose_loss_overflows_diverges_even_with_a_finite_model(x64):
    """The loss -b x with b = 1e300 at x = 1e10."""
    world = worlds.quadratics(
        np.zeros((5, 3)), np.array([[1e300] * 3, *[[1.0] * 3] * 4]), [2] * 5, 3
    )
    algorithm = worlds.algorithm("fedavg")
    state = worlds.shared_state(world, algorithm)
    far = jax.tree.map(lambda x: jnp.full_like(x, 1e10), state.variables)
    schedule = world.schedule(0, 2, probe_ratio=0.5, clients=np.array([3, 0, 1], np.int32))
    hyper = worlds.by_rule("samples", lr=1e-9)
    _, metrics = worlds.any_shared_round(algorithm)(
        state._replace(variables=far), schedule, world.data(), hyper
    )
    assert metrics.finite.tolist() == [True, False, True]


def test_a_client_with_a_nonfinite_score_or_weight_diverges(x64):
    """The client with the most rows, whose model and loss are finite; the round equals one in which it drops out."""
    schedule, algorithm = schedule_of(0), worlds.algorithm("scaffold")
    position = int(np.argmax(schedule.num_samples))
    most = int(schedule.num_samples[position])

    def signal(hyper, client, data):
        return jnp.where(
            client.num_samples == most, hyper["signal"], client.num_samples.astype(float)
        )

    def weigh(hyper, raw, view):
        weights = basic.broadcast_weights(basic.shares(raw, view.participating), view)
        spoilt = (jnp.arange(5) == position) & view.participating & ~jnp.isfinite(hyper["weight"])
        return jax.tree.map(lambda w: jnp.where(spoilt, hyper["weight"], w), weights)

    rule = Weighting(signal, weigh, score=lambda raw: raw, detail=basic.no_detail)
    step, state = worlds.make_round(WORLD, algorithm, rule), worlds.state(WORLD, algorithm, TASK)
    for where, bad in itertools.product(("signal", "weight"), (np.nan, np.inf)):
        hyper = (
            worlds.hyper()
            | {"signal": jnp.float64(most), "weight": jnp.float64(0)}
            | {where: jnp.float64(bad)}
        )
        after, metrics = step(state, schedule, WORLD.data(), hyper)
        expected, expected_metrics = step(state, without(schedule, [position]), WORLD.data(), hyper)
        worlds.assert_close(after, expected, 1e-12)
        np.testing.assert_allclose(metrics.weights, expected_metrics.weights, rtol=1e-12)
        assert (
            metrics.finite.tolist() == [k != position for k in range(5)]
            and metrics.weights[position] == 0
        )


@pytest.fixture(scope="module")
def poisoned():
    """Two rounds on images of four pixels; the loss is NaN on a white one, on which one client of the first round
    trains."""
    settings = Config(
        clients=5, rounds=2, local_epochs=1, lanes="1", alpha=10.0, eval_every=9, model="linear"
    )
    arrays = user_data.as_arrays(worlds.images(120))
    parts = resolve.data.make_partition(settings, arrays)
    who = (
        resolve.experiment.simulation(settings, data=arrays, partition=parts).schedule(0).clients[1]
    )
    arrays.x[parts.train[who][0]] = 255
    task = resolve.model.make_task(settings, arrays)

    def loss(params, stats, batch, mask, train):
        value, stats = task.loss(params, stats, batch, mask, train)
        white = ((batch.x == 255).all((1, 2, 3)) & mask).any()
        return jnp.where(white, jnp.nan, value), stats

    def simulation(nonfinite):
        changed = replace(settings, nonfinite=nonfinite)
        return resolve.experiment.simulation(
            changed, data=arrays, partition=parts, task=task._replace(loss=loss)
        )

    return simulation, int(who)


def test_a_run_stops_at_a_diverged_client_and_names_round_and_client(poisoned, tmp_path):
    """The record of the round reaches callbacks before the run stops."""
    (simulation, who), records = poisoned, []
    out = tmp_path / "run"
    sim = simulation("raise")
    with pytest.raises(UsageError) as error:
        loop.run_simulation(
            resolved.written_as(sim, replace(sim.config, out=out)), on_records=records.extend
        )
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["stopped_by"], summary["rounds"], summary["interrupted"]) == (
        "diverged",
        1,
        False,
    )
    assert [record["diverged"] for record in records] == [
        [who]
    ] and error.value.history.records == records
    message = str(error.value)
    assert (
        "round 1" in message
        and f"[{who}]" in message
        and "--nonfinite skip" in message
        and "\n" not in message
    )


def test_a_run_skips_a_diverged_client_under_nonfinite_skip(poisoned):
    simulation, who = poisoned
    records = loop.run_simulation(simulation("skip")).records
    assert len(records) == 2 and records[0]["diverged"] == [who] and "dropped" not in records[0]
    first = dict(zip(records[0]["clients"], records[0]["weights"], strict=True))
    assert first[who] == 0 and sum(first.values()) == pytest.approx(1, abs=1e-6)
    assert np.isfinite(records[1]["test_loss"])


# --- the clients' optimisers


SGD_SETTINGS = [(0.5, 0.125, name) for name in local_training.LR_SCHEDULES]
SGD_SETTINGS += [(0.0, 0.125, "constant")]
"""The schedule multiplies the rate only, so it is crossed with one momentum and decay."""
A, B = np.array([0.5, 1.0, 2.0]), np.array([1.0, -1.0, 3.0])
RATES = {
    "constant": lambda r: 0.25,
    "exponential": lambda r: 0.25 * 0.75**r,
    "cosine": lambda r: 0.25 * (1 + np.cos(np.pi * r / 4)) / 2,
}


def optimised(settings, hyper, number, x):
    """`x` after three steps of an optimiser in a round, on sum A x^2 / 2 - B x."""

    @worlds.jit
    def steps(hyper, number, x):
        rule = resolve.method.make_optimiser(settings)(hyper, number)
        after = rule.init(x)
        for _ in range(3):
            with local_training.standard_promotion():
                updates, after = rule.update(A * x - B, after, x)
            x = x + updates
        return x

    return steps(hyper, jnp.int32(number), jnp.asarray(x))


def numpy_sgd(momentum, weight_decay, rate, x):
    """v <- momentum v + g + decay x and x <- x - rate v, three times."""
    v = np.zeros(3)
    for _ in range(3):
        v = momentum * v + A * x - B + weight_decay * x
        x = x - rate * v
    return x


def numpy_adam(optimiser, decay, x):
    """m <- .9 m + .1 g, v <- .999 v + .001 g^2, x <- x - lr m^ / (sqrt v^ + 1e-8), corrected by 1 - b^t; adam adds the
    decay d x to g, adamw (Loshchilov and Hutter 2019) lr d x to the step."""
    m, v = np.zeros(3), np.zeros(3)
    for t in (1, 2, 3):
        g = A * x - B + decay * x * (optimiser == "adam")
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        moved = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        x = x - 0.25 * (moved + decay * x * (optimiser == "adamw"))
    return x


@pytest.mark.parametrize(("momentum", "weight_decay", "lr_schedule"), SGD_SETTINGS)
def test_momentum_weight_decay_and_learning_rate_schedules_equal_a_numpy_loop(
    x64, momentum, weight_decay, lr_schedule
):
    settings = Config(
        momentum=momentum, weight_decay=weight_decay, lr_schedule=lr_schedule, rounds=4
    )
    hyper = worlds.hyper(
        lr=0.25, momentum=momentum, weight_decay=weight_decay, lr_decay=0.75, rounds=4
    )
    x, number = np.array([1.0, 2.0, -1.0]), 3
    expected = numpy_sgd(momentum, weight_decay, RATES[lr_schedule](number), x)
    np.testing.assert_allclose(optimised(settings, hyper, number, x), expected, rtol=1e-12)


@pytest.mark.parametrize(("optimiser", "decay"), [("adam", 0.125), ("adamw", 0.125)])
def test_adam_equals_its_paper(x64, optimiser, decay):
    settings, x = Config(optimiser=optimiser, weight_decay=decay), np.array([1.0, 2.0, -1.0])
    trained = optimised(settings, worlds.hyper(lr=0.25, weight_decay=decay), 0, x)
    np.testing.assert_allclose(trained, numpy_adam(optimiser, decay, x), rtol=1e-9)


def test_an_optimiser_restarts_every_round(x64):
    """A client of three minibatches is the whole cohort."""
    settings = Config(momentum=0.5, weight_decay=0.125, lr_schedule="exponential")
    world, algorithm = worlds.quadratics(A[None], B[None], [6], 1), worlds.algorithm("fedavg")
    step = worlds.make_round(world, algorithm, optimiser=resolve.method.make_optimiser(settings))
    hyper = worlds.hyper(lr=0.25, momentum=0.5, weight_decay=0.125, lr_decay=0.75)
    state = worlds.state(world, algorithm, TASK)
    x = np.concatenate(jax.tree.leaves(state.variables))
    for number in range(3):
        state, _ = step(state, world.schedule(number, 2), world.data(), hyper)
        x = numpy_sgd(0.5, 0.125, RATES["exponential"](number), x)
        np.testing.assert_allclose(np.concatenate(jax.tree.leaves(state.variables)), x, rtol=1e-9)


def test_algorithms_get_the_displacement_of_their_round(x64):
    """Under a rate that halves every round: 0.3 S and then 0.15 S, of S = 2, 4, 1, 3 and 1 steps."""
    optimiser = resolve.method.make_optimiser(Config(lr_schedule="exponential"))
    algorithm, hyper = worlds.full_algorithm(), worlds.hyper(lr_decay=0.5)
    step, state = (
        worlds.make_round(WORLD, algorithm, optimiser=optimiser),
        worlds.state(WORLD, algorithm, TASK),
    )
    moved = []
    for number in range(2):
        state, _ = step(state, schedule_of(number), WORLD.data(), hyper)
        moved.append(np.asarray(state.clients["moved"]))
    steps = np.array([2, 4, 1, 3, 1])
    np.testing.assert_allclose(moved, [0.3 * steps, 0.45 * steps], rtol=1e-12)
    assert state.clients["rounds"].tolist() == [2] * 5


# --- what the server does with the average


def test_an_algorithm_acts_on_the_aggregate_of_any_rule(x64):
    """u is the distance to it: FedAvgM's first step is (1 + beta) u at rate 1."""

    def median(hyper, variables, clients, weights):
        return jax.tree.map(lambda stack: jnp.median(stack, axis=0), clients)

    def moved(name, **options):
        values, plan = (
            worlds.hyper(**{"fedavgm.lr": 1.0, "fedavgm.momentum": 0.9}),
            [schedule_of(0, THREE)],
        )
        ((after, _),) = worlds.play(
            THREE, plan, worlds.algorithm(name), "uniform", values=values, **options
        )
        return jax.tree.map(np.subtract, after.variables, worlds.variables(task=TASK))

    plain, mean = moved("fedavg", aggregate=median), moved("fedavg")
    worlds.assert_close(moved("fedavgm", aggregate=median), tree.scale(1.9, plain), 1e-12)
    assert any((x != y).any() for x, y in zip(*map(jax.tree.leaves, (plain, mean)), strict=True))


def test_running_statistics_are_averaged_or_take_the_server_step(x64):
    """FedAvgM's first step is (1 + beta) u at rate 1."""

    def moved(name, stats_too):
        values, plan = (
            worlds.hyper(**{"fedavgm.lr": 1.0, "fedavgm.momentum": 0.9}),
            [schedule_of(0, THREE)],
        )
        arguments = worlds.algorithm(name), "samples", worlds.STATISTIC, values
        ((after, _),) = worlds.play(THREE, plan, *arguments, stats_too=stats_too)
        return jax.tree.map(np.subtract, after.variables, worlds.variables(task=worlds.STATISTIC))

    plain = moved("fedavg", False)
    assert np.abs(plain.stats["mean"]).min() > 1e-3
    for stats_too in (False, True):
        far = moved("fedavgm", stats_too)
        worlds.assert_close(far.params, tree.scale(1.9, plain.params), 1e-12)
        worlds.assert_close(far.stats, tree.scale(1.9 if stats_too else 1.0, plain.stats), 1e-12)


# --- dtypes and optimisers of one's own


ALL_PARTS = {
    "optimiser": worlds.with_momentum,
    "disturb": attacks.disturbance(attacks.noise, np.array([0]), 5),
    "refine": baselines.server_steps(TASK, 2),
}
HALVES = {name: (worlds.algorithm(name), "uniform", {}) for name in worlds.ON_QUADRATICS} | {
    "every hook": (
        worlds.algorithm("fedavg"),
        "samples",
        ALL_PARTS | {"aggregate": robust.clipped_mean},
    ),
    "gradients": (worlds.algorithm("fedavg"), "fedvg", {}),
    "lengths": (worlds.algorithm("fedavg"), baselines.fltrust(TASK), {}),
    "fitted weights": (worlds.algorithm("fedavg"), baselines.fitted(TASK, 2), {}),
}


@pytest.mark.parametrize("case", HALVES)
def test_a_round_of_half_precision_parameters_takes_hyperparameters_and_a_loss_of_single_precision(
    case,
):
    """As those of a run are; model and states keep their dtypes."""
    algorithm, rule, options = HALVES[case]

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
        step = worlds.round_step(WORLD, algorithm, rule, TASK._replace(loss=loss), **options)
        after, _ = jax.eval_shape(
            step,
            start,
            schedule_of(0),
            data,
            worlds.hyper(**{"tuning.lr": 0.1, "fitted.rate": 0.1}),
        )
    chex.assert_trees_all_equal_shapes_and_dtypes(after, start)


def test_states_keep_their_dtypes_where_the_model_has_several():
    def mixed(arrays):
        (*others, last), structure = jax.tree.flatten(arrays)
        return structure.unflatten([*others, last.astype(jnp.bfloat16)])

    algorithm = worlds.algorithm("scaffold")
    start = worlds.state(WORLD, algorithm, TASK)
    theta = start.variables._replace(params=mixed(start.variables.params))
    server, client = algorithm.init(worlds.hyper(), theta.params)
    start = start._replace(variables=theta, server=server, clients=tree.repeat(client, 5))
    # JAX warns of a lossy cast
    with (
        jax.numpy_dtype_promotion("standard"),
        warnings.catch_warnings(action="error"),
    ):
        step = worlds.round_step(WORLD, algorithm, "samples", TASK)
        after, _ = jax.eval_shape(step, start, schedule_of(0), WORLD.data(), worlds.hyper())
    assert {leaf.dtype for leaf in jax.tree.leaves(theta.params)} == {
        jnp.dtype(jnp.bfloat16),
        jnp.dtype(jnp.float32),
    }
    chex.assert_trees_all_equal_shapes_and_dtypes(after, start)


def test_an_optimiser_of_its_own_rate_needs_no_learning_rate():
    """Adam's first step of a fresh state has the length of its rate, 0.001."""

    def adam(hyper, round):
        return optax.adam(1e-3)

    algorithm, world = worlds.algorithm("fedavg"), WORLD._replace(local_epochs=1)
    state = federated_round.init_state(
        TASK, algorithm, 5, {}, variables=worlds.variables(task=TASK)
    )
    step = worlds.make_round(world, algorithm, basic.uniform(), optimiser=adam)
    schedule = schedule_of(0, world, single_batches=True)
    moved, _ = step(state, schedule, world.data(), {})
    lengths = tree.sub(moved.variables, state.variables)
    assert all(0 < np.abs(leaf).max() <= 1.01e-3 for leaf in jax.tree.leaves(lengths))


# --- clients without a local step are dropped, and rounds without a participating client change nothing


SIZES = [4, 8, 1, 6, 0]
"""In batches of two: 2, 4, 0, 3 and 0 steps."""
COHORTS = ([0, 2, 1], [4, 3, 0], [3, 2, 4])

rng = np.random.default_rng(0)
UNEVEN = worlds.quadratics(rng.uniform(0.5, 2, (5, 3)), rng.normal(size=(5, 3)), SIZES, 3)


def of_cohort(number):
    return UNEVEN.schedule(number, 2, probe_ratio=0.5, clients=np.array(COHORTS[number], np.int32))


def full_schedule():
    """Returns a round of all clients."""
    return UNEVEN._replace(cohort_size=5).schedule(0, 2, probe_ratio=0.5)


# --- rounds without a participating client

DROPPED = {
    "dropped out": {"participating": np.zeros(3, bool)},
    "untrained": {
        "num_steps": np.zeros(3, np.int32),
        "plan": UNEVEN._replace(train=[rows[:0] for rows in UNEVEN.train]).schedule(2, 2).plan,
    },
}


@every_algorithm
def test_round_without_a_participating_client_changes_neither_model_nor_states(x64, name):
    """The server's momentum and duals stay too, because there is no update."""
    algorithm = worlds.algorithm(name)
    step, hyper = worlds.any_shared_round(algorithm), worlds.by_rule("samples+fedvg", momentum=0.5)
    before = worlds.shared_state(UNEVEN, algorithm)
    for number in range(2):
        before, _ = step(before, of_cohort(number), UNEVEN.data(), hyper)
    for reason, changes in DROPPED.items():
        after, metrics = step(before, of_cohort(2)._replace(**changes), UNEVEN.data(), hyper)
        jax.tree.map(np.testing.assert_array_equal, after._replace(round=before.round), before)
        assert after.round == before.round + 1 and not metrics.weights.any(), reason


# --- the history


def metrics_of(loss, finite=None):
    loss = np.array(loss)
    finite = np.isfinite(loss) if finite is None else np.array(finite)
    ones = np.ones(len(loss))
    return Metrics(ones, ones, loss, finite, {})


def test_train_loss_of_a_record_is_the_mean_over_trained_clients():
    """Clients with 2, 4, 0, 3 and 0 steps, in sampling order; the loss is 0 without a step and NaN after divergence."""
    schedule = full_schedule()
    loss = np.where(schedule.num_steps > 0, 1.0 + schedule.num_steps, 0.0)
    # (3 + 5 + 4) / 3
    assert history.record(1, schedule, metrics_of(loss), 0.0)["train_loss"] == 4.0
    loss[schedule.num_steps == 4] = np.nan
    assert history.record(1, schedule, metrics_of(loss), 0.0)["train_loss"] == 3.5
    untrained = schedule._replace(num_steps=np.zeros(5, np.int32))
    assert history.record(1, untrained, metrics_of(np.zeros(5)), 0.0)["train_loss"] is None


def test_record_lists_untrained_clients():
    schedule = full_schedule()
    record = history.record(1, schedule, metrics_of(np.ones(5)), 0.0)
    assert sorted(record["untrained"]) == [2, 4] and "dropped" not in record
    assert "untrained" not in history.record(
        1, schedule._replace(num_steps=np.ones(5)), metrics_of(np.ones(5)), 0.0
    )
