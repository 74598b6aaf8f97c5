"""Results that are kept under a key, such as what is compiled for arguments of some shapes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import jax
import numpy as np

from fedvg_jax.core.types import Tree

T = TypeVar("T")

Keep = Callable[[Hashable, Callable[[], Any]], Any]
"""(key, function without arguments) -> its result, which is kept under that key"""

MOST_KEPT = 16
"""Results that are kept; then the oldest is dropped."""

TRACE_SETTINGS = (
    "jax_default_device",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_threefry_partitionable",
)
"""Settings of jax, also of its context managers, that change what a program computes."""


def keeper() -> Keep:
    """Returns a function that keeps results by key.

    >>> keep = keeper()
    >>> keep("a", lambda: 1), keep("a", lambda: 2)
    (1, 1)
    """
    kept: dict[Hashable, Any] = {}

    def keep(key: Hashable, make: Callable[[], T]) -> T:
        if key not in kept:
            result = make()
            if len(kept) == MOST_KEPT:
                del kept[next(iter(kept))]
            kept[key] = result
        return kept[key]

    return keep


def trace_settings() -> tuple[Hashable, ...]:
    """Returns the values of `TRACE_SETTINGS` where it is called."""
    return tuple(getattr(jax.config, name) for name in TRACE_SETTINGS)


def key_of_shapes(arguments: Tree) -> tuple[Hashable, ...]:
    """Returns a key of what is traced for arguments of these shapes, under the settings of jax where it is called."""
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple(map(abstract, leaves)), trace_settings()


def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype of a leaf, and its sharding if it has been placed on devices."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    is_placed = isinstance(leaf, jax.Array) and leaf.committed
    return jax.ShapeDtypeStruct(
        np.shape(leaf), leaf.dtype, sharding=leaf.sharding if is_placed else None
    )
