"""Keys of the stores of compiled programs: the shapes of arguments and the settings of jax that a trace depends on."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

MAX_PROGRAMS = 16
"""Size of a store; the least recently used program is dropped first."""

SETTINGS = (
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_threefry_partitionable",
)
"""Settings of jax, also of its context managers, that change what a program computes."""


def trace_settings() -> tuple[Hashable, ...]:
    """Returns the values of `SETTINGS` where it is called."""
    return tuple(getattr(jax.config, name) for name in SETTINGS)


def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype of a leaf, and its sharding if it has been placed on devices."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    is_placed = isinstance(leaf, jax.Array) and leaf.committed
    return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=leaf.sharding if is_placed else None)


def is_hashable(key: Hashable) -> bool:
    """Returns whether a key can be hashed. The program of a user's object without a hash is not stored."""
    try:
        hash(key)
    except TypeError:
        return False
    return True
