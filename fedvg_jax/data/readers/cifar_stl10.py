"""Reads CIFAR-10 and CIFAR-100, the official Python files or arrays in one .npz, and STL-10's official binary files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedvg_jax.data import plain_pickles
from fedvg_jax.data.arrays import Arrays, reading
from fedvg_jax.data.readers import npz
from fedvg_jax.data.readers.sources import Reading, inside, pool

Split = tuple[np.ndarray, np.ndarray]

CLASS_NAMES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_NAMES_100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
CLASS_NAMES_100 = tuple(_NAMES_100.split())


class Published(NamedTuple):
    """One of CIFAR's two data sets."""

    class_names: tuple[str, ...]
    folder: str
    files: tuple[str, ...]
    """Names of the files; the last is the test set."""
    key: bytes
    """Of the labels."""


SETS = {
    "cifar10": Published(
        CLASS_NAMES,
        "cifar-10-batches-py",
        (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
        b"labels",
    ),
    "cifar100": Published(CLASS_NAMES_100, "cifar-100-python", ("train", "test"), b"fine_labels"),
}


def load(place: Path, name: str) -> Reading:
    """Reads CIFAR-10 or -100 (fine labels), x uint8 [60000, 32, 32, 3], official training set first.

    Args:
        place: a folder with the files, or the .npz file itself.
        name: one of `SETS`.

    Raises:
        UsageError: files are damaged.

    Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
    """
    published = SETS[name]
    file = place if place.suffix == ".npz" else place / f"{name}.npz"
    if file.is_file():
        return Reading([file], lambda: npz.decode(file, name, published.class_names))
    folder = inside(place, published.folder)
    paths = [folder / file for file in published.files]

    def decode() -> Arrays:
        *train, test = (_split(path, published) for path in paths)
        x, y = (np.concatenate(part) for part in zip(*train, strict=True))
        return pool(name, [(x, y), test], published.class_names, paths[0])

    return Reading(paths, decode)


def _split(file: Path, published: Published) -> Split:
    """Decodes a Python file: a dict with `data` uint8 [n, 3072] and a list of labels."""
    with reading(file, f"a dict with 'data' and {published.key.decode()!r}", "fetch it again"):
        held = plain_pickles.loads(file.read_bytes(), encoding="bytes")
        x = held[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return x, np.array(held[published.key])


# --- STL-10

STL_NAMES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
STL_FOLDER = "stl10_binary"
STL_SHAPE = (3, 96, 96)
"""Axes of an image in the file: channels, columns, rows."""


def load_stl10(place: Path, name: str) -> Reading:
    """Reads STL-10's labelled images, x uint8 [13000, 96, 96, 3]; the first 5,000 are the training set.

    Args:
        place: a folder with the files.
        name: of the data set.

    Raises:
        UsageError: files are damaged.

    Source: A. Coates, H. Lee, A. Y. Ng, An Analysis of Single Layer Networks in Unsupervised Feature Learning, 2011.
    """
    folder = inside(place, STL_FOLDER)
    paths = [folder / f"{split}_{part}.bin" for split in ("train", "test") for part in "Xy"]

    def split(images: Path, labels: Path) -> Split:
        with reading(images, "a whole number of images", "fetch it again"):
            x = np.fromfile(images, np.uint8).reshape(-1, *STL_SHAPE).transpose(0, 3, 2, 1)
        return x, np.fromfile(labels, np.uint8).astype(np.int64) - 1

    def decode() -> Arrays:
        return pool(name, [split(*paths[:2]), split(*paths[2:])], STL_NAMES, paths[1])

    return Reading(paths, decode)
