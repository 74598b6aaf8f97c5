"""Reads one .npz file of images, such as those of MedMNIST, of features, or of encoded images (JPEG, PNG, ...)."""

from __future__ import annotations

import itertools
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO, Unpack

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import cache, images
from fedvg_jax.data.arrays import Arrays, check, numbers, pool, reading, refuse_too_large, with_groups
from fedvg_jax.data.readers import npy
from fedvg_jax.host import files

KEYS = (
    (("train_images", "train_labels"), ("val_images", "val_labels"), ("test_images", "test_labels")),
    (("x_train", "y_train"), ("x_val", "y_val"), ("x_test", "y_test")),
    (("x", "y"),),
    (("images", "labels"),),
)
"""Layouts, as (images or features, labels) of each split; only the first pair of a layout is required."""

LAYOUT = (
    "the arrays train_images, train_labels[, val_images, val_labels][, test_images, test_labels], "
    "or x_train, y_train[, x_val, y_val][, x_test, y_test], or x, y, or images, labels"
)


TEXT_TABLES = (".csv", ".tsv", ".xlsx")


def load(path: Path, cache_dir: Path | None = None) -> Arrays:
    """Reads the .npz file `path`, the only .npz file of the folder `path`, or the folder's x.npy and y.npy in place.

    Args:
        path: images uint8 [N, H, W] or [N, H, W, D], or features, floats [N, F]; labels of any integer dtype
            [N] or [N, 1], optional `class_names`, and optional `groups` [T], the group of each row, all splits
            in the order train, val, test.
        cache_dir: folder of the decoded data sets; None keeps nothing.

    Raises:
        UsageError: no file, several files, a damaged file, or missing or malformed arrays.
    """
    if npy.is_mapped(path):
        return npy.load_mapped(path)
    file = find(path, LAYOUT)
    arrays = cache.cached("npz", [file], lambda: decode(file, file.stem), cache_dir)
    return arrays._replace(name=file.stem)  # an entry may come from a file with another name


def decode(file: Path, name: str, class_names: Sequence[str] | None = None, without: Collection[str] = ()) -> Arrays:
    """Pools the splits of a file in the order train, val, test.

    Args:
        file: the .npz file.
        name: of the data set.
        class_names: used if the file has none; None numbers the classes.
        without: splits to leave out.
    """
    members = read(file, {key for layout in KEYS for pair in layout for key in pair} | {"class_names", "groups"})
    members = {key: array for key, array in members.items() if not {*key.split("_")} & {*without}}
    found = [layout for layout in KEYS if all(key in members for key in layout[0])]
    if len(found) > 1:
        shown = " and ".join(", ".join(layout[0]) for layout in found)
        raise UsageError(f"{file}: holds {shown}, which are several data sets; keep one of them")
    if not found:
        is_encoded = any(f"train_{kind}" in member_names(file) for kind in KINDS)
        hint = "; --dataset encoded reads encoded images" if is_encoded else ""
        raise UsageError(f"{file}: must hold {LAYOUT}; got {_first_names(file)}{hint}")
    splits = [_pair(members, pair, file) for pair in found[0] if any(key in members for key in pair)]
    if "class_names" in members:
        class_names = npy.texts(members["class_names"], file)
    arrays = pool(name, splits, class_names, file)
    return with_groups(arrays, members["groups"], file) if "groups" in members else arrays


def find(path: Path, layout: str) -> Path:
    """Returns the .npz file at `path`, or the only one in that folder.

    Raises:
        UsageError: there is none, or there are several.
    """
    tables = [file for file in ([path] if path.is_file() else path.glob("*")) if file.suffix in TEXT_TABLES]
    if tables and not (path.is_dir() and any(path.glob("*.npz"))):
        raise UsageError(
            f"{tables[0]}: a table in text is not read; read it with pandas.read_csv or numpy.loadtxt, and give"
            " fedvg_jax.run(config, data=(x, y)), or save numpy.savez(FILE, x=x, y=y)"
        )
    if path.is_file():
        return path
    if not path.is_dir():
        raise UsageError(f"{path}: no such file or folder; --data-dir must be a .npz file with {layout}")
    candidates = sorted(path.glob("*.npz"))
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise UsageError(f"{path}: holds no .npz file; put one there with {layout}")
    raise UsageError(f"{path}: holds {', '.join(f.name for f in candidates)}; give the one to read as --data-dir FILE")


