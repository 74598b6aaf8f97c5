"""A model over a table of rows: sums over minibatches, in one program."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fedvg_jax import tree
from fedvg_jax.types import Task, Tree, Variables


def make_evaluate(task: Task) -> Callable[[Variables, Tree, jax.Array], Tree]:
    """evaluate(variables, pool, rows [V, B]) -> `task.measure` added over all real rows."""

    def evaluate(variables: Variables, pool: Tree, rows: jax.Array) -> Tree:
        def measure(batch_rows):
            return task.measure(*variables, *tree.gather(pool, batch_rows))

        empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(measure, rows[0]))
        used = (rows >= 0).any(1).sum()
        return lax.fori_loop(0, used, lambda i, sums: tree.add(sums, measure(rows[i])), empty)

    return evaluate
