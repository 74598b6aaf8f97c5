"""Checks of a caller's task before a run: shapes of its functions, whether it reads the mask, what its features are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedvg_jax.core import checks, tree
from fedvg_jax.core.checks import dependencies
from fedvg_jax.core.types import Task, Tree, UsageError, Variables
from fedvg_jax.engine import contracts
from fedvg_jax.host import hardware as hw

_ROWS = 7
"""Of the batch of a trial. A mask [3] would fit 3 channels in place of the rows."""


def check_task(task: Task, pool: Any) -> None:
    """Checks the shapes and dtypes of a task's functions against `types.Task`, without computing anything.

    Args:
        task: the model and its loss.
        pool: the examples, leaves [T, ...].

    Raises:
        UsageError: a function returns another shape, dtype or structure, or ignores the mask. The message names the
            function and the leaf.

    >>> from fedvg_jax.core.types import Batch
    >>> halves = Task(lambda key: Variables({"w": jnp.ones(2, int)}, {}), *[None] * 5)
    >>> check_task(halves, Batch(jnp.ones((4, 2)), jnp.ones(4)))
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: task.init: params leaf 'w' is int32 of shape (2,); expected floats of shape (2,)
    """
    checks.num_rows(pool, "pool")
    model = _shapes_of(task.init, "task.init", jax.random.key(0))
    if not isinstance(model, Variables) or not jax.tree.leaves(model.params):
        raise UsageError(
            f"task.init returned a {type(model).__name__}; expected Variables(params, stats) with a tensor"
        )
    is_frozen = task.is_frozen or (lambda path: False)
    trained = {
        path: leaf for path, leaf in tree.by_path(model.params).items() if not is_frozen(path)
    }
    checks.floating(trained, "task.init: params")
    checks.floating(model.stats, "task.init: stats")
    checks.takes_key(task.loss)
    batch, mask = shapes_of_batch(pool)
    loss = contracts.checked(task, "task").loss
    jax.eval_shape(lambda model, *rows: loss(*model, *rows, True), model, batch, mask)
    _check_reads_mask(task, model, batch, mask)
    _shapes_of(task.predict, "task.predict", *model, batch)


def _shapes_of(function: Callable, what: str, *arguments: Any) -> Any:
    with checks.calling(what):
        return jax.eval_shape(function, *arguments)


def _check_reads_mask(task: Task, model: Variables, batch: Any, mask: Any) -> None:
    """Raises UsageError for a loss or a measure of the rows that does not depend on the mask, in evaluation mode."""

    def results(model: Variables, batch, mask):
        measured = task.measure(*model, batch, mask) if task.measure else ()
        return {"loss": jnp.asarray(task.loss(*model, batch, mask, False)[0]), "measure": measured}

    with checks.calling("task.loss or task.measure in evaluation mode"):
        read, _ = dependencies(results, model, batch, mask)
    for name, (_, of_batch, of_mask) in read.items():
        if any(jax.tree.leaves(of_batch)) and not of_mask:
            raise UsageError(
                f"task.{name} does not depend on mask, bool [B], so that padded rows would count; add up values of real"
                " rows, jnp.where(mask, values, 0)"
            )


def shapes_of_batch(pool: Any) -> tuple[Any, Any]:
    """Returns the shapes and dtypes of a batch of a few rows and of its mask."""
    return jax.eval_shape(lambda pool: tree.gather(pool, jnp.arange(_ROWS, dtype=jnp.int32)), pool)


def check_scores(task: Task, pool: Any, consumer: str, instead: str, num_classes: int) -> None:
    """Checks that a task's output is a score of every class, so that its argmax is a label.

    Args:
        task: the model and its loss.
        pool: the examples, leaves [T, ...], with labels `y` [T], or [T, L] of sequences.
        consumer: what needs the scores, for the error.
        instead: what to use without them, for the error.
        num_classes: classes of the labels.

    Raises:
        UsageError: it is not: scores are [B, C], or [B, L, C] of sequences, with C >= `num_classes`.

    >>> from fedvg_jax.core.types import Batch
    >>> predict = lambda params, stats, batch: batch.x @ params["w"]
    >>> logit = Task(lambda key: Variables({"w": jnp.ones(2)}, {}), None, predict, *[None] * 3)
    >>> check_scores(logit, Batch(jnp.ones((9, 2)), jnp.zeros(9, int)), "weighting val_accuracy", "use val_loss", 2)
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: weighting val_accuracy needs floats [7, C] of task.predict for 7 rows, C >= 2 classes; got \
float32 of shape (7,); use val_loss
    """
    batch = shapes_of_batch(pool)[0]
    output = jax.eval_shape(task.predict, *jax.eval_shape(task.init, jax.random.key(0)), batch)
    is_floats = isinstance(output, jax.ShapeDtypeStruct) and jnp.issubdtype(
        output.dtype, jnp.floating
    )
    if not (is_floats and output.shape[:-1] == batch.y.shape and output.shape[-1] >= num_classes):
        needed = (
            f"floats [{', '.join(map(str, batch.y.shape))}, C] of task.predict for {_ROWS} rows"
        )
        got = checks.described(output)
        raise UsageError(
            f"{consumer} needs {needed}, C >= {num_classes} classes; got {got}; {instead}"
        )


def check_forward(task: Task, pool: Tree) -> None:
    """Computes `task.forward`, if there is one, and `task.loss` on the first rows, with initial variables.

    Raises:
        UsageError: their losses differ, as where only one of them was replaced.
    """
    if task.forward is None:
        return
    batch, forward = jax.tree.map(lambda leaf: jnp.asarray(leaf[:3]), pool), task.forward
    mask = jnp.ones(len(jax.tree.leaves(batch)[0]), bool)

    def losses(key):
        model = task.init(key)
        return task.loss(*model, batch, mask, True)[0], forward(*model, batch, mask, True)[0].loss

    with checks.calling("task.forward"):
        of_loss, of_forward = map(float, hw.jit_once(losses)(jax.random.key(0)))
    if not np.isclose(of_loss, of_forward, rtol=1e-3, equal_nan=True):
        raise UsageError(
            f"task.forward has the loss {of_forward:.6g} and task.loss {of_loss:.6g} on the same rows; replace both"
        )


def check_features(task: Task, pool: Tree, name: str) -> None:
    """Raises UsageError where no trained tensor affects the features, for an algorithm that reads them.

    Args:
        task: the model.
        pool: the examples, leaves [T, ...].
        name: of the algorithm, in the error.
    """
    forward = task.forward
    if forward is None:
        return

    def features(model, batch, mask):
        return {"features": forward(*model, batch, mask, True)[0].features}

    model = jax.eval_shape(task.init, jax.random.key(0))
    read, shapes = dependencies(features, model, *shapes_of_batch(pool))
    if shapes["features"] is not None and not any(jax.tree.leaves(read["features"][0].params)):
        raise UsageError(
            f"{name} would equal FedAvg: no trained tensor affects the input of this model's last layer; use a model"
            " with a hidden layer, such as mlp, and call the head as the last layer"
        )
