"""A loss with a key: local training draws from (seed, round, client, step), and scoring draws nothing."""

import jax
import jax.numpy as jnp
import numpy as np
from support import worlds

from fedvg_jax.core.types import ClientReturn
from fedvg_jax.weightings import signals

WORLD = worlds.uneven(cohort_size=5)
ALGORITHM = worlds.algorithm("fedavg")


def noise(key):
    """One normal number per parameter."""
    drawn = jax.random.normal(key, (3,), float)
    return {"left": {"x": drawn[:2]}, "right": {"x": drawn[2:]}}


def loss(params, stats, batch, mask, train, key=None):
    """The quadratic loss, plus noise . params in training: its gradient is that of the quadratic, plus noise."""
    value, stats = worlds.QUADRATIC.loss(params, stats, batch, mask, train)
    if key is None:
        return value, stats
    products = jax.tree.map(lambda e, x: (e * x).sum(), noise(key), params)
    return value + sum(jax.tree.leaves(products)), stats


TASK = worlds.QUADRATIC._replace(loss=loss)


@worlds.jit
def drawn_in_step(client_key, step):
    return noise(jax.random.fold_in(client_key, step))


def trained_by_hand(schedule, k, lr):
    """The model of the cohort's client k after its steps x <- x - lr (a x - b + noise)."""
    params = worlds.state(WORLD, ALGORITHM, TASK).variables.params
    first_row = WORLD.train[schedule.clients[k]][0]
    a, b = (jax.tree.map(lambda x: x[first_row], part) for part in WORLD.pool)
    round_key = jax.random.wrap_key_data(jnp.asarray(schedule.key), impl="threefry2x32")
    client_key = jax.random.fold_in(jax.random.fold_in(round_key, 3), schedule.clients[k])
    for step in range(schedule.num_steps[k]):
        drawn = drawn_in_step(client_key, step)
        params = jax.tree.map(lambda x, a, b, e: x - lr * (a * x - b + e), params, a, b, drawn)
    return params


def test_each_step_draws_from_seed_round_client_and_step(x64):
    schedule = WORLD.schedule(3, seed=7)
    ((state, _),) = worlds.play(WORLD, [schedule], ALGORITHM, "samples", TASK)
    models = [trained_by_hand(schedule, k, worlds.HYPER["lr"]) for k in range(5)]
    shares = schedule.num_samples / schedule.num_samples.sum()
    expected = jax.tree.map(lambda *leaves: shares @ np.stack(leaves), *models)
    worlds.assert_close(state.variables.params, expected, 1e-12)


def test_scoring_does_not_depend_on_the_key():
    variables = worlds.variables(task=TASK)
    data = WORLD.data()
    client = ClientReturn(variables, jnp.int32(1), variables.params)
    score, expected = (
        worlds.jit(signals.validation_gradient(task, True, 1))({}, client, data)
        for task in (TASK, worlds.QUADRATIC)
    )
    jax.tree.map(np.testing.assert_array_equal, score, expected)
