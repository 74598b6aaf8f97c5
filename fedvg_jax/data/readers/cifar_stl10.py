"""Reads CIFAR-10 and CIFAR-100, the official Python files or arrays in one .npz, and STL-10's official binary files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedvg_jax.data import plain_pickles
from fedvg_jax.data.arrays import Arrays, find, pool, reading
from fedvg_jax.data.cache import Reading
from fedvg_jax.data.readers import npz

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
    layout: str
    """What `--data-dir` may hold."""


SETS = {
    "cifar10": Published(
        CLASS_NAMES,
        "cifar-10-batches-py",
        (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
        b"labels",
        "data_batch_1 .. test_batch (there or in cifar-10-batches-py/), or cifar10.npz",
    ),
    "cifar100": Published(
        CLASS_NAMES_100,
        "cifar-100-python",
        ("train", "test"),
        b"fine_labels",
        "train and test (there or in cifar-100-python/), or cifar100.npz",
    ),
}


def load(data_dir: Path, *, name: str = "cifar10") -> Reading:
    """Reads CIFAR-10 or -100 (fine labels), x uint8 [60000, 32, 32, 3], official training set first.

    Args:
        data_dir: a folder with the data set's `layout`, or the .npz file itself.
        name: one of `SETS`.

    Raises:
        UsageError: files missing or damaged.

    Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
    """
    published = SETS[name]
    file = data_dir if data_dir.suffix == ".npz" else data_dir / f"{name}.npz"
    if file.is_file():
        return Reading([file], lambda: npz.decode(file, name, published.class_names))
    paths = find(data_dir, published.folder, published.files, published.layout, name)

    def decode() -> Arrays:
        splits = [_split(path, published) for path in paths]
        x, y = (np.concatenate(part) for part in zip(*splits[:-1], strict=True))
        return pool(name, [(x, y), splits[-1]], published.class_names, paths[0])

    return Reading(paths, decode)


def _split(file: Path, published: Published) -> Split:
    """Decodes a Python file: a dict with `data` uint8 [n, 3072] and a list of labels."""
    with reading(file, f"a dict with 'data' and {published.key.decode()!r}", "fetch it again"):
        held = plain_pickles.loads(file.read_bytes(), encoding="bytes")
        return held[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(
            held[published.key]
        )


# --- STL-10

STL_NAMES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
STL_FOLDER = "stl10_binary"
STL_FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")
STL_SHAPE = (3, 96, 96)
"""Axes of an image in the file: channels, columns, rows."""

STL_LAYOUT = f"{', '.join(STL_FILES)} (there or in {STL_FOLDER}/)"


def load_stl10(data_dir: Path) -> Reading:
    """Reads STL-10's labelled images, x uint8 [13000, 96, 96, 3]; the first 5,000 are the training set.

    Args:
        data_dir: a folder with `STL_LAYOUT`.

    Raises:
        UsageError: files missing or damaged.

    Source: A. Coates, H. Lee, A. Y. Ng, An Analysis of Single Layer Networks in Unsupervised Feature Learning, 2011.
    """
    paths = find(data_dir, STL_FOLDER, STL_FILES, STL_LAYOUT, "stl10")

    def split(images: Path, labels: Path) -> Split:
        with reading(images, "a whole number of images", "fetch it again"):
            x = np.fromfile(images, np.uint8).reshape(-1, *STL_SHAPE).transpose(0, 3, 2, 1)
        return x, np.fromfile(labels, np.uint8).astype(np.int64) - 1

    def decode() -> Arrays:
        return pool("stl10", [split(*paths[:2]), split(*paths[2:])], STL_NAMES, paths[1])

    return Reading(paths, decode)
