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


@functools.cache
def fedavg():
    return worlds.algorithm("fedavg")


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
    longest = tree.take(deltas, 0)
    clipped = tree.scale(-1, tree.take(after, 0))
    worlds.assert_close(clipped, tree.scale(C / norm(longest), longest), 1e-15)
    assert norm(clipped) == pytest.approx(C, rel=1e-14)
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
    arguments = task, fedavg(), fv.weightings.uniform(), fv.executors.lanes(1), fv.sgd, 21
    step = jax.jit(fv.make_round(*arguments, private=privacy.fixed))
    hyper = {"lr": 1.0, "dp.clip": 2 * unit, "dp.noise_multiplier": 1.0}
    state = fv.init_state(task, fedavg(), 21, hyper)
    data = fv.Data(jnp.asarray(rows), *[jnp.array([[0]])] * 3)
    right = 0
    for seed in range(12):
        for count in (10, 11):
            clients = [np.full(2, int(k < count)) for k in range(21)]
            schedule = fv.make_schedule(0, clients, batch_size=2, seed=seed)
            with jax.numpy_dtype_promotion("standard"):  # of a learning rate in float32
                after, _ = step(state, schedule, data, jax.tree.map(jnp.float32, hyper))
            has_risen = np.mean(after.variables.params["w"] > theta) > 0.5
            right += int(has_risen == (count == 11))
    assert right < 20


def change(weights, deltas, other_weights, other_deltas):
    """Returns ||u - u'|| of two cohorts with updates [K, L], weights [K] or [K, L]."""
    return norm((weights * deltas).sum(0) - (other_weights * other_deltas).sum(0))


def test_no_pair_of_cohorts_exceeds_the_bounds_and_some_reach_them():
    rng = np.random.default_rng(0)
    num_clients = 4
    num_tensors = 9
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


@pytest.mark.parametrize("present", [[0, 2, 3], []], ids=["one dropped", "all dropped"])
def test_a_round_is_the_oracle_of_clipped_updates_and_one_noise(x64, present):
    """Fixed weights divide by K, also where clients are dropped; the noise comes once, of the round's key. A round
    without it would show that the only client diverged."""
    world = worlds.uneven(cohort_size=4)
    schedule = world.schedule(0)._replace(participating=np.isin(np.arange(4), present))
    start = worlds.state(world, fedavg(), worlds.QUADRATIC).variables.params
    expected = tree.add(start, tree.scale(Z * 2 * C / 4, unit_noise(schedule, start)))
    for k in present:
        alone = schedule._replace(participating=np.arange(4) == k)
        ((state, _),) = worlds.play(world, [alone], fedavg(), "uniform")
        delta = tree.sub(start, state.variables.params)
        assert norm(delta) > C
        expected = tree.sub(expected, tree.scale(C / norm(delta) / 4, delta))
    values = worlds.hyper(**{"dp.clip": C, "dp.noise_multiplier": Z})
    arguments = world, [schedule], fedavg(), "uniform", worlds.QUADRATIC, values
    ((state, metrics),) = worlds.play(*arguments, private=privacy.fixed)
    worlds.assert_close(state.variables.params, expected, 1e-12)
    np.testing.assert_allclose(metrics.weights, schedule.participating / 4)


def test_hypergradients_pass_through_rounds_of_a_part_through_what_is_sent_clipping_and_noise(x64):
    world = worlds.uneven()
    model = worlds.variables(task=worlds.QUADRATIC)
    task, trained = fv.trained_part(worlds.QUADRATIC, model, "^left/")
    algorithm = fedavg()._replace(send=compression.top_k(0.5))
    options = {"executor": fv.unrolled(world.most_steps()), "private": privacy.modelwise}
    over = fv.over_rounds(worlds.round_step(world, algorithm, "fedvg", task, **options))
    start = fv.init_state(task, algorithm, len(world.train), worlds.hyper(), variables=trained)
    plan = fv.stack_schedules([world.schedule(number) for number in range(2)])

    def loss(rate, clip, z):
        values = worlds.hyper() | {"lr": rate, "dp.clip": clip, "dp.noise_multiplier": z}
        state, _ = over(start, plan, world.data(), values)
        return sum(jnp.sin(leaf).sum() for leaf in jax.tree.leaves(state.variables))

    at = np.array([worlds.HYPER["lr"], 2 * C, Z])  # with 4 C, no client is clipped
    f = worlds.jit(jax.value_and_grad(loss, (0, 1, 2)))
    for slope, step in zip(f(*at)[1], 1e-6 * np.eye(3), strict=True):
        assert abs(slope) > 1e-3
        np.testing.assert_allclose(
            slope, (f(*(at + step))[0] - f(*(at - step))[0]) / 2e-6, rtol=1e-6
        )
