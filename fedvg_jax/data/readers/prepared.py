"""Reads image data sets that other libraries prepared: Hugging Face datasets, and tensorflow-datasets as ArrayRecord.

Nothing is fetched or prepared here, and TensorFlow itself is not needed.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import cache, images
from fedvg_jax.data.arrays import Arrays, check, numbers, reading, with_groups
from fedvg_jax.host import extras
from fedvg_jax.host.files import user_path

T = TypeVar("T")

HF = "hf:"
TFDS = "tfds:"
TFDS_LAYOUT = "NAME/[CONFIG/]VERSION/dataset_info.json and its .array_record files"
HF_LAYOUT = "a set of `save_to_disk`, or .parquet files named by their split, such as data/train-00000-of-00001.parquet"

SPLITS = ("train", "training"), ("validation", "valid", "val", "dev"), ("test", "testing", "eval")
"""Names of the splits to pool, in this order; of a set without any of them, all splits are pooled."""

IMAGE_NAMES = ("image", "img", "images", "pixel_values", "x")
LABEL_NAMES = ("label", "labels", "y", "target", "class", "character", "digit")
"""Usual names of columns, where their types do not tell them apart."""

SAVED = ("state.json", "dataset_dict.json")
"""Files of `save_to_disk`: of one split, and of a dict of splits."""

Columns = Mapping[str, str]
"""Role, one of image, label and group -> name of its column. Without one, images and labels are found."""


def load_hf(
    data_dir: Path | None,
    cache_dir: Path | None = None,
    *,
    name: str,
    columns: Columns = {},  # noqa: B006  never changed
    splits: str = "all",
    **how: Unpack[images.Decoding],
) -> Arrays:
    """Reads a set, x uint8 [T, H, W, D], with the splits train, validation and test pooled in this order.

    Args:
        data_dir: folder that `name` starts from; None is the current one.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        name: the folder of the set, with `HF_LAYOUT`.
        columns: of images, labels and groups.
        splits: "all", or names of the splits to pool.
        how: see `images.Decoding`; a size is needed if images have several.

    Raises:
        UsageError: the extra is not installed; or the set is missing, damaged, or has no labelled images.
    """
    folder = find(data_dir, name)
    members = sorted(path for path in folder.rglob("*.*") if path.is_file())
    sources = [*members, f"{how.get('size')}", f"{sorted(columns.items())}", splits]
    arrays = cache.cached(
        "hf", sources, lambda: _decode_hf(folder, columns, splits, **how), cache_dir
    )
    return arrays._replace(name=folder.resolve().name)


def find(data_dir: Path | None, name: str) -> Path:
    """Returns the folder of a set.

    Raises:
        UsageError: there is no such folder.
    """
    folder = (data_dir or Path()) / user_path(name)
    if not name or not folder.is_dir():
        raise UsageError(
            f"{folder}: no such folder; {HF}FOLDER names {HF_LAYOUT}, below --data-dir if that is given; save one of"
            " the hub by datasets.load_dataset(NAME).save_to_disk(FOLDER)"
        )
    return folder


def pooled_splits(splits: Mapping[str, T], wanted: str, folder: Path) -> list[T]:
    """Returns the splits of names NAME,... in their order; "all" stands for `SPLITS` in its order.

    Raises:
        UsageError: there is no such split.
    """
    if wanted == "all":
        return [splits[name] for names in SPLITS for name in splits if name.lower() in names] or [
            *splits.values()
        ]
    names = dict.fromkeys(name.strip() for name in wanted.split(","))
    if unknown := [name for name in names if name not in splits]:
        has = ", ".join(filter(None, splits)) or "none"
        raise UsageError(
            f"{folder}: has no split {unknown[0][:100]!r}; --splits is all, or some of its splits: {has}"
        )
    return [splits[name] for name in names]


def _decode_hf(
    folder: Path, columns: Columns, splits: str, **how: Unpack[images.Decoding]
) -> Arrays:
    library = extras.load("datasets", "hf", f"{HF}FOLDER")
    with (
        reading(folder, "a complete set", f"it must be {HF_LAYOUT}"),
        tempfile.TemporaryDirectory() as scratch,
    ):
        parts = [
            part
            for part in pooled_splits(_splits(library, folder, scratch), splits, folder)
            if len(part)
        ]
        if not parts:
            raise UsageError(f"{folder}: holds no row; at least one image is needed")
        rows = library.concatenate_datasets(parts)
        rows.data.table.validate(full=True)  # reading inconsistent buffers could crash the process
        labels = [
            name
            for name, feature in rows.features.items()
            if isinstance(feature, library.ClassLabel)
        ]
        label = _column(rows, "label", columns, labels, LABEL_NAMES, folder)
        y, names = _labels(rows, label, folder)
        of_images = [name for name, feature in rows.features.items() if _is_image(library, feature)]
        image = _column(rows, "image", columns, of_images, IMAGE_NAMES, folder)
        x = _images(rows, image, folder, **how)
        arrays = check(Arrays(folder.name, x, y, names, len(parts[0])), folder)
        group = columns.get("group")
        return (
            with_groups(arrays, _values(rows, group, folder), f"{folder}, column {group}")
            if group
            else arrays
        )


def _splits(library: Any, folder: Path, scratch: str) -> Mapping[str, Any]:
    """Returns all splits of a folder by name, each a `datasets.Dataset`; `scratch` holds what the library unpacks."""
    if any((folder / name).is_file() for name in SAVED):
        stored = library.load_from_disk(str(folder))
        return stored if isinstance(stored, dict) else {"train": stored}
    return library.load_dataset(str(folder), cache_dir=scratch, verification_mode="no_checks")


def _is_image(library: Any, feature: Any) -> bool:
    """Returns whether a column holds images: as such, or as bytes of files, which others write."""
    if isinstance(feature, dict):
        return "bytes" in feature
    if isinstance(feature, library.Value):
        return feature.dtype in ("binary", "large_binary")
    return isinstance(feature, library.Image)


def _column(
    rows: Any, role: str, columns: Columns, of_kind: list[str], usual: Sequence[str], folder: Path
) -> str:
    """Returns the column that is given, that is the only one of its kind, or that has a usual name."""
    names = [columns[role]] if role in columns else of_kind
    if len(names) != 1:
        names = [name for name in usual if name in (names or rows.features)]
    if names and names[0] in rows.features:
        return names[0]
    raise UsageError(
        f"{folder}: several columns, or none, can be the {role}; name one with --columns {role}=NAME:"
        f" {', '.join(rows.features)}; texts and tables are given as arrays from Python, fedvg_jax.run(data=(x, y))"
    )


def _labels(rows: Any, column: str, folder: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns labels [T] and the names of the classes, which are the column's names, its texts, or its numbers."""
    values = _values(rows, column, folder)
    if values.dtype.kind == "U":
        texts, y = np.unique(values, return_inverse=True)
        return y, tuple(map(str, texts))
    if values.min() < 0:
        raise UsageError(
            f"{folder}: has rows without a label (-1), as test splits do; leave their split out: --splits"
        )
    return values, tuple(
        getattr(rows.features[column], "names", None) or numbers(int(values.max()))
    )


