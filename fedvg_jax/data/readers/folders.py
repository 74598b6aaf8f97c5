"""Reads folders of images: one sub-folder per class, the COVID-19 chest X-rays, and Tiny ImageNet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import images
from fedvg_jax.data.arrays import Arrays, Size, check, reading, with_groups
from fedvg_jax.data.readers.sources import SPLITS, Reading, inside, pooled_splits

LAYOUT = "one sub-folder of images per class (in it, or in its folder images/), or train/, val/ and test/ with these"


def load(place: Path, _name: str, size: Size | None = None, group_pattern: str = "") -> Reading:
    """Reads the images of a folder, x uint8 [T, H, W, 3], with classes and images sorted by name.

    Official splits are pooled in the order train, validation, test.

    Args:
        place: a folder with `LAYOUT`.
        size: (H, W) to resize to; needed if images have several sizes.
        group_pattern: regular expression of the beginning of a file name. Its first group, or else all that it
            matches, names the group of the image, such as a patient. "" for none.

    Raises:
        UsageError: no such folder, a class without images, or a file among them that is not an image.
    """
    folders = {folder.name: folder for folder in _folders(place)}
    names_of_splits = set().union(*SPLITS)
    has_splits = all(name.lower() in names_of_splits for name in folders)
    splits = pooled_splits(folders, place) if has_splits and folders else [place]
    return _reading(place.resolve().name, place, splits, size, group_pattern)


def _reading(
    name: str, root: Path, splits: Sequence[Path], size: Size | None, group_pattern: str = ""
) -> Reading:
    """Reads the images of each split and class, class after class, the training set first."""
    of_splits = [_images_by_class(split) for split in splits]
    names = sorted(set().union(*of_splits))
    if len(names) < 2:
        raise UsageError(f"{root}: holds {len(names)} classes; it must hold {LAYOUT}")
    files, y = [], []
    for split in of_splits:
        for class_name, members in split.items():
            files += members
            y += [names.index(class_name)] * len(members)
    num_train = sum(map(len, of_splits[0].values()))

    def decode() -> Arrays:
        x = images.decode_files(files, size)
        arrays = check(Arrays(name, x, np.array(y), tuple(names), num_train), root)
        return with_groups(arrays, _groups(files, group_pattern), root) if group_pattern else arrays

    return Reading(files, decode)


def _images_by_class(split: Path) -> dict[str, list[Path]]:
    return {folder.name: images_in(folder) for folder in _folders(split)}


def _groups(files: Sequence[Path], pattern: str) -> np.ndarray:
    """Returns the group of every file, [T] texts; a UsageError for a file name without one."""
    matches = [re.match(pattern, file.name) for file in files]
    if None in matches:
        raise UsageError(
            f"{files[matches.index(None)]}: --group-pattern {pattern} does not match its beginning; correct it"
        )
    return np.array([match[match.re.groups and 1] for match in matches if match], str)


def images_in(folder: Path) -> list[Path]:
    """Returns the image files of one class, sorted by name.

    Raises:
        UsageError: there is none, or there is a file or folder that is not an image.
    """
    inner = folder / "images"
    folder = inner if inner.is_dir() else folder
    files = visible(folder)
    for file in files:
        if not file.is_file() or file.suffix.lower() not in images.SUFFIXES:
            raise UsageError(
                f"{file}: is not an image ({', '.join(images.SUFFIXES)}); move it elsewhere"
            )
    if not files:
        raise UsageError(f"{folder}: holds no image; every class needs at least one")
    return files


def visible(folder: Path) -> list[Path]:
    """Returns the content of a folder sorted by name, without hidden files."""
    return sorted(p for p in folder.iterdir() if not p.name.startswith("."))


def _folders(place: Path) -> list[Path]:
    return [inner for inner in visible(place) if inner.is_dir()] if place.is_dir() else []


# --- COVID-19 chest X-rays

XRAY_SIZE = (244, 224)
"""Height and width of the published arrays (244, not 224)."""


def load_covid19(place: Path, name: str, size: Size | None = None) -> Reading:
    """Reads chest X-rays of four classes, x uint8 [T, 244, 224, 3].

    Args:
        place: four folders of images, one per class.
        name: of the data set.
        size: (H, W) to resize to; `XRAY_SIZE` by default.

    Raises:
        UsageError: files missing or damaged.

    Source: U. Sait et al., Curated Dataset for COVID-19 Posterior-Anterior Chest Radiography Images, 2020.
    """
    return _reading(name, place, [place], size or XRAY_SIZE)


# --- Tiny ImageNet

TINY_LAYOUT = "the folder of Tiny ImageNet with wnids.txt, train/ and val/ with val_annotations.txt"


def load_tinyimagenet(place: Path, name: str, size: Size | None = None) -> Reading:
    """Reads Tiny ImageNet, x uint8 [110000, 64, 64, 3]: the training set, then the labelled validation set.

    Classes have the order and names of wnids.txt. The images of a class and of the validation set are sorted by file
    name, so a row is the same image on every machine.

    Args:
        place: `TINY_LAYOUT`, or its parent folder.
        name: of the data set.
        size: (H, W) to resize to.

    Raises:
        UsageError: files are missing, damaged or inconsistent.

    Source: Y. Le, X. Yang, Tiny ImageNet Visual Recognition Challenge, 2015 (ImageNet's terms: non-commercial).
    """
    root = inside(place, "tiny-imagenet-200")
    tables = [root / "wnids.txt", root / "val" / "val_annotations.txt"]
    with reading(root, TINY_LAYOUT, "fetch it again"):
        wnids = tables[0].read_text(encoding="utf-8").split()
        rows = [
            (file, c) for c, wnid in enumerate(wnids) for file in images_in(root / "train" / wnid)
        ]
        num_train = len(rows)
        # of each line: file, class and four numbers
        lines = tables[1].read_text(encoding="utf-8").splitlines()
        class_of = dict(line.split("\t")[:2] for line in lines)
        val = images_in(root / "val")
        if len(val) != len(class_of):
            raise ValueError(f"{len(class_of)} lines for {len(val)} images")
        rows += [(file, wnids.index(class_of[file.name])) for file in val]
    files, y = zip(*rows, strict=True)

    def decode() -> Arrays:
        x = images.decode_files(files, size)
        return check(Arrays(name, x, np.array(y), tuple(wnids), num_train), root)

    return Reading([*tables, *files], decode)
