"""What the readers share: the files of a data set, and its official splits that are pooled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from fedvg_jax.data.arrays import MAX_CLASSES, Arrays, check, reading
from fedvg_jax.host.errors import UsageError

T = TypeVar("T")

SPLITS = ("train", "training"), ("validation", "valid", "val", "dev"), ("test", "testing", "eval")
"""Names of the splits to pool, in this order. A set without any of them is pooled as a whole."""


class Reading(NamedTuple):
    """A data set that is found and not read yet."""

    files: Sequence[Path]
    """The files that `decode` reads, in order; none for a data set that is not kept in the cache."""
    decode: Callable[[], Arrays]
    """Reads the files."""


def inside(place: Path, folder: str) -> Path:
    """Returns the folder of a published archive in `place`, or `place` itself if it has no such folder."""
    inner = place / folder
    return inner if inner.is_dir() else place


def only_file(place: Path, suffix: str) -> Path:
    """Returns the file `place`, or the only file with a suffix in the folder `place`.

    Raises:
        UsageError: the folder has no such file, or several.
    """
    files = [place] if place.is_file() else sorted(place.glob(f"*{suffix}"))
    if len(files) != 1:
        raise UsageError(
            f"{place}: holds {len(files)} {suffix} files; --data-dir must name one, and --dataset its kind, npz or csv"
        )
    return files[0]


def pooled_splits(splits: Mapping[str, T], source: object, wanted: str = "all") -> list[T]:
    """Returns the splits of names NAME,... in their order; "all" stands for `SPLITS` in its order.

    Raises:
        UsageError: there is no such split.
    """
    if wanted == "all":
        usual = [name for names in SPLITS for name in splits if name.lower() in names]
        return [splits[name] for name in usual or splits]
    names = [name.strip() for name in wanted.split(",")]
    if unknown := {*names} - {*splits}:
        raise UsageError(
            f"{source}: has no split {min(unknown)[:100]!r}; --splits takes all or some of {', '.join(splits)}"
        )
    return [splits[name] for name in names]


def pool(
    name: str,
    splits: Sequence[tuple[np.ndarray, np.ndarray]],
    class_names: Sequence[str] | None,
    source: object,
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
    names = tuple(class_names or numbers(max(int(np.max(y, initial=0)) for _, y in splits)))
    first, *others = (check(Arrays(name, x, y, names, len(x)), source) for x, y in splits)
    if not others:
        return first
    with reading(source, "rows of one size in all splits", "resize them"):
        x = np.concatenate([first.x, *(split.x for split in others)])
    return first._replace(x=x, y=np.concatenate([first.y, *(split.y for split in others)]))


def numbers(largest: int) -> list[str]:
    """Returns the names 0..largest, at most 65,536, so that a stray label is an error and not a huge model.

    >>> numbers(2)
    ['0', '1', '2']
    """
    return [str(c) for c in range(min(largest + 1, MAX_CLASSES))]