def read(file: Path, keys: Collection[str]) -> dict[str, np.ndarray]:
    """Returns the members of `file` that are in `keys`.

    Raises:
        UsageError: no complete .npz file, pickled members, or members that exceed this machine's memory.
    """
    files.refuse_special(file)
    with (
        reading(file, "a complete .npz file of plain arrays", "fetch it again, or save it without objects"),
        file.open("rb") as stream,
    ):
        if not zipfile.is_zipfile(stream):
            raise zipfile.BadZipFile("not a zip archive, or one cut short")
        refuse_too_large(_claimed(stream, keys), file)
        stream.seek(0)  # zipfile leaves it at the end record; NumPy reads no archive from one of ZIP64
        with np.load(stream, allow_pickle=False) as archive:
            members = {key: archive[key] for key in archive.files if key in keys}
        odd = [key for key, member in members.items() if not isinstance(member, np.ndarray)]
        if odd:
            raise ValueError(f"its member {odd[0]} is not an array")
        return members


def member_names(file: Path) -> list[str]:
    """Returns the names of the arrays of an .npz file; none for another file, which `read` refuses with the reason."""
    try:
        with zipfile.ZipFile(file) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        return []


def _first_names(file: Path, most: int = 8) -> str:
    names = member_names(file)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "") or "no array"


def _pair(members: dict[str, np.ndarray], pair: tuple[str, str], file: Path) -> tuple[np.ndarray, np.ndarray]:
    missing = [key for key in pair if key not in members]
    if missing:
        raise UsageError(f"{file}: holds only one of {pair[0]} and {pair[1]}; {missing[0]} is missing")
    return members[pair[0]], members[pair[1]]


def _claimed(stream: IO[bytes], keys: Collection[str]) -> int:
    """Returns the unpacked size that the members claim; a small file may claim more than any memory."""
    with zipfile.ZipFile(stream) as archive:
        return sum(m.file_size for m in archive.infolist() if m.filename.removesuffix(".npy") in keys)


# --- encoded images, concatenated

SPLITS = ("train", "val", "test")
KINDS = ("jpeg", "png", "encoded")
ENCODED_LAYOUT = (
    "train_jpeg (uint8, the concatenated image files), train_offsets (the beginning of each, and the end), train_labels"
    "[, the same of val and test][, class_names]; png or encoded may replace jpeg"
)


def load_encoded(path: Path, cache_dir: Path | None = None, **how: Unpack[images.Decoding]) -> Arrays:
    """Reads the images in the .npz file `path`, or in the only .npz of the folder `path`: x uint8 [T, H, W, 3].

    Args:
        path: a file with `ENCODED_LAYOUT`, or its folder.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        how: see `images.Decoding`; a size is needed if images have several.

    Raises:
        UsageError: no file, several files, a damaged file, or missing or malformed arrays or images.
    """
    file = find(path, ENCODED_LAYOUT)
    arrays = cache.cached("encoded", [file, f"{how.get('size')}"], lambda: _decode_encoded(file, **how), cache_dir)
    return arrays._replace(name=file.stem)


def _decode_encoded(file: Path, **how: Unpack[images.Decoding]) -> Arrays:
    keys = {f"{split}_{part}" for split in SPLITS for part in (*KINDS, "offsets", "labels")} | {"class_names"}
    members = read(file, keys)
    kind = next((kind for kind in KINDS if f"train_{kind}" in members), None)
    if kind is None:
        raise UsageError(f"{file}: must hold {ENCODED_LAYOUT}; got {_first_names(file)}")
    pieces, labels = [], []
    for split in (split for split in SPLITS if f"{split}_{kind}" in members):
        of_split, y = _pieces(members, split, kind, file)
        pieces += of_split
        labels.append(y)
    if not pieces:
        raise UsageError(f"{file}: holds no image; at least one is needed")
    x = images.stack(len(pieces), lambda i: pieces[i], **how)
    y = np.concatenate(labels)
    is_named = "class_names" in members
    names = npy.texts(members["class_names"], file) if is_named else numbers(int(y.max(initial=0)))
    return check(Arrays(file.stem, x, y, tuple(names), len(labels[0])), file)


def _pieces(members: dict[str, np.ndarray], split: str, kind: str, file: Path):
    """Returns [(bytes, name) of each image] and labels [n] of one split."""
    for part in ("offsets", "labels"):
        if f"{split}_{part}" not in members:
            raise UsageError(f"{file}: {split}_{part} is missing; it must hold {ENCODED_LAYOUT}")
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
        raise UsageError(f"{file}: {split}_offsets must increase in 0..{len(data)}, the bytes of {split}_{kind}")
    pieces = [(data[a:b].tobytes(), f"{file} ({split} image {i})") for i, (a, b) in enumerate(itertools.pairwise(ends))]
    return pieces, flat
