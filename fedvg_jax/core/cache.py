"""Results that are cached under a key, such as what is compiled for arguments of some shapes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import jax
import numpy as np

from fedvg_jax.core.types import Tree

T = TypeVar("T")

Cache = Callable[[Hashable, Callable[[], Any]], Any]
"""(key, function without arguments) -> its result, which is cached under that key"""

MOST_CACHED = 16
"""Results in a cache; then the oldest is dropped."""

TRACE_SETTINGS = (
    "jax_default_device",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_threefry_partitionable",
)
"""Settings of jax, also of its context managers, that change what a program computes."""


def new() -> Cache:
    """Returns an empty cache.

    >>> cached = new()
    >>> cached("a", lambda: 1), cached("a", lambda: 2)
    (1, 1)
    """
    results: dict[Hashable, Any] = {}

    def cached(key: Hashable, make: Callable[[], T]) -> T:
        if key not in results:
            result = make()
            if len(results) == MOST_CACHED:
                del results[next(iter(results))]
            results[key] = result
        return results[key]

    return cached


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
