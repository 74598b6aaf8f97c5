"""Reads images or features from one .npz file, such as MedMNIST's files.

The paper's two MedMNIST data sets are read in any of their published sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from fedvg_jax.data.arrays import Arrays, Size, reading, with_groups
from fedvg_jax.data.readers.sources import Reading, only_file, pool

KEYS = (
    (
        ("train_images", "train_labels"),
        ("val_images", "val_labels"),
        ("test_images", "test_labels"),
    ),
    (("x_train", "y_train"), ("x_val", "y_val"), ("x_test", "y_test")),
    (("x", "y"),),
)
"""Layouts, as (images or features, labels) of each split; only the first pair of a layout is required."""

LAYOUT = (
    "the arrays train_images, train_labels[, val_images, val_labels][, test_images, test_labels], "
    "or x_train, y_train[, x_val, y_val][, x_test, y_test], or x, y"
)


def load(place: Path, _name: str) -> Reading:
    """Reads the .npz file `place`, or the only .npz file of the folder `place`.

    Args:
        place: images uint8 [N, H, W] or [N, H, W, D], or features, floats [N, F]; labels of any integer dtype
            [N] or [N, 1], optional `class_names`, and optional `groups` [T], the group of each row, all splits
            in the order train, val, test.

    Raises:
        UsageError: no file, several files, a damaged file, or missing or malformed arrays.
    """
    file = only_file(place, ".npz")
    return Reading([file], lambda: decode(file, file.stem))


def decode(
    file: Path, name: str, class_names: Sequence[str] | None = None, without: Collection[str] = ()
) -> Arrays:
    """Pools the splits of a file in the order train, val, test.

    Args:
        file: the .npz file.
        name: of the data set.
        class_names: used if the file has none; None numbers the classes.
        without: arrays to leave out.
    """
    remedy = "fetch it again, or save it without objects; a .csv table is --dataset csv"
    with (
        reading(file, f"an .npz file of plain arrays with {LAYOUT}", remedy),
        file.open("rb") as stream,  # which NumPy leaves open after an error
        np.load(stream) as archive,
    ):
        first, *others = next((keys for keys in KEYS if keys[0][0] in archive), KEYS[-1])
        pairs = [first, *(pair for pair in others if {*pair} & {*archive.files} - {*without})]
        splits = [(archive[x], archive[y]) for x, y in pairs]
        if "class_names" in archive:
            class_names = archive["class_names"].astype(str).ravel().tolist()
        arrays = pool(name, splits, class_names, file)
        if "groups" in archive:
            return with_groups(arrays, archive["groups"], file)
    return arrays


_ORGANS = (
    "bladder, femur-left, femur-right, heart, kidney-left, kidney-right, liver, lung-left, lung-right, pancreas,"
    " spleen"
)
_LESIONS = (
    "actinic keratoses and intraepithelial carcinoma, basal cell carcinoma, benign keratosis-like lesions,"
    " dermatofibroma, melanoma, melanocytic nevi, vascular lesions"
)
SETS = {"organamnist": (_ORGANS.split(", "), 28), "dermamnist": (_LESIONS.split(", "), 224)}
"""Data set of MedMNIST -> the names of its classes, and the height and width of the paper's images."""


def file_name(name: str, side: int) -> str:
    """Returns the name of the published file.

    >>> file_name("organamnist", 28), file_name("dermamnist", 224)
    ('organamnist.npz', 'dermamnist_224.npz')
    """
    return f"{name}.npz" if side == 28 else f"{name}_{side}.npz"


def load_medmnist(place: Path, name: str, size: Size | None = None, splits: str = "all") -> Reading:
    """Reads OrganAMNIST (58,830 grey images) or DermaMNIST (10,015 in colour), all splits pooled, training set first.

    Args:
        place: a folder with the file, or the .npz file itself.
        name: one of `SETS`.
        size: (S, S), by which the publisher names its files of 28, 64, 128 and 224 pixels; by default the paper's.
        splits: "official" leaves the validation split out, as the published code does for DermaMNIST (9,012 images).

    Raises:
        UsageError: the file is damaged.

    Source: J. Yang et al., MedMNIST v2, Scientific Data, 2023.
    """
    class_names, default_side = SETS[name]
    without = ("val_images", "val_labels") if splits == "official" else ()
    is_named = place.is_file() and not size
    side = size[0] if size else default_side
    file = place if is_named else place / file_name(name, side)
    return Reading([file], lambda: decode(file, name, class_names, without))
