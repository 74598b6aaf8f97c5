"""Signals: the measurement that a weighting makes of one client, a function of what it returns.

FedVG's signal is the norm of every tensor of the validation gradient: `normed(validation_gradient(...), norms.l1)`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from fedvg_jax.core import checks, norms, tree, types
from fedvg_jax.core.tree import SCORING_PASSES
from fedvg_jax.core.types import ClientReturn, Data, Hyper, Norm, Signal, Task, Tree, Variables
from fedvg_jax.host import hardware as hw


def validation_gradients(
    loss_fn: Callable, client_params: Tree, val_batches: Tree, *, client_stats: Tree | None = None
) -> Tree:
    """Returns the gradient of every client's validation loss: vmap(grad(loss), (0, None)) over stacked clients.

        g_k = grad_theta (1/V) sum_v loss(theta_k, batch_v)

    Args:
        loss_fn: (params, batch) -> scalar, or (params, stats, batch) -> scalar with `client_stats`.
        client_params: pytree of the stacked client models, leaves [K, ...].
        val_batches: pytree of the shared validation set, leaves [V, B, ...]: V minibatches.
        client_stats: the clients' running statistics, leaves [K, ...].

    Returns:
        Pytree like `client_params`, leaves [K, ...].

    Raises:
        UsageError: a leaf of the clients has an integer dtype or another cohort size K (the message names it), or
            there is no batch, or a leaf of another number of batches; or the loss fails.

    >>> loss = lambda params, x: params["w"] * x.mean()
    >>> validation_gradients(loss, {"w": jnp.ones(2)}, jnp.array([[1.0, 2.0], [3.0, 6.0]]))["w"].tolist()
    [3.0, 3.0]
    """
    num_clients = checks.stacked(client_params, "client_params")
    checks.stacked(client_stats, "client_stats", num_clients)
    stats = () if client_stats is None else (client_stats,)
    batches = jnp.arange(checks.num_rows(val_batches, "val_batches"), dtype=jnp.int32)[:, None]
    val_batches = tree.arrays(val_batches)

    def gradient(params: Tree, *stats: Tree) -> Tree:
        def loss(params, batch):
            return loss_fn(params, *stats, tree.take(val_batches, batch[0]))

        return tree.like(mean_gradient(loss, params, batches), params)

    with checks.calling("loss_fn"):
        return jax.vmap(gradient)(client_params, *stats)


def gradient_norms(grads: Tree, norm: str = "l1") -> Tree:
    """Returns the norm of every tensor of stacked gradients: G_k^(l) = ||g_k^(l)||, the layerwise norms of FedVG.

    Args:
        grads: pytree of gradients, leaves [K, ...].
        norm: "l1" (published), "l2", "spectral" (0 for vectors), or "spectral_l2" (l2 of vectors).

    Returns:
        Pytree of the same structure, leaves [K].

    Raises:
        UsageError: a leaf has another cohort size or an integer dtype (the message names it), or the norm is unknown.

    >>> gradient_norms({"w": jnp.array([[3.0, -4.0], [0.0, 0.0]])})["w"].tolist()
    [7.0, 0.0]
    """
    checks.stacked(grads, "grads")
    return jax.vmap(norms.tensor_norms(types.named(norms.BY_NAME, norm, "norm")))(grads)


def normed(measure: Signal, norm: Norm) -> Signal:
    """Returns the signal of the norms of the tensors that `measure` returns."""

    def signal(hyper, client, data):
        return norms.tensor_norms(norm)(measure(hyper, client, data))

    return signal


GroupsPerPass = int | Callable[[int], int]
"""Groups of D_val that scoring computes together, or a function of the number of values in a row of the pool."""


def validation_gradient(task: Task, train: bool, groups_per_pass: GroupsPerPass) -> Signal:
    """Returns one client's validation gradient, with tensors like the client's.

    It equals `validation_gradients` of the mean loss over D_val.

    Args:
        task: the model and its loss.
        train: whether BatchNorm takes the statistics of each group of B rows of D_val (the published behaviour), or its
            running statistics.
        groups_per_pass: groups computed together. It sets the size of the matmuls and does not change the result. A
            task that `takes_groups` gets them as one batch; any other task's loss is mapped over groups.
    """

    def loss_of_groups(model, pool, rows):
        def loss_of_group(rows):
            # an empty group computes on a row of another with weight 0: statistics over no row have NaN gradients
            is_empty = (rows < 0).all()
            value = summed_loss(task, model, pool, jnp.where(is_empty, any_row, rows), train)
            return jnp.where(is_empty, 0, value)

        any_row = rows.max()
        return jax.vmap(loss_of_group)(rows).sum()

    def measure(hyper, client, data):
        params, stats = client.variables

        def loss(params, rows):
            model = Variables(params, stats)
            # a batch axis would turn matmuls into batched ones
            rows = rows[0] if len(rows) == 1 else rows
            if rows.ndim == 1 or task.takes_groups:
                return summed_loss(task, model, data.pool, rows, train)
            return loss_of_groups(model, data.pool, rows)

        groups = (
            groups_per_pass(_row_values(data.pool))
            if callable(groups_per_pass)
            else groups_per_pass
        )
        if groups > 1 and not task.takes_groups:
            largest = _largest_map(jax.make_jaxpr(loss)(params, data.scoring[:1]).jaxpr)
            # else it may be the rows themselves
            if largest > data.scoring.shape[1] * _row_values(data.pool):
                groups = max(1, int(min(groups, hw.choices().values_per_feature_map / largest)))
        return mean_gradient(loss, params, _in_passes(data.scoring, groups))

    return measure


def delta(hyper: Hyper, client: ClientReturn, data: Data) -> Tree:
    """Returns the client's update theta_g - theta_k. It needs no pass over D_val."""
    return client.delta


