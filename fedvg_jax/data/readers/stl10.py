"""Reads STL-10's official binary files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import archive, cache, images
from fedvg_jax.data.arrays import Arrays, pool

CLASS_NAMES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")
FOLDER = "stl10_binary"
SHAPE = (3, 96, 96)
"""Axes of an image in the file: channels, columns, rows."""

ARCHIVE = f"{FOLDER}.tar.gz"
PACKED = 113_000
"""Images in the archive, most of them unlabelled."""

LAYOUT = f"{', '.join(FILES)} (there or in {FOLDER}/), or {ARCHIVE}"
SOURCE = f"{ARCHIVE} of https://cs.stanford.edu/~acoates/stl10/"

Contents = list[tuple[object, bytes]]
"""Name and bytes of each of `FILES`."""


def load(data_dir: Path, cache_dir: Path | None = None, *, progress: images.Progress | None = None) -> Arrays:
    """Reads STL-10's labelled images, x uint8 [13000, 96, 96, 3]; the first 5,000 are the training set.

    Args:
        data_dir: a folder with `LAYOUT`, or the archive itself.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        progress: called with (images read, all images) while an archive is read.

    Raises:
        UsageError: files missing or damaged.

    Source: A. Coates, H. Lee, A. Y. Ng, An Analysis of Single Layer Networks in Unsupervised Feature Learning, 2011.
    """
    sources, read = _find(data_dir, progress)
    return cache.cached("stl10", sources, lambda: _decode(read(), data_dir), cache_dir)


def _find(data_dir: Path, progress: images.Progress | None) -> tuple[list[Path], Callable[[], Contents]]:
    """Returns the files of the data set, and a function that reads them."""
    for folder in (data_dir, data_dir / FOLDER):
        files = [folder / name for name in FILES]
        missing = [file.name for file in files if not file.is_file()]
        if not missing:
            return files, lambda files=files: [(file, cache.contents(file)) for file in files]
        if len(missing) < len(FILES):
            raise UsageError(f"{folder}: {', '.join(missing)} missing; unpack {SOURCE} there again")
    file = data_dir if data_dir.is_file() else data_dir / ARCHIVE
    if not file.is_file():
        raise UsageError(f"{data_dir}: holds no {LAYOUT}; put {SOURCE} there")
    return [file], lambda: _packed(file, progress)


def _packed(file: Path, progress: images.Progress | None) -> Contents:
    """Reads the members of the archive."""
    show_share = progress and (lambda share: progress(int(PACKED * share), PACKED))
    contents = archive.of_tar(file, FILES, SOURCE, show_share)
    if missing := [name for name in FILES if name not in contents]:
        raise UsageError(f"{file}: does not hold {', '.join(missing)}; fetch {SOURCE} again")
    return [(f"{file} ({name})", contents[name]) for name in FILES]


def _decode(parts: Contents, source: Path) -> Arrays:
    splits = [(_images(*x), _labels(*y)) for x, y in (parts[:2], parts[2:])]
    for (x, y), (file, _) in zip(splits, parts[1::2], strict=True):
        if len(x) != len(y):
            raise UsageError(f"{file}: {len(y)} labels for {len(x)} images; fetch {SOURCE} again")
    return pool("stl10", splits, CLASS_NAMES, source)


def _images(file: object, content: bytes) -> np.ndarray:
    data, size = np.frombuffer(content, np.uint8), int(np.prod(SHAPE))
    if not data.size or data.size % size:
        raise UsageError(f"{file}: {data.size} bytes is not a whole number of {size}-byte images; fetch {SOURCE} again")
    return data.reshape(-1, *SHAPE).transpose(0, 3, 2, 1)


def _labels(file: object, content: bytes) -> np.ndarray:
    labels = np.frombuffer(content, np.uint8)
    wrong = labels[(labels < 1) | (labels > len(CLASS_NAMES))]
    if wrong.size:
        raise UsageError(f"{file}: labels must be 1..{len(CLASS_NAMES)}, got {wrong[0]}; fetch {SOURCE} again")
    return labels - 1
