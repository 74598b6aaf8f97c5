"""Transformers of scikit-learn, fitted to the training rows of all clients, encode tables of numbers and categories.

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
from fedvg_jax.data.arrays import Table, reading


class Columns(NamedTuple):
    """A fitted transformer of the rows of a table."""

    transformer: Any
    """of scikit-learn; takes a DataFrame of the inputs"""
    columns: Mapping[str, str | None]
    """Name -> form in which the transformer takes the column; see `table.normalised`."""
    label: str = table.LABEL
    """Name of the column of labels."""
    class_names: tuple[str, ...] = ()

    def scaled(self, frame: Any) -> np.ndarray:
        """Returns rows as the model takes them, float32 [n, D'].

        Args:
            frame: a DataFrame with the columns of the table.

        Raises:
            UsageError: it has other columns, or values that the transformer does not take.
        """
        inputs = table.normalised(frame, self.columns)
        with reading(
            "transformer", "able to take the data", "give other data, or another transformer"
        ):
            values = self.transformer.transform(inputs)
            values = values.toarray() if hasattr(values, "toarray") else values
            values = np.asarray(values, np.float32)
        if values.ndim != 2 or not np.isfinite(values).all():
            raise UsageError(
                f"transformer must give finite numbers [T, D]; got {list(values.shape)}; impute missing values"
            )
        return values

    def batch(self, data: Any) -> tuple[np.ndarray, Any]:
        """Returns x as `scaled`, and y, of a DataFrame with inputs and labels, or of a pair (inputs, y)."""
        if table.is_frame(data):
            return self.scaled(data), table.labels_of(data, self.label, self.class_names)
        with reading("data", "a DataFrame, or a pair (DataFrame, y)", "give one of them"):
            inputs, y = data
        return self.scaled(inputs), y

    def as_json(self) -> dict[str, Any]:
        """Returns the values as JSON has them; the transformer is a pickle in base 64.

        Raises:
            UsageError: the transformer holds an object that is not of scikit-learn, such as a function of its user.
        """
        remedy = "use classes of scikit-learn and functions of NumPy, such as np.log1p; or leave out out and export"
        with reading("transformer", "something that a run folder can store", remedy):
            stored = pickle.dumps(self.transformer, protocol=4)
            plain_pickles.loads(stored)
        text = base64.b64encode(stored).decode()
        return self._asdict() | {"transformer": text}


def default_transformer() -> Any:
    """Returns what encodes the inputs of a table, not fitted.

    Missing numbers become the median, and columns get mean 0 and deviation 1. Missing categories become the most
    frequent one, and each category gets a column of 0 and 1.
    """
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    scale = make_pipeline(
        SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler()
    )
    encode = make_pipeline(
        SimpleImputer(strategy="most_frequent", keep_empty_features=True),
        OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    )
    return make_column_transformer(
        (scale, make_column_selector(dtype_include="number")),
        (encode, make_column_selector(dtype_exclude="number")),
    )


def fit(unencoded: Table, rows: np.ndarray) -> Columns:
    """Returns the transformer of a table, its custom one or `default_transformer`, fitted to some of its rows.

    Args:
        unencoded: inputs of T rows.
        rows: int [n], numbers of the rows.

    Raises:
        UsageError: the transformer cannot be fitted.
    """
    from sklearn.base import clone

    inputs, columns, _, custom = unencoded
    training, names = table.normalised(inputs.iloc[rows], columns), ", ".join(columns)
    with reading("transformer", "one of scikit-learn that fits", f"the columns are {names}"):
        unfitted: Any = clone(default_transformer() if custom is None else custom)
        transformer = unfitted.fit(training)
    return Columns(transformer, columns)


def from_json(stored: Mapping[str, Any], source: object) -> Columns:
    """Returns what `Columns.as_json` wrote.

    Raises:
        UsageError: it is something else, or needs another version of scikit-learn.
    """
    with reading(source, "a transformer of columns", "give another model"):
        transformer = plain_pickles.loads(base64.b64decode(stored["transformer"]))
        transformer.transform  # noqa: B018  every transformer has it
        class_names = tuple(stored["class_names"])
        return Columns(transformer, dict(stored["columns"]), stored["label"], class_names)
