"""Data sets by name: `load` chooses the reader, checks its options, and reports errors in one line."""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedvg_jax.data.arrays import Arrays, Size
from fedvg_jax.host.errors import UsageError, one_line
from fedvg_jax.host.files import reason, user_path

if TYPE_CHECKING:
    from fedvg_jax.data.readers.sources import Reading


class Source(NamedTuple):
    """A data set that is read from files, and its reader, which is imported when it reads."""

    reader: str
    """Module of `readers`, and its function (folder or file, name, **options) -> `Reading`."""
    holds: str
    """What `--data-dir` must hold."""
    takes: tuple[str, ...] = ()
    """Its options, a subset of size, splits, columns and group_pattern."""
    is_published: bool = False
    """Whether `data.downloads` has the addresses of its files."""


_MEDMNIST = "its published .npz file, such as {0}.npz of 28 or {0}_64.npz of 64 pixels"

SOURCES = {
    "cifar10": Source(
        "cifar_stl10.load",
        "data_batch_1 .. test_batch (there or in cifar-10-batches-py/), or cifar10.npz",
        is_published=True,
    ),
    "cifar100": Source(
        "cifar_stl10.load",
        "train and test (there or in cifar-100-python/), or cifar100.npz",
        is_published=True,
    ),
    "stl10": Source(
        "cifar_stl10.load_stl10",
        "train_X.bin, train_y.bin, test_X.bin and test_y.bin (there or in stl10_binary/)",
        is_published=True,
    ),
    "organamnist": Source(
        "npz.load_medmnist", _MEDMNIST.format("organamnist"), ("size",), is_published=True
    ),
    "dermamnist": Source(
        "npz.load_medmnist", _MEDMNIST.format("dermamnist"), ("size", "splits"), is_published=True
    ),
    "tinyimagenet": Source(
        "folders.load_tinyimagenet",
        "wnids.txt, train/ and val/ with val_annotations.txt (there or in tiny-imagenet-200/)",
        ("size",),
        is_published=True,
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
        is_published=True,
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

    try:
        with warnings.catch_warnings(action="ignore"):  # of the libraries
            found = find(name, place, options)
            arrays = cache.cached(found.files, found.decode, f"{name} {options}", cache_dir)
    except OSError as error:  # no permission, or a failing disk
        path = error.filename or place
        raise UsageError(
            f"{path}: not readable ({reason(error)}); check its permissions"
        ) from error
    # folders may be named by any bytes
    class_names = tuple(map(one_line, arrays.class_names))
    return arrays._replace(name=one_line(arrays.name), class_names=class_names)


def find(name: str, place: Path, options: Mapping[str, Any]) -> Reading:
    """Returns the files of a data set that is not built in, without their content.

    Args:
        name: as in `load`.
        place: the folder or file of the data set.
        options: as `check` returns them.

    Raises:
        UsageError: a file is missing.
    """
    reader = pkgutil.resolve_name(f"fedvg_jax.data.readers.{_source(name).reader}")
    found = reader(place, name, **options)
    if missing := [file for file in found.files if not file.exists()]:
        raise UsageError(f"{missing[0]}: no such file; {_needed(name, options.get('size'))}")
    return found


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
    changed = {key: value for key, value in options.items() if value not in (None, "all", {}, "")}
    takes = () if name in BUILT_IN else _source(name).takes
    if unknown := [option for option in changed if option not in takes]:
        raise UsageError(f"dataset {name} does not take {unknown[0]}; leave it out")
    if name in BUILT_IN:
        return None, {}
    place = data_dir = data_dir and user_path(data_dir)
    if name.startswith(HUB):
        place = (data_dir or Path()) / user_path(name.removeprefix(HUB))
    for each in (place, download_folder(name, data_dir, cache_dir)):
        if each and each.exists():
            return each, changed
    needed = _needed(name, changed.get("size"))
    raise UsageError(f"{place}: no such file or folder; {needed}" if place else needed)


def _needed(name: str, size: Size | None) -> str:
    """Returns the remedy for missing files."""
    source = _source(name)
    needed = f"dataset {name} needs --data-dir DIR with {source.holds}"
    if not source.is_published:
        return needed
    of_size = f" --image-size {size[0]}x{size[1]}" if size else ""
    command = f"python -m fedvg_jax.prepare {name}{of_size} --download"
    return f"{needed}; or run {command}, and leave it out"


def download_folder(name: str, data_dir: Path | None, cache_dir: Path | None) -> Path | None:
    """Returns the folder of a downloaded data set; None without `data_dir` and `cache_dir`.

    Configurations of a set of the hub have folders beside each other, because readers look into subfolders.

    Args:
        name, data_dir, cache_dir: as in `load`.

    >>> download_folder("hf:OWNER/NAME/CONFIG", None, Path("cache")).as_posix()
    'cache/downloads/hf/OWNER--NAME--CONFIG'
    >>> download_folder("cifar10", Path("sets"), None).as_posix()
    'sets'
    """
    kind, _, of_hub = name.partition(":")
    root = data_dir or (cache_dir and cache_dir / "downloads" / kind)
    return root and root / of_hub.replace("/", "--")


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