def _values(rows: Any, column: str, folder: Path) -> np.ndarray:
    """Returns a column of integers or texts, [T]; a UsageError for other values, or rows without one."""
    values = np.array(
        rows.with_format("arrow")[:][column].to_pylist() if column in rows.features else [None]
    )
    if values.dtype.kind not in "biU":
        raise UsageError(
            f"{folder}: column {column[:100]} must have an integer or a text in every row; remove rows, or name another"
            f" of --columns: {', '.join(rows.features)}"
        )
    return values if values.dtype.kind == "U" else values.astype(np.int64)


def _images(rows: Any, column: str, folder: Path, **how: Unpack[images.Decoding]) -> np.ndarray:
    """Returns uint8 [T, H, W, D] of a column of image files."""
    stored = rows.with_format("arrow")[:][column]

    def read(row: int) -> tuple[bytes, object]:
        value, source = stored[row].as_py(), f"{folder} (row {row})"
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes):
            raise UsageError(
                f"{source}: column {column} holds no bytes of an image; save the set by save_to_disk"
            )
        return data, source

    are_grey = all(
        images.is_grey(*read(row)) for row in range(len(stored))
    )  # opens headers, up to the first colours
    return images.stack(len(stored), read, channels=1 if are_grey else 3, **how)


# --- tensorflow-datasets


def load_tfds(
    data_dir: Path, cache_dir: Path | None = None, *, name: str, **how: Unpack[images.Decoding]
) -> Arrays:
    """Reads a prepared data set, x uint8 [T, H, W, D], with the splits train, validation and test pooled in this order.

    Args:
        data_dir: the data_dir of tensorflow-datasets, with `TFDS_LAYOUT`.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        name: NAME[/CONFIG][:VERSION]; without a version, the newest one in the folder.
        how: see `images.Decoding`; a size is needed if images have several.

    Raises:
        UsageError: the extra is not installed; or the data set is missing, damaged, or has no labelled images.
    """
    tfds = extras.load("tensorflow_datasets", "tfds", f"{TFDS}NAME")
    remedy = f"prepare it: tfds build {name} --data_dir {data_dir} --file_format=array_record"
    with reading(data_dir, f"a folder with {name} ({TFDS_LAYOUT})", remedy):
        builder = tfds.core.read_only_builder.builder_from_files(name, data_dir=str(data_dir))
    prepared = Path(builder.data_path)
    sources = [name, *sorted(filter(Path.is_file, prepared.iterdir())), f"{how.get('size')}"]
    return cache.cached(
        "tfds", sources, lambda: _decode_tfds(tfds, builder, prepared, name, **how), cache_dir
    )


def _decode_tfds(
    tfds: Any, builder: Any, prepared: Path, name: str, **how: Unpack[images.Decoding]
) -> Arrays:
    with reading(prepared, "a complete prepared data set", "prepare it again"):
        features = builder.info.features
        image = _key(builder.info, tfds.features.Image, prepared)
        label = _key(builder.info, tfds.features.ClassLabel, prepared)
        splits = pooled_splits({split: split for split in builder.info.splits}, "all", prepared)
        decoders = {image: tfds.decode.SkipDecoding()}
        sources = [builder.as_data_source(split=split, decoders=decoders) for split in splits]
        rows = [
            (source, i, split)
            for source, split in zip(sources, splits, strict=True)
            for i in range(len(source))
        ]
        y, lock = np.empty(len(rows), np.int64), threading.Lock()

        def read(row: int) -> tuple[bytes, object]:
            source, i, split = rows[row]
            with lock:  # readers are not documented as thread-safe
                example = source[i]
            y[row] = example[label]
            return example[image], f"{prepared} ({split} row {i})"

        channels = 1 if features[image].shape[-1] == 1 else 3
        x = images.stack(len(rows), read, channels=channels, **how)
        return check(Arrays(name, x, y, tuple(features[label].names), len(sources[0])), prepared)


def _key(info: Any, kind: type, prepared: Path) -> str:
    """Returns the name of the feature of a kind: a supervised key, or the only one."""
    keys = [key for key, feature in info.features.items() if type(feature) is kind]
    keys = [key for key in info.supervised_keys or () if key in keys] or keys
    if len(keys) != 1:
        raise UsageError(
            f"{prepared}: must have one image and one class label, got {', '.join(info.features)}"
        )
    return keys[0]
