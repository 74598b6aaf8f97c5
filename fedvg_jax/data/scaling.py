"""Transformers of scikit-learn, fitted to the training rows of all clients, encode tables and scale columns.

The same mechanism serves `normalise columns`, for arrays of numbers [T, ..., D], and tables of numbers and categories.
A fitted transformer is stored as JSON, so that reading a run folder or a model runs no code.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import table as tables
from fedvg_jax.data.arrays import Arrays, Table, reading

FILE = "columns.json"
"""Name in a run folder."""


class Columns(NamedTuple):
    """A fitted transformer of rows."""

    transformer: Any
    """of scikit-learn; takes float64 [n, D], or a DataFrame of the inputs of `table`"""
    table: Table | None = None
    """the columns of a table; None for arrays"""

    def scaled(self, x: Any) -> np.ndarray:
        """Returns rows as the model takes them, float32.

        Args:
            x: numbers [T, ..., D], or a DataFrame with the columns of the table.

        Raises:
            UsageError: x has other columns.
        """
        if self.table is not None:
            if not tables.is_frame(x):
                raise UsageError("x must be a DataFrame, as the data that the model was trained on")
            return _transformed(self.transformer, tables.inputs(self.table, x))
        width, shape = self.transformer.n_features_in_, np.shape(x)
        if shape[-1:] != (width,):
            raise UsageError(
                f"x {list(shape)} must have {width} columns, those that the model was trained on"
            )
        flat = np.asarray(x, np.float64).reshape(-1, width)
        return _transformed(self.transformer, flat).reshape(shape)

    def batch(self, data: Any) -> tuple[np.ndarray, Any]:
        """Returns x as `scaled`, and y, of a table: a DataFrame with its inputs and labels, or a pair (inputs, y)."""
        assert self.table is not None, "arrays are scaled by `scaled`"
        if tables.is_frame(data):
            return self.scaled(data), tables.labels(self.table, data)
        inputs, y = data
        return self.scaled(inputs), y

    def as_json(self) -> dict[str, Any]:
        """Returns the values as JSON has them, which is exact."""
        table = None if self.table is None else self.table._replace(transformer=None)._asdict()
        return {"transformer": _to_json(self.transformer), "table": table}


def default_transformer(table: Table) -> Any:
    """Returns what encodes a table, not fitted.

    Missing numbers become the median, and columns get mean 0 and deviation 1. Missing categories become the most
    frequent one, and each category gets a column of 0 and 1.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    kinds = [*zip(table.names, table.categories, strict=True)]
    numbers = [name for name, found in kinds if found is None]
    others = [name for name, found in kinds if found is not None]
    scale = make_pipeline(
        SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler()
    )
    encode = make_pipeline(
        SimpleImputer(strategy="most_frequent", keep_empty_features=True),
        OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    )
    return ColumnTransformer([("numbers", scale, numbers), ("categories", encode, others)])


def fit(arrays: Arrays, rows: np.ndarray) -> Columns:
    """Returns the transformer of a data set, fitted to some of its rows.

    It is the table's custom one, or `default_transformer`; for arrays a StandardScaler of the last axis. A column of an
    array is constant, and its deviation becomes 1, where it deviates by rounding in its dtype.

    Args:
        arrays: the data set, x [T, ..., D].
        rows: int [n], numbers of the rows.

    Raises:
        UsageError: the transformer cannot be fitted, gives no finite numbers, or cannot be stored.

    >>> x = np.array([[0.0, 7.0], [4.0, 7.0], [8.0, 7.0]])
    >>> columns = fit(Arrays("x", x, np.zeros(3), (), 3), np.array([0, 1]))
    >>> columns.scaled([[0.0, 7.0], [8.0, 7.0]]).tolist()
    [[-1.0, 0.0], [3.0, 0.0]]
    """
    from sklearn.preprocessing import StandardScaler

    if arrays.table is None:
        some = np.asarray(arrays.x[rows], np.float64).reshape(-1, arrays.x.shape[-1])
        scaler: Any = StandardScaler().fit(some)
        dtype = arrays.x.dtype if arrays.x.dtype.kind == "f" else np.float64
        is_constant = np.sqrt(scaler.var_) <= np.finfo(dtype).eps * np.abs(scaler.mean_)
        scaler.scale_[is_constant] = 1
        return Columns(scaler)
    table, frame = arrays.table, tables.rows(arrays).iloc[rows]
    transformer = _fitted(table.transformer or default_transformer(table), frame)
    columns = Columns(transformer, table)
    _transformed(transformer, frame)
    columns.as_json()
    return columns


