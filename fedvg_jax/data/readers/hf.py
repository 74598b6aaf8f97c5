"""Reads image data sets of Hugging Face datasets: folders of `save_to_disk`, and folders of parquet files.

Only `download` uses the network. Its only caller is `python -m fedvg_jax.prepare hf:NAME --download`.

A folder of sub-folders `partition_0`, `partition_1`, ..., each a saved set, is what `flwr-datasets create` writes. Its
rows are pooled, and their groups are the numbers of the folders.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Unpack

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import cache, images
from fedvg_jax.data.arrays import Arrays, check, numbers, reading, with_groups
from fedvg_jax.host import extras
from fedvg_jax.host.files import reason, user_path

T = TypeVar("T")

PREFIX = "hf:"
LAYOUT = "a set of `save_to_disk`, or .parquet files named by their split, such as data/train-00000-of-00001.parquet"

SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval"),
}
"""Splits to pool, in this order -> their names; of a set without any of them, all splits are pooled."""

IMAGE_NAMES = ("image", "img", "images", "pixel_values", "x")
LABEL_NAMES = ("label", "labels", "y", "target", "class", "character", "digit")
"""Usual names of columns, where their types do not tell them apart."""

STATE = "state.json"
DICT = "dataset_dict.json"
"""Files of `save_to_disk`: of one split, and of a dict of splits."""


class Columns(NamedTuple):
    """Names of the columns to read; empty ones are found."""

    image: str = ""
    label: str = ""
    group: str = ""
    """Column of the groups; empty reads none, except where the folder has partitions."""


class _Split(NamedTuple):
    """One split of a set, or one part of it."""

    name: str
    rows: Any
    """a `datasets.Dataset`"""
    partition: int | None = None
    """number of the folder that it comes from"""


def load(
    data_dir: Path | None,
    cache_dir: Path | None = None,
    *,
    name: str,
    columns: Columns = Columns(),  # noqa: B008  a named tuple of texts, never changed
    splits: str = "all",
    **how: Unpack[images.Decoding],
) -> Arrays:
    """Reads a set, x uint8 [T, H, W, D], with the splits train, validation and test pooled in this order.

    Args:
        data_dir: folder that `name` starts from; None is the current one.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        name: the folder of the set, with `LAYOUT`.
        columns: of images, labels and groups.
        splits: "all", or names of the splits to pool.
        how: see `images.Decoding`; a size is needed if images have several.

    Raises:
        UsageError: the extra is not installed; or the set is missing, damaged, or has no labelled images.
    """
    folder = find(data_dir, name)
    members = [path for path in sorted(folder.rglob("*")) if path.suffix in (".arrow", ".parquet", ".json")]
    members = [path for path in members if not _is_hidden(path.relative_to(folder)) and path.is_file()]
    sources = [*members, f"{how.get('size')}", repr(columns), splits]
    arrays = cache.cached("hf", sources, lambda: _decode(folder, columns, splits, **how), cache_dir)
    return arrays._replace(name=folder.resolve().name)


def find(data_dir: Path | None, name: str) -> Path:
    """Returns the folder of a set.

    Raises:
        UsageError: there is no such folder.
    """
    folder = (data_dir or Path()) / user_path(name)
    if not name or not folder.is_dir():
        raise UsageError(
            f"{folder}: no such folder; {PREFIX}FOLDER names {LAYOUT}, below --data-dir if that is given; fetch one of"
            f" the hub by python -m fedvg_jax.prepare {PREFIX}NAME --data-dir DIR --download"
        )
    return folder


def download(name: str, data_dir: Path) -> Path:
    """Downloads a set of the Hugging Face hub and saves it; returns its folder, `data_dir`/NAME.

    Args:
        name: NAME or OWNER/NAME, as on the hub, and :CONFIG where the set has several.
        data_dir: folder of the saved sets.

    Raises:
        UsageError: the folder exists, or the download fails.
    """
    match = re.fullmatch(r"([\w.-]+(?:/[\w.-]+)?)(?::([\w.-]+))?", name, re.ASCII)
    if not match or ".." in name:
        raise UsageError(f"--download is for {PREFIX}NAME or {PREFIX}OWNER/NAME of the hub, got {PREFIX}{name}")
    folder = data_dir / name
    if folder.exists():
        raise UsageError(f"{folder} exists; remove it first, or leave out --download")
    library = extras.load("datasets", "hf", f"{PREFIX}FOLDER")
    try:
        library.load_dataset(match[1], match[2]).save_to_disk(str(folder))
    except Exception as error:  # from the network, the hub, or the disk
        raise UsageError(f"{PREFIX}{name} cannot be downloaded into {data_dir} ({reason(error)})") from error
    return folder


# --- files


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _decode(folder: Path, columns: Columns, splits: str, **how: Unpack[images.Decoding]) -> Arrays:
    library = extras.load("datasets", "hf", f"{PREFIX}FOLDER")
    with reading(folder, "a complete set", f"it must be {LAYOUT}"):
        pooled = _pooled_splits(_splits(library, folder), splits, folder)
        return _arrays(library, pooled, columns, folder, **how)


def _splits(library: Any, folder: Path) -> list[_Split]:
    """Returns all splits of a folder, in the order of their files."""
    if (folder / DICT).is_file() or (folder / STATE).is_file():
        return _saved(library, folder)
    partitions = _partition_folders(folder)
    if partitions:
        return [split._replace(partition=number) for number, path in partitions for split in _splits(library, path)]
    files = [path for path in sorted(folder.rglob("*.parquet")) if not _is_hidden(path.relative_to(folder))]
    if not files:
        raise UsageError(f"{folder}: holds no set; it must be {LAYOUT}")
    return _parquet(library, files, folder)


def _partition_folders(folder: Path) -> list[tuple[int, Path]]:
    """Returns the sub-folders partition_K by K."""
    named = [(re.fullmatch(r"partition_(\d{1,9})", path.name), path) for path in folder.iterdir() if path.is_dir()]
    return sorted((int(match[1]), path) for match, path in named if match)


def _saved(library: Any, folder: Path) -> list[_Split]:
    stored = library.load_from_disk(str(folder))
    splits = dict(stored) if isinstance(stored, library.DatasetDict) else {"train": stored}
    return [_Split(name, _validated(rows)) for name, rows in splits.items()]


def _parquet(library: Any, files: Sequence[Path], folder: Path) -> list[_Split]:
    """Returns the splits of parquet files; files of no split are the training set if there is no other.

    Raises:
        UsageError: a split has files in several folders, which are several configurations of the set.
    """
    import pyarrow  # pyright: ignore[reportMissingImports]  part of the extra
    import pyarrow.parquet  # pyright: ignore[reportMissingImports]

    of_split: dict[str, list[Path]] = {}
    for file in files:
        of_split.setdefault(_split_of(file.relative_to(folder)), []).append(file)
    others = of_split.pop("", [])
    of_split.setdefault("train", others)
    splits = []
    for name, members in of_split.items():
        if len({path.parent for path in members}) > 1:
            listed = ", ".join(sorted({str(path.parent.relative_to(folder)) for path in members})[:4])
            raise UsageError(f"{folder}: holds several configurations ({listed}); name the folder of one")
        if members:
            table = pyarrow.concat_tables([pyarrow.parquet.ParquetFile(file).read() for file in members])
            splits.append(_Split(name, _validated(library.Dataset(table))))
    return splits


def _split_of(file: Path) -> str:
    """Returns the split that is a word of a file's name, or of its folders' from the inner one; "" if none is.

    >>> names = ("data/val-0-of-2", "set-test-0-of-1", "test/0000", "my_val-0", "rows")
    >>> [_split_of(Path(f"{name}.parquet")) for name in names]
    ['validation', 'test', 'test', 'validation', '']
    """
    texts = [re.split(r"[^a-z]+", text.lower()) for text in (file.stem, *file.parts[-2::-1])]
    return next((split for words in texts for split, names in SPLITS.items() if set(names) & set(words)), "")


def _validated(rows: Any) -> Any:
    """Returns a set whose Arrow buffers are consistent; reading others could crash the process."""
    rows.data.table.validate(full=True)
    return rows if rows._indices is None else rows.flatten_indices(keep_in_memory=True)


def _pooled_splits(splits: list[_Split], wanted: str, folder: Path) -> list[_Split]:
    """Returns the splits to pool, in the order of `SPLITS`; parts of one split in the order of their folders."""
    of_name: dict[str, list[_Split]] = {}
    for split in splits:
        of_name.setdefault(split.name, []).append(split)
    known = [of_name[name] for names in SPLITS.values() for name in of_name if name in names]
    chosen = known if wanted == "all" else chosen_splits(of_name, wanted, folder)
    return [split for members in chosen for split in members] or splits


def chosen_splits(splits: Mapping[str, T], wanted: str, folder: Path) -> list[T]:
    """Returns the splits of names NAME,... in their order, or all.

    Raises:
        UsageError: there is no such split.
    """
    names = [*splits] if wanted == "all" else [name.strip() for name in wanted.split(",")]
    if unknown := [name for name in names if name not in splits]:
        has = ", ".join(filter(None, splits)) or "none"
        raise UsageError(f"{folder}: has no split {unknown[0][:100]!r}; --splits is all, or some of its splits: {has}")
    return [splits[name] for name in dict.fromkeys(names)]


# --- columns


def _arrays(
    library: Any, splits: list[_Split], columns: Columns, folder: Path, **how: Unpack[images.Decoding]
) -> Arrays:
    splits = [split for split in splits if len(split.rows)]
    if not splits:
        raise UsageError(f"{folder}: holds no row; at least one image is needed")
    features = splits[0].rows.features
    for split in splits[1:]:
        if split.rows.features != features:
            raise UsageError(f"{folder}: split {split.name} has other columns than {splits[0].name}; make them equal")
    image = _image_column(library, features, columns.image, folder)
    label = _label_column(library, features, columns.label, image, folder)
    y, names = _labels(library, splits, label, folder)
    x = _images(library, splits, image, folder, **how)
    num_train = sum(len(split.rows) for split in splits if split.name == splits[0].name)
    arrays = check(Arrays(folder.name, x, y, names, num_train), folder)
    if columns.group:
        _require_column(features, columns.group, folder)
        return with_groups(arrays, _values(splits, columns.group, folder), f"{folder}, column {columns.group}")
    if splits[0].partition is None:
        return arrays
    partitions = np.repeat([str(part.partition) for part in splits], [len(part.rows) for part in splits])
    return with_groups(arrays, partitions, str(folder))


def _image_column(library: Any, features: Any, given: str, folder: Path) -> str:
    of_kind = [name for name, feature in features.items() if isinstance(feature, library.Image)]
    encoded = [name for name, feature in features.items() if _is_encoded(library, feature)]
    arrays = [name for name, feature in features.items() if _is_array(library, feature)]
    return _column(features, given, "image", of_kind or encoded or arrays, IMAGE_NAMES, folder)


def _is_array(library: Any, feature: Any) -> bool:
    """Returns whether a column holds arrays [H, W] or [H, W, D]."""
    return isinstance(feature, library.Array2D | library.Array3D)


def _label_column(library: Any, features: Any, given: str, image: str, folder: Path) -> str:
    of_kind = [name for name, feature in features.items() if isinstance(feature, library.ClassLabel)]
    others = {name: feature for name, feature in features.items() if name != image}
    return _column(others, given, "label", of_kind, LABEL_NAMES, folder)


def _column(features: Any, given: str, kind: str, of_kind: list[str], usual: Sequence[str], folder: Path) -> str:
    """Returns the column that is given, that is the only one of its kind, or that has a usual name."""
    flag, listed = f"--columns {kind}=NAME", ", ".join(features)
    if given:
        _require_column(features, given, folder)
    candidates = [given] if given else of_kind
    if len(candidates) != 1:
        candidates = [name for name in usual if name in (of_kind or features)][:1]
    if not candidates:
        raise UsageError(
            f"{folder}: several columns, or none, can be the {kind}; name one with {flag}: {listed}; texts and tables"
            " are given as arrays from Python, fedvg_jax.run(data=(x, y))"
        )
    return candidates[0]


def _require_column(features: Any, column: str, folder: Path) -> None:
    """Raises UsageError for a column that the set does not have."""
    if column not in features:
        raise UsageError(f"{folder}: has no column {column[:100]!r}; its columns are {', '.join(features)}")


def _is_encoded(library: Any, feature: Any) -> bool:
    """Returns whether a column holds the bytes of image files, which was written without the type of images."""
    if isinstance(feature, dict):
        return "bytes" in feature
    return isinstance(feature, library.Value) and feature.dtype in ("binary", "large_binary")


def _labels(library: Any, splits: list[_Split], column: str, folder: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns labels [T] and the names of the classes: those of the column, its texts, or its numbers."""
    feature = splits[0].rows.features[column]
    values = _values(splits, column, folder)
    if values.dtype.kind == "i" and values.min(initial=0) < 0:
        raise UsageError(f"{folder}: has rows without a label (-1), as test splits do; leave their split out: --splits")
    if isinstance(feature, library.ClassLabel):
        return values, tuple(feature.names)
    if values.dtype.kind == "U":
        texts, y = np.unique(values, return_inverse=True)
        return y, tuple(str(text) for text in texts)
    return values, tuple(numbers(int(values.max(initial=0))))


