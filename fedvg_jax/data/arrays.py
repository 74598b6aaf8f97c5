"""The container of a data set, and the checks that every reader applies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.host import hardware
from fedvg_jax.host.files import reason

MAX_CLASSES = 2**16


class Arrays(NamedTuple):
    """A data set as one pool of T rows: the official splits concatenated, training set first."""

    name: str
    x: np.ndarray
    """uint8 [T, H, W, D] images, floats [T, D] rows of a table or features, or int32 [T, L] sequences of characters."""
    y: np.ndarray
    """int32 [T] labels, 0..C-1, or [T, L] next characters."""
    class_names: tuple[str, ...]
    """Names of the C classes or characters."""
    num_train: int
    """Rows of the official training set, which are the first."""
    groups: np.ndarray | None = None
    """int32 [T], the group (user, patient, lesion) of each row, numbered in sorted order; None if unknown."""


def check(arrays: Arrays, source: object) -> Arrays:
    """Returns the arrays in canonical shape and dtype.

    Args:
        arrays: `x` uint8 [T, H, W, D], grey [T, H, W], or features, floats [T, F]; `y` of any integer
            dtype, [T] or [T, 1].
        source: the file they came from, named in errors.

    Raises:
        UsageError: wrong dtype or rank, different lengths, no row, features that are not finite, or a label outside
            0..C-1.
    """
    x = arrays.x if arrays.x.dtype.isnative else arrays.x.astype(arrays.x.dtype.newbyteorder("="))
    x = _features(x, source) if is_features(x) else _images(x, source)
    y = _labels(arrays.y, source)
    if len(x) != len(y):
        raise UsageError(f"{source}: {len(x)} images but {len(y)} labels; there must be one label per image")
    if not x.size:
        raise UsageError(f"{source}: images of shape {list(x.shape)} are empty; at least one image is needed")
    num_classes = len(arrays.class_names)
    if y.min() < 0 or y.max() >= num_classes:
        raise UsageError(f"{source}: labels must be 0..{num_classes - 1}, got {y.min()}..{y.max()}")
    return arrays._replace(x=x, y=y.astype(np.int32))


def spaced(arrays: Arrays, max_rows: int) -> Arrays:
    """Returns at most `max_rows` rows, at equal distances in their order.

    Row i of the result is row floor(i T / max_rows) of the T rows, so classes and groups keep their shares, also where
    the rows are sorted. All classes keep their names and numbers; groups without a row are left out.

    Args:
        arrays: the data set, T rows.
        max_rows: the largest number of rows; 0, T and more return the data set as it is.

    >>> whole = Arrays("ten", np.arange(10.0)[:, None], np.arange(10), tuple("abcdefghij"), 6)
    >>> some = spaced(whole, 4)
    >>> some.y.tolist(), some.num_train
    ([0, 2, 5, 7], 3)
    """
    num_rows = len(arrays.y)
    if not 0 < max_rows < num_rows:
        return arrays
    rows = np.arange(max_rows) * num_rows // max_rows
    groups = None if arrays.groups is None else np.unique(arrays.groups[rows], return_inverse=True)[1].astype(np.int32)
    num_train = int((rows < arrays.num_train).sum())
    return arrays._replace(x=arrays.x[rows], y=arrays.y[rows], num_train=num_train, groups=groups)


def pool(
    name: str, splits: Sequence[tuple[np.ndarray, np.ndarray]], class_names: Sequence[str] | None, source: object
) -> Arrays:
    """Concatenates the official splits to one checked pool.

    Args:
        name: of the data set.
        splits: (images, labels) of each split, as for `check`, training set first.
        class_names: [C]; None numbers the classes 0..max.
        source: the file they came from, named in errors.

    Raises:
        UsageError: as `check`, for each split; or image sizes differ between splits.
    """
    names = tuple(class_names or numbers(max(int(_labels(y, source).max(initial=0)) for _, y in splits)))
    parts = [check(Arrays(name, x, y, names, 0), source) for x, y in splits]
    sizes = sorted({part.x.shape[1:] for part in parts})
    if len(sizes) > 1:
        raise UsageError(f"{source}: images must have one size in all splits, got {' and '.join(map(str, sizes))}")
    x, y = (np.concatenate([getattr(part, field) for part in parts]) for field in ("x", "y"))
    return Arrays(name, x, y, names, len(parts[0].x))


def numbers(largest: int) -> list[str]:
    """Returns the names 0..largest, at most 65,536, so that a stray label is an error and not a huge model.

    >>> numbers(2)
    ['0', '1', '2']
    """
    return [str(c) for c in range(min(largest + 1, MAX_CLASSES))]


def refuse_too_large(num_bytes: int, source: object) -> None:
    """Raises a UsageError if `num_bytes` exceeds this machine's memory; no check if its size is unknown."""
    memory = hardware.host_memory()
    if memory is not None and num_bytes > memory:
        needed, available = (f"{size / 2**30:,.1f} GiB" for size in (num_bytes, memory))
        raise UsageError(f"{source}: needs {needed} of memory, there is {available}; use a smaller --image-size")


