"""Tables: DataFrames with labels, perhaps groups, and columns of numbers or categories.

The inputs are kept as the user gave them until the training rows are known; `scaling` then encodes them. A custom
transformer takes them as they are. The default one takes their normal form, which does not depend on how pandas stores
a column, so that other rows are compared with the training rows by value:

- A column of integers, floats or booleans is float64, with NaN for missing values.
- A column of texts, or of the categories of pandas, is one of texts as objects, with NaN for missing values. The text
  of a whole number has no point: 1, 1.0 and "1" are one category.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.arrays import Arrays, Table, check_values, device_values, reading, with_groups

LABEL = "label"
"""Name of the column of labels, unless the user names another."""

NUMBER, CATEGORY = "number", "category"
"""The normal forms of a column; None stands for the column as it is."""

FORMS = {
    "integer": NUMBER,
    "floating": NUMBER,
    "boolean": NUMBER,
    "string": CATEGORY,
    "categorical": CATEGORY,
    "mixed-integer": CATEGORY,
    "empty": CATEGORY,
}
"""What a column may hold, in the words of `pandas.api.types.infer_dtype` -> its normal form."""


def is_frame(data: Any) -> bool:
    """Returns whether data are a DataFrame of pandas, or one that becomes such, as a DataFrame of polars does."""
    return hasattr(data, "columns") and (hasattr(data, "iloc") or hasattr(data, "to_pandas"))


def from_frame(
    frame: Any,
    label: Any = None,
    group: Any = None,
    transformer: Any = None,
    name: str = "table",
) -> Arrays:
    """Returns the rows of a DataFrame, which are not encoded yet.

    Labels that are floats are the targets of a regression; others are classes, numbered in sorted order.

    Args:
        frame: one row per sample.
        label: name of the column of labels; None for `LABEL`.
        group: name of the column of groups, such as hospitals, which is no input.
        transformer: of scikit-learn, in place of `scaling.default_transformer`; it is not fitted here.
        name: of the data set.

    Raises:
        UsageError: a column is not there, or twice, or has no name; a label or a group is missing; or, without a
            transformer, a column has other values than the default one takes, or too many categories.
    """
    frame = _pandas_frame(frame)
    label = LABEL if label is None else str(label)
    roles = [label] if group is None else [label, str(group)]
    for role in roles:
        _refuse_missing(normalised(frame, {role: None})[role])
    inputs = frame.drop(columns=roles)
    if not inputs.shape[1]:
        raise UsageError(f"data: needs a column beside {', '.join(roles)}")
    columns = _forms(inputs) if transformer is None else dict.fromkeys(inputs)
    class_names = () if frame[label].dtype.kind == "f" else _class_names(frame[label])
    y = labels_of(frame, label, class_names)
    table = Table(inputs, columns, label, transformer)
    arrays = Arrays(name, np.zeros(inputs.shape), y, class_names, len(y), table=table)
    arrays = check_values(arrays, "data")
    if group is None:
        return arrays
    return with_groups(arrays, frame[roles[1]].astype(str).to_numpy(str), f"data: column {group}")


def normalised(frame: Any, columns: Mapping[str, str | None]) -> Any:
    """Returns columns of a DataFrame in their forms.

    Args:
        frame: a DataFrame that has them, and perhaps others.
        columns: name -> `NUMBER`, `CATEGORY` or None.

    Raises:
        UsageError: a column is not there, or twice, or holds something else than its form has.
    """
    frame, values = _pandas_frame(frame), {}
    convert = {NUMBER: _numbers, CATEGORY: _categories, None: lambda column: column}
    for name, form in columns.items():
        if name not in frame:
            raise UsageError(
                f"data: has no column {name!r}; it has, separated by commas, {', '.join(frame)}"
            )
        values[name] = convert[form](frame[name])
    return type(frame)(values, index=frame.index)


def labels_of(frame: Any, label: str, class_names: Sequence[str]) -> np.ndarray:
    """Returns the numbers of a DataFrame's labels, int32 [T], or targets, float32 [T], where there are no classes.

    Raises:
        UsageError: there is no such column, a label is missing or no class, or a target is no finite number.
    """
    column = normalised(frame, {label: CATEGORY if class_names else NUMBER})[label]
    _refuse_missing(column)
    if not class_names:
        return column.to_numpy(np.float32)
    numbers = column.map({name: i for i, name in enumerate(class_names)})
    if numbers.hasnans:
        raise UsageError(
            f"data: label {label!r} must be one of {', '.join(class_names)} in every row"
        )
    return numbers.to_numpy(np.int32)


def _class_names(column: Any) -> tuple[str, ...]:
    """Returns the names of the classes of a column of labels, sorted."""
    names = _categories(column).unique()
    return tuple(sorted(names, key=int if column.dtype.kind in "iu" else str))


def _pandas_frame(frame: Any) -> Any:
    """Returns a DataFrame of pandas, the names of its columns texts that differ, none empty as of an index."""
    with reading("data", "a DataFrame", "give one; of polars after pip install pandas pyarrow"):
        frame = frame.to_pandas() if hasattr(frame, "to_pandas") else frame
        frame = frame.set_axis(list(map(str, frame)), axis=1).infer_objects()
    if not frame.columns.is_unique or "" in frame:
        raise UsageError(f"data: each column needs a name of its own; got {', '.join(frame)}")
    return frame


def _refuse_missing(column: Any) -> None:
    """Raises UsageError where a label or a group is missing."""
    if column.hasnans:
        row = column.isna().to_numpy().argmax()
        raise UsageError(
            f"data: column {column.name!r} is missing in row {row}, counted from 0; fill it, or remove such rows"
        )


def _form(column: Any) -> str:
    """Returns the normal form of a column.

    Raises:
        UsageError: it holds dates, durations, complex numbers, lists or other objects.
    """
    from pandas.api.types import infer_dtype

    kind = infer_dtype(column)
    if kind not in FORMS:
        raise UsageError(
            f"data: column {column.name!r} holds {kind}, and may hold numbers, booleans, texts or categories;"
            " drop it, or make numbers of it, such as (column - column.min()).dt.days of dates"
        )
    return FORMS[kind]


def _forms(inputs: Any) -> Mapping[str, str]:
    """Returns name -> normal form, of the columns of training rows.

    Raises:
        UsageError: one has as many categories as identifiers, dates or numbers in texts have.
    """
    columns = {name: _form(inputs[name]) for name in inputs}
    counts = normalised(inputs, columns).select_dtypes(object).nunique()
    most = min(1000, max(100, len(inputs) // 2))
    if counts.max() > most:
        raise UsageError(
            f"data: column {counts.idxmax()!r} has more than {most} categories, each of which would be an input;"
            " drop it, group its values, or make floats of it"
        )
    return columns


def _numbers(column: Any) -> np.ndarray:
    """Returns a column as float64; raises UsageError for values that are no numbers, or too large for float32."""
    _form(column)  # dates would become numbers
    what = f"data: column {column.name!r}"
    with reading(what, "of numbers, as in the training rows", "convert it, or give other data"):
        values = column.to_numpy(np.float64, na_value=np.nan)
    device_values(np.where(np.isnan(values), 0, values), what)
    return values


def _categories(column: Any) -> Any:
    """Returns a column of texts as objects, with NaN for missing values."""
    _form(column)
    categories = column.astype(object).astype("category")
    return categories.map(_text, na_action="ignore").astype(object)


def _text(value: Any) -> str:
    """Returns the text of a category.

    >>> _text(1.0), _text(1), _text("1.0"), _text(True), _text(0.5)
    ('1', '1', '1.0', 'True', '0.5')
    """
    is_whole = isinstance(value, float) and value.is_integer()
    return str(int(value) if is_whole else value)
