"""Reader of a folder of images, one sub-folder per class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import archive, cache, images
from fedvg_jax.data.archive import Place
from fedvg_jax.data.arrays import Arrays, check

LAYOUT = "one sub-folder of images per class (in it, or in its folder images/)"

IGNORED = ("Thumbs.db", "desktop.ini", "__MACOSX")
"""What desktops leave in folders and archives of images; hidden files (.DS_Store) are ignored too."""


def load(
    data_dir: Path,
    cache_dir: Path | None = None,
    *,
    size: images.Size | None = None,
    progress: images.Progress | None = None,
) -> Arrays:
    """The images of `data_dir`, x uint8 [T, H, W, 3], classes and images in the sorted order of their names.

    Args:
        data_dir: a folder holding `LAYOUT`.
        cache_dir: where the decoded set is kept.
        size: (H, W) to resize to; needed where images have several sizes.
        progress: called with (images done, all images).

    Raises:
        UsageError: no such folder, a class without images, or a file among them that is no image.
    """
    name = data_dir.resolve().name
    return decode(name, classes(data_dir), data_dir, cache_dir, size, progress)


def decode(
    name: str,
    of_class: dict[str, list[Place]],
    root: Place,
    cache_dir: Path | None,
    size: images.Size | None,
    progress: images.Progress | None,
) -> Arrays:
    """The images of each class, class after class; there is no official test set."""
    files = [file for members in of_class.values() for file in members]
    y = np.repeat(np.arange(len(of_class)), [len(members) for members in of_class.values()])

    def read() -> Arrays:
        x = images.stack(len(files), lambda i: (cache.contents(files[i]), files[i]), size=size, progress=progress)
        return check(Arrays(name, x, y, tuple(of_class), len(x)), root)

    found = cache.cached("folder", [*sources(root, files), f"{size}"], read, cache_dir)
    return found._replace(name=name)


def classes(data_dir: Place) -> dict[str, list[Place]]:
    """Class name -> its image files, both sorted by name."""
    if not data_dir.is_dir():
        raise UsageError(f"{data_dir}: no such folder; --data-dir must hold {LAYOUT}")
    of_class = {folder.name: images_in(folder) for folder in visible(data_dir) if folder.is_dir()}
    if len(of_class) < 2:
        raise UsageError(f"{data_dir}: holds {len(of_class)} sub-folders; it must hold {LAYOUT}")
    return of_class


def images_in(folder: Place) -> list[Place]:
    """The image files of one class, sorted by name.

    Raises:
        UsageError: there is none, or something that is no image lies among them.
    """
    inner = folder / "images"
    folder = inner if inner.is_dir() else folder
    files = list(visible(folder))
    for file in files:
        if not file.is_file() or file.suffix.lower() not in images.SUFFIXES:
            kind = "file" if file.is_file() else "folder"
            raise UsageError(f"{file}: a {kind} that is no image ({', '.join(images.SUFFIXES)}); move it elsewhere")
    if not files:
        raise UsageError(f"{folder}: holds no image; every class needs at least one")
    return files


def sources(root: Place, files: Sequence[Place]) -> list[Path | cache.Folder | str]:
    """What a set in a folder or an archive is read from: these files, or all that is in the archive."""
    return [root.archive, root.at] if isinstance(root, archive.Entry) else [cache.Folder(root, files)]


def visible(folder: Place) -> Iterator[Place]:
    """What is in a folder and was meant to be, sorted by name.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        meant = (p for p in folder.iterdir() if not p.name.startswith(".") and p.name not in IGNORED)
        yield from sorted(meant, key=lambda place: place.name)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read ({error.strerror}); check its permissions") from error
