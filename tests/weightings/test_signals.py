"""`validation_gradients` is the definition, and the engine scores equally; the Fisher view."""

import jax
import jax.numpy as jnp
import pytest
from support import worlds

import fedvg_jax
from fedvg_jax.core import tree
from fedvg_jax.core.types import ClientReturn, Data, Task, Variables
from fedvg_jax.host import hardware as hw
from fedvg_jax.weightings import signals

K = 3
WORLD = worlds.small()
NUM_GROUPS = len(WORLD.scoring)


@pytest.mark.parametrize(("train", "sizes"), [(True, (1, 3, NUM_GROUPS + 3)), (False, (3,))])
def test_scoring_in_passes_of_any_size_equals_the_definition(x64, train, sizes):
    """The mean over D_val's 10 rows as a mean over groups of 4, 4, 2 and 0 rows: group v counts V n_v / 10."""
    clients = jax.tree.map(lambda *x: jnp.stack(x), *(worlds.variables(seed) for seed in range(K)))
    data = WORLD.data()
    reports = ClientReturn(clients, jnp.ones(K, jnp.int32), clients.params)

    def loss(params, stats, rows):
        batch, mask = tree.gather(data.pool, rows)
        mean, _ = worlds.TASK.loss(params, stats, batch, mask, train)
        return mean * mask.sum().astype(mean.dtype) * NUM_GROUPS / 10

    @worlds.jit
    def definition(params, stats):
        return fedvg_jax.validation_gradients(loss, params, data.scoring, client_stats=stats)

    expected = definition(*clients)
    for size in sizes:
        measure = signals.validation_gradient(worlds.TASK, train, size)
        actual = worlds.jit(jax.vmap(measure, (None, 0, None)))({}, reports, data)
        worlds.assert_close(actual, expected, 1e-9)


@pytest.mark.parametrize(
    ("platform", "width", "groups"), [("cpu", 1, 4), ("cpu", 2**14, 2), ("gpu", 2**14, 4)]
)
def test_feature_maps_of_a_caller_s_task_leave_as_many_groups_in_a_pass_as_a_core_s_cache_holds(
    platform, width, groups
):
    """Maps [4, 2, 1, 2^14] of a group of 4 rows have 2^17 values, of which 2^18 fit; those of width 1 are the rows."""
    pool = jnp.ones((16, 2, 1, 1))
    table = jnp.arange(16, dtype=jnp.int32).reshape(4, 4)

    def loss(params, stats, batch, mask, train):
        return (batch * params["w"][None, None, None]).sum(), stats

    client = ClientReturn(Variables({"w": jnp.ones(width)}, {}), jnp.int32(1), {})
    task = Task(lambda key: client.variables, loss, *[None] * 4)
    with hw.assumed(hw.Hardware(platform, platform, num_devices=1, cores=1, memory_bytes=None)):
        measure = signals.validation_gradient(task, True, 4)
        jaxpr = jax.make_jaxpr(measure)({}, client, Data(pool, table, table, table))
    assert [eqn.params["length"] for eqn in jaxpr.eqns if eqn.primitive.name == "scan"] == [
        4 // groups
    ]


def test_the_fisher_signal_is_the_mean_of_squared_gradients_of_rows(x64):
    """For any number of gradients per pass; BatchNorm in evaluation mode."""
    model = worlds.variables()
    data = WORLD.data()
    client = ClientReturn(model, jnp.int32(1), tree.zeros_like(model.params))

    @worlds.jit
    @jax.grad
    def gradient(params, row):
        batch, mask = tree.gather(data.pool, row[None])
        return worlds.TASK.loss(params, model.stats, batch, mask, False)[0]

    rows = WORLD.val[WORLD.val >= 0]
    squares = [jax.tree.map(jnp.square, gradient(model.params, row)) for row in rows]
    expected = jax.tree.map(lambda *each: sum(each) / len(rows), *squares)
    rules = [signals.fisher(worlds.TASK, most) for most in (1, 200, 2**26)]
    for actual in worlds.jit(lambda: [rule({}, client, data) for rule in rules])():
        worlds.assert_close(actual, expected, 1e-12)
