"""Client-level differential privacy: clipping, the bounds of the aggregate, the noise, dropped clients, derivatives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import worlds

import fedvg_jax as fv
from fedvg_jax import compression
from fedvg_jax.core import tree
from fedvg_jax.core.types import Variables
from fedvg_jax.engine import privacy

C, Z = 0.25, 0.5
FIXED = {"rule": "uniform", "private": privacy.fixed}


@functools.cache
def fedavg():
    return worlds.algorithm("fedavg")


def rounds(world, plan, rule="samples", private=privacy.modelwise, z=Z, **options):
    values = worlds.hyper(**{"dp.clip": C, "dp.noise_multiplier": z})
    return worlds.play(world, plan, fedavg(), rule, values=values, private=private, **options)


def unit_noise(schedule, params):
    """Returns the standard normal numbers of a round: the second half of its key."""
    _, key = jax.random.split(
        jax.random.wrap_key_data(jnp.asarray(schedule.key), impl="threefry2x32")
    )
    return optax.tree.random_like(key, params)


def norm(delta):
    return float(np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(delta))))


def test_clipping_is_exact(x64):
    """A longer update has norm C in its own direction; a shorter one, and one that is not finite, keep every bit."""
    rng = np.random.default_rng(0)
    theta = {"a": rng.normal(size=3), "b": rng.normal(size=(2, 2))}
    deltas = jax.tree.map(
        lambda x: np.stack([rng.normal(size=x.shape), 0.01 * x, 0 * x, np.nan * x]), theta
    )
    clients = jax.tree.map(lambda t, d: jnp.asarray(t - d), theta, deltas)
    after = privacy.clip({"dp.clip": jnp.asarray(C)}, theta, clients)
    own = [tree.scale(-1, tree.take(after, k)) for k in range(4)]
    long, factor = tree.take(deltas, 0), C / norm(tree.take(deltas, 0))
    worlds.assert_close(own[0], tree.scale(factor, long), 1e-15)
    assert norm(own[0]) == pytest.approx(C, rel=1e-14)
    jax.tree.map(
        lambda a, c, t: np.testing.assert_array_equal(a[1:], c[1:] - t[None]), after, clients, theta
    )


def test_clipping_holds_where_squares_are_no_number():
    for most, size in ((1e-25, 1e-20), (1e-30, 1e10), (1e25, 1e30), (1e-3, 1e-2)):
        after = privacy.clip(
            {"dp.clip": jnp.float32(most)}, {"w": jnp.zeros(4)}, {"w": jnp.full((1, 4), size)}
        )
        assert norm({"w": np.asarray(after["w"], float)}) <= most * (1 + 1e-6)


@pytest.mark.parametrize(("dtype", "at"), [("bfloat16", 1.0), ("float32", 2.0**20)])
def test_no_adversary_tells_neighbours_by_how_the_model_is_rounded(dtype, at):
    """Of 21 clients, 10 or 11 move by one unit in the last place: their mean is rounded down or up, and the noise,
    which is smaller than the unit, must not come too late. From z = 1, an adversary is right in 24 of 24 by luck only.
    """
    theta = jnp.full(4, at, dtype)
    rows = np.stack([theta, jnp.nextafter(theta, theta + 1)])
    unit = float(rows[1, 0].astype(np.float32)) - at

    def loss(params, stats, batch, mask, train):
        return (((params["w"][None] - batch) ** 2).mean(0) / 2).sum().astype(jnp.float32), stats

    task = fv.Task(lambda key: Variables({"w": theta}, {}), loss, None, None, None, str)
    step = fv.make_round(
        task,
        fedavg(),
        fv.weightings.uniform(),
        fv.executors.lanes(1),
        fv.sgd,
        21,
        private=privacy.fixed,
    )
    state = fv.init_state(task, fedavg(), 21, {"lr": 1.0})
    data = fv.Data(jnp.asarray(rows), *[jnp.array([[0]])] * 3)
    hyper = {
        "lr": jnp.float32(1),
        "dp.clip": jnp.float32(2 * unit),
        "dp.noise_multiplier": jnp.float32(1),
    }
    play, right = jax.jit(step), 0
    for seed in range(12):
        for count in (10, 11):
            clients = [np.full(2, int(k < count)) for k in range(21)]
            schedule = fv.make_schedule(0, clients, batch_size=2, seed=seed)
            with jax.numpy_dtype_promotion("standard"):  # of a learning rate in float32
                model = play(state, schedule, data, hyper)[0].variables.params["w"]
            right += int((np.asarray(model > theta).mean() > 0.5) == (count == 11))
    assert right < 20


def change(weights, deltas, other_weights, other_deltas):
    """Returns ||u - u'|| of two cohorts with updates [K, L], weights [K] or [K, L]."""
    return norm((weights * deltas).sum(0) - (other_weights * other_deltas).sum(0))


