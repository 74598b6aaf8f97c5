"""Reads CIFAR-10 and CIFAR-100: the official binary or python files, unpacked or not, or arrays in one .npz."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import archive, cache
from fedvg_jax.data.arrays import Arrays, pool
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


class Form(NamedTuple):
    """One published form of a data set."""

    folder: str
    """Folder in the archive."""
    archive: str
    files: tuple[str, ...]
    """Files of the data set; the last one is the test set."""
    decode: Callable[[bytes, object, int], Split]
    """(bytes of a file, its name, number of classes) -> (x uint8 [n, 32, 32, 3], y [n])."""


class Published(NamedTuple):
    """One of the two data sets."""

    class_names: tuple[str, ...]
    forms: tuple[Form, ...]
    layout: str
    source: str


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
        return cache.cached(name, [file], lambda: npz.decode(file, name, published.class_names), cache_dir)
    files, read = _find(data_dir, published)
    return cache.cached(name, files, lambda: _decode(name, published, *read()), cache_dir)


def _find(
    data_dir: Path, published: Published
) -> tuple[list[Path], Callable[[], tuple[Form, list[tuple[object, bytes]]]]]:
    """Returns the files, and a function that reads them: the form, and the name and bytes of each part."""
    if data_dir.is_file():
        return [data_dir], lambda: _unpacked(data_dir, published)
    if not data_dir.is_dir():
        raise UsageError(f"{data_dir}: no such folder; --data-dir must hold {published.layout}: {published.source}")
    for form in published.forms:
        for folder in (data_dir, data_dir / form.folder):
            files = [folder / name for name in form.files]
            missing = [file.name for file in files if not file.is_file()]
            if not missing:
                return files, lambda form=form, files=files: (form, [(f, cache.contents(f)) for f in files])
            if len(missing) < len(files):
                raise UsageError(f"{folder}: {', '.join(missing)} missing; unpack {published.source} there again")
    for form in published.forms:
        file = data_dir / form.archive
        if file.is_file():
            return [file], lambda file=file: _unpacked(file, published)
    raise UsageError(f"{data_dir}: holds no {published.layout}; put {published.source} there")


def _unpacked(file: Path, published: Published) -> tuple[Form, list[tuple[object, bytes]]]:
    """Reads the members of an archive, with their names; nothing is written to the disk."""
    contents = archive.of_tar(file, {name for form in published.forms for name in form.files}, published.source)
    for form in published.forms:
        if all(name in contents for name in form.files):
            return form, [(f"{file} ({name})", contents[name]) for name in form.files]
    raise UsageError(
        f"{file}: does not hold {' .. '.join(published.forms[0].files[::5])}; fetch {published.source} again"
    )


def _decode(name: str, published: Published, form: Form, parts: list[tuple[object, bytes]]) -> Arrays:
    splits = [form.decode(content, source, len(published.class_names)) for source, content in parts]
    x, y = (np.concatenate(part) for part in zip(*splits[:-1], strict=True))
    return pool(name, [(x, y), splits[-1]], published.class_names, parts[0][0])


def _records(content: bytes, source: object, num_classes: int, *, labels: int) -> Split:
    """Decodes a binary file of records: `labels` label bytes, of which the last is the class, then the image."""
    data, record = np.frombuffer(content, np.uint8), labels + PIXELS
    if not data.size or data.size % record:
        raise UsageError(f"{source}: {data.size} bytes is not a whole number of {record}-byte records; fetch it again")
    records = data.reshape(-1, record)
    return _images(records[:, labels:]), _in_range(records[:, labels - 1], source, num_classes)


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
    return _images(np.asarray(data)), _in_range(np.array(labels, object), source, num_classes).astype(np.int64)


def _images(flat: np.ndarray) -> np.ndarray:
    return flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _in_range(labels: np.ndarray, source: object, num_classes: int) -> np.ndarray:
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if wrong.size:
        raise UsageError(f"{source}: labels must be 0..{num_classes - 1}, got {wrong[0]}; fetch {SOURCE} again")
    return labels


SETS = {
    "cifar10": Published(
        CLASS_NAMES,
        (
            Form(FOLDER, "cifar-10-binary.tar.gz", FILES, partial(_records, labels=1)),
            Form(
                "cifar-10-batches-py",
                "cifar-10-python.tar.gz",
                tuple(name.removesuffix(".bin") for name in FILES),
                partial(_pickle, key=b"labels"),
            ),
        ),
        f"data_batch_1.bin .. test_batch.bin (there or in {FOLDER}/), the python files data_batch_1 .. test_batch"
        " (there or in cifar-10-batches-py/), cifar-10-binary.tar.gz, cifar-10-python.tar.gz, or cifar10.npz",
        SOURCE,
    ),
    "cifar100": Published(
        CLASS_NAMES_100,
        (
            Form("cifar-100-binary", "cifar-100-binary.tar.gz", ("train.bin", "test.bin"), partial(_records, labels=2)),
            Form(
                "cifar-100-python", "cifar-100-python.tar.gz", ("train", "test"), partial(_pickle, key=b"fine_labels")
            ),
        ),
        "train.bin and test.bin (there or in cifar-100-binary/), the python files train and test (there or in"
        " cifar-100-python/), cifar-100-binary.tar.gz, cifar-100-python.tar.gz, or cifar100.npz",
        SOURCE,
    ),
}
