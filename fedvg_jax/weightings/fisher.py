"""Fisher information of clients' models on the shared validation set, from gradients of single examples.

    s = d/dtheta log p(y | x, theta_k),   F = E_x E_y [s s'],   J^t = E_x E_y ||s^t||^2 of tensor t,   tr F = sum_t J^t

J^t is the joint Fisher information of all parameters of a tensor: the trace of its diagonal block of F. In the
empirical version, y is the label of x. In the model-sampled version, y is drawn from p(. | x, theta_k), as in the
definition of F.

FedVG's score is different: a norm of the MEAN gradient, in which the gradients of examples can cancel. For two copies
of x with opposite labels, logistic regression at 0 has gradients +-x / 2: mean 0, but tr F = ||x||^2 / 4.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedvg_jax.core import checks, tree
from fedvg_jax.core.types import Tree, UsageError
from fedvg_jax.weightings import signals

MOST = 2**26
"""Largest number of scalars in the gradients of one pass, of all clients together."""


def joint_fisher(
    loss_fn: Callable, client_params: Tree, examples: Tree, *, most: int = MOST
) -> Tree:
    """Returns every tensor's empirical joint Fisher information: J_k^t = mean_i ||grad_t loss(theta_k, example_i)||^2.

    Args:
        loss_fn: (params, example) -> scalar -log p(y | x, theta) of ONE example.
        client_params: stacked client models, leaves [K, ...].
        examples: pytree, leaves [V, ...].
        most: largest number of scalars in the gradients of one pass.

    Returns:
        Pytree like `client_params`, leaves [K], >= 0.

    Raises:
        UsageError: a leaf has another cohort size or an integer dtype (the message names it), lengths differ, or the
            function fails.

    >>> loss = lambda params, example: jnp.logaddexp(0, -example["y"] * params["w"] @ example["x"])
    >>> copies = {"x": jnp.ones((2, 1)), "y": jnp.array([1.0, -1.0])}  # opposite labels
    >>> joint_fisher(loss, {"w": jnp.zeros((3, 1))}, copies)["w"].tolist()
    [0.25, 0.25, 0.25]
    """
    count = checks.num_rows(examples, "examples")
    examples = tree.arrays(examples)

    def score(params: Tree, row: Array) -> Tree:
        gradient = jax.grad(loss_fn)(params, tree.take(examples, row))
        return tree.where(row >= 0, gradient, tree.zeros_like(gradient))

    return _mean_squared_norms(score, client_params, count, most, "loss_fn")


def sampled_joint_fisher(
    logits_fn: Callable,
    client_params: Tree,
    inputs: Tree,
    key: Array,
    *,
    num_samples: int = 1,
    most: int = MOST,
) -> Tree:
    """Returns the joint Fisher information with labels drawn from each client's own predictions, as F is defined.

        J_k^t = mean_i mean_j ||grad_t log p(y_ij | x_i, theta_k)||^2,   y_ij ~ p(. | x_i, theta_k)

    Args:
        logits_fn: (params, input) -> logits [C] of ONE input.
        client_params: stacked client models, leaves [K, ...].
        inputs: pytree, leaves [V, ...].
        key: random key of the labels. All clients share its uniform numbers, so they differ by their models only.
        num_samples: labels drawn per input.
        most: largest number of scalars in the gradients of one pass.

    Returns:
        Pytree like `client_params`, leaves [K], >= 0.

    Raises:
        UsageError: a leaf has another cohort size or an integer dtype (the message names it), lengths differ, or the
            function fails.

    >>> logits = lambda params, x: jnp.stack([0.0, params["w"] @ x])
    >>> sampled_joint_fisher(logits, {"w": jnp.zeros((3, 1))}, jnp.ones((2, 1)), jax.random.key(0))["w"].tolist()
    [0.25, 0.25, 0.25]
    """
    count = checks.num_rows(inputs, "inputs")
    if not isinstance(num_samples, int | np.integer) or num_samples < 1:
        raise UsageError(f"num_samples must be a whole number >= 1; got {num_samples!r}")
    inputs = tree.arrays(inputs)

    def log_likelihood(params: Tree, row: Array) -> Array:
        logits = logits_fn(params, tree.take(inputs, row // num_samples))
        label = jax.random.categorical(jax.random.fold_in(key, row), jax.lax.stop_gradient(logits))
        return jnp.where(row >= 0, jax.nn.log_softmax(logits)[label], 0)

    return _mean_squared_norms(
        jax.grad(log_likelihood), client_params, count * num_samples, most, "logits_fn"
    )


def fisher_trace(joint: Tree) -> Array:
    """Returns tr F_k = sum over tensors of J_k^t, [K].

    >>> fisher_trace({"w": jnp.array([0.25, 1.0]), "b": jnp.array([0.5, 0.0])}).tolist()
    [0.75, 1.0]
    """
    checks.stacked(joint, "joint", per_tensor=True)
    return jnp.stack(jax.tree.leaves(joint)).sum(0)


def _mean_squared_norms(
    score: Callable[[Tree, Array], Tree], client_params: Tree, count: int, most: int, what: str
) -> Tree:
    """Returns the mean over rows of the squared norm of every tensor of score(params, row), leaves [K].

    Args:
        score: (one client's params, row number []) -> gradient; 0 for the row number -1.
        client_params: leaves [K, ...].
        count: number of rows.
        most: largest number of scalars in the gradients of one pass.
        what: name of the user's function in messages.
    """
    checks.stacked(client_params, "client_params")
    client_params = tree.arrays(client_params)
    rows, at_once = (
        jnp.arange(count, dtype=jnp.int32)[:, None],
        most // max(1, tree.size(client_params)),
    )

    def of_client(params: Tree) -> Tree:
        squares = signals.mean_squares(lambda row: score(params, row[0]), rows, at_once)
        return jax.tree.map(jnp.sum, squares)

    with checks.calling(what):
        return jax.vmap(of_client)(client_params)
