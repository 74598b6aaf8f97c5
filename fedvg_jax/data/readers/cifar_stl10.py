"""Reads CIFAR-10, CIFAR-100 and STL-10: the official files, unpacked or not, or CIFAR's arrays in one .npz."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import archive, cache
from fedvg_jax.data.arrays import Arrays, contents, pool
from fedvg_jax.data.readers import npz, pickles

Split = tuple[np.ndarray, np.ndarray]

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
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

FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
FOLDER = "cifar-10-batches-bin"
PIXELS = 3 * 32 * 32
"""Bytes of an image [3, 32, 32]."""


class Published(NamedTuple):
    """One of the two data sets."""

    class_names: tuple[str, ...]
    forms: tuple[archive.Form, ...]
    """The last file of each is the test set."""
    decoders: tuple[Callable[[bytes, object, int], Split], ...]
    """By form: (bytes of a file, its name, number of classes) -> (x uint8 [n, 32, 32, 3], y [n])."""
    layout: str


SOURCE = 'the "binary version" or "python version" of https://www.cs.toronto.edu/~kriz/cifar.html'


def load(data_dir: Path, cache_dir: Path | None = None, *, name: str = "cifar10") -> Arrays:
    """Reads CIFAR-10 or -100 (fine labels), x uint8 [60000, 32, 32, 3], official training set first.

    Args:
        data_dir: a folder with the data set's `layout`, or the archive or .npz file itself.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        name: one of `SETS`.

    Raises:
        UsageError: files missing or damaged.

    Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
    """
    published = SETS[name]
    file = data_dir if data_dir.is_file() else data_dir / f"{name}.npz"
    if file.is_file() and file.suffix == ".npz":
        return cache.cached(name, [file], lambda: _arrays_of(file, name, published.class_names), cache_dir)
    return archive.load(name, data_dir, cache_dir, partial(_read, name=name), SOURCE, published.forms)


def _arrays_of(file: Path, name: str, class_names: tuple[str, ...]) -> Arrays:
    """Reads one .npz file, which must have the set's images."""
    arrays = npz.decode(file, name, class_names)
    if arrays.x.shape[1:] != (32, 32, 3):
        raise UsageError(f"{file}: images of {name} are 32 x 32 x 3, got {list(arrays.x.shape)}; use --dataset npz")
    return arrays


def _read(folder: Path, cache_dir: Path | None, *, name: str) -> Arrays:
    published = SETS[name]
    form, paths = archive.find(folder, published.forms, published.layout, SOURCE)

    def decode() -> Arrays:
        splits = [published.decoders[form](contents(path), path, len(published.class_names)) for path in paths]
        x, y = (np.concatenate(part) for part in zip(*splits[:-1], strict=True))
        return pool(name, [(x, y), splits[-1]], published.class_names, paths[0])

    return cache.cached(name, paths, decode, cache_dir)


def _records(content: bytes, source: object, num_classes: int, *, labels: int) -> Split:
    """Decodes a binary file of records: `labels` label bytes, of which the last is the class, then the image."""
    records = _rows(content, labels + PIXELS, source, SOURCE)
    return _images(records[:, labels:]), _labels_from(records[:, labels - 1], 0, num_classes, source, SOURCE)


def _pickle(content: bytes, source: object, num_classes: int, *, key: bytes) -> Split:
    """Decodes a python file: a dict with `data` uint8 [n, 3072] and a list of labels."""
    held = pickles.loads(content, source)
    data, labels = (held.get(b"data"), held.get(key)) if isinstance(held, dict) else (None, None)
    if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 2 and data.shape[1] == PIXELS):
        raise UsageError(f"{source}: must hold 'data', uint8 [n, {PIXELS}]; fetch {SOURCE} again")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise UsageError(f"{source}: must hold {key.decode()!r}, a list of numbers; fetch {SOURCE} again")
    if len(labels) != len(data):
        raise UsageError(f"{source}: {len(data)} images but {len(labels)} labels; fetch {SOURCE} again")
    numbers = _labels_from(np.array(labels, object), 0, num_classes, source, SOURCE)
    return _images(np.asarray(data)), numbers.astype(np.int64)


