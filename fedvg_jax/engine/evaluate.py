"""Evaluation of a model on a table of rows: sums over minibatches, in one program."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.core import tree
from fedvg_jax.core.scopes import EVALUATION
from fedvg_jax.core.types import Executor, Task, Tree, Variables


def make_evaluate(task: Task, executor: Executor | None = None) -> Callable[[Variables, Tree, Array], Tree]:
    """Returns evaluate(variables, pool, rows) -> `task.measure` summed over all real rows.

    `rows` is int32 [V, B], -1 for padding; its empty minibatches come last and cost nothing.

    Args:
        task: the model.
        executor: its devices share the minibatches; None for one device.
    """
    measure = jax.jit(task.measure)  # traced once for all tables
    devices = executor.placement.device_set if executor and executor.placement else ()

    def evaluate(variables: Variables, pool: Tree, rows: Array) -> Tree:
        if executor is None or len(devices) <= 1:
            return sums_over((variables, pool), rows)
        rows = jnp.pad(rows, ((0, -len(rows) % len(devices)), (0, 0)), constant_values=-1)
        # minibatches are dealt to the devices in turn, because empty ones come last
        by_device = rows.reshape(-1, len(devices), rows.shape[1]).swapaxes(0, 1)
        return jax.tree.map(lambda sums: sums.sum(0), executor.map(sums_over, (variables, pool), by_device))

    def sums_over(shared: tuple[Variables, Tree], rows: Array) -> Tree:
        variables, pool = shared

        def measure_batch(batch_rows):
            return measure(*variables, *tree.gather(pool, batch_rows))

        empty = tree.zeros_like(jax.eval_shape(measure_batch, rows[0]))
        num_used = (rows >= 0).any(1).sum()
        with jax.named_scope(EVALUATION):
            return lax.fori_loop(0, num_used, lambda i, sums: tree.add(sums, measure_batch(rows[i])), empty)

    return evaluate
