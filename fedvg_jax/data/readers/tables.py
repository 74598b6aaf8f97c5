"""Reads tabular data sets that come with scikit-learn: one row of measurements per example, no download."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedvg_jax.data.arrays import Arrays

LOADERS = {"breast_cancer": "load_breast_cancer", "wine": "load_wine", "iris": "load_iris"}
"""Data set -> its function in `sklearn.datasets`. breast_cancer has the most rows of scikit-learn's tables of classes,
apart from the images of digits: 569 of 30 measurements. wine has 178 of 13, and iris 150 of 4."""


def load(name: str) -> Arrays:
    """Returns a table with every column at mean 0 and standard deviation 1 over all rows.

    The scaling uses the rows of all clients and parts, but no labels.

    Args:
        name: one of `LOADERS`.

    Returns:
        x float32 [T, D] and y int32 [T]; there is no official test set.

    >>> arrays = load("iris")
    >>> arrays.x.shape, arrays.class_names
    ((150, 4), ('setosa', 'versicolor', 'virginica'))
    """
    from sklearn import datasets  # a second to import, needed here only

    bunch: Any = getattr(datasets, LOADERS[name])()
    x = np.asarray(bunch.data, np.float64)
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    names = tuple(str(label) for label in bunch.target_names)
    return Arrays(name, x, bunch.target.astype(np.int32), names, len(x))
