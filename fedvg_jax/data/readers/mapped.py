"""Reads a folder with x.npy and y.npy as memory maps, so that a data set may be larger than this machine's memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.arrays import Arrays, check, numbers, with_groups
from fedvg_jax.data.readers import npy

LAYOUT = (
    "x.npy (uint8 [T, H, W] or [T, H, W, D], or floats [T, F]) and y.npy (integers [T])[, class_names.npy]"
    "[, groups.npy]"
)


def is_layout_of(path: Path) -> bool:
    """Returns whether the path is a folder with x.npy."""
    return (path / "x.npy").is_file()


def load(path: Path) -> Arrays:
    """Reads the files of the folder; x stays a memory map of x.npy, which must not change while it is used.

    Args:
        path: a folder with `LAYOUT`.

    Raises:
        UsageError: a file is missing, damaged or malformed.
    """
    x, y = np.asarray(_read(path / "x.npy")), np.array(_read(path / "y.npy"))
    named = path / "class_names.npy"
    if y.dtype.kind not in "iu" or not y.size:
        raise UsageError(f"{path / 'y.npy'}: must hold integers [T], got {y.dtype} {list(y.shape)}")
    names = npy.texts(np.array(_read(named)), named) if named.is_file() else numbers(int(y.max()))
    arrays = check(Arrays(path.resolve().name, x, y, tuple(names), len(y)), path)
    groups = path / "groups.npy"
    return with_groups(arrays, np.array(_read(groups)), groups) if groups.is_file() else arrays


def _read(file: Path) -> np.ndarray:
    if not file.is_file():
        raise UsageError(f"{file.parent}: {file.name} missing; it must hold {LAYOUT}")
    return npy.open_array(file, "write it again")
