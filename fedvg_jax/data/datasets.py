"""Data sets by name: `load` chooses the reader, checks its options, and reports errors in one line."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.data.arrays import Arrays, Size
from fedvg_jax.host.errors import UsageError, one_line
from fedvg_jax.host.files import user_path


class Source(NamedTuple):
    """A data set that is read from files, and its reader, which is imported when it reads."""

    reader: str
    """Module of `readers`, and its function (folder or file, name, **options) -> `Reading`."""
    holds: str
    """What `--data-dir` must hold."""
    takes: tuple[str, ...] = ()
    """Its options, a subset of size, splits, columns and group_pattern."""

    def read(self, place: Path, name: str, options: Mapping[str, Any]) -> Any:
        """Returns the `Reading` of the data set in a folder or file."""
        module, _, function = self.reader.rpartition(".")
        return getattr(importlib.import_module(f"fedvg_jax.data.readers.{module}"), function)(
            place, name, **options
        )


_MEDMNIST = "its published .npz file, such as {0}.npz of 28 or {0}_64.npz of 64 pixels"

SOURCES = {
    "cifar10": Source(
        "cifar_stl10.load",
        "data_batch_1 .. test_batch (there or in cifar-10-batches-py/), or cifar10.npz",
    ),
    "cifar100": Source(
        "cifar_stl10.load",
        "train and test (there or in cifar-100-python/), or cifar100.npz",
    ),
    "stl10": Source(
        "cifar_stl10.load_stl10",
        "train_X.bin, train_y.bin, test_X.bin and test_y.bin (there or in stl10_binary/)",
    ),
    "organamnist": Source("npz.load_medmnist", _MEDMNIST.format("organamnist"), ("size",)),
    "dermamnist": Source("npz.load_medmnist", _MEDMNIST.format("dermamnist"), ("size", "splits")),
    "tinyimagenet": Source(
        "folders.load_tinyimagenet",
        "wnids.txt, train/ and val/ with val_annotations.txt (there or in tiny-imagenet-200/)",
        ("size",),
    ),
    "covid19": Source(
        "folders.load_covid19",
        'four folders of images, one per class ("Curated Dataset for COVID-19 Posterior-Anterior Chest Radiography'
        ' Images (X-Rays)", https://doi.org/10.17632/9xkhgts2s6)',
        ("size",),
    ),
    "npz": Source("npz.load", "one .npz file of arrays, such as x and y"),
    "folder": Source(
        "folders.load", "one sub-folder of images per class", ("size", "group_pattern")
    ),
    "csv": Source("csv_table.load", "one .csv file with a line of column names", ("columns",)),
}

HUB = "hf:"
OUTSIDE = {
    "tfds:": Source(
        "tfds.load",
        "NAME/[CONFIG/]VERSION/dataset_info.json and its .array_record files",
        ("size",),
    ),
    HUB: Source(
        "hugging_face.load",
        "FOLDER, a set of `save_to_disk` or .parquet files",
        ("size", "columns", "splits"),
    ),
}
"""Prefix of data sets that other libraries prepare -> their reader."""

BUILT_IN = ("digits", "breast_cancer", "wine", "iris", "literature")
"""Data sets that need no files."""

NAMES = (*BUILT_IN, *SOURCES)


def load(
    name: str,
    data_dir: Path | None = None,
    cache_dir: Path | None = None,
    *,
    size: Size | None = None,
    splits: str = "all",
    group_pattern: str = "",
    columns: Mapping[str, str] = {},
) -> Arrays:
    """Returns the data set called `name`.

    Args:
        name: one of `NAMES`, "tfds:NAME" or "hf:FOLDER". Names in `BUILT_IN` need no folder.
        data_dir: the folder (or file) of the data; for "hf:FOLDER" the folder that FOLDER starts from. None for a
            downloaded data set.
        cache_dir: folder of the decoded and the downloaded data sets; None keeps nothing.
        size: (H, W) of the images, for data sets that exist in several sizes or are resized.
        splits: "all"; "official": the published code's; or names of the splits of a set hf:FOLDER.
        group_pattern: regular expression of the group in the file names of a folder.
        columns: of inputs, labels and groups, for "hf:FOLDER" and "csv".

    Raises:
        UsageError: unknown name, missing folder, an option the data set does not have, or missing or damaged files.

    >>> digits = load("digits")
    >>> digits.x.shape, digits.x.dtype.name, digits.num_train
    ((1797, 8, 8, 1), 'uint8', 1797)
    """
    options = {"size": size, "splits": splits, "columns": columns, "group_pattern": group_pattern}
    place, options = check(name, data_dir, cache_dir, **options)
    if place is None:
        from fedvg_jax.data.readers import text

        return text.load(name)
    from fedvg_jax.data import cache

    # of the libraries; problems of a file are UsageErrors
    try:
        with warnings.catch_warnings(action="ignore"):
            reading = _source(name).read(place, name, options)
            if missing := [file for file in reading.files if not file.exists()]:
                raise UsageError(f"{missing[0]}: no such file; {_needed(name)}")
            reader = f"{name} {options}"
            arrays = cache.cached(reading.files, reading.decode, reader, cache_dir)
    except OSError as error:  # no permission, or a failing disk
        path = error.filename or place
        raise UsageError(
            f"{path}: cannot be read ({error.strerror or error}); check its permissions"
        ) from error
    # folders may be named by any bytes
    class_names = tuple(map(one_line, arrays.class_names))
    return arrays._replace(name=one_line(arrays.name), class_names=class_names)


def check(
    name: str, data_dir: Path | None, cache_dir: Path | None = None, **options: Any
) -> tuple[Path | None, dict[str, Any]]:
    """Returns the folder or file of a data set, None for a built-in one, and the options that are not defaults.

    It reads nothing.

    Args:
        name, data_dir, cache_dir: as in `load`.
        options: size, splits, columns and group_pattern, as in `load`.

    Raises:
        UsageError: unknown name, missing folder, or an option the data set does not have.
    """
    given = {key: value for key, value in options.items() if value not in (None, "all", {}, "")}
    takes = () if name in BUILT_IN else _source(name).takes
    if unknown := [option for option in given if option not in takes]:
        raise UsageError(f"dataset {name} does not take {unknown[0]}; leave it out")
    return None if name in BUILT_IN else _place(name, data_dir, cache_dir), given


def _place(name: str, data_dir: Path | None, cache_dir: Path | None) -> Path:
    """Returns the folder or file of a data set: the caller's, or else the downloaded one."""
    place = data_dir and user_path(data_dir)
    if name.startswith(HUB):
        place = (place or Path()) / user_path(name.removeprefix(HUB))
    if place and place.exists():
        return place
    if data_dir is None and cache_dir:
        downloaded = download_folder(cache_dir, name)
        if downloaded.is_dir():
            return downloaded
    raise UsageError(
        f"{place}: no such file or folder; {_needed(name)}" if place else _needed(name)
    )


def _needed(name: str) -> str:
    """Returns the remedy for missing files."""
    from fedvg_jax.data import downloads

    needed = f"dataset {name} needs --data-dir DIR with {_source(name).holds}"
    if name in downloads.NAMES or name.startswith(HUB):
        return f"{needed}; or run python -m fedvg_jax.prepare {name} --download, and leave it out"
    return needed


def download_folder(cache_dir: Path, name: str) -> Path:
    """Returns the folder of a downloaded data set, where a run without `--data-dir` looks."""
    return cache_dir / "downloads" / name.replace(":", "/")


def _source(name: str) -> Source:
    source = SOURCES.get(name) or OUTSIDE.get(f"{name.partition(':')[0]}:")
    if source is None:
        known = ", ".join(NAMES)
        raise UsageError(f"dataset must be one of {known}, tfds:NAME or hf:FOLDER, got {name!r}")
    return source


def parse_size(text: str) -> Size | None:
    """Parses "HxW", or one number for both, to (H, W); "" to None.

    >>> parse_size("244x224"), parse_size("28"), parse_size("")
    ((244, 224), (28, 28), None)
    """
    sides = [int(side) for side in text.split("x") if side]
    return (sides[0], sides[-1]) if sides else None
