"""Data sets by name: `load` chooses the reader, checks its options, and reports errors in one line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.data import cache, downloads, table
from fedvg_jax.data.arrays import Arrays, download_command
from fedvg_jax.data.images import Size
from fedvg_jax.data.readers import cifar_stl10, folders, hugging_face, npz, text, tfds
from fedvg_jax.host.errors import UsageError, one_line
from fedvg_jax.host.files import user_path


class Source(NamedTuple):
    """A data set that is read from files, and its reader."""

    load: Callable[..., cache.Reading]
    """(data_dir, **options) -> the files and how they are read"""
    holds: str
    """What `--data-dir` must hold."""
    takes: tuple[str, ...] = ()
    """Its options, a subset of size, splits, columns and group_pattern."""


SOURCES = {
    **{
        name: Source(partial(cifar_stl10.load, name=name), published.layout)
        for name, published in cifar_stl10.SETS.items()
    },
    "stl10": Source(cifar_stl10.load_stl10, cifar_stl10.STL_LAYOUT),
    **{
        name: Source(
            partial(npz.load_medmnist, name=name),
            npz.layout(name),
            ("size", "splits") if published.left_out else ("size",),
        )
        for name, published in npz.SETS.items()
    },
    "tinyimagenet": Source(folders.load_tinyimagenet, folders.TINY_LAYOUT, ("size",)),
    "covid19": Source(
        folders.load_covid19, f"{folders.XRAY_LAYOUT} ({folders.XRAY_SOURCE})", ("size",)
    ),
    "npz": Source(npz.load, f"one .npz file with {npz.LAYOUT}"),
    "folder": Source(folders.load, folders.LAYOUT, ("size", "group_pattern")),
    "csv": Source(table.load, table.LAYOUT, ("columns",)),
}

BUILT_IN: dict[str, Callable[[], Arrays]] = {
    "digits": text.load_digits,
    **{name: partial(text.load_table, name) for name in text.TABLES},
    "literature": text.literature,
}
"""Data set that needs no files -> its reader."""

NAMES = (*BUILT_IN, *SOURCES)


def load(
    name: str,
    data_dir: Path | None = None,
    cache_dir: Path | None = None,
    *,
    size: Size | None = None,
    splits: str = "all",
    group_pattern: str = "",
    columns: hugging_face.Columns = {},  # noqa: B006  never changed
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
    source, place, options = check(name, data_dir, cache_dir, **options)
    if source is None:
        return BUILT_IN[name]()
    try:
        # of the libraries; problems of a file are UsageErrors
        with warnings.catch_warnings(action="ignore"):
            arrays = cache.cached(source.load(place, **options), f"{name} {options}", cache_dir)
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
) -> tuple[Source | None, Path | None, dict[str, Any]]:
    """Returns the reader of a data set, its folder or file, and the options that are not defaults; reads nothing.

    A built-in data set has neither reader nor folder.

    Args:
        name, data_dir, cache_dir: as in `load`.
        options: size, splits, columns and group_pattern, as in `load`.

    Raises:
        UsageError: unknown name, missing folder, or an option the data set does not have.
    """
    source = None if name in BUILT_IN else _source(name)
    options = {
        option: value for option, value in options.items() if value not in (None, "all", {}, "")
    }
    takes = source.takes if source else ()
    if unknown := [option for option in options if option not in takes]:
        flag = {"size": "image-size", "columns": "label", "group_pattern": "group-pattern"}
        raise UsageError(
            f"dataset {name} does not take --{flag.get(unknown[0], unknown[0])}; leave it out"
        )
    if source is None:
        return None, None, options
    return source, _place(name, source, data_dir and user_path(data_dir), cache_dir), options


def _place(name: str, source: Source, data_dir: Path | None, cache_dir: Path | None) -> Path:
    """Returns the folder or file of a data set: that of the caller, or else what was downloaded.

    Raises:
        UsageError: there is none.
    """
    downloaded = downloads.folder(cache_dir, name) if cache_dir else None
    if name.startswith(hugging_face.PREFIX):
        return hugging_face.find(data_dir, name.removeprefix(hugging_face.PREFIX), downloaded)
    if data_dir is None and downloaded and downloaded.is_dir():
        return downloaded
    if data_dir is None:
        command = f"run {download_command(name)}, or give " if name in downloads.NAMES else ""
        raise UsageError(
            f"dataset {name} needs its files: {command}--data-dir DIR, a folder holding {source.holds}"
        )
    if not data_dir.exists():
        raise UsageError(f"{data_dir}: no such file or folder; name one that holds {source.holds}")
    return data_dir


def _source(name: str) -> Source:
    if name.startswith(hugging_face.PREFIX):
        return Source(hugging_face.load, hugging_face.LAYOUT, ("size", "columns", "splits"))
    if name.startswith(tfds.PREFIX):
        read = partial(tfds.load, name=name.removeprefix(tfds.PREFIX))
        return Source(read, tfds.LAYOUT, ("size",))
    if name not in SOURCES:
        known = ", ".join(NAMES)
        raise UsageError(f"dataset must be one of {known}, tfds:NAME or hf:FOLDER, got {name!r}")
    return SOURCES[name]
