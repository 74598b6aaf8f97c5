"""The part of a model that stays with each client: neither sent, nor averaged, nor scored.

A client starts a round from theta_g with its own local part, and keeps what training made of it. On the
server, local tensors keep their initial values for the whole run, which are every client's start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedvg_jax.core import tree
from fedvg_jax.core.types import Tree, UsageError, Variables, compiled


class LocalPart(NamedTuple):
    """Which tensors are local, trained or running statistics, and when they are trained; of `NOTHING`, none is."""

    is_local: Callable[[str], bool] | None = None
    """path of a tensor, "a/b/kernel" -> whether it stays with the client; None for no tensor"""
    first: float = 0.0
    """Share of a client's local steps, the first ones, that train only the local part, and then only the other tensors.
    Both have a step at least; a client's only step trains all tensors. 0 trains all tensors in all steps."""

    def select(self, variables: Variables) -> dict[str, Array]:
        """Returns the local tensors by path."""
        is_local, named = self.is_local, tree.by_path(variables)
        return {path: leaf for path, leaf in named.items() if is_local and is_local(_without_kind(path))}

    def merge(self, variables: Variables, part: dict[str, Array]) -> Variables:
        """Returns the variables with the tensors of `part` in place of their own."""
        if not part:
            return variables
        leaves = (part.get(path, leaf) for path, leaf in tree.by_path(variables).items())
        return jax.tree.structure(variables).unflatten(leaves)

    def sent(self, params: Tree) -> Tree:
        """Returns the tensors of a tree like the parameters that are not local, by path; of `NOTHING`, the tree."""
        is_local = self.is_local
        return {p: x for p, x in tree.by_path(params).items() if not is_local(p)} if is_local else params

    def received(self, variables: Variables, sent: Tree) -> Variables:
        """Returns the variables with what arrives of `sent`'s tensors in place of their own."""
        if self.is_local is None:
            return variables._replace(params=sent)
        return self.merge(variables, {f"params/{path}": leaf for path, leaf in sent.items()})

    def restored(self, params: Tree, original: Tree) -> Tree:
        """Returns trees like the parameters with the local tensors of `original`."""
        return self.merge(Variables(params, {}), self.select(Variables(original, {}))).params

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
        of_local, of_others = tree.where(is_first | is_single, updates, zeros), tree.where(is_first, zeros, updates)
        return self.restored(of_others, of_local)


NOTHING = LocalPart()
"""Everything is shared."""


def local_part(pattern: str | Callable[[str], bool], first: float = 0.0) -> LocalPart:
    r"""Returns the local part of the tensors whose path has the regular expression, or for which a function is true.

    Args:
        pattern: found anywhere in a path "a/b/kernel"; or a function of the path.
        first: share of a client's local steps, the first ones, that train only the local part; 0 for no such steps.

    Raises:
        UsageError: the pattern is no regular expression, or `first` is not in [0, 1).

    >>> part = local_part(r"^head/")
    >>> variables = Variables({"body": {"w": jnp.ones(2)}, "head": {"w": jnp.zeros(1)}}, {})
    >>> part.select(variables)
    {'params/head/w': Array([0.], dtype=float32)}
    >>> part.merge(variables, {"params/head/w": jnp.ones(1)}).params["head"]
    {'w': Array([1.], dtype=float32)}
    """
    if not 0 <= first < 1:
        raise UsageError(f"first must be in [0, 1), the share of local steps; got {first}")
    chosen = compiled(pattern, "local").search if isinstance(pattern, str) else pattern
    return LocalPart(chosen, first)  # pyright: ignore[reportArgumentType]


def check(part: LocalPart, variables: Variables, name: str) -> None:
    """Raises UsageError unless some tensors are local, and some trained ones are not; `NOTHING` passes."""
    if part.is_local is None:
        return
    paths = [_without_kind(path) for path in tree.paths(variables)]
    if not any(map(part.is_local, paths)):
        raise UsageError(f"{name} matches no tensor; there are {listed(paths)}")
    if all(map(part.is_local, tree.paths(variables.params))):
        raise UsageError(f"{name} matches every trained tensor, so that nothing is shared; there are {listed(paths)}")


def _without_kind(path: str) -> str:
    """Returns a path without "params" or "stats", the field of the variables."""
    return path.partition("/")[2]


def listed(paths: Sequence[str]) -> str:
    """Returns paths as text, the first of many."""
    return ", ".join(paths[:40]) + (" and more" if len(paths) > 40 else "")