def contents(file: Path) -> bytes:
    """Returns all bytes of a user's file.

    Raises:
        UsageError: it cannot be read, or is larger than this machine's memory.
    """
    try:
        refuse_too_large(file.stat().st_size, file)
        return file.read_bytes()
    except OSError as error:
        raise unreadable(file, error) from error


def unreadable(file: Path, error: OSError) -> UsageError:
    """Returns the error of a file that cannot be read."""
    return UsageError(f"{file}: cannot be read ({error.strerror or error}); check the path and its permissions")


def find(data_dir: Path, folder: str, names: Sequence[str], layout: str, source: str) -> list[Path]:
    """Returns the files of a published data set.

    Args:
        data_dir: holds the files, or their folder.
        folder: name of the folder in which the set is published.
        names: of the files.
        layout: what `data_dir` may hold, for errors.
        source: where to download it, for errors.

    Raises:
        UsageError: a file is missing.
    """
    for place in (data_dir, data_dir / folder):
        paths = [place / name for name in names]
        missing = [path.name for path in paths if not path.is_file()]
        if not missing:
            return paths
        if len(missing) < len(paths):
            raise UsageError(f"{place}: {', '.join(missing)} missing; fetch {source} again")
    raise UsageError(f"{data_dir}: holds no {layout}; put {source} there{how_to_unpack(data_dir)}")


def how_to_unpack(place: Path) -> str:
    """Returns the end of an error: how an archive is unpacked, `place` or the first one in it; "" if there is none."""
    for file in [place] if place.is_file() else sorted(place.glob("*")):
        if file.suffix in (".tar", ".tgz", ".gz", ".bz2", ".xz"):
            return f"; unpack it first: tar -xf {file} -C {file.parent}"
        if file.suffix == ".zip":
            return f"; unpack it first: python -m zipfile -e {file} {file.parent}"
    return ""


@contextlib.contextmanager
def reading(what: object, kind: str, remedy: str) -> Iterator[None]:
    """Raises UsageError in place of whatever error the first bad byte of a user's files leads to.

    Args:
        what: the files.
        kind: what they should be.
        remedy: what to do.
    """
    try:
        yield
    except UsageError:
        raise
    except FileNotFoundError:
        raise UsageError(f"{what}: no such file") from None
    except Exception as error:
        raise UsageError(f"{what}: not {kind} ({reason(error)}); {remedy}") from error


def with_groups(arrays: Arrays, groups: np.ndarray, source: object) -> Arrays:
    """Returns `arrays` with numbered groups.

    Args:
        arrays: a data set whose groups are replaced.
        groups: [T] or [T, 1], integers or strings.
        source: the file they came from, named in errors.

    Raises:
        UsageError: another dtype, or not one group per row.
    """
    flat = groups[:, 0] if groups.ndim == 2 and groups.shape[1] == 1 else groups
    check_groups(flat, len(arrays.y), f"{source}: ")
    return arrays._replace(groups=np.unique(flat, return_inverse=True)[1].astype(np.int32))


def check_groups(groups: np.ndarray, num_rows: int, source: str = "") -> np.ndarray:
    """Returns the groups; a UsageError unless they are integers or strings, one for each row."""
    if groups.dtype.kind not in "iuSU" or groups.shape != (num_rows,):
        got = f"{groups.dtype} {list(groups.shape)}"
        raise UsageError(f"{source}groups must be integers or strings [{num_rows}], one per row; got {got}")
    return groups


def is_features(x: np.ndarray) -> bool:
    """Returns whether x are features, floats [N, F] of at most 64 bits."""
    return x.ndim == 2 and x.dtype in (np.float16, np.float32, np.float64)


def _features(x: np.ndarray, source: object) -> np.ndarray:
    """Returns features of at most 32 bits."""
    with np.errstate(over="ignore"):
        x = x.astype(np.float32) if x.dtype == np.float64 else x
    finite = np.isfinite(x).all(1)
    if not finite.all():
        raise UsageError(f"{source}: features of row {finite.argmin()} are not finite in 32 bits; correct or remove it")
    return x


def _images(x: np.ndarray, source: object) -> np.ndarray:
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        got = f"{x.dtype} {list(x.shape)}"
        raise UsageError(f"{source}: images must be uint8 [N, H, W] or [N, H, W, D], features floats [N, F], got {got}")
    return x[..., None] if x.ndim == 3 else x


def _labels(y: np.ndarray, source: object) -> np.ndarray:
    flat = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if not np.issubdtype(y.dtype, np.integer) or flat.ndim != 1:
        raise UsageError(f"{source}: labels must be integers [N] or [N, 1], got {y.dtype} {list(y.shape)}")
    return flat
