"""Reads images or features from one .npz file, such as MedMNIST's files.

The paper's two MedMNIST data sets are read in any of their published sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import cache, images
from fedvg_jax.data.arrays import Arrays, download_command, pool, reading, with_groups

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

_AS_ARRAYS = "; a .csv table is --dataset csv"


def load(path: Path, cache_dir: Path | None = None) -> Arrays:
    """Reads the .npz file `path`, or the only .npz file of the folder `path`.

    Args:
        path: images uint8 [N, H, W] or [N, H, W, D], or features, floats [N, F]; labels of any integer dtype
            [N] or [N, 1], optional `class_names`, and optional `groups` [T], the group of each row, all splits
            in the order train, val, test.
        cache_dir: folder of the decoded data sets; None keeps nothing.

    Raises:
        UsageError: no file, several files, a damaged file, or missing or malformed arrays.
    """
    file = find(path)
    arrays = cache.cached("npz", [file], lambda: decode(file, file.stem), cache_dir)
    return arrays._replace(name=file.stem)  # an entry may come from a file with another name


def decode(
    file: Path, name: str, class_names: Sequence[str] | None = None, without: Collection[str] = ()
) -> Arrays:
    """Pools the splits of a file in the order train, val, test.

    Args:
        file: the .npz file.
        name: of the data set.
        class_names: used if the file has none; None numbers the classes.
        without: splits to leave out.
    """
    keys = {"class_names", "groups", *itertools.chain(*itertools.chain(*KEYS))}
    members = read(file, {key for key in keys if not {*key.split("_")} & {*without}})
    layout = next((layout for layout in KEYS if members.keys() >= {*layout[0]}), None)
    if layout is None:
        got = ", ".join(members) or "no array of these names"
        raise UsageError(f"{file}: must hold {LAYOUT}; got {got}{_AS_ARRAYS}")
    pairs = [pair for pair in layout if any(key in members for key in pair)]
    if missing := [key for pair in pairs for key in pair if key not in members]:
        raise UsageError(f"{file}: {missing[0]} is missing; every split has images and labels")
    splits = [(members[images], members[labels]) for images, labels in pairs]
    if "class_names" in members:
        with reading(file, "a data set", "class_names must be texts in UTF-8"):
            names = members["class_names"].ravel()
            class_names = [
                name.decode() if isinstance(name, bytes) else str(name) for name in names
            ]
    arrays = pool(name, splits, class_names, file)
    return with_groups(arrays, members["groups"], file) if "groups" in members else arrays


def find(path: Path) -> Path:
    """Returns the .npz file at `path`, or the only one in that folder.

    Raises:
        UsageError: there is none, or there are several.
    """
    if path.is_file():
        return path
    candidates = sorted(path.glob("*.npz"))
    if len(candidates) > 1:
        named = ", ".join(file.name for file in candidates)
        raise UsageError(f"{path}: holds {named}; give the one to read as --data-dir FILE")
    if not candidates:
        raise UsageError(f"{path}: holds no .npz file; put one there with {LAYOUT}{_AS_ARRAYS}")
    return candidates[0]


def read(file: Path, keys: Collection[str]) -> dict[str, np.ndarray]:
    """Returns the members of `file` that are in `keys`.

    Raises:
        UsageError: no complete .npz file, or pickled members.
    """
    remedy = f"fetch it again, or save it without objects{_AS_ARRAYS}"
    with (
        reading(file, "a complete .npz file of plain arrays", remedy),
        file.open("rb") as stream,  # which NumPy leaves open after an error
        np.load(stream) as archive,
    ):
        return {key: archive[key] for key in archive.files if key in keys}


SIZES = (28, 64, 128, 224)


class Published(NamedTuple):
    """One of the data sets."""

    class_names: tuple[str, ...]
    size: int
    """Height and width of the paper's images."""
    left_out: tuple[str, ...] = ()
    """Splits that the published code leaves out."""


SETS = {
    "organamnist": Published(
        (
            *("bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right"),
            *("liver", "lung-left", "lung-right", "pancreas", "spleen"),
        ),
        28,
    ),
    "dermamnist": Published(
        (
            "actinic keratoses and intraepithelial carcinoma",
            "basal cell carcinoma",
            "benign keratosis-like lesions",
            "dermatofibroma",
            "melanoma",
            "melanocytic nevi",
            "vascular lesions",
        ),
        224,
        ("val",),
    ),
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
    cache_dir: Path | None = None,
    *,
    name: str,
    size: images.Size | None = None,
    splits: Literal["all", "official"] = "all",
) -> Arrays:
    """Reads OrganAMNIST (58,830 grey images) or DermaMNIST (10,015 in colour), all splits pooled, training set first.

    Args:
        data_dir: a folder with `layout(name)`, or the .npz file itself.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        name: one of `SETS`.
        size: (S, S) with S in `SIZES`; by default the paper's.
        splits: "official" leaves the validation split out, as the published code does for DermaMNIST (9,012 images).

    Raises:
        UsageError: files missing or damaged, or images of another size.

    Source: J. Yang et al., MedMNIST v2, Scientific Data, 2023.
    """
    names, left_out = SETS[name].class_names, SETS[name].left_out if splits == "official" else ()
    side = size[0] if size else SETS[name].size
    file = data_dir if data_dir.is_file() else data_dir / file_name(name, side)
    if not file.is_file():
        command = download_command(name, data_dir) + (f" --image-size {side}" if size else "")
        raise UsageError(
            f"{data_dir}: holds no {file.name}; put {layout(name)} there, or run {command}"
        )
    arrays = cache.cached(
        name, [file, f"without {left_out}"], lambda: decode(file, name, names, left_out), cache_dir
    )
    if size and arrays.x.shape[1:3] != size:
        got = " x ".join(map(str, arrays.x.shape[1:3]))
        raise UsageError(
            f"{file}: images of {got}, but --image-size asks for {size[0]} x {size[1]}; fetch it again"
        )
    return arrays
