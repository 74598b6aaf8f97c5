"""Several groups of rows in one batch, as scoring takes them, equal one group after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import worlds

from fedvg_jax.core.types import Batch, Data, Report
from fedvg_jax.models import mlp
from fedvg_jax.models import task as tasks
from fedvg_jax.models.transforms import accumulate_gradients
from fedvg_jax.weightings import signals

GROUPS = np.array([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, -1], [-1, -1, -1, -1]], np.int32)


def scored(task, variables, passes):
    """Returns the validation gradient of 11 rows in groups of 4, the last of 3, in train and in eval mode."""
    draw = np.random.default_rng(0)
    pool = Batch(jnp.asarray(draw.uniform(size=(11, *worlds.IMAGE))), jnp.asarray(draw.integers(0, 3, 11), jnp.int32))
    data = Data(pool, *3 * [jnp.asarray(GROUPS)])
    report = Report(variables, jnp.int32(1), variables.params)
    measures = [signals.validation_gradient(task, train, groups) for groups in passes for train in (True, False)]
    return jax.jit(lambda report, data: [measure({}, report, data) for measure in measures])(report, data)


def test_scoring_groups_as_one_batch_equals_group_by_group(x64):
    variables = worlds.variables()
    assert worlds.TASK.takes_groups
    train, evaluated, wide_train, wide_evaluated = scored(worlds.TASK, variables, (1, 4))
    worlds.assert_close(wide_train, train, 1e-12)
    worlds.assert_close(wide_evaluated, evaluated, 1e-12)
    differs = [float(jnp.abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, (train, evaluated)), strict=True)]
    assert max(differs) > 1e-3, "otherwise the statistics would play no part"
    batch = Batch(jnp.ones((16, *worlds.IMAGE)), jnp.zeros(16, jnp.int32))
    _, stats = jax.jit(worlds.TASK.loss, static_argnums=4)(*variables, batch, jnp.ones((4, 4), bool), True)
    worlds.assert_close(stats, variables.stats, 0.0)


def test_groups_pass_through_microbatches():
    """Of a model in which no row depends on another."""
    plain = tasks.classification(mlp.MLP(3, (4,)), 3, worlds.IMAGE)
    variables = jax.jit(plain.init)(jax.random.key(0))
    single, _, wide, _ = scored(accumulate_gradients(plain, 2), variables, (1, 4))
    worlds.assert_close(wide, single, 1e-5)
