"""The parts into which the rows of D_val are divided where several devices score one client."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax


@jax.tree_util.register_static  # has no arrays: in a pytree, it is part of the structure
@dataclasses.dataclass(frozen=True)
class RowParts:
    """The P devices that score one client. Each sums over its own part of the rows; the sums are then added."""

    axis: str
    """name of their axis in the mesh"""
    count: int
    """P"""

    def own(self, table: Any) -> Array:
        """Returns the rows of a table that this device evaluates.

        They are dealt to the devices in turn, because empty ones come last.

        Args:
            table: int32 [V, B] row numbers in groups of B, -1 for padding.

        Returns:
            int32 [ceil(V / P), B].
        """
        padded = jnp.pad(table, ((0, -len(table) % self.count), (0, 0)), constant_values=-1)
        by_device = padded.reshape(-1, self.count, padded.shape[1])
        return lax.dynamic_index_in_dim(by_device, lax.axis_index(self.axis), 1, keepdims=False)

    def add(self, sums: Any) -> Any:
        """Returns a pytree of sums, added over the devices."""
        return lax.psum(sums, self.axis)


def own_rows(table: Any, parts: RowParts | None) -> Any:
    """Returns the rows of a table that this device evaluates: all of them without parts."""
    return table if parts is None else parts.own(table)
