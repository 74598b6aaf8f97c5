"""Reads data sets of images or texts that the library `datasets` of Hugging Face saved or that are parquet files.

Images are decoded. A text becomes a row of hashed counts of its words, which needs no vocabulary and so nothing that is
fitted to the clients' texts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import images
from fedvg_jax.data.arrays import Arrays, Size, check, reading, with_groups
from fedvg_jax.data.readers.sources import Reading, numbers, pooled_splits
from fedvg_jax.host import extras

LAYOUT = "a set of `save_to_disk`, or .parquet files named by their split, such as data/train-00000-of-00001.parquet"

HASHES = 1024
"""Columns of a text."""

_TEXTS = ("string", "large_string")
"""Types of a column of texts."""

Columns = Mapping[str, str]
"""Role, one of input, label and group -> name of its column. Without one, inputs and labels are found."""


def load(
    folder: Path,
    _name: str,
    *,
    columns: Columns = {},  # noqa: B006  never changed
    splits: str = "all",
    size: Size | None = None,
) -> Reading:
    """Reads a set with the splits train, validation and test pooled in this order.

    x is uint8 [T, H, W, D] of images, or float16 [T, `HASHES`] of texts, of Euclidean length 1.

    Args:
        folder: holds `LAYOUT`.
        columns: of images or texts, labels and groups.
        splits: "all", or names of the splits to pool.
        size: (H, W) to resize to; needed if images have several sizes.

    Raises:
        UsageError: the extra is not installed; or the set is damaged, or has no labelled images or texts.
    """
    members = sorted(path for path in folder.rglob("*.*") if path.is_file())
    return Reading(members, lambda: _decode(folder, columns, splits, size))


def _decode(folder: Path, columns: Columns, splits: str, size: Size | None) -> Arrays:
    library = extras.load("datasets", "hf", "hf:FOLDER")
    with (
        reading(folder, "a complete set", f"it must be {LAYOUT}"),
        tempfile.TemporaryDirectory() as scratch,
    ):
        pooled = pooled_splits(_splits(library, folder, scratch), folder, splits)
        pooled = [split for split in pooled if len(split)]
        rows = library.concatenate_datasets(pooled)
        rows.data.table.validate(full=True)  # reading inconsistent buffers could crash the process
        y, names = _labels(library, rows, columns, folder)
        x = _inputs(library, rows, columns, folder, size)
        arrays = check(Arrays(folder.resolve().name, x, y, names, len(pooled[0])), folder)
        if group := columns.get("group"):
            groups = _values(rows, group, folder)
            arrays = with_groups(arrays, groups, f"{folder}, column {group}")
        return arrays


def _splits(library: Any, folder: Path, scratch: str) -> Mapping[str, Any]:
    """Returns all splits of a folder by name, each a `datasets.Dataset`; `scratch` holds what the library unpacks."""
    if not {"state.json", "dataset_dict.json"} & {path.name for path in folder.iterdir()}:
        return library.load_dataset(str(folder), cache_dir=scratch, verification_mode="no_checks")
    stored = library.load_from_disk(str(folder))
    return stored if isinstance(stored, dict) else {"train": stored}


def _inputs(
    library: Any, rows: Any, columns: Columns, folder: Path, size: Size | None
) -> np.ndarray:
    """Returns the rows of the column of images, or else of texts."""
    others, chosen = {columns.get("label"), columns.get("group")}, columns.get("input")
    features = {name: feature for name, feature in rows.features.items() if name not in others}
    of_images = [name for name, kind in features.items() if isinstance(kind, library.Image)]
    of_texts = [name for name, kind in features.items() if getattr(kind, "dtype", "") in _TEXTS]
    if chosen in of_texts or not of_images:
        return _counts(_column(rows, "text", chosen, of_texts, folder))
    return _images(_column(rows, "image", chosen, of_images, folder), folder, size)


def _column(rows: Any, role: str, name: str | None, candidates: Sequence[str], folder: Path) -> Any:
    """Returns the values of the column that the user names, the only candidate, or the one with the role's name."""
    if name is None:
        name = candidates[0] if len(candidates) == 1 else role
    if name not in rows.features:
        raise UsageError(
            f"{folder}: no column {name[:100]!r}; name the {role} with --input, --label or --group:"
            f" {', '.join(rows.features)}; tables are read from Python, fedvg_jax.run(data=frame, label=NAME)"
        )
    return rows.with_format("arrow")[:][name]


def _labels(
    library: Any, rows: Any, columns: Columns, folder: Path
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns labels [T] and the names of the classes, which are the column's names, its texts, or its numbers."""
    names_of = {
        name: feature.names
        for name, feature in rows.features.items()
        if isinstance(feature, library.ClassLabel)
    }
    found = next(iter(names_of)) if len(names_of) == 1 else "label"
    column = columns.get("label", found)
    values = _values(rows, column, folder)
    if values.dtype.kind == "U":
        texts, y = np.unique(values, return_inverse=True)
        return y, tuple(texts.tolist())
    return values, tuple(names_of.get(column) or numbers(int(values.max())))


def _values(rows: Any, column: str, folder: Path) -> np.ndarray:
    """Returns a column of integers or texts, [T]; a UsageError for other values, or rows without one."""
    values = np.array(_column(rows, "label", column, (), folder).to_pylist())
    if values.dtype.kind not in "biU":
        raise UsageError(
            f"{folder}: column {column[:100]} must have an integer or a text in every row; remove rows, or name another"
            f" one: {', '.join(rows.features)}"
        )
    return values if values.dtype.kind == "U" else values.astype(np.int64)


def _counts(column: Any) -> np.ndarray:
    """Returns float16 [T, `HASHES`], the hashed counts of the words of each text, of Euclidean length 1."""
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer: Any = HashingVectorizer(n_features=HASHES)
    sparse = vectorizer.transform([text or "" for text in column.to_pylist()]).tocoo()
    counts = np.zeros(sparse.shape, np.float16)
    counts[sparse.coords] = sparse.data
    return counts


def _images(column: Any, folder: Path, size: Size | None) -> np.ndarray:
    """Returns uint8 [T, H, W, D] of a column of image files."""

    def read(row: int) -> tuple[bytes, object]:
        return column[row].as_py()["bytes"] or b"", f"{folder} (row {row})"

    # opens headers, up to the first image in colour
    are_grey = all(images.is_grey(*read(row)) for row in range(len(column)))
    return images.stack(len(column), read, size, channels=1 if are_grey else 3)
