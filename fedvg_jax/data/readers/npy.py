"""Reads folders of .npy files: xdata.npy and ydata.npy of the published code; and x.npy and y.npy, in place."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import cache
from fedvg_jax.data.arrays import Arrays, allocate, check, numbers, reading, with_groups
from fedvg_jax.host.files import reason, refuse_special

FILES = ("xdata.npy", "ydata.npy")
LAYOUT = " and ".join(FILES)

_CHUNK = 256
"""Images that are converted to bytes at a time."""


def is_layout_of(data_dir: Path) -> bool:
    """Returns whether the folder holds at least one file of the layout."""
    return any((data_dir / name).is_file() for name in FILES)


def load(data_dir: Path, cache_dir: Path | None, *, name: str, class_names: Sequence[str]) -> Arrays:
    """Reads x uint8 [T, H, W, D] in the order of the file; there is no official test set.

    Args:
        data_dir: xdata.npy holds [T, H, W], [T, H, W, D] or [T, D, H, W], with values 0..255 or 0..1; ydata.npy holds
            whole numbers [T] or [T, 1].
        cache_dir: folder of the decoded data sets; None keeps nothing.
        name: of the data set.
        class_names: [C].

    Raises:
        UsageError: files missing, damaged or malformed.
    """
    files = [data_dir / file for file in FILES]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise UsageError(f"{data_dir}: {missing[0]} missing; it must hold {LAYOUT}")

    def decode() -> Arrays:
        x, y = (open_array(file, "fetch it again") for file in files)
        x = _bytes(_channels_last(x, files[0]), files[0])
        return check(Arrays(name, x, _whole_numbers(y, files[1]), tuple(class_names), len(x)), data_dir)

    return cache.cached(f"{name}-npy", files, decode, cache_dir)


def open_array(file: Path, remedy: str) -> np.ndarray:
    """Returns the array of a file as a memory map.

    Args:
        file: a regular .npy file.
        remedy: for a damaged file, the end of the message.

    Raises:
        UsageError: the file is not a regular one, or damaged.
    """
    refuse_special(file)
    with reading(file, "a complete .npy file of a plain array", remedy):
        return np.load(file, mmap_mode="r", allow_pickle=False)


def _channels_last(x: np.ndarray, file: Path) -> np.ndarray:
    if x.ndim not in (3, 4) or not x.size or x.dtype.kind not in "uif":
        raise UsageError(f"{file}: must hold images [T, H, W, D], got {x.dtype} {list(x.shape)}")
    is_first = x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[3] not in (1, 3)
    return x.transpose(0, 2, 3, 1) if is_first else x


def _bytes(x: np.ndarray, file: Path) -> np.ndarray:
    """Converts pixels to bytes, a few images at a time, because the file may be far larger than the result."""
    converted = allocate(x.shape, file)
    chunks = [slice(i, i + _CHUNK) for i in range(0, len(x), _CHUNK)]
    lowest, highest = (f([f(x[part]) for part in chunks]) for f in (np.min, np.max))
    if not (lowest >= 0 and highest <= 255):  # also refuses NaN
        raise UsageError(f"{file}: pixels must be 0..255 or 0..1, got {lowest}..{highest}")
    scale = 255 if x.dtype.kind == "f" and highest <= 1 else 1
    for part in chunks:
        converted[part] = x[part] if x.dtype == np.uint8 else np.rint(x[part].astype(np.float64) * scale)
    return converted


def _whole_numbers(y: np.ndarray, file: Path) -> np.ndarray:
    if y.dtype.kind == "f" and np.all((np.abs(y) < 2**31) & (y == np.floor(y))):  # false for NaN
        return y.astype(np.int64)
    if y.dtype.kind not in "ui":
        raise UsageError(f"{file}: labels must be whole numbers, got {y.dtype} {list(y.shape)}")
    return np.asarray(y)


def texts(names: np.ndarray, file: Path) -> list[str]:
    """Returns the names of classes in an array of texts, UTF-8 bytes or numbers.

    Raises:
        UsageError: it has bytes or codes that are not characters.
    """
    names = names.ravel()
    try:
        if names.dtype.kind == "U" and _largest_character(names) > sys.maxunicode:
            raise ValueError("codes that are not characters")
        return [label.decode() if isinstance(label, bytes) else str(label) for label in names]
    except ValueError as error:
        raise UsageError(f"{file}: class_names must be texts in UTF-8 ({reason(error)}); write them again") from None


def _largest_character(names: np.ndarray) -> int:
    """Returns the largest character code of texts [n]; NumPy makes a broken `str` of codes above `sys.maxunicode`."""
    codes = np.frombuffer(names.tobytes(), np.dtype(np.uint32).newbyteorder(names.dtype.byteorder))
    return int(codes.max(initial=0))


# --- memory maps: a data set may be larger than this machine's memory

MAPPED_LAYOUT = (
    "x.npy (uint8 [T, H, W] or [T, H, W, D], or floats [T, F]) and y.npy (integers [T])[, class_names.npy]"
    "[, groups.npy]"
)


def is_mapped(path: Path) -> bool:
    """Returns whether the path is a folder with x.npy."""
    return (path / "x.npy").is_file()


def load_mapped(path: Path) -> Arrays:
    """Reads the files of the folder; x stays a memory map of x.npy, which must not change while it is used.

    Args:
        path: a folder with `MAPPED_LAYOUT`.

    Raises:
        UsageError: a file is missing, damaged or malformed.
    """
    x, y = np.asarray(_read_mapped(path / "x.npy")), np.array(_read_mapped(path / "y.npy"))
    named = path / "class_names.npy"
    if y.dtype.kind not in "iu" or not y.ndim or not y.size:
        raise UsageError(f"{path / 'y.npy'}: must hold integers [T], got {y.dtype} {list(y.shape)}")
    names = texts(np.array(_read_mapped(named)), named) if named.is_file() else numbers(int(y.max()))
    arrays = check(Arrays(path.resolve().name, x, y, tuple(names), len(y)), path)
    groups = path / "groups.npy"
    return with_groups(arrays, np.array(_read_mapped(groups)), groups) if groups.is_file() else arrays


def _read_mapped(file: Path) -> np.ndarray:
    if not file.is_file():
        raise UsageError(f"{file.parent}: {file.name} missing; it must hold {MAPPED_LAYOUT}")
    return open_array(file, "write it again")
