"""Several devices that score one client together measure what one device measures."""

import jax
import jax.numpy as jnp
import numpy as np
import worlds

from fedvg_jax.core import norms, tree
from fedvg_jax.engine import executors
from fedvg_jax.weightings import recorded, signals

WORLD = worlds.small()
"""D_val is four groups: of 4, 4, 2 and 0 rows."""


def of_user(hyper, report, data):
    """A signal that does not know that devices may share rows."""
    batch, mask = tree.gather(data.pool, jnp.asarray(data.scoring)[0])
    return worlds.TASK.loss(*report.variables, batch, mask, False)[0]


def every_signal(hyper, report, data):
    """The gradient with its norms, and everything else that is measured on rows."""
    gradient = signals.validation_norms(worlds.TASK, lambda x: (x, norms.l1(x)), True, 2)
    others = (
        recorded.client_fisher_trace,
        recorded.client_joint_fisher,
        signals.validation_loss,
        signals.validation_accuracy,
    )
    made = [gradient, *(signal(worlds.TASK) for signal in others), signals.pooled_test_accuracy(worlds.TASK), of_user]
    return [signal(hyper, report, data) for signal in made]


def test_three_devices_measure_two_clients_like_one(x64):
    """Of a network with batch statistics. A part has a whole and an empty group, another the partial one."""
    clients = jax.tree.map(lambda *x: jnp.stack(x), *(worlds.variables(seed) for seed in range(2)))
    reports = signals.Report(clients, jnp.ones(2, jnp.int32), clients.params)

    def measure(shared, report, row_parts=None):
        return every_signal(*shared[:1], report._replace(row_parts=row_parts), *shared[1:])

    shared, (three, one) = (worlds.hyper(), WORLD.data()), (executors.sharded(3, 1, num_parts=3), executors.lanes(1))
    assert three.map_by_rows is not None and one.map_by_rows is None
    actual = worlds.jit(lambda *arguments: three.map_by_rows(measure, *arguments))(shared, reports)
    expected = worlds.jit(lambda *arguments: one.map(measure, *arguments))(shared, reports)
    worlds.assert_close(*(jax.tree.map(np.asarray, result) for result in (actual, expected)), 1e-12)
