"""Reader of image sets that tensorflow-datasets has prepared as ArrayRecord; TensorFlow itself is not needed.

Nothing is ever downloaded but by `download`, which only `python -m fedvg_jax.prepare tfds:NAME --download` calls.
"""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError
from fedvg_jax.data import cache, images
from fedvg_jax.data.arrays import Arrays, check, reason

PREFIX = "tfds:"
LAYOUT = "NAME/[CONFIG/]VERSION/dataset_info.json and its .array_record files"
SPLITS = ("train", "validation", "test")
"""Pooled in this order; a set with none of them is read as all it has."""


class Name(NamedTuple):
    """NAME[/CONFIG][:VERSION], as tensorflow-datasets writes it."""

    name: str
    config: str | None
    version: str | None


def parse(text: str) -> Name:
    """The parts of the name after "tfds:".

    Raises:
        UsageError: it is none.

    >>> parse("medmnist/organ:1.0.0")
    Name(name='medmnist', config='organ', version='1.0.0')
    """
    found = re.fullmatch(r"(\w+)(?:/([\w.+-]+))?(?::(\d+\.\d+\.\d+))?", text, re.ASCII)
    if not found:
        raise UsageError(f"dataset must be {PREFIX}NAME, {PREFIX}NAME/CONFIG or {PREFIX}NAME:VERSION, got {text!r}")
    return Name(*found.groups())


def load(
    data_dir: Path,
    cache_dir: Path | None = None,
    *,
    name: str,
    size: images.Size | None = None,
    progress: images.Progress | None = None,
) -> Arrays:
    """A prepared set, x uint8 [T, H, W, D]: its splits train, validation and test pooled in this order.

    Args:
        data_dir: the folder that tensorflow-datasets calls data_dir, holding `LAYOUT`.
        cache_dir: where the decoded set is kept.
        name: NAME[/CONFIG][:VERSION]; the newest version there unless one is given.
        size: (H, W) to resize to; needed where images have several sizes.
        progress: called with (images done, all images).

    Raises:
        UsageError: the extra is not installed; or no such set, a damaged one, or one that is not of labelled images.
    """
    _refuse_no_utf8(data_dir)
    prepared = _find(data_dir, parse(name))
    members = sorted(path for path in prepared.iterdir() if path.is_file())
    sources = [str(name), cache.Folder(data_dir, members), f"{size}"]
    return cache.cached("tfds", sources, lambda: _decode(name, prepared, size, progress), cache_dir)


def download(name: str, data_dir: Path) -> None:
    """Downloads a set and prepares it as ArrayRecord, for a user who asked for it; most sets need TensorFlow for this.

    Raises:
        UsageError: it cannot be had.
    """
    parse(name)
    _refuse_no_utf8(data_dir)
    tfds = _library()
    try:
        tfds.builder(name, data_dir=str(data_dir), file_format="array_record").download_and_prepare()
    except Exception as error:  # of the network, of a builder, of a library it wants
        wants = "; preparing it needs TensorFlow: pip install tensorflow" if isinstance(error, ImportError) else ""
        raise UsageError(f"{PREFIX}{name} cannot be downloaded into {data_dir} ({reason(error)}){wants}") from error


def _refuse_no_utf8(data_dir: Path) -> None:
    """UsageError for a path that the readers of ArrayRecord, in C++, take no part of."""
    try:
        os.path.realpath(data_dir).encode()
    except UnicodeEncodeError:
        raise UsageError(f"--data-dir {str(data_dir)!r} is not UTF-8, as sets of {PREFIX} need it; rename it") from None


