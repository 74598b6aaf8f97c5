"""The parts of an algorithm that add nothing: no state, unchanged gradients, no message, no probe, R = 0."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fedvg_jax.core import tree
from fedvg_jax.core.types import (
    Algorithm,
    Anchor,
    Cohort,
    Hyper,
    Outputs,
    Probe,
    Task,
    Tree,
    UsageError,
)


def no_state(hyper: Hyper, params: Tree) -> tuple[Tree, Tree]:
    """Returns empty states of the server and of a client."""
    return (), ()


def no_correction(hyper: Hyper, grads: Tree, params: Tree, anchor: Anchor) -> Tree:
    """Returns the gradients unchanged."""
    return grads


def no_report(hyper: Hyper, params: Tree, anchor: Anchor, displacement) -> tuple[Tree, Tree, Tree]:
    """Returns the client's state unchanged, and no messages."""
    return anchor.client, (), ()


def no_probe(hyper: Hyper, probe: Probe) -> Tree:
    """Measures nothing before training."""
    return ()


def no_residual(hyper: Hyper, server: Tree, params: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
    """Returns R = 0, and the server's state unchanged."""
    return tree.zeros_like(params), server


PLAIN = Algorithm(
    no_state, no_correction, no_report, no_residual, no_probe, native_weighting="samples"
)
"""The algorithm that adds nothing: FedAvg. Others replace some of its parts."""


def sends_messages(algorithm: Algorithm) -> bool:
    """Returns whether the server also gets messages of the clients other than their models.

    >>> sends_messages(PLAIN)
    False
    """
    hyper = {
        parameter.name: jnp.float32(parameter.value) for parameter in algorithm.hyperparameters
    }
    params = {"w": jnp.zeros(1)}

    def messages():
        server, client = algorithm.init(hyper, params)
        return algorithm.report(hyper, params, Anchor(params, server, client), jnp.ones(()))[1:]

    return bool(jax.tree.leaves(jax.eval_shape(messages)))


# --- custom losses


def forward(
    task: Task, params: Tree, stats: Tree, batch: Tree, mask: Array, key: Array | None = None
) -> tuple[Outputs, Tree]:
    """Returns loss, outputs and features of a minibatch in training, and the new running statistics.

    Args:
        task: the model and its loss.
        params, stats: the model's arrays, e.g. `anchor.params` of the global model.
        batch, mask: the minibatch and its real rows.
        key: of the local step; None for a model without randomness, such as one that is compared with.

    Raises:
        UsageError: the task has no `forward`.
    """
    if task.forward is None:
        raise UsageError(
            "this algorithm needs task.forward, which this task lacks; use fedvg_jax.linen_task or nnx_task, or add it"
        )
    return task.forward(params, stats, batch, mask, True, key)


def features_of(outputs: Outputs) -> Array:
    """Returns the features of the rows, flattened to [B, F], in at least float32.

    Raises:
        UsageError: they are not known.
    """
    if outputs.features is None:
        raise UsageError(
            "this algorithm needs features; task.forward must return the inputs of the last layer as Outputs.features"
        )
    return tree.wide(outputs.features).reshape(len(outputs.features), -1)


def class_logits(outputs: Outputs, y: Array, name: str) -> Array:
    """Returns the logits [B, ..., C] of classes, in at least float32.

    Raises:
        UsageError: outputs and labels are not of classes; the message calls the algorithm `name`.
    """
    is_of_classes = jnp.issubdtype(y.dtype, jnp.integer)
    if not is_of_classes or jnp.shape(outputs.outputs)[:-1] != y.shape:
        raise UsageError(
            f"{name} needs labels of classes and a logit for each: outputs [B, ..., C] with integers y [B, ...]; got"
            f" outputs {jnp.shape(outputs.outputs)} with {y.dtype} {y.shape}; use another algorithm"
        )
    return tree.wide(outputs.outputs)


def mean_over_rows(values: Array, mask: Array) -> Array:
    """Returns the mean [] of values [B, ...] over the real rows; 0 without any.

    >>> float(mean_over_rows(jnp.array([1.0, 3.0, 100.0]), jnp.array([True, True, False])))
    2.0
    """
    real = jnp.broadcast_to(mask.reshape(len(mask), *[1] * (values.ndim - 1)), values.shape)
    return jnp.where(real, values, 0).sum() / jnp.maximum(real.sum(), 1).astype(values.dtype)
