"""The part of a model that is trained: sent, scored and averaged. All other tensors are frozen.

The variables of a part have None in place of frozen tensors, which JAX counts as no leaf, so algorithms, weightings,
client states and checkpoints see the trained tensors alone. The frozen ones are the `base`, like the model with None in
place of the trained ones. A program takes the base as an argument, `Data.base`, and binds the task to it: no client
has a copy, and the products of a base that clients share are one product for all lanes.

The part of a model that stays with each client: neither sent, nor averaged, nor scored.

A client starts a round from theta_g with its local part, and keeps what training made of it. On the
server, local tensors keep their initial values for the whole run, which are every client's start.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedvg_jax.core import groups, tree
from fedvg_jax.core.types import Task, Tree, UsageError, Variables, compiled

IsTrained = Callable[[str], bool]
"""path of a tensor, "a/b/kernel" -> whether it is trained"""


def trained_part(task: Task, variables: Variables, pattern: str = "") -> tuple[Task, Variables]:
    r"""Returns a task with the trained tensors of a model as its parameters, and their values.

    The other values are constants in programs that use the task; in a run they are an argument of its program.

    Args:
        task: a model and its loss.
        variables: of the model; their frozen tensors keep these values.
        pattern: regular expression, found anywhere in the path of a trained tensor.

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


def chooser(task: Task, pattern: str = "") -> IsTrained:
    """Returns which tensors are trained: those that the pattern chooses, without those that the task never trains."""
    chosen = compiled(pattern, "train").search
    is_frozen = task.is_frozen or (lambda path: False)

    def is_trained(path: str) -> bool:
        return bool(chosen(path)) and not is_frozen(path)

    paths = tree.paths(jax.eval_shape(task.init, jax.random.key(0)).params)
    if not any(map(is_trained, paths)):
        names = listed([path for path in paths if not is_frozen(path)])
        raise UsageError(
            f"train {pattern} matches no tensor that can be trained; there are {names}"
        )
    return is_trained


def split(variables: Variables, is_trained: IsTrained) -> tuple[Variables, Variables]:
    """Returns the trained part of variables, and the base.

    Running statistics are trained with the layer: where it has a trained parameter, or where their path is chosen.

    >>> split(Variables({"fc": {"w": 1, "b": 2}}, {"bn": {"mean": 3}}), lambda path: path == "fc/b")
    (Variables(params={'fc': {'b': 2, 'w': None}}, stats={'bn': {'mean': None}}), \
Variables(params={'fc': {'b': None, 'w': 1}}, stats={'bn': {'mean': 3}}))
    """
    layers = {groups.module_of(path) for path in tree.paths(variables.params) if is_trained(path)}

    def is_trained_statistic(path: str) -> bool:
        return is_trained(path) or groups.module_of(path) in layers

    trained = Variables(
        _only(variables.params, is_trained), _only(variables.stats, is_trained_statistic)
    )
    return trained, rest_of(variables, trained)


def _only(tensors: Tree, is_kept: Callable[[str], bool]) -> Tree:
    """Returns the tensors with a path that is kept, and None in place of the others."""
    leaves = [leaf if is_kept(path) else None for path, leaf in tree.by_path(tensors).items()]
    return jax.tree.structure(tensors).unflatten(leaves)


def whole(model: Tree, part: Tree) -> Any:
    """Returns a model with the tensors of a part of it, arrays or shapes, which has None in place of the others.

    >>> whole({"w": 1, "b": None}, {"w": None, "b": 2}), whole({"w": 1}, None)
    ({'b': 2, 'w': 1}, {'w': 1})
    """
    if part is None:
        return model
    return _map(lambda p, tensor: tensor if p is None else p, part, model)


def rest_of(model: Tree, part: Tree) -> Any:
    """Returns a model without the tensors of a part of it, such as the trained part from the whole and its base."""
    return _map(lambda p, tensor: tensor if p is None else None, part, model)


def bind(task: Task, base: Variables | None) -> Task:
    """Returns the task of the trained part of a model with these frozen tensors; as it is where the base is None."""
    if base is None:
        return task

    def of_part(f: Callable):
        @functools.wraps(f)  # with its signature, which says whether it takes a key
        def run(params, stats, *args, **key):
            return f(*whole(Variables(params, stats), base), *args, **key)

        return run

    def with_stats(f: Callable):
        @functools.wraps(f)
        def run(*args, **key):
            value, stats = of_part(f)(*args, **key)
            return value, rest_of(stats, base.stats)

        return run

    return task._replace(
        init=lambda key: rest_of(task.init(key), base),
        loss=with_stats(task.loss),
        predict=of_part(task.predict),
        measure=of_part(task.measure),
        forward=task.forward and with_stats(task.forward),
        is_frozen=None,
    )


