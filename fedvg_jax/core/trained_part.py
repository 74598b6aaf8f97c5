"""The part of a model that is trained: sent, scored and averaged. All other tensors are frozen.

The variables of a part have None in place of frozen tensors, which JAX counts as no leaf, so algorithms, weightings,
memories and checkpoints see the trained tensors alone. The frozen ones are the `base`, like the model with None in
place of the trained ones. A program takes the base as an argument, `Data.base`, and binds the task to it: no client
has a copy, and the products of a base that clients share are one product for all lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import Array

from fedvg_jax.core import groups, local_part, tree
from fedvg_jax.core.types import Task, Tree, UsageError, Variables, compiled

IsTrained = Callable[[str], bool]
"""path of a tensor, "a/b/kernel" -> whether it is trained"""


def trained_part(task: Task, variables: Variables, pattern: str | IsTrained = "") -> tuple[Task, Variables]:
    r"""Returns the task whose parameters are the trained tensors of a model, and their values.

    The other values are constants of what is computed with the task; in a run they are an argument of its program.

    Args:
        task: a model and its loss.
        variables: of the model; their frozen tensors keep these values.
        pattern: regular expression, found anywhere in the path of a trained tensor; or a function of the path.

    Raises:
        UsageError: the pattern is no regular expression, or matches no parameter.

    >>> import jax.numpy as jnp
    >>> def loss(params, stats, batch, mask, train):
    ...     return (params["head"] * params["body"] * batch).sum(), stats
    >>> task = Task(lambda key: Variables({"body": jnp.ones(1), "head": jnp.ones(1)}, {}), loss, *[None] * 4)
    >>> task, variables = trained_part(task, Variables({"body": jnp.full(1, 5.0), "head": jnp.ones(1)}, {}), "head")
    >>> jax.grad(lambda params: task.loss(params, {}, jnp.ones(1), None, True)[0])(variables.params)
    {'body': None, 'head': Array([5.], dtype=float32)}
    """
    trained, base = split(variables, chooser(task, pattern))
    return bind(task, base), trained


def chooser(task: Task, pattern: str | IsTrained = "") -> IsTrained:
    """Returns which tensors are trained: those that the pattern chooses, without those that the task never trains."""
    chosen = compiled(pattern, "train").search if isinstance(pattern, str) else pattern
    is_frozen = task.is_frozen or (lambda path: False)

    def is_trained(path: str) -> bool:
        return bool(chosen(path)) and not is_frozen(path)

    paths = tree.paths(jax.eval_shape(task.init, jax.random.key(0)).params)
    if not any(map(is_trained, paths)):
        got = pattern if isinstance(pattern, str) else getattr(pattern, "__name__", "function")
        names = local_part.listed([path for path in paths if not is_frozen(path)])
        raise UsageError(f"train {got} matches no tensor that can be trained; there are {names}")
    return is_trained


def split(variables: Variables, is_trained: IsTrained) -> tuple[Variables, Variables]:
    """Returns the trained part of variables, and the base.

    Running statistics are trained with the layer: where it has a trained parameter, or where their own path is chosen.

    >>> split(Variables({"fc": {"w": 1, "b": 2}}, {"bn": {"mean": 3}}), lambda path: path == "fc/b")
    (Variables(params={'fc': {'b': 2, 'w': None}}, stats={'bn': {'mean': None}}), \
Variables(params={'fc': {'b': None, 'w': 1}}, stats={'bn': {'mean': 3}}))
    """
    layers = {groups.module_of(path) for path in tree.paths(variables.params) if is_trained(path)}
    chosen = [is_trained(path) for path in tree.paths(variables.params)]
    chosen += [is_trained(path) or groups.module_of(path) in layers for path in tree.paths(variables.stats)]
    leaves, structure = jax.tree.flatten(variables)

    def part(which: bool) -> Variables:
        return structure.unflatten([leaf if c is which else None for leaf, c in zip(leaves, chosen, strict=True)])

    return part(True), part(False)


def whole(trained: Tree, base: Tree) -> Any:
    """Returns the whole model, from its trained part and its base, arrays or shapes; with base None the trained part.

    >>> whole({"w": 1, "b": None}, {"w": None, "b": 2})
    {'b': 2, 'w': 1}
    """
    return trained if base is None else _map(lambda b, own: own if b is None else b, base, trained)


def select_trained(model: Tree, base: Tree) -> Any:
    """Returns the trained part of a whole model with this base."""
    return _map(lambda b, leaf: leaf if b is None else None, base, model)


def bind(task: Task, base: Variables | None) -> Task:
    """Returns the task of the trained part of a model with these frozen tensors; as it is where the base is None."""
    if base is None:
        return task

    def of_part(f: Callable) -> Callable:
        @functools.wraps(f)  # with its signature, which says whether it takes a key
        def run(params: Tree, stats: Tree, *args, **key):
            return f(*whole(Variables(params, stats), base), *args, **key)

        return run

    def with_stats(f: Callable) -> Callable:
        @functools.wraps(f)
        def run(*args, **key):
            value, stats = of_part(f)(*args, **key)
            return value, select_trained(stats, base.stats)

        return run

    def init(key: Array) -> Variables:
        return select_trained(task.init(key), base)

    forward = task.forward and with_stats(task.forward)
    predict, measure = of_part(task.predict), of_part(task.measure)
    return task._replace(
        init=init, loss=with_stats(task.loss), predict=predict, measure=measure, forward=forward, is_frozen=None
    )


def _map(f: Callable, base: Tree, other: Tree) -> Any:
    return jax.tree.map(f, base, other, is_leaf=lambda leaf: leaf is None)