def test_no_pair_of_cohorts_exceeds_the_bounds_and_some_reach_them():
    rng, num_clients, num_tensors = np.random.default_rng(0), 4, 9
    fixed, modelwise, tensorwise = (
        bound(num_clients, num_tensors)
        for bound in (privacy.fixed, privacy.modelwise, privacy.tensorwise)
    )
    equal = np.full((num_clients, 1), 1 / num_clients)
    for _ in range(200):
        deltas = rng.normal(size=(num_clients, num_tensors)) ** 3
        deltas /= np.maximum(np.linalg.norm(deltas, axis=1, keepdims=True), 1)
        other = deltas * [[-1], [1], [1], [1]]  # one client is another
        assert change(equal, deltas, equal, other) <= fixed * (1 + 1e-12)
        for num_weights, bound in ((1, modelwise), (num_tensors, tensorwise)):
            weights, others = rng.dirichlet(np.full(num_clients, 0.1), (2, num_weights))
            assert change(weights.T, deltas, others.T, other) <= bound * (1 + 1e-12)
    first = np.eye(num_clients)[:, :1]
    assert change(equal, first, equal, -first) == pytest.approx(fixed)
    assert change(first, first, first, -first) == pytest.approx(modelwise)
    # u takes of every client its own tensor: its norm, half of the bound, is sqrt(K) and not 1
    own = np.eye(num_clients, num_tensors)
    assert norm((own * own).sum(0)) == pytest.approx(tensorwise / 2)


def test_a_round_is_the_oracle_of_clipped_updates_and_one_noise(x64):
    """Fixed weights divide by K, also where clients are dropped; the noise comes once, of the round's key."""
    world = worlds.uneven(cohort_size=4)
    participating = np.array([True, False, True, True])
    schedule = world.schedule(0)._replace(participating=participating)
    start = worlds.state(world, fedavg(), worlds.QUADRATIC).variables.params
    alone = [
        worlds.play(
            world, [schedule._replace(participating=np.arange(4) == k)], fedavg(), "uniform"
        )
        for k in range(4)
    ]
    deltas = [tree.sub(start, results[-1][0].variables.params) for results in alone]
    assert max(map(norm, deltas)) > C
    clipped = [
        tree.scale(min(1, C / max(norm(d), 1e-12)), d)
        for d, h in zip(deltas, participating, strict=True)
        if h
    ]
    mean = tree.scale(1 / 4, functools.reduce(tree.add, clipped))
    noise = tree.scale(Z * 2 * C / 4, unit_noise(schedule, start))
    expected = tree.add(tree.sub(start, mean), noise)
    ((state, metrics),) = rounds(world, [schedule], **FIXED)
    worlds.assert_close(state.variables.params, expected, 1e-12)
    np.testing.assert_allclose(metrics.weights, participating / 4)


def test_a_round_without_clients_has_its_noise(x64):
    """Without it, the round would show that the only client diverged."""
    world = worlds.uneven()
    schedule = world.schedule(0, 2)._replace(participating=np.zeros(3, bool))
    start = worlds.state(world, fedavg(), worlds.QUADRATIC).variables.params
    ((state, _),) = rounds(world, [schedule], **FIXED)
    noise = tree.scale(Z * 2 * C / 3, unit_noise(schedule, start))
    worlds.assert_close(tree.sub(state.variables.params, start), noise, 1e-12)


def test_hypergradients_pass_through_rounds_of_a_part_through_what_is_sent_clipping_and_noise(x64):
    world, executor = worlds.uneven(), fv.unrolled(worlds.uneven().most_steps())
    task, trained = fv.trained_part(
        worlds.QUADRATIC, worlds.variables(task=worlds.QUADRATIC), "^left/"
    )
    algorithm = fedavg()._replace(send=compression.top_k(0.5))
    step = worlds.round_step(
        world, algorithm, "fedvg", task, executor=executor, private=privacy.modelwise
    )
    start = fv.init_state(task, algorithm, len(world.train), worlds.hyper(), variables=trained)
    over, plan = (
        fv.over_rounds(step),
        fv.stack_schedules([world.schedule(number) for number in range(2)]),
    )

    def loss(rate, clip, z):
        values = worlds.hyper() | {"lr": rate, "dp.clip": clip, "dp.noise_multiplier": z}
        state, _ = over(start, plan, world.data(), values)
        return task.loss(
            *state.variables, *tree.gather(world.data().pool, world.data().val[0]), False
        )[0]

    at = np.array([worlds.HYPER["lr"], 2 * C, Z])  # with 4 C, no client is clipped
    f = worlds.jit(jax.value_and_grad(loss, (0, 1, 2)))
    for slope, step in zip(f(*at)[1], 1e-6 * np.eye(3), strict=True):
        assert abs(slope) > 1e-3
        np.testing.assert_allclose(
            slope, (f(*(at + step))[0] - f(*(at - step))[0]) / 2e-6, rtol=1e-6
        )
