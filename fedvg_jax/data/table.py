"""Tables: DataFrames with labels, perhaps groups, and columns of numbers or categories.

The inputs are kept as a DataFrame until the training rows are known; `scaling` then encodes it. Meanwhile x, float64
[T, D], has numbers as they are and categories as numbers, so that digests tell tables apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.arrays import Arrays, Table, check_values, with_groups

LABEL = "label"
"""Name of the column of labels, unless the user names another."""


def is_frame(data: Any) -> bool:
    """Returns whether data are a DataFrame of pandas, or one that becomes such, as a DataFrame of polars does."""
    return hasattr(data, "columns") and (hasattr(data, "iloc") or hasattr(data, "to_pandas"))


def from_frame(
    frame: Any,
    label: str = LABEL,
    group: str | None = None,
    transformer: Any = None,
    name: str = "table",
) -> Arrays:
    """Returns the rows of a DataFrame, which are not encoded yet.

    Texts and categories are columns of categories. Labels that are floats are the targets of a regression; others are
    classes, numbered in sorted order.

    Args:
        frame: one row per sample.
        label: name of the column of labels.
        group: name of the column of groups, such as hospitals, which is no input.
        transformer: of scikit-learn, in place of `scaling.default_transformer`; it is not fitted here.
        name: of the data set.

    Raises:
        UsageError: a column is not there, twice there, or of dates and the like; or a label or a group is missing.
    """
    frame = _pandas_frame(frame)
    roles = [label] if group is None else [label, group]
    _check_columns(frame, roles, name)
    inputs = _normalised(frame.drop(columns=roles), name)
    if not inputs.shape[1]:
        raise UsageError(f"{name}: needs a column beside {', '.join(roles)}")
    column = frame[label]
    if column.dtype.kind == "f":
        y, class_names = column.to_numpy(np.float32), ()
    else:
        values = (
            column.to_numpy() if column.dtype.kind in "iu" else column.astype(str).to_numpy(str)
        )
        names, y = np.unique(values, return_inverse=True)
        class_names = tuple(map(str, names))
    table = Table(inputs, label, class_names, transformer)
    arrays = check_values(Arrays(name, _codes(inputs), y, class_names, len(y), table=table), name)
    if group is None:
        return arrays
    return with_groups(arrays, frame[group].astype(str).to_numpy(str), f"{name}, column {group}")


def inputs_of(frame: Any, names: Sequence[str]) -> Any:
    """Returns the columns of these names of another DataFrame.

    Raises:
        UsageError: a column is not there, or of dates and the like.
    """
    frame = _pandas_frame(frame)
    _refuse_missing_names(frame, names, "data")
    return _normalised(frame[[*names]], "data")


def labels_of(frame: Any, label: str, class_names: Sequence[str]) -> np.ndarray:
    """Returns the numbers of a DataFrame's labels, int32 [T], or targets, float32 [T], where there are no classes.

    Raises:
        UsageError: there is no such column, or a label that is no class.
    """
    frame = _pandas_frame(frame)
    _check_columns(frame, [label], "data")
    if not class_names:
        return frame[label].to_numpy(np.float32)
    texts = frame[label].astype(str)
    if not texts.isin(class_names).all():
        raise UsageError(
            f"data: label {label!r} must be one of {', '.join(class_names)} in every row"
        )
    return np.array([class_names.index(text) for text in texts], np.int32)


def _pandas_frame(frame: Any) -> Any:
    """Returns a DataFrame of pandas with texts as names of its columns."""
    frame = frame.to_pandas() if hasattr(frame, "to_pandas") else frame
    return frame.rename(columns=str).infer_objects()


def _normalised(frame: Any, source: str) -> Any:
    """Returns columns of floats and of texts, as objects, with NaN for missing values.

    Raises:
        UsageError: a column holds dates, durations or complex numbers.
    """
    columns = {}
    for name, column in frame.items():
        kind = getattr(column.dtype, "kind", "O")
        if kind in "mMc":
            raise UsageError(
                f"{source}: column {name!r} holds {column.dtype}; make numbers of it, such as .dt.total_seconds()"
            )
        if kind in "biuf" and column.dtype.name != "category":
            columns[name] = column.to_numpy(np.float64, na_value=np.nan)
        else:
            columns[name] = column.astype(str).astype(object).where(column.notna(), np.nan)
    return type(frame)(columns, index=frame.index)


def _codes(frame: Any) -> np.ndarray:
    """Returns float64 [T, D], the numbers and the numbers of the categories of a normalised DataFrame."""
    codes = [
        column if column.dtype.kind == "f" else column.astype("category").cat.codes
        for _, column in frame.items()
    ]
    return np.stack([np.asarray(column, np.float64) for column in codes], 1)


def _refuse_missing_names(frame: Any, names: Sequence[str], source: str) -> None:
    """Raises UsageError for columns that are not there."""
    if missing := [name for name in names if name not in frame.columns]:
        has = ", ".join(map(str, frame.columns))
        raise UsageError(f"{source}: has no column {missing[0]!r}; it has {has}")


def _check_columns(frame: Any, roles: Sequence[str], source: str) -> None:
    """Raises UsageError for labels or groups that are not there, the same, or missing in a row, or for equal names."""
    _refuse_missing_names(frame, roles, source)
    if not frame.columns.is_unique or len({*roles}) < len(roles):
        raise UsageError(
            f"{source}: columns must have different names; got {', '.join([*roles, *frame.columns])}"
        )
    is_missing = frame[[*roles]].isna().any(axis=1).to_numpy()
    if is_missing.any():
        raise UsageError(
            f"{source}: {' or '.join(roles)} is missing in row {is_missing.argmax()}; fill it, or remove such rows:"
            f" frame.dropna(subset={roles})"
        )