def _values(splits: list[_Split], column: str, folder: Path) -> np.ndarray:
    """Returns a column of integers or texts, [T].

    Raises:
        UsageError: it has other values, or misses some.
    """
    listed = [value for split in splits for value in split.rows.data.column(column).to_pylist()]
    if None in listed:
        raise UsageError(f"{folder}: column {column} misses the value of row {listed.index(None)}; remove such rows")
    values = np.array(listed)
    if values.dtype.kind in "bi":
        return values.astype(np.int64)
    if values.dtype.kind == "U":
        return values
    raise UsageError(f"{folder}: column {column} must hold integers or texts; name another with --columns")


def _images(
    library: Any, splits: list[_Split], column: str, folder: Path, **how: Unpack[images.Decoding]
) -> np.ndarray:
    """Returns uint8 [T, H, W, D] of a column of image files, or the arrays [T, H, W] or [T, H, W, D] of a column."""
    feature = splits[0].rows.features[column]
    if _is_array(library, feature):
        if how.get("size"):
            raise UsageError(f"{folder}: the arrays of column {column} have a fixed size; leave --image-size out")
        stored = [split.rows.with_format("numpy", dtype=feature.dtype)[column] for split in splits]
        return np.concatenate([np.asarray(part[:]) for part in stored])
    if not (isinstance(feature, library.Image) or _is_encoded(library, feature)):
        raise UsageError(f"{folder}: column {column} holds no image files; cast it to datasets.Image, or name another")
    stored = [split.rows.data.column(column) for split in splits]
    ends = np.cumsum([len(part) for part in stored])
    starts = [0, *ends[:-1]]

    def read(row: int) -> tuple[bytes, object]:
        part = int(np.searchsorted(ends, row, "right"))
        value = stored[part][row - starts[part]].as_py()
        source = f"{folder} ({splits[part].name} row {row - starts[part]})"
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes):
            raise UsageError(f"{source}: holds no bytes of an image; save the set with its images, by save_to_disk")
        return data, source

    num = int(ends[-1])
    are_grey = all(images.is_grey(*read(row)) for row in range(num))  # opens headers, up to the first with colours
    return images.stack(num, read, channels=1 if are_grey else 3, **how)
