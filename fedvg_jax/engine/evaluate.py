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
    num_devices = count_devices(executor)

    def evaluate(variables: Variables, pool: Tree, rows: Array) -> Tree:
        if executor is None or num_devices == 1:
            return sums_over((variables, pool), rows)
        rows = jnp.pad(rows, ((0, -len(rows) % num_devices), (0, 0)), constant_values=-1)
        # minibatches are dealt to the devices in turn, because empty ones come last
        by_device = rows.reshape(-1, num_devices, rows.shape[1]).swapaxes(0, 1)
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


def count_devices(executor: Executor | None) -> int:
    """Returns the number of devices that share the work of an executor."""
    return len(executor.placement.device_set) if executor and executor.placement else 1


def make_add_piece(task: Task, executor: Executor | None = None) -> Callable[[Variables, Tree, Tree, Array], Tree]:
    """Returns add_piece(variables, sums, batches, masks) -> `sums` with `task.measure` of further minibatches added.

    Leaves of `sums` are [D, ...] for D devices, those of `batches` [D, n, B, ...], and `masks` is bool [D, n, B], False
    for padding. Where minibatch i of a table is number i // D of device i % D, the sums over all pieces in order,
    summed over the devices, equal those of `make_evaluate` to the bit. Empty minibatches come last and cost nothing.

    Args:
        task: the model.
        executor: its devices share the minibatches; None for one device.
    """
    measure = jax.jit(task.measure)

    def add_piece(variables: Variables, sums: Tree, batches: Tree, masks: Array) -> Tree:
        entries = (sums, batches, masks)
        if executor is None or count_devices(executor) == 1:
            return jax.tree.map(lambda x: x[None], add_minibatches(variables, tree.take(entries, 0)))
        return executor.map(add_minibatches, variables, entries)

    def add_minibatches(variables: Variables, entry: tuple[Tree, Tree, Array]) -> Tree:
        sums, batches, masks = entry

        def add_minibatch(i, sums: Tree) -> Tree:
            return tree.add(sums, measure(*variables, tree.take(batches, i), masks[i]))

        with jax.named_scope(EVALUATION):
            return lax.fori_loop(0, masks.any(1).sum(), add_minibatch, sums)

    return add_piece
