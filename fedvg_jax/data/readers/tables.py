"""Reads tabular data sets that come with scikit-learn: one row of measurements per example, no download."""

from __future__ import annotations

import numpy as np

from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.readers import scikit_learn

TABLES = ("breast_cancer", "wine", "iris")
"""breast_cancer has the most rows of scikit-learn's tables of classes, apart from the images of digits: 569 of 30
measurements. wine has 178 of 13, and iris 150 of 4."""


def load(name: str) -> Arrays:
    """Returns a table with every column at mean 0 and standard deviation 1 over all rows.

    The scaling uses the rows of all clients and parts, but no labels.

    Args:
        name: one of `TABLES`.

    Returns:
        x float32 [T, D] and y int32 [T]; there is no official test set.

    >>> arrays = load("iris")
    >>> arrays.x.shape, arrays.class_names
    ((150, 4), ('setosa', 'versicolor', 'virginica'))
    """
    x, labels, names = scikit_learn.load(name)
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    return Arrays(name, x, labels.astype(np.int32), names, len(x))
