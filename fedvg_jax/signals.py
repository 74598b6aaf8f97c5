"""What a weighting measures of one client: a report -> pytree of scalars."""

from __future__ import annotations

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
from jax import lax

from fedvg_jax import norms, tree
from fedvg_jax.types import Data, Hyper, Norm, Report, Signal, Task, Tree


def validation_gradients(
    loss_fn: Callable, client_params: Tree, val_batches: Tree, *, client_stats: Tree | None = None
) -> Tree:
    """Gradient of every client's validation loss: vmap(grad(loss), (0, None)) over stacked clients.

        g_k = grad_theta (1/V) sum_v loss(theta_k, batch_v)

    Args:
        loss_fn: (params, batch) -> scalar, or (params, stats, batch) -> scalar when `client_stats` is given.
        client_params: pytree of the stacked client models, leaves [K, ...].
        val_batches: pytree of the shared validation set, leaves [V, ...]: V minibatches.
        client_stats: the clients' running statistics, leaves [K, ...].

    Returns:
        Pytree like `client_params`, leaves [K, ...].

    Raises:
        AssertionError: if a leaf of the clients does not begin with the same K.

    >>> loss = lambda params, x: params["w"] * x.mean()
    >>> validation_gradients(loss, {"w": jnp.ones(2)}, jnp.array([[1.0, 2.0], [3.0, 6.0]]))["w"].tolist()
    [3.0, 3.0]
    """
    stats = () if client_stats is None else client_stats
    num_clients = jax.tree.leaves(client_params)[0].shape[0]
    chex.assert_tree_shape_prefix((client_params, stats), (num_clients,))
    if client_stats is None:
        gradients = jax.vmap(jax.grad(loss_fn), (0, None))
    else:
        gradients = jax.vmap(jax.grad(loss_fn), (0, 0, None))
        gradients = _with_second(gradients, client_stats)

    def add_batch(total, batch):
        return tree.add(total, gradients(client_params, batch)), None

    total, _ = lax.scan(add_batch, tree.zeros_like(client_params), val_batches)
    return tree.scale(1 / jax.tree.leaves(val_batches)[0].shape[0], total)


def gradient_norms(grads: Tree, norm: str = "l1") -> Tree:
    """Norm of every tensor of stacked gradients: G_k^(l) = ||g_k^(l)||, the layerwise norms of FedVG.

    Args:
        grads: pytree of gradients, leaves [K, ...].
        norm: "l1" (published) or "l2".

    Returns:
        Pytree of the same structure, leaves [K].

    >>> gradient_norms({"w": jnp.array([[3.0, -4.0], [0.0, 0.0]])})["w"].tolist()
    [7.0, 0.0]
    """
    chex.assert_tree_shape_prefix(grads, jax.tree.leaves(grads)[0].shape[:1])
    return jax.tree.map(jax.vmap(norms.BY_NAME[norm]), grads)


def validation_norms(task: Task, norm: Norm, train: bool, groups_per_pass: int) -> Signal:
    """FedVG's signal: the norm of every tensor of one client's validation gradient.

    The gradient equals `validation_gradients` of the mean loss over D_val. D_val comes in groups of B rows: with
    `train`, BatchNorm takes each group's own statistics (the published behaviour), whatever number of groups is
    worked on in one pass; that number only sets how large the matmuls are.
    """

    def summed_loss(params, stats, pool, rows):
        batch, mask = tree.gather(pool, rows)
        return task.loss(params, stats, batch, mask, train)[0] * mask.sum().astype(tree.dtype(params))

    def signal(report: Report, data: Data, hyper: Hyper) -> Tree:
        params, stats = report.variables
        passes = _in_passes(data.scoring, groups_per_pass)

        def loss(params, rows):
            return jax.vmap(summed_loss, (None, None, None, 0))(params, stats, data.pool, rows).sum()

        def add_pass(i, total):
            return tree.add(total, jax.grad(loss)(params, passes[i]))

        used = (passes >= 0).any((1, 2)).sum()
        total = lax.fori_loop(0, used, add_pass, tree.zeros_like(params))
        count = jnp.maximum((data.scoring >= 0).sum(), 1).astype(tree.dtype(params))
        return jax.tree.map(norm, tree.scale(1 / count, total))

    return signal


def num_samples(report: Report, data: Data, hyper: Hyper) -> jax.Array:
    """n_k, the client's training rows."""
    return report.num_samples.astype(tree.dtype(report.variables.params))


def nothing(report: Report, data: Data, hyper: Hyper) -> jax.Array:
    """1 for every client."""
    return jnp.ones((), tree.dtype(report.variables.params))


def _in_passes(rows: jax.Array, groups: int) -> jax.Array:
    """[V, B] -> [V / groups, groups, B], filled up with empty groups."""
    spare = -len(rows) % groups
    return jnp.pad(rows, ((0, spare), (0, 0)), constant_values=-1).reshape(-1, groups, rows.shape[1])


def _with_second(f: Callable, second: Tree) -> Callable:
    return lambda first, last: f(first, second, last)
