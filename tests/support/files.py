"""Helpers for tests with files: random pixels, tiny files of data sets, expected errors, and full disks."""

import io
import os
import re
import resource
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fedvg_jax import data
from fedvg_jax.core.types import UsageError

RNG = np.random.default_rng(1)
FOUR = {"COVID-19": 2, "Normal": 1, "Pneumonia-Bacterial": 1, "Pneumonia-Viral": 2}
"""The folders of COVID-19's four classes -> numbers of images."""


def pixels(*shape):
    return RNG.integers(0, 256, shape, np.uint8)


def usage_error(*parts):
    """Expects a UsageError of one line that contains `parts` in this order."""
    return pytest.raises(
        UsageError, match=r"\A[^\n]*" + r"[^\n]*".join(map(re.escape, parts)) + r"[^\n]*\Z"
    )


def one_line(pattern):
    """Expects a UsageError of one line in which a regular expression matches."""
    return pytest.raises(UsageError, match=rf"\A[^\n]*?(?:{pattern})[^\n]*\Z")


def assert_rows(arrays, x, y):
    """A data set has these rows and labels, in this order."""
    np.testing.assert_array_equal(arrays.x, x)
    np.testing.assert_array_equal(arrays.y, y)


def same_partition(a, b) -> bool:
    """Whether two partitions have the same rows for every client and part."""
    return all(
        np.array_equal(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True)
    )


def load_twice(name, where, **options):
    """Loads a data set twice, from its files and from the cache, and checks that both results are equal."""
    first, second = (
        data.load(name, where, Path(where).parent / "cache", **options) for _ in range(2)
    )
    assert_rows(first, second.x, second.y)
    assert second.x.dtype == np.uint8 and second.y.dtype == np.int32
    assert first[3:] == second[3:] and first.name == second.name
    return second


def rewrite(file: Path, content: bytes):
    """Changes a file in place, and gives it its former size and time."""
    status = file.stat()
    assert status.st_size == len(content)
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def png(array) -> bytes:
    """Returns a PNG file of exactly these pixels."""
    import PIL.Image

    file = io.BytesIO()
    PIL.Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array).save(file, "PNG")
    return file.getvalue()


def write(file: Path, content: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def write_folder(root: Path, counts: dict, side=6, inner=""):
    """Writes PNG files per class; returns their (x, y) in sorted order."""
    x = [pixels(side, side, 3) for _ in range(sum(counts.values()))]
    y = [label for label, count in enumerate(counts.values()) for _ in range(count)]
    files = (
        root / name / inner / f"{i:02}.png" for name, count in counts.items() for i in range(count)
    )
    for file, image in zip(files, x, strict=True):
        write(file, png(image))
    return np.array(x), np.array(y)


def write_stl(root: Path):
    """Writes the official binary files; returns their (x, y), training set first."""
    x, y = pixels(5, 96, 96, 3), np.array([0, 9, 4, 1, 2], np.uint8)
    for split, part in {"train": slice(0, 3), "test": slice(3, 5)}.items():
        # columns before rows
        write(root / f"{split}_X.bin", x[part].transpose(0, 3, 2, 1).tobytes())
        write(root / f"{split}_y.bin", (y[part] + 1).tobytes())
    return x, y


def write_tiny(root: Path, wnids=("n02", "n01"), per_class=3):
    """Writes the official tree, with PNGs named JPEG; returns (x, y), training set (by wnids.txt) first."""
    write(root / "wnids.txt", "\n".join(wnids).encode())
    x, y = [], []
    for label, wnid in enumerate(wnids):
        for i in range(per_class):
            x.append(pixels(8, 8, 3))
            y.append(label)
            write(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", png(x[-1]))
        write(root / "train" / wnid / f"{wnid}_boxes.txt", b"not read")
    lines = []
    for i, label in enumerate((1, 0)):
        x.append(pixels(8, 8, 3))
        y.append(label)
        write(root / "val" / "images" / f"val_{i}.JPEG", png(x[-1]))
        lines.append(f"val_{i}.JPEG\t{wnids[label]}\t0\t0\t62\t62")
    write(root / "val" / "val_annotations.txt", "\n".join(reversed(lines)).encode())
    return np.array(x), np.array(y)


@contextmanager
def disk_of(size):
    """Limits files to `size` bytes: longer writes fail as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