def _rows(content: bytes, size: int, file: object, source: str) -> np.ndarray:
    """Returns the records of a binary file, uint8 [n, size].

    Raises:
        UsageError: there is none, or an incomplete one.
    """
    data = np.frombuffer(content, np.uint8)
    if not data.size or data.size % size:
        got = f"{data.size} bytes is not a whole number of {size}-byte records"
        raise UsageError(f"{file}: {got}; fetch {source} again")
    return data.reshape(-1, size)


def _labels_from(numbers: np.ndarray, first: int, num_classes: int, file: object, source: str) -> np.ndarray:
    """Returns labels from 0 of a file whose labels count from `first`.

    Raises:
        UsageError: one is out of range.
    """
    wrong = numbers[(numbers < first) | (numbers >= first + num_classes)]
    if wrong.size:
        last = first + num_classes - 1
        raise UsageError(f"{file}: labels must be {first}..{last}, got {wrong[0]}; fetch {source} again")
    return numbers - first


def _images(flat: np.ndarray) -> np.ndarray:
    return flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


SETS = {
    "cifar10": Published(
        CLASS_NAMES,
        (
            archive.Form(FOLDER, "cifar-10-binary.tar.gz", FILES),
            archive.Form(
                "cifar-10-batches-py", "cifar-10-python.tar.gz", tuple(name.removesuffix(".bin") for name in FILES)
            ),
        ),
        (partial(_records, labels=1), partial(_pickle, key=b"labels")),
        f"data_batch_1.bin .. test_batch.bin (there or in {FOLDER}/), the python files data_batch_1 .. test_batch"
        " (there or in cifar-10-batches-py/), cifar-10-binary.tar.gz, cifar-10-python.tar.gz, or cifar10.npz",
    ),
    "cifar100": Published(
        CLASS_NAMES_100,
        (
            archive.Form("cifar-100-binary", "cifar-100-binary.tar.gz", ("train.bin", "test.bin")),
            archive.Form("cifar-100-python", "cifar-100-python.tar.gz", ("train", "test")),
        ),
        (partial(_records, labels=2), partial(_pickle, key=b"fine_labels")),
        "train.bin and test.bin (there or in cifar-100-binary/), the python files train and test (there or in"
        " cifar-100-python/), cifar-100-binary.tar.gz, cifar-100-python.tar.gz, or cifar100.npz",
    ),
}


# --- STL-10

STL_NAMES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
STL_FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")
STL_SHAPE = (3, 96, 96)
"""Axes of an image in the file: channels, columns, rows."""

STL = archive.Form("stl10_binary", "stl10_binary.tar.gz", STL_FILES)
STL_LAYOUT = f"{', '.join(STL_FILES)} (there or in {STL.folder}/), or {STL.archive}"
STL_SOURCE = f"{STL.archive} of https://cs.stanford.edu/~acoates/stl10/"


def load_stl10(data_dir: Path, cache_dir: Path | None = None) -> Arrays:
    """Reads STL-10's labelled images, x uint8 [13000, 96, 96, 3]; the first 5,000 are the training set.

    Args:
        data_dir: a folder with `STL_LAYOUT`, or the archive itself.
        cache_dir: folder of the decoded data sets; None keeps nothing.

    Raises:
        UsageError: files missing or damaged.

    Source: A. Coates, H. Lee, A. Y. Ng, An Analysis of Single Layer Networks in Unsupervised Feature Learning, 2011.
    """
    return archive.load("stl10", data_dir, cache_dir, _read_stl10, STL_SOURCE, [STL])


def _read_stl10(folder: Path, cache_dir: Path | None) -> Arrays:
    _, paths = archive.find(folder, [STL], STL_LAYOUT, STL_SOURCE)

    def split(images: Path, labels: Path) -> Split:
        records = _rows(contents(images), math.prod(STL_SHAPE), images, STL_SOURCE)
        x = records.reshape(-1, *STL_SHAPE).transpose(0, 3, 2, 1)
        y = _labels_from(np.frombuffer(contents(labels), np.uint8), 1, len(STL_NAMES), labels, STL_SOURCE)
        if len(x) != len(y):
            raise UsageError(f"{labels}: {len(y)} labels for {len(x)} images; fetch {STL_SOURCE} again")
        return x, y

    def decode() -> Arrays:
        return pool("stl10", [split(*paths[:2]), split(*paths[2:])], STL_NAMES, folder)

    return cache.cached("stl10", paths, decode, cache_dir)
