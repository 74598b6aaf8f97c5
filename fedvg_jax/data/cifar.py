"""Reader of CIFAR-10: the official binary files, or the same arrays in `cifar10.npz`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedvg_jax.data import cache, npz
from fedvg_jax.data.arrays import Arrays, pool
from fedvg_jax.types import UsageError

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
FOLDER = "cifar-10-batches-bin"
RECORD = 1 + 3 * 32 * 32
"""Bytes of a record: the label, then the image as [3, 32, 32]."""

LAYOUT = f"data_batch_1.bin .. data_batch_5.bin and test_batch.bin (there or in {FOLDER}/), or cifar10.npz"
SOURCE = 'unpack the "CIFAR-10 binary version" of https://www.cs.toronto.edu/~kriz/cifar.html there'


def load(data_dir: Path, cache_dir: Path | None = None) -> Arrays:
    """CIFAR-10, x uint8 [60000, 32, 32, 3], official training set first.

    Args:
        data_dir: a folder holding `LAYOUT`, or the .npz file itself.
        cache_dir: where the decoded set is kept.

    Raises:
        UsageError: files missing or damaged.

    Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
    """
    archive = data_dir if data_dir.is_file() else data_dir / "cifar10.npz"
    if archive.is_file():
        return cache.cached("cifar10", [archive], lambda: npz.decode(archive, "cifar10", CLASS_NAMES), cache_dir)
    files = _find(data_dir)
    return cache.cached("cifar10", files, lambda: _decode(files), cache_dir)


def _find(data_dir: Path) -> list[Path]:
    if not data_dir.is_dir():
        raise UsageError(f"{data_dir}: no such folder; --data-dir must hold {LAYOUT}: {SOURCE}")
    folders = [folder for folder in (data_dir, data_dir / FOLDER) if any((folder / name).is_file() for name in FILES)]
    if not folders:
        raise UsageError(f"{data_dir}: holds no CIFAR-10; it must hold {LAYOUT}: {SOURCE}")
    files = [folders[0] / name for name in FILES]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise UsageError(f"{folders[0]}: {', '.join(missing)} missing: {SOURCE}")
    return files


def _decode(files: list[Path]) -> Arrays:
    batches = [_batch(file) for file in files]
    x, y = (np.concatenate(part) for part in zip(*batches[:-1], strict=True))
    return pool("cifar10", [(x, y), batches[-1]], CLASS_NAMES, files[0].parent)


def _batch(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """(x uint8 [n, 32, 32, 3], y uint8 [n]) of one binary file."""
    data = np.frombuffer(cache.contents(file), np.uint8)
    if not data.size or data.size % RECORD:
        raise UsageError(f"{file}: {data.size} bytes is no whole number of {RECORD}-byte records; {SOURCE} again")
    records = data.reshape(-1, RECORD)
    if records[:, 0].max() >= len(CLASS_NAMES):
        raise UsageError(f"{file}: labels must be 0..9, got {records[:, 0].max()}; {SOURCE} again")
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0]