def _fitted(transformer: Any, frame: Any) -> Any:
    from sklearn.base import BaseEstimator, clone

    if not isinstance(transformer, BaseEstimator) or not hasattr(transformer, "transform"):
        raise UsageError(
            f"transformer must be one of scikit-learn, such as a ColumnTransformer; got {type(transformer).__name__}"
        )
    with reading("transformer", "fit for these columns", f"they are {', '.join(frame.columns)}"):
        unfitted: Any = clone(transformer)
        return unfitted.fit(frame)


def _transformed(transformer: Any, rows: Any) -> np.ndarray:
    """Returns float32 [n, D']; a UsageError for values that are not finite."""
    with reading("transformer", "able to take the data", "give another transformer"):
        values = transformer.transform(rows)
        values = np.asarray(values.toarray() if hasattr(values, "toarray") else values, np.float32)
    if values.ndim != 2 or not np.isfinite(values).all():
        raise UsageError(
            f"transformer must give finite numbers [T, D]; got {list(values.shape)}; impute missing values"
        )
    return values


# --- JSON


def from_json(stored: Mapping[str, Any], source: object) -> Columns:
    """Returns what `Columns.as_json` wrote.

    Raises:
        UsageError: it is something else, or needs another version of scikit-learn.
    """
    with reading(source, "a transformer of columns", "give another model"):
        transformer, table = _from_json(stored["transformer"]), stored["table"]
        transformer.transform  # noqa: B018  every transformer has it
        if table is None:
            return Columns(transformer)
        categories = [found if found is None else tuple(found) for found in table["categories"]]
        names, classes = tuple(table["names"]), tuple(table["class_names"])
        return Columns(transformer, Table(names, tuple(categories), table["label"], classes))


def _to_json(value: Any) -> Any:
    """Returns a fitted estimator, or what it holds, as JSON has it.

    Raises:
        UsageError: it holds another object, such as a function of its user.
    """
    from sklearn.base import BaseEstimator

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, dict):
        return {"items": [[_to_json(key), _to_json(item)] for key, item in value.items()]}
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": value.dtype.str}
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return {"dtype": np.dtype(value).str}
    if isinstance(value, np.ufunc):
        return {"ufunc": value.__name__}
    kind = type(value)
    if isinstance(value, BaseEstimator) and kind.__module__.startswith("sklearn."):
        state = dict(vars(value))
        if (
            "transformers_" in state
        ):  # which are fitted; the others may hold functions that choose columns
            state["transformers"] = []
        return {"class": [kind.__module__, kind.__name__], "state": _to_json(state)}
    raise UsageError(
        f"transformer holds a {kind.__name__}, which no run folder can store; use classes of scikit-learn"
        " and functions of NumPy, such as np.log1p"
    )


def _from_json(value: Any) -> Any:
    """Returns what `_to_json` wrote; tuples have become lists."""
    from sklearn.base import BaseEstimator

    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "items" in value:
        return {_from_json(key): _from_json(item) for key, item in value["items"]}
    if "slice" in value:
        return slice(*value["slice"])
    if "array" in value:
        return np.array(value["array"], value["dtype"])
    if "dtype" in value:
        return np.dtype(value["dtype"])
    if "ufunc" in value:
        found = getattr(np, value["ufunc"])
        if not isinstance(found, np.ufunc):
            raise ValueError(f"{value['ufunc']} is no ufunc")
        return found
    module, name = value["class"]
    if not module.startswith("sklearn."):
        raise ValueError(f"{module} is not of scikit-learn")
    kind = getattr(importlib.import_module(module), name)
    if not (isinstance(kind, type) and issubclass(kind, BaseEstimator)):
        raise ValueError(f"{name} is no estimator")
    estimator = kind.__new__(kind)
    vars(estimator).update(_from_json(value["state"]))
    return estimator
