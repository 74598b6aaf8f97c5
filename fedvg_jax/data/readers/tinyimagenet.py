"""Reader of Tiny ImageNet's official folder, unpacked or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import archive, cache, images
from fedvg_jax.data.archive import Place
from fedvg_jax.data.arrays import Arrays, check
from fedvg_jax.data.readers import folder

FOLDER = "tiny-imagenet-200"
ARCHIVE = f"{FOLDER}.zip"
LAYOUT = f"wnids.txt, train/ and val/ with val_annotations.txt (there or in {FOLDER}/), or {ARCHIVE}"
SOURCE = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"


def load(
    data_dir: Path,
    cache_dir: Path | None = None,
    *,
    size: images.Size | None = None,
    progress: images.Progress | None = None,
) -> Arrays:
    """Tiny ImageNet, x uint8 [110000, 64, 64, 3]: the training set, then the labelled validation set.

    Classes are in the order of wnids.txt and named by words.txt where it is there; the images of a class, and those of
    the validation set, are in the sorted order of their file names, so a row is the same image everywhere.

    Args:
        data_dir: a folder holding `LAYOUT`, or the archive itself.
        cache_dir: where the decoded set is kept.
        size: (H, W) to resize to.
        progress: called with (images done, all images).

    Raises:
        UsageError: files missing, damaged, or at odds with one another.

    Source: Y. Le, X. Yang, Tiny ImageNet Visual Recognition Challenge, 2015 (ImageNet's terms: non-commercial).
    """
    packed = data_dir / ARCHIVE
    is_unpacked = any((root / "wnids.txt").is_file() for root in (data_dir, data_dir / FOLDER))
    with archive.opened(packed if packed.is_file() and not is_unpacked else data_dir, SOURCE) as place:
        return _load(_find(place), cache_dir, size, progress)


def _load(root: Place, cache_dir: Path | None, size: images.Size | None, progress: images.Progress | None) -> Arrays:
    wnids = _lines(root / "wnids.txt")
    train = _train(root, wnids)
    val = _val(root / "val", wnids)
    files = [file for file, _ in train + val]
    y = np.array([label for _, label in train + val])

    def read() -> Arrays:
        x = images.stack(len(files), lambda i: (cache.contents(files[i]), files[i]), size=size, progress=progress)
        return check(Arrays("tinyimagenet", x, y, _names(root, wnids), len(train)), root)

    texts = (root / "wnids.txt", root / "words.txt", root / "val" / "val_annotations.txt")
    sources = folder.sources(root, [*(file for file in texts if file.is_file()), *files])
    return cache.cached("tinyimagenet", [*sources, f"{size}"], read, cache_dir)


def _find(data_dir: Place) -> Place:
    for root in (data_dir, data_dir / FOLDER):
        if (root / "wnids.txt").is_file():
            return root
    raise UsageError(f"{data_dir}: holds no {LAYOUT}; put {SOURCE} there")


def _train(root: Place, wnids: list[str]) -> list[tuple[Place, int]]:
    """(file, class) of the training set, class after class."""
    rows, fewest = [], {}
    for label, wnid in enumerate(wnids):
        of_class = root / "train" / wnid
        if not of_class.is_dir():
            raise UsageError(f"{of_class}: no such folder, but wnids.txt names the class; take it anew from {SOURCE}")
        files = folder.images_in(of_class)
        fewest.setdefault(len(files), of_class)
        rows += [(file, label) for file in files]
    if len(fewest) > 1:
        least, most = min(fewest), max(fewest)
        raise UsageError(f"{fewest[least]}: {least} images, but other classes have {most}; take it anew from {SOURCE}")
    return rows


def _val(val: Place, wnids: list[str]) -> list[tuple[Place, int]]:
    """(file, class) of the validation set, by val_annotations.txt: file name, class, four numbers, apart by tabs."""
    annotations = val / "val_annotations.txt"
    number = {wnid: label for label, wnid in enumerate(wnids)}
    labels = {}
    for line in _lines(annotations):
        name, wnid, *_ = [*line.split("\t"), ""]
        if wnid not in number:
            raise UsageError(
                f"{annotations}: {name} is of class {wnid!r}, which wnids.txt does not name; take it anew from {SOURCE}"
            )
        labels[name] = number[wnid]
    files = folder.images_in(val)
    if odd := sorted({file.name for file in files} ^ set(labels)):
        raise UsageError(f"{annotations}: {odd[0]} is only in one of it and images/; take it anew from {SOURCE}")
    return [(file, labels[file.name]) for file in files]


def _names(root: Place, wnids: list[str]) -> tuple[str, ...]:
    """The first word of each class, or its number in WordNet; the number too where two classes share the word."""
    words = root / "words.txt"
    known = dict(line.split("\t", 1) for line in _lines(words) if "\t" in line) if words.is_file() else {}
    firsts = [known.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    return tuple(
        f"{first} ({wnid})" if firsts.count(first) > 1 else first for first, wnid in zip(firsts, wnids, strict=True)
    )


def _lines(file: Place) -> list[str]:
    try:
        lines = [line.strip() for line in cache.contents(file).decode().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: no text file; take it anew from {SOURCE}") from error
    if not lines:
        raise UsageError(f"{file}: empty; take it anew from {SOURCE}")
    return lines
