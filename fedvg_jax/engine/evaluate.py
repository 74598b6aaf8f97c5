"""Evaluation of a model on a table of rows: sums over minibatches, in one program."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.core import tree
from fedvg_jax.core.tree import EVALUATION
from fedvg_jax.core.types import Executor, Task, Tree, Variables
from fedvg_jax.weightings import signals

ROWS = 64
"""Rows of a step of an evaluation; the result does not depend on it."""


@functools.partial(jax.jit, static_argnums=0)
def mean_loss(task: Task, variables: Variables, pool: Tree, rows: Array) -> Array:
    """Returns the mean of `task.loss` over the real rows of a table, in evaluation mode; differentiable in both modes.

    Args:
        task: the model and its loss.
        variables: of the model.
        pool: leaves [T, ...].
        rows: int32 [V, B], -1 for padding.
    """
    return signals.mean_over(
        lambda batch_rows: signals.summed_loss(task, variables, pool, batch_rows), rows
    )


def make_evaluate(task: Task, executor: Executor | None = None) -> Callable[..., Tree]:
    """Returns evaluate(variables, pool, rows, totals=None) -> `task.measure` summed over all real rows.

    `rows` is int32 [V, B], -1 for padding; its empty minibatches come last and cost nothing. `totals` of earlier rows
    are added to.

    Args:
        task: the model.
        executor: its devices share the minibatches; None for one device.
    """
    measure = jax.jit(task.measure)  # traced once for all tables
    num_devices = len(executor.placement.device_set) if executor and executor.placement else 1

    def evaluate(variables, pool, rows, totals=None):
        if executor is None or num_devices == 1:
            return over_rows((variables, pool), rows, totals)
        padded = jnp.pad(rows, ((0, -len(rows) % num_devices), (0, 0)), constant_values=-1)
        # minibatches are dealt to the devices in turn, because empty ones come last
        by_device = padded.reshape(-1, num_devices, rows.shape[1]).swapaxes(0, 1)
        sums = tree.total(executor.map(over_rows, (variables, pool), by_device))
        return sums if totals is None else tree.add(totals, sums)

    def over_rows(shared, rows, totals=None):
        variables, pool = shared

        def measure_rows(batch_rows):
            return measure(*variables, *tree.gather(pool, batch_rows))

        if totals is None:
            totals = tree.zeros_like(jax.eval_shape(measure_rows, rows[0]))
        with jax.named_scope(EVALUATION):
            num_used = (rows >= 0).any(1).sum()
            return lax.fori_loop(
                0, num_used, lambda i, sums: tree.add(sums, measure_rows(rows[i])), totals
            )

    return evaluate


def make_count_correct(task: Task) -> Callable[[Variables, Tree, Array], Array]:
    """Returns count(variables, pool, rows) -> labels of the real rows [V, B] that have the largest score, int32."""

    def correct(params, stats, batch, mask):
        is_correct = (
            jnp.argmax(task.predict(params, stats, batch), -1).astype(batch.y.dtype) == batch.y
        )
        return jnp.where(mask, is_correct.reshape(len(mask), -1).sum(1), 0).sum().astype(jnp.int32)

    return make_evaluate(task._replace(measure=correct))
