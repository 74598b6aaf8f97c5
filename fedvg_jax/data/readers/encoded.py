"""Reads encoded images (JPEG, PNG, ...) that are concatenated in one .npz file."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Unpack

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import cache, images
from fedvg_jax.data.arrays import Arrays, check
from fedvg_jax.data.readers import npz

SPLITS = ("train", "val", "test")
KINDS = ("jpeg", "png", "encoded")
LAYOUT = (
    "train_jpeg (uint8, the concatenated image files), train_offsets (the beginning of each, and the end), train_labels"
    "[, the same of val and test][, class_names]; png or encoded may replace jpeg"
)


def load(path: Path, cache_dir: Path | None = None, **how: Unpack[images.Decoding]) -> Arrays:
    """Reads the images in the .npz file `path`, or in the only .npz of the folder `path`: x uint8 [T, H, W, 3].

    Args:
        path: a file with `LAYOUT`, or its folder.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        how: see `images.Decoding`; a size is needed if images have several.

    Raises:
        UsageError: no file, several files, a damaged file, or missing or malformed arrays or images.
    """
    file = npz.find(path, LAYOUT)
    arrays = cache.cached("encoded", [file, f"{how.get('size')}"], lambda: _decode(file, **how), cache_dir)
    return arrays._replace(name=file.stem)


def _decode(file: Path, **how: Unpack[images.Decoding]) -> Arrays:
    keys = {f"{split}_{part}" for split in SPLITS for part in (*KINDS, "offsets", "labels")} | {"class_names"}
    members = npz.read(file, keys)
    kind = next((kind for kind in KINDS if f"train_{kind}" in members), None)
    if kind is None:
        raise UsageError(f"{file}: must hold {LAYOUT}; got {', '.join(members) or 'no array'}")
    pieces, labels, num_train = [], [], 0
    for split in (split for split in SPLITS if f"{split}_{kind}" in members):
        of_split, y = _pieces(members, split, kind, file)
        pieces += of_split
        labels.append(y)
        num_train = num_train or len(of_split)
    if not pieces:
        raise UsageError(f"{file}: holds no image; at least one is needed")
    x = images.stack(len(pieces), lambda i: pieces[i], **how)
    y = np.concatenate(labels)
    names = npz.names(members, y, file)
    return check(Arrays(file.stem, x, y, names, num_train), file)


def _pieces(members: dict[str, np.ndarray], split: str, kind: str, file: Path):
    """Returns [(bytes, name) of each image] and labels [n] of one split."""
    for part in ("offsets", "labels"):
        if f"{split}_{part}" not in members:
            raise UsageError(f"{file}: {split}_{part} is missing; it must hold {LAYOUT}")
    data, offsets, y = (members[f"{split}_{part}"] for part in (kind, "offsets", "labels"))
    flat = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    are_integers = all(np.issubdtype(a.dtype, np.integer) and a.ndim == 1 for a in (offsets, flat))
    if data.dtype != np.uint8 or data.ndim != 1 or not are_integers:
        raise UsageError(f"{file}: {split}_{kind} must be uint8 [n], {split}_offsets and {split}_labels integers [n]")
    if len(offsets) != len(flat) + 1:
        raise UsageError(f"{file}: {len(offsets) - 1} images in {split}_offsets but {len(flat)} labels")
    in_range = offsets.min() >= 0 and offsets.max() <= len(data)  # checked first, because differences may overflow
    ends = offsets.astype(np.int64)
    if not in_range or (np.diff(ends) < 0).any():
        raise UsageError(
            f"{file}: {split}_offsets must increase from 0 to at most the {len(data)} bytes of {split}_{kind}"
        )
    pieces = [(data[a:b].tobytes(), f"{file} ({split} image {i})") for i, (a, b) in enumerate(itertools.pairwise(ends))]
    return pieces, flat
