"""Tables: DataFrames and .csv files with labels, perhaps groups, and columns of numbers or categories.

A table is kept as floats, x float64 [T, D], until the training rows are known: numbers as they are, categories as their
places in `Table.categories`, and missing values as NaN. `scaling` then encodes it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
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
    return hasattr(data, "to_pandas") or (hasattr(data, "columns") and hasattr(data, "iloc"))


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
    frame = frame.to_pandas() if hasattr(frame, "to_pandas") else frame
    frame = frame.rename(columns=str)
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise UsageError(f"{name}: column {twice!r} is there twice; rename one")
    for role, column in {"label": label, "group": group}.items():
        if column is not None:
            _check_column(frame, role, column, name)
    inputs = [column for column in frame.columns if column not in (label, group)]
    if not inputs or group == label:
        raise UsageError(
            f"{name}: has no column beside label {label!r} and group {group!r}; add one"
        )
    columns = [_column(frame[column], f"{name}: column {column!r}") for column in inputs]
    y, class_names = _labels(frame[label])
    table = Table(
        tuple(inputs), tuple(found for _, found in columns), label, class_names, transformer
    )
    x = np.stack([values for values, _ in columns], 1)
    arrays = check_values(Arrays(name, x, y, class_names, len(y), None, table), name)
    if group is None:
        return arrays
    groups = np.array([str(value) for value in frame[group]])
    return with_groups(arrays, groups, f"{name}, column {group}")


def rows(arrays: Arrays) -> Any:
    """Returns x [T, ...] of a data set, or the DataFrame of a table's inputs."""
    return arrays.x if arrays.table is None else _frame(arrays.table, arrays.x)


def inputs(table: Table, frame: Any) -> Any:
    """Returns the inputs of a table from another DataFrame with its columns.

    Raises:
        UsageError: a column is not there, or holds other values than the table's.
    """
    frame = frame.to_pandas() if hasattr(frame, "to_pandas") else frame
    frame = frame.rename(columns=str)
    for name in table.names:
        _check_name(frame, "column", name, "data")
    columns = [_column(frame[name], f"data: column {name!r}") for name in table.names]
    for name, (_, found), known in zip(table.names, columns, table.categories, strict=True):
        if (found is None) != (known is None):
            kind = "numbers" if known is None else "categories"
            raise UsageError(f"data: column {name!r} must hold {kind}, as in the training data")
    own = table._replace(categories=tuple(found for _, found in columns))
    return _frame(own, np.stack([values for values, _ in columns], 1))


def labels(table: Table, frame: Any) -> np.ndarray:
    """Returns the labels of a DataFrame with a table's columns, [T].

    Raises:
        UsageError: there is no such column, or a label that the table does not have.
    """
    frame = frame.to_pandas() if hasattr(frame, "to_pandas") else frame
    _check_column(frame, "label", table.label, "data")
    values = frame[table.label]
    if not table.class_names:
        return np.asarray(values, np.float32)
    number = {name: c for c, name in enumerate(table.class_names)}
    if unknown := {str(value) for value in values} - number.keys():
        raise UsageError(
            f"data: label {min(unknown)!r} is no class of the training data: {', '.join(number)}"
        )
    return np.array([number[str(value)] for value in values], np.int32)


def _frame(table: Table, x: np.ndarray) -> Any:
    pandas = extras.load("pandas", "pandas", "a table")
    columns = {}
    for name, names, values in zip(table.names, table.categories, x.T, strict=True):
        if names is not None:
            texts = np.array([*names, np.nan], object)  # the last one is missing
            values = texts[np.where(np.isnan(values), len(names), values).astype(int)]  # noqa: PLW2901
        columns[name] = pandas.Series(values, dtype=object if names is not None else float)
    return pandas.DataFrame(columns)


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


def _column(series: Any, what: str) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Returns float64 [T] and the categories, which are None for numbers.

    Raises:
        UsageError: the values are dates, durations or complex numbers.
    """
    dtype = series.dtype
    if getattr(dtype, "kind", "") in "mMc":
        raise UsageError(f"{what} holds {dtype}; make numbers of it, such as .dt.total_seconds()")
    is_missing = np.asarray(series.isna())
    if getattr(dtype, "kind", "") in "biuf" and dtype.name != "category":
        return series.to_numpy(np.float64, na_value=np.nan), None
    texts = series.astype(str).to_numpy(object)
    names, places = np.unique(texts[~is_missing].astype(str), return_inverse=True)
    values = np.full(len(texts), np.nan)
    values[~is_missing] = places
    return values, tuple(map(str, names))


def _labels(series: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns classes int32 [T] and their names, or targets float32 [T] and none."""
    if getattr(series.dtype, "kind", "") == "f":
        return series.to_numpy(np.float32), ()
    is_number = getattr(series.dtype, "kind", "") in "iu"
    values = series.to_numpy() if is_number else series.astype(str).to_numpy(object).astype(str)
    names, y = np.unique(values, return_inverse=True)
    return y.astype(np.int32), tuple(map(str, names))
