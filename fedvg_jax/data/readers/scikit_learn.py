"""Reads the data sets that come with scikit-learn, without its import, which takes 1.5 s of CPU; no download.

None has an official test set.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from fedvg_jax.data.arrays import Arrays, check

FILES = {"digits": "digits.csv.gz", "breast_cancer": "breast_cancer.csv", "wine": "wine_data.csv", "iris": "iris.csv"}
"""Data set -> its file in the folder `datasets/data` of scikit-learn."""


TABLES = ("breast_cancer", "wine", "iris")
"""breast_cancer has the most rows of scikit-learn's tables of classes, apart from the images of digits: 569 of 30
measurements. wine has 178 of 13, and iris 150 of 4."""


def load_digits() -> Arrays:
    """Returns 1,797 handwritten digits, x uint8 [1797, 8, 8, 1] scaled from 0..16 to 0..255.

    Source: sklearn.datasets.load_digits (UCI, Optical Recognition of Handwritten Digits, 1998).
    """
    pixels, labels, names = load("digits")
    x = np.round(pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return check(Arrays("digits", x, labels, names, len(x)), "digits")


def load_table(name: str) -> Arrays:
    """Returns a table, one of `TABLES`, with every column at mean 0 and standard deviation 1 over all rows.

    The scaling uses the rows of all clients and parts, but no labels.

    >>> arrays = load_table("iris")
    >>> arrays.x.shape, arrays.class_names
    ((150, 4), ('setosa', 'versicolor', 'virginica'))
    """
    x, labels, names = load(name)
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    return Arrays(name, x, labels.astype(np.int32), names, len(x))


def load(name: str) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Returns the measurements float64 [T, D], the labels int [T] and the names of the classes.

    Args:
        name: one of `FILES`.

    >>> measurements, labels, names = load("iris")
    >>> measurements.shape, labels.shape, names
    ((150, 4), (150,), ('setosa', 'versicolor', 'virginica'))
    """
    spec = importlib.util.find_spec("sklearn")
    assert spec and spec.submodule_search_locations, "it is installed with this package"
    path = Path(spec.submodule_search_locations[0], "datasets", "data", FILES[name])
    content = path.read_bytes()
    lines = (gzip.decompress(content) if path.suffix == ".gz" else content).decode().splitlines()
    header = () if name == "digits" else lines.pop(0).split(",")  # rows, columns, classes
    rows = np.array([line.split(",") for line in lines], np.float64)
    labels = rows[:, -1].astype(int)
    return rows[:, :-1], labels, tuple(header[2:]) or tuple(str(label) for label in np.unique(labels))
