"""Evaluation is a sum over rows, however they are batched; the server's steps on D_val."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import oracle, worlds

from fedvg_jax.core import tree
from fedvg_jax.engine import evaluate, executors, schedule
from fedvg_jax.weightings import baselines

WORLD = worlds.small()


@pytest.fixture(scope="module", params=[None, executors.sharded(3, 1)], ids=["", "3 devices"])
def run(request):
    return worlds.jit(evaluate.make_evaluate(worlds.TASK, request.param))


@pytest.mark.parametrize(("batch_size", "spare"), [(1, 0), (4, 2)])
def test_evaluation_equals_a_loop_over_rows_for_any_batch_size(x64, run, batch_size, spare):
    """And any number of empty batches to spare; they are all that the third device has."""
    capacity = -(-len(WORLD.test) // batch_size) + spare
    rows = schedule.table(WORLD.test, batch_size, capacity)
    variables = worlds.variables()
    sums = run(variables, WORLD.data().pool, jnp.asarray(rows))
    loss, confusion = oracle.evaluate(*map(worlds.by_path, variables), WORLD.pool, WORLD.test)
    np.testing.assert_allclose(sums["loss"], loss, rtol=1e-9)
    np.testing.assert_array_equal(sums["confusion"], confusion.reshape(-1))


# --- the server's steps on D_val


USED = 3  # minibatches of D_val's 10 rows; its table has an empty one behind them


@worlds.jit
def gradient_of(variables, rows):
    """Returns the gradient on a minibatch of D_val, and statistics after it."""
    minibatch = tree.gather(WORLD.data().pool, rows)
    return jax.grad(worlds.TASK.loss, has_aux=True)(*variables, *minibatch, True)


def test_server_tuning_equals_plain_sgd_over_the_minibatches_in_turn(x64):
    model = worlds.variables()
    data = WORLD.data()
    refine = worlds.jit(baselines.server_steps(worlds.TASK, 4))
    refined = refine(worlds.hyper(**{"tuning.lr": 0.1}), jnp.int32(5), model, data)
    for i in range(5 * 4, 6 * 4):
        grads, stats = gradient_of(model, data.scoring[i % USED])
        params = jax.tree.map(lambda p, g: p - 0.1 * g, model.params, grads)
        model = model._replace(params=params, stats=stats)
    worlds.assert_close(refined, model, 1e-12)
