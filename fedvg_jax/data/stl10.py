"""Reader of STL-10's official binary files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedvg_jax.data import cache
from fedvg_jax.data.arrays import Arrays, pool
from fedvg_jax.types import UsageError

CLASS_NAMES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")
FOLDER = "stl10_binary"
SHAPE = (3, 96, 96)
"""Of an image in the file: channels, then COLUMNS, then rows."""

LAYOUT = f"{', '.join(FILES)} (there or in {FOLDER}/)"
SOURCE = "stl10_binary.tar.gz of https://cs.stanford.edu/~acoates/stl10/"


def load(data_dir: Path, cache_dir: Path | None = None) -> Arrays:
    """STL-10's labelled images, x uint8 [13000, 96, 96, 3], the 5,000 of the training set first.

    Args:
        data_dir: a folder holding `LAYOUT`.
        cache_dir: where the decoded set is kept.

    Raises:
        UsageError: files missing or damaged.

    Source: A. Coates, H. Lee, A. Y. Ng, An Analysis of Single Layer Networks in Unsupervised Feature Learning, 2011.
    """
    files = _find(data_dir)
    return cache.cached("stl10", files, lambda: _decode(files), cache_dir)


def _find(data_dir: Path) -> list[Path]:
    for folder in (data_dir, data_dir / FOLDER):
        missing = [name for name in FILES if not (folder / name).is_file()]
        if not missing:
            return [folder / name for name in FILES]
        if len(missing) < len(FILES):
            raise UsageError(f"{folder}: {', '.join(missing)} missing; unpack {SOURCE} there again")
    raise UsageError(f"{data_dir}: holds no {LAYOUT}; unpack {SOURCE} there")


def _decode(files: list[Path]) -> Arrays:
    splits = [(_images(x), _labels(y)) for x, y in (files[:2], files[2:])]
    for (x, y), file in zip(splits, files[1::2], strict=True):
        if len(x) != len(y):
            raise UsageError(f"{file}: {len(y)} labels for {len(x)} images; unpack {SOURCE} again")
    return pool("stl10", splits, CLASS_NAMES, files[0].parent)


def _images(file: Path) -> np.ndarray:
    data, size = np.frombuffer(cache.contents(file), np.uint8), int(np.prod(SHAPE))
    if not data.size or data.size % size:
        raise UsageError(f"{file}: {data.size} bytes is no whole number of {size}-byte images; unpack {SOURCE} again")
    return data.reshape(-1, *SHAPE).transpose(0, 3, 2, 1)


def _labels(file: Path) -> np.ndarray:
    labels = np.frombuffer(cache.contents(file), np.uint8)
    wrong = labels[(labels < 1) | (labels > len(CLASS_NAMES))]
    if wrong.size:
        raise UsageError(f"{file}: labels must be 1..{len(CLASS_NAMES)}, got {wrong[0]}; unpack {SOURCE} again")
    return labels - 1
