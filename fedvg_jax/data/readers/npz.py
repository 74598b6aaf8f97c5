"""Reads images or features from one .npz file, such as MedMNIST's files.

The paper's two MedMNIST data sets are read in any of their published sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import images
from fedvg_jax.data.arrays import Arrays, download_command, pool, reading, with_groups
from fedvg_jax.data.cache import Reading

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


def load(path: Path) -> Reading:
    """Reads the .npz file `path`, or the only .npz file of the folder `path`.

    Args:
        path: images uint8 [N, H, W] or [N, H, W, D], or features, floats [N, F]; labels of any integer dtype
            [N] or [N, 1], optional `class_names`, and optional `groups` [T], the group of each row, all splits
            in the order train, val, test.

    Raises:
        UsageError: no file, several files, a damaged file, or missing or malformed arrays.
    """
    file = find(path)
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
        groups = archive.get("groups")
    arrays = pool(name, splits, class_names, file)
    return arrays if groups is None else with_groups(arrays, groups, file)


def find(path: Path) -> Path:
    """Returns the .npz file at `path`, or the only one in that folder.

    Raises:
        UsageError: there is none, or there are several.
    """
    if path.is_file():
        return path
    candidates = sorted(path.glob("*.npz"))
    if len(candidates) != 1:
        named = ", ".join(file.name for file in candidates) or "none"
        raise UsageError(
            f"{path}: must hold one .npz file, got {named}; give it as --data-dir FILE, with {LAYOUT}; a .csv table is"
            " --dataset csv"
        )
    return candidates[0]


SIZES = (28, 64, 128, 224)


class Published(NamedTuple):
    """One of the data sets."""

    class_names: tuple[str, ...]
    size: int
    """Height and width of the paper's images."""
    left_out: tuple[str, ...] = ()
    """Arrays of the split that the published code leaves out."""


_ORGANS = (
    "bladder, femur-left, femur-right, heart, kidney-left, kidney-right, liver, lung-left, lung-right, pancreas,"
    " spleen"
)
_LESIONS = (
    "actinic keratoses and intraepithelial carcinoma, basal cell carcinoma, benign keratosis-like lesions,"
    " dermatofibroma, melanoma, melanocytic nevi, vascular lesions"
)
SETS = {
    "organamnist": Published(tuple(_ORGANS.split(", ")), 28),
    "dermamnist": Published(tuple(_LESIONS.split(", ")), 224, ("val_images", "val_labels")),
}


def file_name(name: str, size: int) -> str:
    """Returns the name of the published file.

    >>> file_name("organamnist", 28), file_name("dermamnist", 224)
    ('organamnist.npz', 'dermamnist_224.npz')
    """
    return f"{name}.npz" if size == 28 else f"{name}_{size}.npz"


def layout(name: str) -> str:
    """Returns a text that says what the folder must hold."""
    files = ", ".join(f"{file_name(name, size)}" for size in SIZES)
    return f"{file_name(name, SETS[name].size)} (--image-size chooses among {files})"


def load_medmnist(
    data_dir: Path,
    *,
    name: str,
    size: images.Size | None = None,
    splits: Literal["all", "official"] = "all",
) -> Reading:
    """Reads OrganAMNIST (58,830 grey images) or DermaMNIST (10,015 in colour), all splits pooled, training set first.

    Args:
        data_dir: a folder with `layout(name)`, or the .npz file itself.
        name: one of `SETS`.
        size: (S, S) with S in `SIZES`; by default the paper's.
        splits: "official" leaves the validation split out, as the published code does for DermaMNIST (9,012 images).

    Raises:
        UsageError: files missing or damaged.

    Source: J. Yang et al., MedMNIST v2, Scientific Data, 2023.
    """
    published = SETS[name]
    without = published.left_out if splits == "official" else ()
    side = size[0] if size else published.size
    is_named = data_dir.is_file() and not size
    file = data_dir if is_named else data_dir / file_name(name, side)
    if not file.is_file():
        command = download_command(name, data_dir) + (f" --image-size {side}" if size else "")
        raise UsageError(
            f"{data_dir}: holds no {file.name}; put {layout(name)} there, or run {command}"
        )
    return Reading([file], lambda: decode(file, name, published.class_names, without))
