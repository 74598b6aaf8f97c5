"""Reads tables and digits that come with scikit-learn, and texts for the prediction of the next character.

A text is cut into rows of `LENGTH` characters. The labels of a row are the same characters one place later:

    x_i = text[L i : L i + L],   y_i = text[L i + 1 : L i + L + 1]

Rows of one text do not overlap, so every character is a label at most once. No row is padded: the characters behind the
last whole row, fewer than `LENGTH` of each text, are left out.

The data sets of scikit-learn are read without its import, which takes 1.5 s of CPU. None has an official test set.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedvg_jax.data.arrays import Arrays
from fedvg_jax.host.errors import UsageError, one_line

FILES = {
    "digits": "digits.csv.gz",
    "breast_cancer": "breast_cancer.csv",
    "wine": "wine_data.csv",
    "iris": "iris.csv",
}
"""Data set -> its file in the folder `datasets/data` of scikit-learn. breast_cancer has the most rows of its tables of
classes, apart from the images of digits: 569 of 30 measurements. wine has 178 of 13, and iris 150 of 4."""

LENGTH = 64
"""L, characters of a row."""


def load(name: str) -> Arrays:
    """Returns a data set that needs no files.

    digits: 1,797 handwritten digits, x uint8 [1797, 8, 8, 1] scaled from 0..16 to 0..255. literature: the texts that
    come with the package. The others are tables with every column at mean 0 and standard deviation 1 over all rows:
    the scaling uses the rows of all clients and parts, but no labels.

    >>> arrays = load("iris")
    >>> arrays.x.shape, arrays.class_names
    ((150, 4), ('setosa', 'versicolor', 'virginica'))

    Source: sklearn.datasets (UCI, Optical Recognition of Handwritten Digits, 1998).
    """
    if name == "literature":
        return literature()
    values, labels, class_names = read_csv(name)
    if name == "digits":
        x = np.round(values.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    else:
        x = ((values - values.mean(0)) / values.std(0)).astype(np.float32)
    return Arrays(name, x, labels.astype(np.int32), class_names, len(x))


def read_csv(name: str) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Returns the measurements float64 [T, D], the labels int [T] and the names of the classes.

    Args:
        name: one of `FILES`.

    >>> measurements, labels, names = read_csv("iris")
    >>> measurements.shape, labels.shape, names
    ((150, 4), (150,), ('setosa', 'versicolor', 'virginica'))
    """
    package = importlib.metadata.distribution("scikit-learn")
    path = Path(str(package.locate_file(f"sklearn/datasets/data/{FILES[name]}")))
    rows = np.loadtxt(path, delimiter=",", skiprows=int(name != "digits"))
    values, labels = rows[:, :-1], rows[:, -1].astype(int)
    if name == "digits":
        return values, labels, tuple("0123456789")
    header = path.read_text(encoding="utf-8").partition("\n")[0]  # rows, columns, classes
    return values, labels, tuple(header.split(",")[2:])


def literature() -> Arrays:
    """Returns the texts that come with the package, cut into rows; see `cut`.

    Twenty texts by Carroll, Milton and Shakespeare, each for one client: 227,283 characters, 64 different ones.

    >>> arrays = literature()
    >>> arrays.x.shape, arrays.y.shape, len(arrays.class_names), arrays.groups.max()
    ((3541, 64), (3541, 64), 64, np.int32(19))
    """
    paths = sorted(Path(__file__).parents[1].joinpath("literature").glob("*.txt"))
    return cut({path.name: path.read_text(encoding="utf-8") for path in paths}, "literature")


def cut(texts: Mapping[str, str], name: str) -> Arrays:
    """Returns rows of characters, their next characters, and the author of every row.

    Args:
        texts: name of an author -> text.
        name: of the data set.

    Returns:
        x int32 [T, L] and y int32 [T, L], numbers of characters in the order of their code points; `class_names`, the
        characters; `groups`, the numbers of the authors in the order of `texts`.

    Raises:
        UsageError: a text without a whole row.

    >>> arrays = cut({"a": "ab" * 33, "b": "b" * 65}, "letters")
    >>> arrays.x[:, :3].tolist(), arrays.y[:, :3].tolist(), arrays.groups.tolist()
    ([[0, 1, 0], [1, 1, 1]], [[1, 0, 1], [1, 1, 1]], [0, 1])
    """
    characters = np.array(sorted({*"".join(texts.values())}))
    pairs = []
    for author, text in texts.items():
        count = (len(text) - 1) // LENGTH
        if count < 1:
            raise UsageError(
                f"{name}: {author} has {len(text)} characters, fewer than {LENGTH + 1}; leave it out"
            )
        codes = np.searchsorted(characters, [*text]).astype(np.int32)
        shifted = np.stack([codes[:-1], codes[1:]])
        pairs.append(shifted[:, : count * LENGTH].reshape(2, count, LENGTH))
    x, y = np.concatenate(pairs, 1)
    names = tuple("space" if character == " " else one_line(character) for character in characters)
    counts = [of_text.shape[1] for of_text in pairs]
    groups = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return Arrays(name, x, y, names, len(x), groups)