def _map(f: Callable, part: Tree, model: Tree) -> Any:
    return jax.tree.map(f, part, model, is_leaf=lambda leaf: leaf is None)


class LocalPart(NamedTuple):
    """Which tensors are local, trained or running statistics, and when they are trained; of `NOTHING`, none is."""

    is_local: Callable[[str], bool] | None = None
    """path of a tensor, "a/b/kernel" -> whether it stays with the client; None for no tensor"""
    first: float = 0.0
    """Share of a client's local steps, the first ones, that train only the local part, and then only the other tensors.
    Both have a step at least; a client's only step trains all tensors. 0 trains all tensors in all steps."""

    def select(self, variables: Variables) -> Variables:
        """Returns the local tensors, and None in place of the others."""
        return Variables(*(_only(tensors, self._is_kept) for tensors in variables))

    def sent(self, params: Tree) -> Tree:
        """Returns the tensors of a tree like the parameters that are not local, and None in place of local ones."""
        return _only(params, lambda path: not self._is_kept(path))

    def restored(self, params: Tree, original: Tree) -> Tree:
        """Returns a tree like the parameters with the local tensors of `original`."""
        return whole(params, _only(original, self._is_kept))

    def _is_kept(self, path: str) -> bool:
        return self.is_local is not None and self.is_local(path)

    def steps_alone(self, num_steps: Array) -> Array | int:
        """Returns how many of a client's local steps train only the local part: round(first * n), from 1 to n - 1.

        It is 0 without phases, and for a single step, which trains all tensors.
        """
        if not self.first:
            return 0
        share = jnp.round(self.first * num_steps.astype(jnp.float32)).astype(num_steps.dtype)
        return jnp.minimum(jnp.maximum(share, 1), num_steps - 1)

    def mask_phase(self, step: Array, num_steps: Array, updates: Tree) -> Tree:
        """Returns gradients or updates of the parameters, with zeros for those that this local step does not train."""
        if not self.first:
            return updates
        is_first, is_single = step < self.steps_alone(num_steps), num_steps == 1
        zeros = tree.zeros_like(updates)
        of_local = tree.where(is_first | is_single, updates, zeros)
        return self.restored(tree.where(is_first, zeros, updates), of_local)


NOTHING = LocalPart()
"""Everything is shared."""


def local_part(pattern: str, first: float = 0.0) -> LocalPart:
    r"""Returns the local part: the tensors with a path that a regular expression matches.

    Args:
        pattern: found anywhere in a path "a/b/kernel".
        first: share of a client's local steps, the first ones, that train only the local part; 0 for no such steps.

    Raises:
        UsageError: the pattern is no regular expression, or `first` is not in [0, 1).

    >>> part = local_part(r"^head/")
    >>> variables = Variables({"body": {"w": jnp.ones(2)}, "head": {"w": jnp.zeros(1)}}, {})
    >>> part.select(variables).params
    {'body': {'w': None}, 'head': {'w': Array([0.], dtype=float32)}}
    """
    if not 0 <= first < 1:
        raise UsageError(f"first must be in [0, 1), the share of local steps; got {first}")
    return LocalPart(compiled(pattern, "local").search, first)  # pyright: ignore[reportArgumentType]


def check(part: LocalPart, variables: Variables, name: str) -> None:
    """Raises UsageError unless some tensors are local, and some trained ones are not; `NOTHING` passes."""
    if part.is_local is None:
        return
    paths = [path for tensors in variables for path in tree.paths(tensors)]
    if not any(map(part.is_local, paths)):
        raise UsageError(f"{name} matches no tensor; there are {listed(paths)}")
    if all(map(part.is_local, tree.paths(variables.params))):
        raise UsageError(
            f"{name} matches every trained tensor, so that nothing is shared; there are {listed(paths)}"
        )


def listed(paths: Sequence[str]) -> str:
    """Returns paths as text, the first of many."""
    return ", ".join(paths[:40]) + (" and more" if len(paths) > 40 else "")
