"""Evaluation is a sum over rows, however they are batched."""

import jax.numpy as jnp
import numpy as np
import pytest
from support import oracle, worlds

from fedvg_jax.engine import evaluate, executors, schedule

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
