"""Reads a folder of images with one sub-folder per class."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Unpack

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import cache, images
from fedvg_jax.data.arrays import Arrays, check

LAYOUT = "one sub-folder of images per class (in it, or in its folder images/)"

IGNORED = ("Thumbs.db", "desktop.ini", "__MACOSX")
"""Files that desktops add to folders and archives; hidden files (.DS_Store) are ignored too."""


def load(data_dir: Path, cache_dir: Path | None = None, **how: Unpack[images.Decoding]) -> Arrays:
    """Reads the images of `data_dir`, x uint8 [T, H, W, 3], with classes and images sorted by name.

    Args:
        data_dir: a folder with `LAYOUT`.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        how: see `images.Decoding`; a size is needed if images have several.

    Raises:
        UsageError: no such folder, a class without images, or a file among them that is not an image.
    """
    return decode(data_dir.resolve().name, data_dir, cache_dir, **how)


def decode(name: str, root: Path, cache_dir: Path | None, **how: Unpack[images.Decoding]) -> Arrays:
    """Decodes the images of each class, class after class; there is no official test set.

    Args:
        name: of the data set.
        root: the folder of all files.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        how: see `images.Decoding`.
    """
    of_class = classes(root)
    files = [file for members in of_class.values() for file in members]
    y = np.repeat(np.arange(len(of_class)), [len(members) for members in of_class.values()])

    def read() -> Arrays:
        return check(Arrays(name, images.of_files(files, **how), y, tuple(of_class), len(y)), root)

    arrays = cache.cached("folder", [cache.Folder(root, files), f"{how.get('size')}"], read, cache_dir)
    return arrays._replace(name=name)


def classes(data_dir: Path) -> dict[str, list[Path]]:
    """Returns class name -> image files, both sorted by name."""
    if not data_dir.is_dir():
        raise UsageError(f"{data_dir}: no such folder; --data-dir must hold {LAYOUT}")
    of_class = {folder.name: images_in(folder) for folder in visible(data_dir) if folder.is_dir()}
    if len(of_class) < 2:
        raise UsageError(f"{data_dir}: holds {len(of_class)} sub-folders; it must hold {LAYOUT}")
    return of_class


def images_in(folder: Path) -> list[Path]:
    """Returns the image files of one class, sorted by name.

    Raises:
        UsageError: there is none, or there is a file or folder that is not an image.
    """
    inner = folder / "images"
    folder = inner if inner.is_dir() else folder
    files = list(visible(folder))
    for file in files:
        if not file.is_file() or file.suffix.lower() not in images.SUFFIXES:
            kind = "file" if file.is_file() else "folder"
            raise UsageError(f"{file}: a {kind} that is not an image ({', '.join(images.SUFFIXES)}); move it elsewhere")
    if not files:
        raise UsageError(f"{folder}: holds no image; every class needs at least one")
    return files


def visible(folder: Path) -> Iterator[Path]:
    """Yields the content of a folder sorted by name, without hidden and `IGNORED` files.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        members = (p for p in folder.iterdir() if not p.name.startswith(".") and p.name not in IGNORED)
        yield from sorted(members, key=lambda member: member.name)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read ({error.strerror}); check its permissions") from error
