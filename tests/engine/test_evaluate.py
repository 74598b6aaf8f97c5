"""Evaluation is a sum over rows, however they are batched; the server's steps on D_val."""

import functools

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


def summed(run, rows):
    variables = worlds.variables()
    return run(variables, WORLD.data().pool, jnp.asarray(rows)), variables


@pytest.mark.parametrize(("batch_size", "spare"), [(1, 0), (4, 2)])
def test_evaluation_equals_a_loop_over_rows_for_any_batch_size(x64, run, batch_size, spare):
    """And any number of empty batches to spare."""
    capacity = -(-len(WORLD.test) // batch_size) + spare
    sums, variables = summed(run, schedule.table(WORLD.test, batch_size, capacity))
    loss, confusion = oracle.evaluate(*map(worlds.by_path, variables), WORLD.pool, WORLD.test)
    np.testing.assert_allclose(sums["loss"], loss, rtol=1e-9)
    np.testing.assert_array_equal(sums["confusion"], confusion.reshape(-1))


def test_a_table_without_rows_sums_to_zero(run):
    sums, _ = summed(run, np.full((2, 4), -1, np.int32))
    assert sums["loss"] == 0 and not sums["confusion"].any()


# --- the server's steps on D_val


USED = 3  # minibatches of D_val's 10 rows; its table has an empty one behind them


@functools.cache
def refine(num_steps):
    return worlds.jit(baselines.server_steps(worlds.TASK, num_steps))


def refined(num_steps, number=0, lr=0.1, data=None):
    hyper, model = worlds.hyper(**{"tuning.lr": lr}), worlds.variables()
    return refine(num_steps)(hyper, jnp.int32(number), model, data or WORLD.data())


def on_rows(f):
    """`f` of a minibatch of D_val, in train mode."""
    return worlds.jit(
        lambda variables, rows: f(*variables, *tree.gather(WORLD.data().pool, rows), True)
    )


slope_of = on_rows(jax.grad(worlds.TASK.loss, has_aux=True))


def test_server_tuning_equals_plain_sgd_over_the_minibatches_in_turn(x64):
    model, data, number = worlds.variables(), WORLD.data(), 5
    for i in range(number * 4, number * 4 + 4):
        grads, stats = slope_of(model, data.scoring[i % USED])
        params = jax.tree.map(lambda p, g: p - 0.1 * g, model.params, grads)
        model = model._replace(params=params, stats=stats)
    worlds.assert_close(refined(4, number), model, 1e-12)
