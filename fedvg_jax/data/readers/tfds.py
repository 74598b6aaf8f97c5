"""Reads image data sets that tensorflow-datasets prepared as ArrayRecord; TensorFlow itself is not needed.

Only `download` uses the network. Its only caller is `python -m fedvg_jax.prepare tfds:NAME --download`.
"""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import cache, images
from fedvg_jax.data.arrays import Arrays, check, contents, reading
from fedvg_jax.host import extras, files

PREFIX = "tfds:"
LAYOUT = "NAME/[CONFIG/]VERSION/dataset_info.json and its .array_record files"
SPLITS = ("train", "validation", "test")
"""Splits to pool, in this order; of a data set without any of them, all splits are pooled."""


class Name(NamedTuple):
    """NAME[/CONFIG][:VERSION], the notation of tensorflow-datasets."""

    name: str
    config: str | None
    version: str | None


def parse(text: str) -> Name:
    """Parses the name after "tfds:".

    Raises:
        UsageError: it is not such a name.

    >>> parse("medmnist/organ:1.0.0")
    Name(name='medmnist', config='organ', version='1.0.0')
    """
    match = re.fullmatch(r"(\w+)(?:/([\w.+-]+))?(?::(\d+\.\d+\.\d+))?", text, re.ASCII)
    if not match:
        raise UsageError(f"dataset must be {PREFIX}NAME, {PREFIX}NAME/CONFIG or {PREFIX}NAME:VERSION, got {text!r}")
    return Name(*match.groups())


def load(data_dir: Path, cache_dir: Path | None = None, *, name: str, **how: Unpack[images.Decoding]) -> Arrays:
    """Reads a prepared data set, x uint8 [T, H, W, D], with the splits train, validation and test pooled in this order.

    Args:
        data_dir: the data_dir of tensorflow-datasets, with `LAYOUT`.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        name: NAME[/CONFIG][:VERSION]; without a version, the newest one in the folder.
        how: see `images.Decoding`; a size is needed if images have several.

    Raises:
        UsageError: the extra is not installed; or the data set is missing, damaged, or has no labelled images.
    """
    prepared = _find(data_dir, parse(name))
    members = sorted(path for path in prepared.iterdir() if path.is_file())
    sources = [str(name), *members, f"{how.get('size')}"]
    return cache.cached("tfds", sources, lambda: _decode(name, prepared, **how), cache_dir)


def download(name: str, data_dir: Path) -> None:
    """Downloads a data set and prepares it as ArrayRecord; most data sets need TensorFlow for this.

    Args:
        name: NAME[/CONFIG][:VERSION].
        data_dir: the data_dir of tensorflow-datasets.

    Raises:
        UsageError: the download or the preparation fails.
    """
    parse(name)
    tfds = extras.load("tensorflow_datasets", "tfds", f"{PREFIX}NAME")
    try:
        tfds.builder(name, data_dir=str(data_dir), file_format="array_record").download_and_prepare()
    except Exception as error:  # from the network, the builder, or a missing library
        remedy = "; preparing it needs TensorFlow: pip install tensorflow" if isinstance(error, ImportError) else ""
        raise UsageError(f"{PREFIX}{name} cannot be downloaded to {data_dir}: {files.reason(error)}{remedy}") from error


def _find(data_dir: Path, name: Name) -> Path:
    """Returns the folder of the newest version that matches `name`."""
    root = data_dir / name.name
    prepared = [path.parent for pattern in ("*", "*/*") for path in sorted(root.glob(f"{pattern}/dataset_info.json"))]
    matching = [path for path in prepared if name.version in (None, path.name)]
    matching = [path for path in matching if name.config in (None, path.parent.name)]
    if not matching:
        wanted = "/".join(part for part in name if part)
        present = ", ".join(path.relative_to(data_dir).as_posix() for path in prepared) or "no version"
        raise UsageError(
            f"{data_dir}: holds no prepared {wanted} ({LAYOUT}), but {present}; prepare it: python -m"
            f" fedvg_jax.prepare {PREFIX}{name.name} --data-dir {data_dir} --download"
        )
    configs = sorted({path.parent for path in matching})
    if len(configs) > 1:
        choices = ", ".join(f"{PREFIX}{path.relative_to(data_dir).as_posix()}" for path in configs)
        raise UsageError(f"{root}: holds several configurations; give one of {choices}")
    return max(matching, key=lambda path: [int(part) for part in re.findall(r"\d+", path.name)])


def _decode(name: str, prepared: Path, **how: Unpack[images.Decoding]) -> Arrays:
    with reading(prepared, "a complete prepared data set", "prepare it again"):
        _refuse_unsupported(prepared)
        tfds = extras.load("tensorflow_datasets", "tfds", f"{PREFIX}NAME")
        builder = tfds.builder_from_directory(prepared)
        image, label = _keys(tfds, builder.info, prepared)
        splits = [s for s in SPLITS if s in builder.info.splits] or list(builder.info.splits)
        decoders = {image: tfds.decode.SkipDecoding()}
        sources = [builder.as_data_source(split=split, decoders=decoders) for split in splits]
        rows = [(source, i, split) for source, split in zip(sources, splits, strict=True) for i in range(len(source))]
        if not rows:
            raise UsageError(f"{prepared}: holds no image; prepare a data set with at least one")
        y, lock = np.empty(len(rows), np.int64), threading.Lock()

        def read(row: int) -> tuple[bytes, object]:
            source, i, split = rows[row]
            with lock:  # readers are not documented as thread-safe
                example = source[i]
            y[row] = example[label]
            return example[image], f"{prepared} ({split} row {i})"

        features = builder.info.features
        channels = 1 if features[image].shape[-1] == 1 else 3
        x = images.stack(len(rows), read, channels=channels, **how)
        return check(Arrays(name, x, y, tuple(features[label].names), len(sources[0])), prepared)


def _refuse_unsupported(prepared: Path) -> None:
    """Raises a UsageError for another file format, or if the description names code outside tensorflow-datasets."""
    info, features = (json.loads(contents(prepared / name)) for name in ("dataset_info.json", "features.json"))
    form = info.get("fileFormat", "tfrecord") if isinstance(info, dict) else None
    if form != "array_record":
        raise UsageError(f"{prepared}: prepared as {form}; prepare it again with file_format='array_record'")
    classes = re.findall(r'"pythonClassName": *"([^"]*)"', json.dumps(features))
    foreign = [name for name in classes if not name.startswith("tensorflow_datasets.core.features.")]
    if foreign:
        raise UsageError(f"{prepared}: features.json names {foreign[0]}; only tensorflow-datasets' own are read")


def _keys(tfds: Any, info: Any, prepared: Path) -> tuple[str, str]:
    """Returns the names of the image and its label: the supervised keys, or the only features of their kind."""
    kinds = {"image": tfds.features.Image, "label": tfds.features.ClassLabel}
    of_kind = {what: [key for key in info.features if type(info.features[key]) is kind] for what, kind in kinds.items()}
    supervised = info.supervised_keys or ()
    keys = []
    for candidates in of_kind.values():
        chosen = [key for key in supervised if key in candidates][:1] or candidates
        if len(chosen) != 1:
            raise UsageError(f"{prepared}: must have one image and one class label, got {', '.join(info.features)}")
        keys += chosen
    return keys[0], keys[1]
