"""Packs a pytree into one vector for each dtype, so that a GPU moves it with one kernel instead of one per tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedvg_jax.core.types import Tree


class Packing(NamedTuple):
    """The two directions, exact inverses of each other."""

    pack: Callable[[Tree], dict[str, Array]]
    """pytree -> vector by dtype"""
    unpack: Callable[[dict[str, Array]], Tree]


def packing_of(shapes: Tree) -> Packing:
    """Returns the packing of pytrees of these shapes.

    Args:
        shapes: arrays or their shapes.

    >>> packing = packing_of({"a": jnp.zeros(2), "b": jnp.zeros((), jnp.int32), "c": jnp.zeros((1, 1))})
    >>> packed = packing.pack({"a": jnp.ones(2), "b": jnp.int32(3), "c": jnp.full((1, 1), 4.0)})
    >>> {dtype: vector.tolist() for dtype, vector in packed.items()}
    {'float32': [1.0, 1.0, 4.0], 'int32': [3]}
    >>> packing.unpack(packed)["c"].tolist()
    [[4.0]]
    """
    leaves, structure = jax.tree.flatten(shapes)
    members: dict[str, list[int]] = {}
    for position, leaf in enumerate(leaves):
        members.setdefault(str(leaf.dtype), []).append(position)

    def pack(tree: Tree) -> dict[str, Array]:
        arrays = jax.tree.leaves(tree)
        return {name: jnp.concatenate([arrays[i].reshape(-1) for i in of_dtype]) for name, of_dtype in members.items()}

    def unpack(packed: dict[str, Array]) -> Tree:
        arrays: list[Any] = [None] * len(leaves)
        for name, of_dtype in members.items():
            ends = np.cumsum([leaves[i].size for i in of_dtype])
            for i, end in zip(of_dtype, ends, strict=True):
                arrays[i] = packed[name][int(end) - leaves[i].size : int(end)].reshape(leaves[i].shape)
        return jax.tree.unflatten(structure, arrays)

    return Packing(pack, unpack)


UNPACKED = Packing(lambda tree: tree, lambda tree: tree)
"""No packing."""
