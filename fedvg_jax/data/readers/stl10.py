"""Reads STL-10's official binary files."""

from __future__ import annotations

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
    show_share = progress and (lambda share: progress(int(PACKED * share), PACKED))
    forms = [archive.Form(FOLDER, ARCHIVE, FILES)]
    sources, read = archive.find(data_dir, forms, LAYOUT, SOURCE, show_share)
    return cache.cached("stl10", sources, lambda: _decode(read()[1], data_dir), cache_dir)


def _decode(parts: archive.Parts, source: Path) -> Arrays:
    splits = [(_images(*x), _labels(*y)) for x, y in (parts[:2], parts[2:])]
    for (x, y), (file, _) in zip(splits, parts[1::2], strict=True):
        if len(x) != len(y):
            raise UsageError(f"{file}: {len(y)} labels for {len(x)} images; fetch {SOURCE} again")
    return pool("stl10", splits, CLASS_NAMES, source)


def _images(file: object, content: bytes) -> np.ndarray:
    records = archive.records(content, int(np.prod(SHAPE)), file, SOURCE)
    return records.reshape(-1, *SHAPE).transpose(0, 3, 2, 1)


def _labels(file: object, content: bytes) -> np.ndarray:
    return archive.labels(np.frombuffer(content, np.uint8), 1, len(CLASS_NAMES), file, SOURCE)
