"""The part of every parameter that can have a gradient; of the rest it is exactly 0.

Taps of a kernel that only ever meet padding are such a rest: most of ResNet-18 at 32 pixels, whose last stage works on
single pixels. What is not carried need not be read, written or sent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import jax
from jax import Array, lax

from fedvg_jax.core import tree
from fedvg_jax.core.types import GradientSupport, Tree

EVERYTHING = GradientSupport(lambda params: params, lambda params, part: part)


def by_path(ranges: Callable[[], Mapping[str, Sequence[tuple[int, int]]]]) -> GradientSupport:
    """Of the named tensors only a box is alive.

    Args:
        ranges: asked once, when first needed: path -> (begin, end) along the first axes of that tensor.

    >>> import jax.numpy as jnp
    >>> live = by_path(lambda: {"w": [(1, 3)]})
    >>> part = live.of({"w": jnp.arange(4.0), "b": jnp.zeros(1)})
    >>> part["w"].tolist(), live.within({"w": jnp.zeros(4), "b": jnp.ones(1)}, part)["w"].tolist()
    ([1.0, 2.0], [0.0, 1.0, 2.0, 0.0])
    """
    ranges = functools.cache(ranges)

    def boxed(change: Callable[..., Array], params: Tree, *others: Tree) -> Tree:
        leaves, structure = jax.tree.flatten(params)
        matching = zip(tree.paths(params), leaves, *map(jax.tree.leaves, others), strict=True)
        found = [change(ranges()[path], *xs) if path in ranges() else xs[-1] for path, *xs in matching]
        return jax.tree.unflatten(structure, found)

    def of(params: Tree) -> Tree:
        return boxed(lambda box, x: x[tuple(slice(*ends) for ends in box)], params)

    def within(params: Tree, part: Tree) -> Tree:
        def put(box, x: Array, inner: Array) -> Array:
            begins = [begin for begin, _ in box] + (x.ndim - len(box)) * [0]
            return lax.dynamic_update_slice(x, inner, begins)

        return boxed(put, params, part)

    return GradientSupport(of, within)
