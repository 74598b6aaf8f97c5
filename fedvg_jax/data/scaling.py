"""Means and deviations by which the columns of tables, or the channels of float images, are scaled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError

FILE = "columns.json"
"""Name in a run folder."""


class Columns(NamedTuple):
    """Of the D entries of the last axis of rows; float64 [D]."""

    mean: np.ndarray
    deviation: np.ndarray

    def scaled(self, x: Any) -> np.ndarray:
        """Returns float32 (x - mean) / deviation.

        Raises:
            UsageError: x has another number of columns.
        """
        shape = np.shape(x)
        if shape[-1:] != self.mean.shape:
            raise UsageError(
                f"x {list(shape)} must have {len(self.mean)} columns, those that the model was trained on"
            )
        return ((np.asarray(x) - self.mean) / self.deviation).astype(np.float32)

    def as_json(self) -> dict[str, list[float]]:
        """Returns the values as JSON has them, which is exact."""
        return {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()}


def measure(x: np.ndarray, rows: np.ndarray) -> Columns:
    """Returns mean and deviation of every column over some rows; the deviation of a constant column is 1.

    A column is constant where its deviation is that of rounding in its own dtype.

    Args:
        x: [T, ..., D].
        rows: int [n], numbers of the rows.

    >>> columns = measure(np.array([[0.0, 7.0], [4.0, 7.0], [8.0, 7.0]]), np.array([0, 1]))
    >>> columns.scaled([[0.0, 7.0], [8.0, 7.0]]).tolist()
    [[-1.0, 0.0], [3.0, 0.0]]
    """
    some = np.asarray(x[rows], np.float64)
    axes = tuple(range(x.ndim - 1))
    mean, deviation = some.mean(axes), some.std(axes)
    rounding = np.finfo(x.dtype).eps * np.abs(mean) if x.dtype.kind == "f" else 0
    is_constant = (np.ptp(some, axes) == 0) | (deviation <= rounding)
    return Columns(mean, np.where(is_constant, 1, deviation))


def from_json(stored: Mapping[str, Sequence[float]], source: object) -> Columns:
    """Returns what `Columns.as_json` wrote.

    Raises:
        UsageError: it is something else.
    """
    try:
        mean, deviation = (np.array(stored[name], np.float64) for name in Columns._fields)
        is_whole = mean.ndim == 1 and mean.shape == deviation.shape
    except (LookupError, TypeError, ValueError):
        is_whole = False
    if not is_whole:
        raise UsageError(
            f"{source}: means and deviations of columns are damaged; give another model"
        )
    return Columns(mean, deviation)
