"""Data sets from Python arrays, of any rank and dtype, and the checks that a model can take them."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import table
from fedvg_jax.data.arrays import MAX_CLASSES, REMEDY, Arrays, check_values, shape, with_groups


def as_arrays(data: Arrays | tuple) -> Arrays:
    """Returns a user's data as `Arrays`.

    Args:
        data: `Arrays`, or a pair (x, y) of arrays with the same leading axis T, of any rank and any boolean, integer
            or floating dtype, or of DataFrames of such columns. Integers y [T] >= 0 are class labels. The labels of
            `Arrays` with `class_names` are labels of any rank, such as the next characters [T, L] of sequences. Their
            `groups` may be any integers or strings.

    Raises:
        UsageError: no such pair, no rows, different numbers of rows or groups, or values that no device dtype can hold.

    >>> as_arrays((np.ones((4, 3)), np.array([0, 2, 1, 0]))).class_names
    ('0', '1', '2')
    """
    if not isinstance(data, Arrays):
        if not isinstance(data, tuple) or len(data) != 2:
            raise UsageError(
                f"data must be arrays (x, y), or fedvg_jax.data.Arrays; got {type(data).__name__}"
            )
        x, y = as_array(data[0], "x"), as_array(data[1], "y")
        data = Arrays("data", x, y, _class_names(y), len(x))
    data = check_values(data._replace(x=as_array(data.x, "x"), y=as_array(data.y, "y")), "data")
    return data if data.groups is None else with_groups(data, np.asarray(data.groups), "data")


def of_call(
    data: Any, label: str | None = None, group: str | None = None, transformer: Any = None
) -> Arrays | tuple | None:
    """Returns the data of a call; a DataFrame becomes a table that is not encoded yet.

    Args:
        data: as in `as_arrays`, or a DataFrame of pandas or polars, or None.
        label, group, transformer: as in `table.from_frame`, for a DataFrame.

    Raises:
        UsageError: as `table.from_frame`, or an argument of a table without a DataFrame.
    """
    if data is not None and table.is_frame(data):
        return table.from_frame(data, label, group, transformer, "data")
    if (label, group, transformer) != (None, None, None):
        raise UsageError(
            f"label, group and transformer are for data that are one DataFrame; got {type(data).__name__}"
        )
    return data


def as_array(values: Any, name: str) -> np.ndarray:
    """Returns numbers, such as a list, a tensor, a DataFrame or a column of one, as an array.

    Args:
        values: [T, ...], every row of one shape.
        name: x or y.

    Raises:
        UsageError: there are other values than numbers and booleans, or some are masked.
    """
    array = None
    with contextlib.suppress(ValueError, TypeError, RuntimeError):  # torch's last is of gradients
        array = np.asarray(values)
        if array.dtype.kind == "O":  # perhaps numbers of Python
            array = np.asarray(array.tolist())
    if array is None or not array.ndim or array.dtype.kind not in "biuf" or np.ma.is_masked(values):
        got = type(values).__name__ if array is None else shape(array)
        raise UsageError(
            f"data: {name} must be numbers or booleans [T, ...], every row of one shape, none missing; got {got};"
            f" {REMEDY}"
        )
    return array


def _class_names(y: np.ndarray) -> tuple[str, ...]:
    """Returns the names 0..max if y can be class labels, otherwise none."""
    if y.ndim != 1 or not y.size or y.dtype.kind not in "iu":
        return ()
    return tuple(map(str, range(y.max() + 1))) if 0 <= y.min() <= y.max() < MAX_CLASSES else ()
