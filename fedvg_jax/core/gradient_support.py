"""The entries of the parameters whose gradient can be nonzero; everywhere else it is exactly 0.

Kernel taps that only ever meet padding have no gradient. In ResNet-18 at 32 pixels they are most of the parameters,
because its last stage works on single pixels. What clients do not carry need not be read, written or sent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import jax
from jax import Array, lax

from fedvg_jax.core import tree
from fedvg_jax.core.types import GradientSupport, Tree

Box = Sequence[tuple[int, int]]
"""Ranges (begin, end) along the first axes of a tensor; the other axes are whole."""

FULL_SUPPORT = GradientSupport(lambda params: params, lambda params, part: part)
"""The support of a model in which every parameter can have a gradient."""


def from_boxes(boxes: Callable[[], Mapping[str, Box]]) -> GradientSupport:
    """Returns the support that is a box of each named tensor, and the whole of every other tensor.

    Args:
        boxes: () -> path of a tensor -> its box; called once, at the first use.

    >>> import jax.numpy as jnp
    >>> support = from_boxes(lambda: {"w": [(1, 3)]})
    >>> part = support.of({"w": jnp.arange(4.0), "b": jnp.zeros(1)})
    >>> part["w"].tolist(), support.within({"w": jnp.zeros(4), "b": jnp.ones(1)}, part)["w"].tolist()
    ([1.0, 2.0], [0.0, 1.0, 2.0, 0.0])
    """
    boxes = functools.cache(boxes)

    def map_boxed(f: Callable[..., Array], *trees: Tree) -> Tree:
        """Returns f(box, *leaves) for tensors with a box, and the last tree's leaf for the others."""
        leaves, structure = jax.tree.flatten(trees[0])
        matching = zip(tree.paths(trees[0]), leaves, *map(jax.tree.leaves, trees[1:]), strict=True)
        mapped = [f(boxes()[path], *xs) if path in boxes() else xs[-1] for path, *xs in matching]
        return jax.tree.unflatten(structure, mapped)

    def of(params: Tree) -> Tree:
        return map_boxed(lambda box, x: x[tuple(slice(*ends) for ends in box)], params)

    def within(params: Tree, part: Tree) -> Tree:
        def put(box: Box, x: Array, inner: Array) -> Array:
            begins = [begin for begin, _ in box] + (x.ndim - len(box)) * [0]
            return lax.dynamic_update_slice(x, inner, begins)

        return map_boxed(put, params, part)

    return GradientSupport(of, within)
