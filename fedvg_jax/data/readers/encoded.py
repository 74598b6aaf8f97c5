"""Reader of encoded images (JPEG, PNG, ...) kept end to end in one .npz file."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import cache, images
from fedvg_jax.data.arrays import Arrays, check
from fedvg_jax.data.readers import npz

SPLITS = ("train", "val", "test")
KINDS = ("jpeg", "png", "encoded")
LAYOUT = (
    "train_jpeg (uint8, the image files end to end), train_offsets (where each begins, and the end), train_labels"
    "[, the same of val and test][, class_names]; png or encoded may stand for jpeg"
)


def load(
    path: Path,
    cache_dir: Path | None = None,
    *,
    size: images.Size | None = None,
    progress: images.Progress | None = None,
) -> Arrays:
    """The images in the .npz file `path`, or in the only .npz of the folder `path`: x uint8 [T, H, W, 3].

    Args:
        path: of a file with `LAYOUT`.
        cache_dir: where the decoded set is kept.
        size: (H, W) to resize to; needed where images have several sizes.
        progress: called with (images done, all images).

    Raises:
        UsageError: no such file, more than one, a damaged file, or arrays or images that are missing or malformed.
    """
    file = npz.find(path, LAYOUT)
    found = cache.cached("encoded", [file, f"{size}"], lambda: _decode(file, size, progress), cache_dir)
    return found._replace(name=file.stem)


def _decode(file: Path, size: images.Size | None, progress: images.Progress | None) -> Arrays:
    known = {f"{split}_{part}" for split in SPLITS for part in (*KINDS, "offsets", "labels")} | {"class_names"}
    members = npz.read(file, known)
    kind = next((kind for kind in KINDS if f"train_{kind}" in members), None)
    if kind is None:
        raise UsageError(f"{file}: must hold {LAYOUT}; got {', '.join(members) or 'no array'}")
    pieces, labels, num_train = [], [], 0
    for split in (split for split in SPLITS if f"{split}_{kind}" in members):
        new, y = _pieces(members, split, kind, file)
        pieces += new
        labels.append(y)
        num_train = num_train or len(new)
    if not pieces:
        raise UsageError(f"{file}: holds no image; at least one is needed")
    x = images.stack(len(pieces), lambda i: pieces[i], size=size, progress=progress)
    y = np.concatenate(labels)
    names = npz.names(members, y, file)
    return check(Arrays(file.stem, x, y, names, num_train), file)


def _pieces(members: dict[str, np.ndarray], split: str, kind: str, file: Path):
    """([(bytes, name of the image)], labels [n]) of one split."""
    for part in ("offsets", "labels"):
        if f"{split}_{part}" not in members:
            raise UsageError(f"{file}: {split}_{part} is missing; it must hold {LAYOUT}")
    data, offsets, y = (members[f"{split}_{part}"] for part in (kind, "offsets", "labels"))
    flat = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    whole = all(np.issubdtype(a.dtype, np.integer) and a.ndim == 1 for a in (offsets, flat))
    if data.dtype != np.uint8 or data.ndim != 1 or not whole:
        raise UsageError(f"{file}: {split}_{kind} must be uint8 [n], {split}_offsets and {split}_labels integers [n]")
    if len(offsets) != len(flat) + 1:
        raise UsageError(f"{file}: {len(offsets) - 1} images in {split}_offsets but {len(flat)} labels")
    in_range = offsets.min() >= 0 and offsets.max() <= len(data)  # before differences may overflow
    ends = offsets.astype(np.int64)
    if not in_range or (np.diff(ends) < 0).any():
        raise UsageError(f"{file}: {split}_offsets must rise from 0 to at most the {len(data)} bytes of {split}_{kind}")
    pieces = [(data[a:b].tobytes(), f"{file} ({split} image {i})") for i, (a, b) in enumerate(itertools.pairwise(ends))]
    return pieces, flat
