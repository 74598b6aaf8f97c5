"""Transformers of scikit-learn, fitted to the training rows of all clients, encode tables and scale columns.

The same mechanism serves `normalise columns`, for arrays of numbers [T, ..., D], and tables of numbers and categories.
Reading a fitted transformer of a run folder or a model runs no code of the file.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import plain_pickles, table
from fedvg_jax.data.arrays import Arrays, reading

FILE = "columns.json"
"""Name in a run folder."""


class Columns(NamedTuple):
    """A fitted transformer of rows."""

    transformer: Any
    """of scikit-learn; takes float64 [n, D], or a DataFrame of the inputs of a table"""
    label: str | None = None
    """Name of a table's column of labels; None for arrays."""
    class_names: tuple[str, ...] = ()
    """Names of a table's classes."""

    def scaled(self, x: Any) -> np.ndarray:
        """Returns rows as the model takes them, float32.

        Args:
            x: numbers [T, ..., D], or a DataFrame with the columns of the table.

        Raises:
            UsageError: x has other columns.
        """
        if self.label is not None:
            if not table.is_frame(x):
                raise UsageError("x must be a DataFrame, as the data that the model was trained on")
            names = self.transformer.feature_names_in_
            return _transformed(self.transformer, table.inputs_of(x, names))
        width, shape = self.transformer.n_features_in_, np.shape(x)
        if shape[-1:] != (width,):
            raise UsageError(
                f"x {list(shape)} must have {width} columns, those that the model was trained on"
            )
        flat = np.asarray(x, np.float64).reshape(-1, width)
        return _transformed(self.transformer, flat).reshape(shape)

    def batch(self, data: Any) -> tuple[np.ndarray, Any]:
        """Returns x as `scaled`, and y, of a table: a DataFrame with its inputs and labels, or a pair (inputs, y)."""
        assert self.label is not None, "arrays are scaled by `scaled`"
        if table.is_frame(data):
            return self.scaled(data), table.labels_of(data, self.label, self.class_names)
        inputs, y = data
        return self.scaled(inputs), y

    def as_json(self) -> dict[str, Any]:
        """Returns the values as JSON has them; the transformer is a pickle in base 64.

        Raises:
            UsageError: the transformer holds an object that is not of scikit-learn, such as a function of its user.
        """
        remedy = "use classes of scikit-learn and functions of NumPy, such as np.log1p"
        with reading("transformer", "something that a run folder can store", remedy):
            stored = pickle.dumps(self.transformer, protocol=4)
            plain_pickles.loads(stored)
        text = base64.b64encode(stored).decode()
        return {"transformer": text, "label": self.label, "class_names": list(self.class_names)}


def default_transformer(inputs: Any) -> Any:
    """Returns what encodes the inputs of a table, not fitted.

    Missing numbers become the median, and columns get mean 0 and deviation 1. Missing categories become the most
    frequent one, and each category gets a column of 0 and 1.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = [name for name, column in inputs.items() if column.dtype.kind == "f"]
    others = [name for name in inputs if name not in numbers]
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

    It is the table's custom one, or `default_transformer`; for arrays a StandardScaler of the last axis.

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
        return Columns(StandardScaler().fit(some))
    inputs, label, class_names, custom = arrays.table
    training = inputs.iloc[rows]
    transformer = _fitted(custom or default_transformer(inputs), training)
    columns = Columns(transformer, label, class_names)
    columns.scaled(training)
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


def from_json(stored: Mapping[str, Any], source: object) -> Columns:
    """Returns what `Columns.as_json` wrote.

    Raises:
        UsageError: it is something else, or needs another version of scikit-learn.
    """
    with reading(source, "a transformer of columns", "give another model"):
        transformer = plain_pickles.loads(base64.b64decode(stored["transformer"]))
        transformer.transform  # noqa: B018  every transformer has it
        return Columns(transformer, stored["label"], tuple(stored["class_names"]))
