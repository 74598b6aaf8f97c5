"""Reads Tiny ImageNet's official folder, unpacked or not."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import archive, cache, images
from fedvg_jax.data.arrays import Arrays, check
from fedvg_jax.data.readers import folder

FOLDER = "tiny-imagenet-200"
ARCHIVE = f"{FOLDER}.zip"
LAYOUT = f"wnids.txt, train/ and val/ with val_annotations.txt (there or in {FOLDER}/), or {ARCHIVE}"
SOURCE = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"


def load(data_dir: Path, cache_dir: Path | None = None, **how: Unpack[images.Decoding]) -> Arrays:
    """Reads Tiny ImageNet, x uint8 [110000, 64, 64, 3]: the training set, then the labelled validation set.

    Classes have the order of wnids.txt and the names of words.txt, if present. The images of a class, and those of the
    validation set, are sorted by file name, so a row is the same image on every machine.

    Args:
        data_dir: a folder with `LAYOUT`, or the archive itself.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        how: see `images.Decoding`.

    Raises:
        UsageError: files are missing, damaged or inconsistent.

    Source: Y. Le, X. Yang, Tiny ImageNet Visual Recognition Challenge, 2015 (ImageNet's terms: non-commercial).
    """
    packed = data_dir if data_dir.is_file() else data_dir / ARCHIVE
    is_unpacked = any((root / "wnids.txt").is_file() for root in (data_dir, data_dir / FOLDER))
    if is_unpacked or not packed.is_file():
        return _decode(data_dir, cache_dir, **how)
    sources = [packed, f"{how.get('size')}"]
    return cache.cached("tinyimagenet", sources, lambda: archive.unzipped(packed, SOURCE, _decode, **how), cache_dir)


def _decode(data_dir: Path, cache_dir: Path | None = None, **how: Unpack[images.Decoding]) -> Arrays:
    root = _find(data_dir)
    wnids = _lines(root / "wnids.txt")
    train = _train(root, wnids)
    val = _val(root / "val", wnids)
    files = [file for file, _ in train + val]
    y = np.array([label for _, label in train + val])

    def read() -> Arrays:
        x = images.of_files(files, **how)
        return check(Arrays("tinyimagenet", x, y, _names(root, wnids), len(train)), root)

    texts = (root / "wnids.txt", root / "words.txt", root / "val" / "val_annotations.txt")
    sources = cache.Folder(root, [*(file for file in texts if file.is_file()), *files])
    return cache.cached("tinyimagenet", [sources, f"{how.get('size')}"], read, cache_dir)


def _find(data_dir: Path) -> Path:
    for root in (data_dir, data_dir / FOLDER):
        if (root / "wnids.txt").is_file():
            return root
    raise UsageError(f"{data_dir}: holds no {LAYOUT}; put {SOURCE} there")


def _train(root: Path, wnids: list[str]) -> list[tuple[Path, int]]:
    """Returns (file, class) of the training set, class after class."""
    rows, folder_by_size = [], {}
    for label, wnid in enumerate(wnids):
        of_class = root / "train" / wnid
        if not of_class.is_dir():
            raise UsageError(
                f"{of_class}: no such folder, but wnids.txt names the class; download it again from {SOURCE}"
            )
        files = folder.images_in(of_class)
        folder_by_size.setdefault(len(files), of_class)
        rows += [(file, label) for file in files]
    if len(folder_by_size) > 1:
        least, most = min(folder_by_size), max(folder_by_size)
        raise UsageError(
            f"{folder_by_size[least]}: {least} images, but other classes have {most}; download it again from {SOURCE}"
        )
    return rows


def _val(val: Path, wnids: list[str]) -> list[tuple[Path, int]]:
    """Returns (file, class) of the validation set.

    Lines of val_annotations.txt hold file name, class and four numbers, separated by tabs.
    """
    annotations = val / "val_annotations.txt"
    number = {wnid: label for label, wnid in enumerate(wnids)}
    labels = {}
    for line in _lines(annotations):
        name, wnid, *_ = [*line.split("\t"), ""]
        if wnid not in number:
            raise UsageError(
                f"{annotations}: {name} has class {wnid!r}, which is not in wnids.txt; download it again from {SOURCE}"
            )
        labels[name] = number[wnid]
    files = folder.images_in(val)
    if odd := sorted({file.name for file in files} ^ set(labels)):
        raise UsageError(
            f"{annotations}: {odd[0]} is not in both this file and images/; download it again from {SOURCE}"
        )
    return [(file, labels[file.name]) for file in files]


def _names(root: Path, wnids: list[str]) -> tuple[str, ...]:
    """Returns the first word of each class, or its WordNet number; both if two classes share the word."""
    words = root / "words.txt"
    words_of = dict(line.split("\t", 1) for line in _lines(words) if "\t" in line) if words.is_file() else {}
    firsts = [words_of.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    return tuple(
        f"{first} ({wnid})" if firsts.count(first) > 1 else first for first, wnid in zip(firsts, wnids, strict=True)
    )


def _lines(file: Path) -> list[str]:
    try:
        lines = [line.strip() for line in archive.contents(file).decode().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not a text file; download it again from {SOURCE}") from error
    if not lines:
        raise UsageError(f"{file}: empty; download it again from {SOURCE}")
    return lines
