"""Tables: DataFrames and .csv files with labels, perhaps groups, and columns of numbers or categories.

The inputs are kept as a DataFrame until the training rows are known; `scaling` then encodes it. Meanwhile x, float64
[T, D], has numbers as they are and categories as numbers, so that digests tell tables apart.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.arrays import Arrays, Table, check_values, reading, with_groups
from fedvg_jax.host import extras

LAYOUT = "a .csv file with a line of column names, or a folder with one such file"


def load(path: Path, cache_dir: Path | None = None, *, columns: Mapping[str, str] = {}) -> Arrays:
    """Reads the .csv file `path`, or the only .csv file of the folder `path`.

    Args:
        path: see `LAYOUT`.
        cache_dir: unused, because tables are not kept.
        columns: role, label or group -> name of its column.

    Raises:
        UsageError: no file, several files, a file that is no table, or as `from_frame`.
    """
    pandas = extras.load("pandas", "pandas", "dataset csv")
    files = [path] if path.is_file() else sorted(path.glob("*.csv"))
    if len(files) != 1:
        raise UsageError(f"{path}: holds {len(files)} .csv files; --data-dir names {LAYOUT}")
    with reading(files[0], "a table", f"it must be {LAYOUT}"):
        frame = pandas.read_csv(files[0])
    label = columns.get("label")
    if label is None:
        raise UsageError(
            f"{files[0]}: needs --label NAME, one of {', '.join(map(str, frame.columns))}"
        )
    return from_frame(frame, label, columns.get("group"), name=files[0].stem)


def is_frame(data: Any) -> bool:
    """Returns whether data are a DataFrame of pandas, or one that becomes such, as that of polars."""
    return hasattr(data, "columns") and (hasattr(data, "iloc") or hasattr(data, "to_pandas"))


def from_frame(
    frame: Any, label: str, group: str | None = None, transformer: Any = None, name: str = "table"
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
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise UsageError(f"{name}: column {twice!r} is there twice; rename one")
    roles = {"label": label} if group is None else {"label": label, "group": group}
    for role, column in roles.items():
        _check_column(frame, role, column, name)
    inputs = frame.drop(columns=[*{*roles.values()}])
    if not inputs.shape[1] or label == group:
        raise UsageError(f"{name}: needs a label and a column beside {', '.join(roles.values())}")
    inputs = _normalised(inputs, name)
    y, class_names = _labels(frame[label])
    table = Table(inputs, label, class_names, transformer)
    arrays = check_values(Arrays(name, _codes(inputs), y, class_names, len(y), table=table), name)
    if group is None:
        return arrays
    return with_groups(arrays, frame[group].astype(str).to_numpy(str), f"{name}, column {group}")


def numbers(frame: Any, name: str) -> np.ndarray:
    """Returns a DataFrame of numbers and booleans as float64 [T, D].

    Raises:
        UsageError: a column holds other values.
    """
    columns = _normalised(_pandas_frame(frame), f"data: {name}")
    for column in columns:
        if columns[column].dtype.kind != "f":
            raise UsageError(
                f"data: {name}, column {column!r} must be numbers; data=frame, label=NAME encodes texts and categories"
            )
    return columns.to_numpy(np.float64)


def rows(arrays: Arrays) -> Any:
    """Returns x [T, ...] of a data set, or the DataFrame of a table's inputs."""
    return arrays.x if arrays.table is None else arrays.table.inputs


def inputs_of(frame: Any, names: Sequence[str]) -> Any:
    """Returns the columns of these names of another DataFrame.

    Raises:
        UsageError: a column is not there, or of dates and the like.
    """
    frame = _pandas_frame(frame)
    for name in names:
        _check_name(frame, "column", name, "data")
    return _normalised(frame[[*names]], "data")


def labels_of(frame: Any, label: str, class_names: Sequence[str]) -> np.ndarray:
    """Returns the numbers of a DataFrame's labels, int32 [T], or targets, float32 [T], where there are no classes.

    Raises:
        UsageError: there is no such column, or a label that is no class.
    """
    frame = _pandas_frame(frame)
    _check_column(frame, "label", label, "data")
    if not class_names:
        return frame[label].to_numpy(np.float32)
    numbers = frame[label].astype(str).map({name: c for c, name in enumerate(class_names)})
    if numbers.isna().any():
        unknown = frame[label][numbers.isna()].iloc[0]
        raise UsageError(f"data: label {unknown!r} must be one of {', '.join(class_names)}")
    return numbers.to_numpy(np.int32)


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


def _check_name(frame: Any, role: str, column: str, source: str) -> None:
    """Raises UsageError for a column that is not there, with the nearest name."""
    if column not in frame.columns:
        names = [*map(str, frame.columns)]
        nearest = difflib.get_close_matches(str(column), names, 1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"it has {', '.join(names)}"
        raise UsageError(f"{source}: has no {role} {column!r}; {hint}")


def _check_column(frame: Any, role: str, column: str, source: str) -> None:
    """Raises UsageError for a column that is not there, or in which a value is missing."""
    _check_name(frame, role, column, source)
    is_missing = np.asarray(frame[column].isna())
    if is_missing.any():
        raise UsageError(
            f"{source}: {role} {column!r} is missing in {is_missing.sum()} rows, first in row {is_missing.argmax()};"
            f" fill it, or remove the rows: frame.dropna(subset=[{column!r}])"
        )


def _labels(column: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns classes int32 [T] and their names, or targets float32 [T] and none."""
    kind = getattr(column.dtype, "kind", "O")
    if kind == "f":
        return column.to_numpy(np.float32), ()
    values = column.to_numpy() if kind in "iu" else column.astype(str).to_numpy(str)
    names, y = np.unique(values, return_inverse=True)
    return y.astype(np.int32), tuple(map(str, names))
