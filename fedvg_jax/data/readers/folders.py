"""Reads folders of images: one sub-folder per class, the COVID-19 chest X-rays, and Tiny ImageNet."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import cache, images
from fedvg_jax.data.arrays import Arrays, check, find, reading, with_groups
from fedvg_jax.data.readers.splits import SPLITS, pooled_splits

LAYOUT = "one sub-folder of images per class (in it, or in its folder images/), or train/, val/ and test/ with these"


def load(
    data_dir: Path,
    cache_dir: Path | None = None,
    splits: str = "all",
    group_pattern: str = "",
    **how: Unpack[images.Decoding],
) -> Arrays:
    """Reads the images of `data_dir`, x uint8 [T, H, W, 3], with classes and images sorted by name.

    Official splits are pooled in the order train, validation, test.

    Args:
        data_dir: a folder with `LAYOUT`.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        splits: "all", or names of the splits to pool.
        group_pattern: regular expression of the beginning of a file name. Its first group, or else all that it
            matches, names the group of the image, such as a patient. "" for none.
        how: see `images.Decoding`; a size is needed if images have several.

    Raises:
        UsageError: no such folder, a class without images, or a file among them that is not an image.
    """
    name, folders = data_dir.resolve().name, _split_folders(data_dir, splits)
    return decode(name, data_dir, folders, cache_dir, group_pattern, **how)


def decode(
    name: str,
    root: Path,
    splits: Sequence[Path],
    cache_dir: Path | None,
    group_pattern: str = "",
    **how: Unpack[images.Decoding],
) -> Arrays:
    """Decodes the images of each split and class, class after class.

    Args:
        name: of the data set.
        root: the folder of all files.
        splits: folders of classes, the training set first.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        group_pattern: as in `load`.
        how: see `images.Decoding`.
    """
    of_splits = [classes(split, 2 if split == root else 1) for split in splits]
    names = sorted(set().union(*of_splits))
    rows = [
        [(file, names.index(c)) for c, members in split.items() for file in members]
        for split in of_splits
    ]
    files, y = zip(*itertools.chain(*rows), strict=True)

    def read() -> Arrays:
        return check(
            Arrays(
                name, images.decode_files(files, **how), np.array(y), tuple(names), len(rows[0])
            ),
            root,
        )

    sources = [*map(cache.Status, files), f"{how.get('size')}"]
    arrays = cache.cached("folder", sources, read, cache_dir)._replace(name=name)
    return with_groups(arrays, _groups(files, group_pattern), root) if group_pattern else arrays


def _groups(files: Sequence[Path], pattern: str) -> np.ndarray:
    """Returns the group of every file, [T] texts; a UsageError for a file name without one."""
    groups = []
    for file in files:
        match = re.match(pattern, file.name)
        if not match:
            raise UsageError(
                f"{file}: --group-pattern {pattern} does not match its beginning; correct it"
            )
        groups.append(match[1] if match.re.groups else match[0])
    return np.array(groups, str)


def _split_folders(data_dir: Path, wanted: str) -> list[Path]:
    """Returns the folders of official splits in the order of `SPLITS`; the folder itself where it has none.

    Raises:
        UsageError: no such folder, or a split that is wanted and not there.
    """
    if not data_dir.is_dir():
        raise UsageError(f"{data_dir}: no such folder; --data-dir must hold {LAYOUT}")
    known = {name for names in SPLITS for name in names}
    splits = {folder.name: folder for folder in _folders(data_dir)}
    has_splits = bool(splits) and all(name.lower() in known for name in splits)
    return pooled_splits(splits if has_splits else {"": data_dir}, wanted, data_dir)


def classes(data_dir: Path, least: int = 2) -> dict[str, list[Path]]:
    """Returns class name -> image files, both sorted by name, of `least` classes or more.

    Raises:
        UsageError: there are fewer.
    """
    folders = _folders(data_dir)
    if len(folders) < least:
        got = f"{data_dir}: holds {len(folders)} sub-folders; it must hold {LAYOUT}"
        raise UsageError(f"{got}; or name others by --splits")
    return {folder.name: images_in(folder) for folder in folders}


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


# --- COVID-19 chest X-rays

XRAY_CLASSES = 4
XRAY_SIZE = (244, 224)
"""Height and width of the published arrays (244, not 224)."""

XRAY_LAYOUT = "four folders of images, one per class"
XRAY_SOURCE = (
    '"Curated Dataset for COVID-19 Posterior-Anterior Chest Radiography Images (X-Rays)",'
    " https://doi.org/10.17632/9xkhgts2s6"
)


def load_covid19(
    data_dir: Path, cache_dir: Path | None = None, **how: Unpack[images.Decoding]
) -> Arrays:
    """Reads chest X-rays of four classes, x uint8 [T, 244, 224, 3].

    Args:
        data_dir: a folder with `XRAY_LAYOUT`.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        how: see `images.Decoding`; the size is `XRAY_SIZE` by default.

    Raises:
        UsageError: files missing or damaged, or another number of classes.

    Source: U. Sait et al., Curated Dataset for COVID-19 Posterior-Anterior Chest Radiography Images, 2020.
    """
    how["size"] = how.get("size") or XRAY_SIZE
    if (num_folders := len(_folders(data_dir))) != XRAY_CLASSES:
        wanted = f"put {XRAY_SOURCE} there: {XRAY_LAYOUT}"
        raise UsageError(f"{data_dir}: holds {num_folders} folders; {wanted}")
    return decode("covid19", data_dir, [data_dir], cache_dir, **how)


def _folders(place: Path) -> list[Path]:
    return [inner for inner in visible(place) if inner.is_dir()] if place.is_dir() else []


# --- Tiny ImageNet

TINY_FOLDER = "tiny-imagenet-200"
TINY_LAYOUT = f"wnids.txt, train/ and val/ with val_annotations.txt (there or in {TINY_FOLDER}/)"


def load_tinyimagenet(
    data_dir: Path, cache_dir: Path | None = None, **how: Unpack[images.Decoding]
) -> Arrays:
    """Reads Tiny ImageNet, x uint8 [110000, 64, 64, 3]: the training set, then the labelled validation set.

    Classes have the order and names of wnids.txt. The images of a class and of the validation set are sorted by file
    name, so a row is the same image on every machine.

    Args:
        data_dir: a folder with `TINY_LAYOUT`.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        how: see `images.Decoding`.

    Raises:
        UsageError: files are missing, damaged or inconsistent.

    Source: Y. Le, X. Yang, Tiny ImageNet Visual Recognition Challenge, 2015 (ImageNet's terms: non-commercial).
    """
    root = find(data_dir, TINY_FOLDER, ["wnids.txt"], TINY_LAYOUT, "tinyimagenet")[0].parent
    wnids = _lines(root / "wnids.txt")
    members = [images_in(root / "train" / wnid) for wnid in wnids]
    if len({len(files) for files in members}) > 1:
        raise UsageError(
            f"{root}: classes have different numbers of images in train/; fetch it again"
        )
    train = [(file, label) for label, files in enumerate(members) for file in files]
    val = _val(root / "val", wnids)
    files = [file for file, _ in train + val]
    y = np.array([label for _, label in train + val])

    def read() -> Arrays:
        x = images.decode_files(files, **how)
        return check(Arrays("tinyimagenet", x, y, tuple(wnids), len(train)), root)

    tables = [root / "wnids.txt", root / "val" / "val_annotations.txt"]
    sources = [*tables, *map(cache.Status, files), f"{how.get('size')}"]
    return cache.cached("tinyimagenet", sources, read, cache_dir)


def _val(val: Path, wnids: list[str]) -> list[tuple[Path, int]]:
    """Returns (file, class) of the validation set.

    Lines of val_annotations.txt hold file name, class and four numbers, separated by tabs.
    """
    annotations, number = (
        val / "val_annotations.txt",
        {wnid: label for label, wnid in enumerate(wnids)},
    )
    with reading(
        annotations,
        "a table of the images and of classes in wnids.txt",
        "fetch it again",
    ):
        class_of = dict(line.split("\t")[:2] for line in _lines(annotations))
        files = images_in(val)
        if len(files) != len(class_of):
            raise ValueError(f"{len(class_of)} lines for {len(files)} images")
        return [(file, number[class_of[file.name]]) for file in files]


def _lines(file: Path) -> list[str]:
    with reading(file, "a text file", "fetch it again"):
        lines = [
            line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()
        ]
        if not lines:
            raise ValueError("empty")
        return lines
