"""Data as NumPy arrays: one reader per source, a cache of decoded sets, and the partition over clients. No jax here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.arrays import Arrays, quiet_libraries
from fedvg_jax.data.images import Progress, Size
from fedvg_jax.data.readers import cifar, covid19, digits, encoded, folder, medmnist, npz, stl10, tfds, tinyimagenet


class Source(NamedTuple):
    """A data set that is read from files."""

    load: Callable[..., Arrays]
    """(data_dir, cache_dir, **options) -> Arrays"""
    holds: str
    """what `--data-dir` must hold, and where that comes from"""
    takes: tuple[str, ...] = ()
    """its options, of: size, splits, progress"""


_IMAGES = ("size", "progress")

SOURCES = {
    **{name: Source(partial(cifar.load, name=name), f"{s.layout} ({s.source})") for name, s in cifar.SETS.items()},
    "stl10": Source(stl10.load, f"{stl10.LAYOUT} ({stl10.SOURCE})", ("progress",)),
    **{
        name: Source(
            partial(medmnist.load, name=name),
            f"{medmnist.layout(name)} ({medmnist.SOURCE})",
            ("size", "splits") if published.left_out else ("size",),
        )
        for name, published in medmnist.SETS.items()
    },
    "tinyimagenet": Source(tinyimagenet.load, f"{tinyimagenet.LAYOUT} ({tinyimagenet.SOURCE})", _IMAGES),
    "covid19": Source(covid19.load, f"{covid19.LAYOUT} ({covid19.SOURCE})", _IMAGES),
    "npz": Source(npz.load, f"one .npz file with {npz.LAYOUT}"),
    "encoded": Source(encoded.load, f"one .npz file with {encoded.LAYOUT}", _IMAGES),
    "folder": Source(folder.load, folder.LAYOUT, _IMAGES),
}

NAMES = ("digits", *SOURCES)


def load(
    name: str,
    data_dir: Path | None = None,
    cache_dir: Path | None = None,
    *,
    size: Size | None = None,
    splits: str = "all",
    progress: Progress | None = None,
) -> Arrays:
    """The dataset called `name`.

    Args:
        name: one of `NAMES`, or "tfds:NAME"; "digits" comes with scikit-learn and needs no folder.
        data_dir: the folder (or file) holding the data.
        cache_dir: where the decoded set is kept; None keeps nothing.
        size: (H, W) of the images, for a dataset that has a choice.
        splits: "all", or "official": those the published code pools.
        progress: called with (images done, all images) where there are files to decode.

    Raises:
        UsageError: unknown name, missing folder, an option the dataset does not have, or files missing or damaged.
    """
    source = _source(name)
    options = {"size": size, "splits": None if splits == "all" else splits}
    asked = {option: value for option, value in options.items() if value is not None}
    if odd := [option for option in asked if option not in source.takes]:
        flag = {"size": "--image-size", "splits": "--splits official"}[odd[0]]
        able = ", ".join(n for n, s in SOURCES.items() if odd[0] in s.takes)
        raise UsageError(f"dataset {name} has no {flag}; leave it out, or choose among {able}")
    if name == "digits":
        return digits.load()
    if data_dir is None:
        raise UsageError(f"dataset {name} needs --data-dir DIR, a folder holding {source.holds}")
    if "progress" in source.takes:
        asked["progress"] = progress
    try:
        with quiet_libraries():
            return _printable(source.load(_existing(Path(data_dir), source.holds), cache_dir, **asked))
    except OSError as error:  # a folder that must not be entered, a disk that fails
        where = error.filename or data_dir
        raise UsageError(f"{where}: cannot be read ({error.strerror or error}); check its permissions") from error


def _source(name: str) -> Source:
    if name.startswith(tfds.PREFIX):
        return Source(partial(tfds.load, name=name.removeprefix(tfds.PREFIX)), tfds.LAYOUT, _IMAGES)
    if name not in NAMES:
        raise UsageError(f"dataset must be one of {', '.join(NAMES)}, or {tfds.PREFIX}NAME, got {name!r}")
    return SOURCES.get(name, Source(digits.load, ""))


def _printable(arrays: Arrays) -> Arrays:
    """Names as they can be shown in one line: folders may be named by any bytes."""

    def shown(name: str) -> str:
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)

    return arrays._replace(name=shown(arrays.name), class_names=tuple(map(shown, arrays.class_names)))


def _existing(data_dir: Path, holds: str) -> Path:
    if not data_dir.exists():
        raise UsageError(f"{data_dir}: no such folder; --data-dir must hold {holds}")
    return data_dir
