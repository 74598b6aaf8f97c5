"""A model over a table of rows: sums over minibatches, in one program."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fedvg_jax.core import tree
from fedvg_jax.core.types import Executor, Task, Tree, Variables


def make_evaluate(task: Task, executor: Executor | None = None) -> Callable[[Variables, Tree, jax.Array], Tree]:
    """evaluate(variables, pool, rows [V, B]) -> `task.measure` added over all real rows, on all of its devices."""
    measure = jax.jit(task.measure)  # traced once for all tables
    shares = len(executor.placement.device_set) if executor and executor.placement else 1

    def evaluate(variables: Variables, pool: Tree, rows: jax.Array) -> Tree:
        if shares == 1:
            return of_rows((variables, pool), rows)
        rows = jnp.pad(rows, ((0, -len(rows) % shares), (0, 0)), constant_values=-1)
        dealt = rows.reshape(-1, shares, rows.shape[1]).swapaxes(0, 1)  # like cards, for empty batches are last
        return jax.tree.map(lambda sums: sums.sum(0), executor.map(of_rows, (variables, pool), dealt))

    def of_rows(shared: tuple[Variables, Tree], rows: jax.Array) -> Tree:
        variables, pool = shared

        def of_batch(batch_rows):
            return measure(*variables, *tree.gather(pool, batch_rows))

        empty = tree.zeros_like(jax.eval_shape(of_batch, rows[0]))
        used = (rows >= 0).any(1).sum()
        return lax.fori_loop(0, used, lambda i, sums: tree.add(sums, of_batch(rows[i])), empty)

    return evaluate
