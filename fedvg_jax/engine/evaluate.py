"""Evaluation of a model on a table of rows: sums over minibatches, in one program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.core import tree
from fedvg_jax.core.scopes import EVALUATION
from fedvg_jax.core.types import Executor, Task, Tree, Variables

NUM_BINS = 15
"""Bins of confidence, as Guo et al. (2017) use."""


class Detailed(NamedTuple):
    """What one pass over a table of rows gives, of a task whose outputs are logits."""

    sums: Tree
    """of `task.measure` over all real rows"""
    correct: Array
    """int32 [V, B] labels of every row that are predicted correctly, 0 for padding"""
    bins: Array
    """[3, NUM_BINS] number of labels, summed confidence and number of correct labels, by confidence"""


@functools.partial(jax.jit, static_argnums=0)
def mean_loss(task: Task, variables: Variables, pool: Tree, rows: Array) -> Array:
    """Returns the mean of `task.loss` over the real rows of a table, in evaluation mode; differentiable in both modes.

    Args:
        task: the model and its loss.
        variables: of the model.
        pool: leaves [T, ...].
        rows: int32 [V, B], -1 for padding.
    """

    def add(total: Array, batch_rows: Array) -> tuple[Array, Array]:
        batch, mask = tree.gather(pool, batch_rows)
        loss, _ = task.loss(*variables, batch, mask, False)
        count = mask.sum().astype(total.dtype)
        return total + loss.astype(total.dtype) * count, count

    total, counts = lax.scan(add, jnp.zeros((), tree.wide_dtype(variables)), rows)
    return total / counts.sum()


def make_evaluate(
    task: Task, executor: Executor | None = None, *, is_detailed: bool = False
) -> Callable[[Variables, Tree, Array], Any]:
    """Returns evaluate(variables, pool, rows) -> `task.measure` summed over all real rows, or a `Detailed` with them.

    `rows` is int32 [V, B], -1 for padding; its empty minibatches come last and cost nothing.

    Args:
        task: the model.
        executor: its devices share the minibatches; None for one device.
        is_detailed: whether to return a `Detailed`.
    """
    measure, num_devices = make_measure(task, is_detailed), count_devices(executor)

    def evaluate(variables: Variables, pool: Tree, rows: Array) -> Any:
        if executor is None or num_devices == 1:
            (sums, bins), correct = over_rows((variables, pool), rows)
        else:
            padded = jnp.pad(rows, ((0, -len(rows) % num_devices), (0, 0)), constant_values=-1)
            # minibatches are dealt to the devices in turn, because empty ones come last
            by_device = padded.reshape(-1, num_devices, rows.shape[1]).swapaxes(0, 1)
            totals, correct = executor.map(over_rows, (variables, pool), by_device)
            sums, bins = tree.total(totals)
            correct = jax.tree.map(lambda dealt: dealt.swapaxes(0, 1).reshape(padded.shape)[: len(rows)], correct)
        return Detailed(sums, correct, bins) if is_detailed else sums

    def over_rows(shared: tuple[Variables, Tree], rows: Array) -> tuple[Tree, Tree]:
        variables, pool = shared

        def measure_rows(batch_rows: Array) -> tuple[Tree, Tree]:
            return measure(variables, *tree.gather(pool, batch_rows))

        empty = tree.zeros_like(jax.eval_shape(measure_rows, rows[0])[0])
        return _add(lambda i: measure_rows(rows[i]), rows >= 0, empty, is_detailed)

    return evaluate


def _add(
    measure_minibatch: Callable[[Array], tuple[Tree, Tree]], masks: Array, totals: Tree, is_detailed: bool
) -> tuple[Tree, Tree]:
    """Returns the totals with the minibatches that have rows, which come first, and what belongs to each row.

    Args:
        measure_minibatch: number -> what is added, and what belongs to each row; see `make_measure`.
        masks: bool [n, B], False for padding.
        totals: of earlier minibatches.
        is_detailed: as in `make_measure`.
    """

    def add_minibatch(i: Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        more, of_rows = measure_minibatch(i)
        return tree.add(carry[0], more), tree.put(carry[1], i, of_rows)

    rows = jnp.zeros(masks.shape, jnp.int32) if is_detailed else ()
    with jax.named_scope(EVALUATION):
        return lax.fori_loop(0, masks.any(1).sum(), add_minibatch, (totals, rows))


def count_devices(executor: Executor | None) -> int:
    """Returns the number of devices that share the work of an executor."""
    return len(executor.placement.device_set) if executor and executor.placement else 1


def make_measure(task: Task, is_detailed: bool = False) -> Callable[[Variables, Tree, Array], tuple[Tree, Tree]]:
    """Returns measure(variables, batch, mask) -> what is added over minibatches, and what belongs to each row.

    The first is (sums of `task.measure`, bins), the second the correct labels int32 [B], both as in `Detailed`; bins
    and correct labels are () unless `is_detailed`.
    """
    measure = jax.jit(task.measure)  # traced once for all tables

    def measure_minibatch(variables: Variables, batch: Tree, mask: Array) -> tuple[Tree, Tree]:
        sums = measure(*variables, batch, mask)
        if not is_detailed:
            return (sums, ()), ()
        correct, bins = _details(task.predict(*variables, batch), batch.y, mask)
        return (sums, bins), correct

    return measure_minibatch


def make_add_piece(
    task: Task, executor: Executor | None = None, *, is_detailed: bool = False
) -> Callable[[Variables, Tree, Tree, Array], tuple[Tree, Tree]]:
    """Returns add_piece(variables, totals, batches, masks) -> (`totals` with further minibatches added, their rows).

    Totals and rows are those of `make_measure`, with leading axes [D] for D devices and [D, n]. Leaves of `batches` are
    [D, n, B, ...], and `masks` is bool [D, n, B], False for padding. Where minibatch i of a table is number i // D of
    device i % D, the totals over all pieces in order, summed over the devices, equal those of `make_evaluate` to the
    bit. Empty minibatches come last and cost nothing.

    Args:
        task: the model.
        executor: its devices share the minibatches; None for one device.
        is_detailed: as in `make_measure`.
    """
    measure = make_measure(task, is_detailed)

    def add_piece(variables: Variables, totals: Tree, batches: Tree, masks: Array) -> tuple[Tree, Tree]:
        entries = (totals, batches, masks)
        if executor is None or count_devices(executor) == 1:
            return jax.tree.map(lambda x: x[None], add_minibatches(variables, tree.take(entries, 0)))
        return executor.map(add_minibatches, variables, entries)

    def add_minibatches(variables: Variables, entry: tuple[Tree, Tree, Array]) -> tuple[Tree, Tree]:
        totals, batches, masks = entry
        return _add(lambda i: measure(variables, tree.take(batches, i), masks[i]), masks, totals, is_detailed)

    return add_piece


def _details(logits: Array, labels: Array, mask: Array) -> tuple[Array, Array]:
    """Returns the correct labels of every row, int32 [B], and the bins of confidence, [3, NUM_BINS].

    The confidence is the largest probability of a label. Bin m has those in ((m - 1) / M, m / M], m = 1 ... M.

    Args:
        logits: [B, ..., C].
        labels: int [B, ...].
        mask: bool [B].
    """
    is_real = jnp.broadcast_to(mask.reshape(len(mask), *[1] * (labels.ndim - 1)), labels.shape)
    is_correct = is_real & (jnp.argmax(logits, -1).astype(labels.dtype) == labels)
    confidence = jax.nn.softmax(logits, -1).max(-1)
    number = jnp.clip(jnp.ceil(confidence * NUM_BINS).astype(jnp.int32) - 1, 0, NUM_BINS - 1)
    dtype = confidence.dtype
    parts = jnp.stack([is_real.astype(dtype), jnp.where(is_real, confidence, 0), is_correct.astype(dtype)])
    bins = jnp.zeros((3, NUM_BINS), dtype).at[:, number.reshape(-1)].add(parts.reshape(3, -1))
    return is_correct.reshape(len(mask), -1).sum(1).astype(jnp.int32), bins