def _find(data_dir: Path, name: Name) -> Path:
    """The folder of the newest version that fits."""
    root = data_dir / name.name
    known = [path.parent for pattern in ("*", "*/*") for path in sorted(root.glob(f"{pattern}/dataset_info.json"))]
    fitting = [
        path
        for path in known
        if (name.version is None or path.name == name.version)
        and (name.config is None or path.parent.name == name.config)
    ]
    if not fitting:
        there = ", ".join(path.relative_to(data_dir).as_posix() for path in known)
        full = "/".join(part for part in name[:2] if part)
        wanted = f"{full}:{name.version}" if name.version else full
        raise UsageError(
            f"{data_dir}: holds no prepared {wanted} ({LAYOUT}){', but ' if there else ''}{there}; prepare it:"
            f" python -m fedvg_jax.prepare {PREFIX}{full} --data-dir {data_dir} --download"
        )
    configs = sorted({path.parent for path in fitting})
    if len(configs) > 1:
        choices = ", ".join(f"{PREFIX}{path.relative_to(data_dir).as_posix()}" for path in configs)
        raise UsageError(f"{root}: holds several configurations; give one of {choices}")
    return max(fitting, key=lambda path: [int(part) for part in re.findall(r"\d+", path.name)])


def _decode(name: str, prepared: Path, size: images.Size | None, progress: images.Progress | None) -> Arrays:
    try:
        _refuse_odd(prepared)
        tfds = _library()
        builder = tfds.builder_from_directory(prepared)
        image, label = _keys(tfds, builder.info, prepared)
        splits = [s for s in SPLITS if s in builder.info.splits] or list(builder.info.splits)
        decoders = {image: tfds.decode.SkipDecoding()}
        sources = [builder.as_data_source(split=split, decoders=decoders) for split in splits]
        rows = [(source, i, split) for source, split in zip(sources, splits, strict=True) for i in range(len(source))]
        if not rows:
            raise UsageError(f"{prepared}: holds no image; at least one is needed")
        y, turn = np.empty(len(rows), np.int64), threading.Lock()

        def read(row: int) -> tuple[bytes, object]:
            source, i, split = rows[row]
            with turn:  # a reader is not promised to bear several threads
                example = source[i]
            y[row] = example[label]
            return example[image], f"{prepared} ({split} row {i})"

        features = builder.info.features
        channels = 1 if features[image].shape[-1] == 1 else 3
        x = images.stack(len(rows), read, size=size, channels=channels, progress=progress)
        return check(Arrays(name, x, y, tuple(features[label].names), len(sources[0])), prepared)
    except UsageError:
        raise
    except Exception as error:  # a damaged set raises what its first bad byte leads to
        raise UsageError(f"{prepared}: not a complete prepared set ({reason(error)}); prepare it again") from error


def _refuse_odd(prepared: Path) -> None:
    """UsageError for a set in another format, or whose description names code of somebody else's."""
    info, features = (_json(prepared / name) for name in ("dataset_info.json", "features.json"))
    form = info.get("fileFormat", "tfrecord") if isinstance(info, dict) else None
    if form != "array_record":
        raise UsageError(f"{prepared}: prepared as {form}; prepare it again with file_format='array_record'")
    classes = re.findall(r'"pythonClassName": *"([^"]*)"', json.dumps(features))
    foreign = [name for name in classes if not name.startswith("tensorflow_datasets.core.features.")]
    if foreign:
        raise UsageError(
            f"{prepared}: features.json names {foreign[0]}; only tensorflow-datasets' own features are read"
        )


def _json(file: Path) -> Any:
    try:
        return files.parse_json(cache.contents(file), file)
    except UsageError as error:
        raise UsageError(f"{error}; prepare the set again") from None


def _keys(tfds: Any, info: Any, prepared: Path) -> tuple[str, str]:
    """The names of the image and of its label: those the set calls supervised, or the only ones of their kind."""
    kinds = {"image": tfds.features.Image, "label": tfds.features.ClassLabel}
    of_kind = {what: [key for key in info.features if type(info.features[key]) is kind] for what, kind in kinds.items()}
    supervised = info.supervised_keys or ()
    keys = [next((k for k in supervised if k in found), found[0] if found else None) for found in of_kind.values()]
    if None in keys or any(
        len(found) > 1 and key not in supervised for key, found in zip(keys, of_kind.values(), strict=True)
    ):
        raise UsageError(f"{prepared}: must have one image and one class label, got {', '.join(info.features)}")
    return keys[0], keys[1]


def _library() -> Any:
    try:
        import tensorflow_datasets  # heavy, and an extra

        return tensorflow_datasets
    except ImportError:
        raise UsageError(
            f"{PREFIX}NAME needs tensorflow-datasets: pip install 'fedvg_jax[tfds]' (no TensorFlow)"
        ) from None
