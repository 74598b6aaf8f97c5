"""Data sets from Python arrays, of any rank and dtype, and the checks that a model can take them."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import table
from fedvg_jax.data.arrays import MAX_CLASSES, Arrays, check_values, shape, with_groups


def as_arrays(data: Arrays | tuple) -> Arrays:
    """Returns a user's data as `Arrays`.

    Args:
        data: `Arrays`, or a pair (x, y) of arrays with the same leading axis T, of any rank and any boolean, integer
            or floating dtype, or of DataFrames of such columns. Integers y [T] >= 0 are class labels. Those of `Arrays`
            with `class_names` are labels of any rank, such as the next characters [T, L] of sequences. Their `groups`
            may be any integers or strings.

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
        data = Arrays("data", x, y, _class_names(y), len(x) if x.ndim else 0)
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
        UsageError: a DataFrame without a label, or an argument of a table without a DataFrame.
    """
    if data is not None and table.is_frame(data):
        if label is None:
            raise UsageError(
                f"data is a DataFrame: name its labels, label=, one of {', '.join(map(str, data.columns))}"
            )
        return table.from_frame(data, label, group, transformer, "data")
    for name, value in {"label": label, "group": group, "transformer": transformer}.items():
        if value is not None:
            raise UsageError(
                f"{name} is for data that are one DataFrame; got {type(data).__name__}"
            )
    return data


def class_labels(arrays: Arrays, consumer: str, instead: str, of_rows: bool = True) -> np.ndarray:
    """Returns int32 class labels.

    Args:
        arrays: the data set.
        consumer: what needs the labels, for the error.
        instead: what to use without labels, for the error.
        of_rows: whether labels must be one for each row, [T], and not [T, L] as sequences have.

    Raises:
        UsageError: y has no such integers, or there are no names of classes.
    """
    has_integers = np.issubdtype(arrays.y.dtype, np.integer) and bool(arrays.class_names)
    if not has_integers or (of_rows and arrays.y.ndim != 1):
        needed = f"integers [T{'' if of_rows else ', ...'}] from 0 to {MAX_CLASSES - 1}"
        raise UsageError(
            f"{consumer} needs class labels, {needed}; y of {arrays.name} is {shape(arrays.y)};"
            f" {_REMEDY}; otherwise {instead}"
        )
    return arrays.y.astype(np.int32)


def refuse_channels_first(arrays: Arrays, consumer: str) -> None:
    """Raises a UsageError for rows [1, S, S], [3, H, W] or [4, H, W], as few images are."""
    first, *others = arrays.x.shape[1:]
    is_grey = first == 1 and len({*others}) == 1
    if (is_grey or first in (3, 4)) and min(others) > 4:
        raise UsageError(
            f"{consumer} takes images [T, H, W, D], and the channels of x seem to be first, {shape(arrays.x)}; use"
            " np.moveaxis(x, 1, -1)"
        )


def is_images(arrays: Arrays) -> bool:
    """Returns whether the rows are images, uint8 [T, H, W, D]."""
    return arrays.x.ndim == 4 and arrays.x.dtype == np.uint8


def is_sequences(arrays: Arrays) -> bool:
    """Returns whether the rows are sequences of named characters with a label at every place, both integers [T, L]."""
    has_integers = all(np.issubdtype(array.dtype, np.integer) for array in (arrays.x, arrays.y))
    return (
        has_integers
        and arrays.x.ndim == 2
        and arrays.x.shape == arrays.y.shape
        and bool(arrays.class_names)
    )


def check_rows_are_images(arrays: Arrays, setting: str, instead: str) -> None:
    """Raises a UsageError if a setting changes pixels and there are none."""
    if not is_images(arrays):
        raise UsageError(
            f"{setting} is for images, uint8 [T, H, W, D]; {arrays.name} is {shape(arrays.x)}; {instead}"
        )


_REMEDY = (
    "use .astype('float32'), .filled(...) or .toarray(), or data=frame, label=NAME for a DataFrame;"
    " np.unique(y, return_inverse=True)[1] numbers labels [T], and y.argmax(1) one-hot rows"
)


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
    if array is None or array.dtype.kind not in "biuf" or np.ma.is_masked(values):
        got = type(values).__name__ if array is None else shape(array)
        raise UsageError(
            f"data: {name} must be numbers or booleans [T, ...], every row of one shape, none missing; got {got};"
            f" {_REMEDY}"
        )
    return array


def _class_names(y: np.ndarray) -> tuple[str, ...]:
    """Returns the names 0..max if y can be class labels, otherwise none."""
    labels = (
        y.ndim == 1 and y.size and y.dtype.kind in "iu" and y.min() >= 0 and y.max() < MAX_CLASSES
    )
    return tuple(map(str, range(int(y.max()) + 1))) if labels else ()
