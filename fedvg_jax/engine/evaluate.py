"""Evaluation of a model on a table of rows: sums over minibatches, in one program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

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
    return signals.mean_over(lambda batch_rows: signals.summed_loss(task, variables, pool, batch_rows), rows)


def make_evaluate(task: Task, executor: Executor | None = None) -> Callable[[Variables, Tree, Array], Tree]:
    """Returns evaluate(variables, pool, rows) -> `task.measure` summed over all real rows.

    `rows` is int32 [V, B], -1 for padding; its empty minibatches come last and cost nothing.

    Args:
        task: the model.
        executor: its devices share the minibatches; None for one device.
    """
    measure, num_devices = jax.jit(task.measure), count_devices(executor)  # traced once for all tables

    def evaluate(variables: Variables, pool: Tree, rows: Array) -> Tree:
        if executor is None or num_devices == 1:
            return over_rows((variables, pool), rows)
        padded = jnp.pad(rows, ((0, -len(rows) % num_devices), (0, 0)), constant_values=-1)
        # minibatches are dealt to the devices in turn, because empty ones come last
        by_device = padded.reshape(-1, num_devices, rows.shape[1]).swapaxes(0, 1)
        return tree.total(executor.map(over_rows, (variables, pool), by_device))

    def over_rows(shared: tuple[Variables, Tree], rows: Array) -> Tree:
        variables, pool = shared

        def measure_rows(batch_rows: Array) -> Tree:
            return measure(*variables, *tree.gather(pool, batch_rows))

        empty = tree.zeros_like(jax.eval_shape(measure_rows, rows[0]))
        return _add(lambda i: measure_rows(rows[i]), rows >= 0, empty)

    return evaluate


def _add(measure_minibatch: Callable[[Array], Tree], masks: Array, totals: Tree) -> Tree:
    """Returns the totals with the minibatches that have rows, which come first.

    Args:
        measure_minibatch: number -> what is added.
        masks: bool [n, B], False for padding.
        totals: of earlier minibatches.
    """
    with jax.named_scope(EVALUATION):
        return lax.fori_loop(0, masks.any(1).sum(), lambda i, totals: tree.add(totals, measure_minibatch(i)), totals)


def count_devices(executor: Executor | None) -> int:
    """Returns the number of devices that share the work of an executor."""
    return len(executor.placement.device_set) if executor and executor.placement else 1


def make_add_piece(task: Task, executor: Executor | None = None) -> Callable[[Variables, Tree, Tree, Array], Tree]:
    """Returns add_piece(variables, totals, batches, masks) -> `totals` with further minibatches added.

    Totals have a leading axis [D] for D devices. Leaves of `batches` are [D, n, B, ...], and `masks` is bool [D, n, B],
    False for padding. Where minibatch i of a table is number i // D of device i % D, the totals over all pieces in
    order, summed over the devices, equal those of `make_evaluate` to the bit. Empty minibatches come last and cost
    nothing.

    Args:
        task: the model.
        executor: its devices share the minibatches; None for one device.
    """
    measure = jax.jit(task.measure)

    def add_piece(variables: Variables, totals: Tree, batches: Tree, masks: Array) -> Tree:
        entries = (totals, batches, masks)
        if executor is None or count_devices(executor) == 1:
            return jax.tree.map(lambda x: x[None], add_minibatches(variables, tree.take(entries, 0)))
        return executor.map(add_minibatches, variables, entries)

    def add_minibatches(variables: Variables, entry: tuple[Tree, Tree, Array]) -> Tree:
        totals, batches, masks = entry
        return _add(lambda i: measure(*variables, tree.take(batches, i), masks[i]), masks, totals)

    return add_piece


def make_count_correct(task: Task) -> Callable[[Variables, Tree, Array], Array]:
    """Returns count(variables, pool, rows) -> labels of the real rows [V, B] that have the largest score, int32."""

    def correct(params: Tree, stats: Tree, batch: Any, mask: Array) -> Array:
        is_correct = jnp.argmax(task.predict(params, stats, batch), -1).astype(batch.y.dtype) == batch.y
        return jnp.where(mask, is_correct.reshape(len(mask), -1).sum(1), 0).sum().astype(jnp.int32)

    return make_evaluate(task._replace(measure=correct))
