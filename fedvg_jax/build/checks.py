"""Whether a task from Python keeps its contract, seen from shapes alone, before anything is computed."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedvg_jax import tree
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.types import Batch, Task, Tree, UsageError, Variables


def check_task(task: Task, arrays: Arrays, batch_size: int) -> Task:
    """`task` itself.

    Raises:
        UsageError: naming the leaf and the shape it should have: for parameters or running statistics that are not
            floating, a loss that is not a floating scalar, statistics that change shape, or outputs without the
            leading axis B.
    """
    variables = jax.eval_shape(task.init, jax.random.key(0))
    if not isinstance(variables, Variables) or not jax.tree.leaves(variables.params):
        raise UsageError("task.init must return Variables(params, stats) with one parameter or more")
    for what, part in variables._asdict().items():
        for path, leaf in _leaves(part):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise UsageError(f"task.init: {what} {path} must be floating, to be averaged; got {_shape(leaf)}")
    rows = jax.eval_shape(lambda: Batch(*(jnp.asarray(a[:1]) for a in (arrays.x, arrays.y))))
    batch = jax.tree.map(lambda a: jax.ShapeDtypeStruct((batch_size, *a.shape[1:]), a.dtype), rows)
    mask = jax.ShapeDtypeStruct((batch_size,), bool)
    _check_loss(lambda p, s, b, m: task.loss(p, s, b, m, True), variables, batch, mask)
    for path, leaf in _leaves(jax.eval_shape(task.predict, *variables, batch)):
        if leaf.shape[:1] != (batch_size,):
            where = f" at {path}" if path else ""
            raise UsageError(
                f"task.predict must return [{batch_size}, ...], a row per example; got {_shape(leaf)}{where}"
            )
    return task


def _check_loss(loss: Callable, variables: Variables, batch: Batch, mask: jax.ShapeDtypeStruct) -> None:
    returned = jax.eval_shape(loss, *variables, batch, mask)
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise UsageError("task.loss must return (loss, stats), the mean loss and the new running statistics")
    value, stats = returned
    leaves = jax.tree.leaves(value)
    if len(leaves) != 1 or leaves[0].shape != () or not jnp.issubdtype(leaves[0].dtype, jnp.floating):
        got = ", ".join(map(_shape, leaves)) or "nothing"
        raise UsageError(f"task.loss must be a floating scalar, shape []; got {got}")
    known, found = dict(_leaves(variables.stats)), dict(_leaves(stats))
    if known.keys() != found.keys():
        path = sorted(known.keys() ^ found.keys())[0]
        raise UsageError(f"task.loss must return all running statistics and no others; see {path}")
    for path, leaf in known.items():
        if _shape(leaf) != _shape(found[path]):
            raise UsageError(f"task.loss: running statistic {path} must stay {_shape(leaf)}; got {_shape(found[path])}")


def _leaves(part: Tree) -> list[tuple[str, jax.ShapeDtypeStruct]]:
    return list(zip(tree.paths(part), jax.tree.leaves(part), strict=True))


def _shape(leaf: jax.ShapeDtypeStruct) -> str:
    return f"{leaf.dtype} {list(leaf.shape)}"