def drift(hyper: Hyper, client: ClientReturn, data: Data) -> jax.Array:
    """Returns the L2 norm of the client's update theta_g - theta_k."""
    return norms.joint_l2(client.delta)


def fisher(task: Task, most: int = 2**26) -> Signal:
    """Returns the diagonal of one client's empirical Fisher matrix on D_val. Its L1 norm is the trace.

        F = mean over examples of (grad loss(theta_k, example))^2

    BatchNorm is in evaluation mode, because a single example has no batch statistics. Unlike the gradient of the mean
    loss, it is not 0 if the examples' gradients cancel. Two copies of an input x with opposite labels, in logistic
    regression at 0, have gradients +-x / 2: their mean is 0 and the trace is |x|^2 / 4.

    Args:
        task: the model and its loss.
        most: largest number of scalars in the gradients of one pass, which has 1 to 64 examples.
    """

    def measure(hyper, client, data):
        params, stats = client.variables

        def squares(row):
            batch, mask = tree.gather(data.pool, row)
            grads = jax.grad(lambda p: task.loss(p, stats, batch, mask, False)[0])(params)
            return jax.tree.map(jnp.square, grads)

        def summed(rows):
            return tree.total(jax.vmap(squares)(rows))

        examples = data.val.reshape(-1, 1)
        at_once = max(1, min(len(examples), 64, most // tree.size(params)))
        return mean_over(summed, _in_passes(examples, at_once))

    return measure


def validation_loss(task: Task) -> Signal:
    """Returns one client's mean loss on D_val, BatchNorm in evaluation mode."""

    def signal(hyper, client, data):
        return mean_over(
            lambda rows: summed_loss(task, client.variables, data.pool, rows), data.val
        )

    return signal


def summed_loss(
    task: Task, model: Variables, pool: Tree, rows: jax.Array | np.ndarray, train: bool = False
) -> jax.Array:
    """Returns the sum of a model's losses over real rows of a minibatch, or of groups [G, B], in at least float32."""
    batch, mask = tree.gather(pool, rows)
    # of all groups
    batch = jax.tree.map(lambda x: x.reshape(mask.size, *x.shape[mask.ndim :]), batch)
    return tree.wide(task.loss(*model, batch, mask, train)[0]) * mask.sum().astype(
        tree.wide_dtype(model)
    )


def validation_accuracy(task: Task) -> Signal:
    """Returns one client's accuracy on D_val, for batches with labels `y` and outputs that are logits."""
    return _accuracy(task, lambda data: data.val)


def pooled_test_accuracy(task: Task) -> Signal:
    """Returns one client's accuracy on the pooled test rows, for the history. A weighting must not use it."""
    return _accuracy(task, lambda data: data.test)


def _accuracy(task: Task, rows_of: Callable[[Data], jax.Array | np.ndarray]) -> Signal:
    """Returns one client's accuracy on a table of rows; NaN if an output is."""

    def signal(hyper, client, data):
        params, stats = client.variables

        def num_correct(rows):
            batch, mask = tree.gather(data.pool, rows)
            outputs = task.predict(params, stats, batch)
            # of NaN the first class, which may be right
            predicted = jnp.argmax(outputs, -1).astype(jnp.int32)
            is_correct = (predicted == batch.y.astype(jnp.int32)).reshape(len(mask), -1)
            # over the places of a sequence
            share = is_correct.astype(tree.wide_dtype(params)).mean(1)
            is_nan = jnp.isnan(outputs).reshape(len(mask), -1).any(1)
            return jnp.where(mask, jnp.where(is_nan, jnp.nan, share), 0).sum()

        return mean_over(num_correct, rows_of(data))

    return signal


def num_samples(hyper: Hyper, client: ClientReturn, data: Data) -> jax.Array:
    """Returns n_k, the client's number of training rows."""
    return client.num_samples.astype(tree.wide_dtype(client.variables.params))


def nothing(hyper: Hyper, client: ClientReturn, data: Data) -> jax.Array:
    """Returns 1 for every client."""
    return jnp.ones((), tree.wide_dtype(client.variables.params))


def mean_gradient(
    loss: Callable[[Tree, jax.Array], jax.Array], params: Tree, passes: jax.Array | np.ndarray
) -> Tree:
    """Returns the gradient of the mean over rows of a loss, `mean_over` of its gradients.

    Args:
        loss: (params, row numbers of one pass) -> sum of the losses over its rows.
        params: tensors of one client.
        passes: [P, ...] row numbers, -1 for padding.
    """
    return mean_over(functools.partial(jax.grad(loss), params), passes)


def mean_over(measure: Callable[[jax.Array], Tree], passes: jax.Array | np.ndarray) -> Tree:
    """Returns the mean over rows of a measurement that `measure` sums over the rows of one pass; 0 without rows.

    It is in at least float32, in which it is added up.

    Args:
        measure: row numbers of one pass -> sums over its rows.
        passes: [P, ...] row numbers, -1 for padding. Passes without a row are skipped.
    """
    passes = jnp.asarray(passes)
    measure = jax.jit(measure)  # one trace serves its shape and its computation
    # reverse mode recomputes each pass, so that only the residuals of one pass are in memory
    recomputed = jax.checkpoint(measure, prevent_cse=False)

    def add_pass(total, rows):
        # the sum is outside the branches and updated in place; a branch that returned it would copy it
        return tree.add(
            total,
            lax.cond((rows >= 0).any(), lambda: tree.like(recomputed(rows), empty), lambda: empty),
        ), None

    empty = tree.wide_zeros(jax.eval_shape(measure, passes[0]))
    with jax.named_scope(SCORING_PASSES):
        total, _ = lax.scan(add_pass, empty, passes)
    count = jnp.maximum((passes >= 0).sum(), 1).astype(tree.dtype(empty))
    return tree.scale(1 / count, total)


def _row_values(pool: Tree) -> int:
    return max(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(pool))


def _largest_map(jaxpr: core.Jaxpr) -> int:
    """Returns the number of values of the largest intermediate with four or more axes; 0 without one."""
    shapes = [getattr(x.aval, "shape", ()) for eqn in jaxpr.eqns for x in eqn.outvars]
    inner = (
        _largest_map(nested) for eqn in jaxpr.eqns for nested in core.jaxprs_in_params(eqn.params)
    )
    return max([0, *inner, *(math.prod(shape) for shape in shapes if len(shape) > 3)])


def _in_passes(rows: jax.Array | np.ndarray, groups: int) -> jax.Array:
    """Reshapes [V, B] to [V / groups, groups, B], padded with empty groups; all passes have equally many."""
    num_passes = -(-len(rows) // groups)
    groups = -(-len(rows) // num_passes)
    padding = -len(rows) % groups
    return jnp.pad(rows, ((0, padding), (0, 0)), constant_values=-1).reshape(
        -1, groups, rows.shape[1]
    )
