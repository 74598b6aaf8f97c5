"""Reads image data sets that tensorflow-datasets prepared as ArrayRecord files. TensorFlow itself is not needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import images
from fedvg_jax.data.arrays import Arrays, Size, check, reading
from fedvg_jax.data.readers.sources import Reading, pooled_splits
from fedvg_jax.host import extras


def load(data_dir: Path, name: str, size: Size | None = None) -> Reading:
    """Reads a prepared data set, x uint8 [T, H, W, D], with the splits train, validation and test pooled in this order.

    Args:
        data_dir: the data_dir of tensorflow-datasets.
        name: tfds:NAME[/CONFIG][:VERSION]; without a version, the newest one in the folder.
        size: (H, W) to resize to; needed if images have several sizes.

    Raises:
        UsageError: the extra is not installed; or the data set is missing, damaged, or has no labelled images.
    """
    library = extras.load("tensorflow_datasets", "tfds", "tfds:NAME")
    name = name.removeprefix("tfds:")
    remedy = f"prepare it: tfds build {name} --data_dir {data_dir} --file_format=array_record"
    with reading(data_dir, f"a folder with {name} as ArrayRecord files", remedy):
        builder = library.core.read_only_builder.builder_from_files(name, data_dir=str(data_dir))
    files = sorted(filter(Path.is_file, Path(builder.data_path).iterdir()))
    return Reading(files, lambda: _decode(library, builder, name, size))


def _decode(library: Any, builder: Any, name: str, size: Size | None) -> Arrays:
    files, info = Path(builder.data_path), builder.info
    with reading(files, "a complete prepared data set", "prepare it again"):
        image = _key(info, library.features.Image, files)
        label = _key(info, library.features.ClassLabel, files)
        splits = pooled_splits({split: split for split in info.splits}, files)
        decoders = {image: library.decode.SkipDecoding()}
        sources = [builder.as_data_source(split=split, decoders=decoders) for split in splits]
        rows = [source[i] for source in sources for i in range(len(source))]  # encoded images

        def read(row: int) -> tuple[bytes, object]:
            return rows[row][image], f"{files} (row {row})"

        channels = 1 if info.features[image].shape[-1] == 1 else 3
        x = images.stack(len(rows), read, size, channels)
        y, names = np.array([row[label] for row in rows]), tuple(info.features[label].names)
        return check(Arrays(name, x, y, names, len(sources[0])), files)


def _key(info: Any, kind: type, files: Path) -> str:
    """Returns the name of the feature of a kind: a supervised key, or the only one."""
    keys = [key for key, feature in info.features.items() if type(feature) is kind]
    keys = [key for key in info.supervised_keys or () if key in keys] or keys
    if len(keys) != 1:
        has = ", ".join(info.features)
        raise UsageError(f"{files}: must have one image and one class label, got {has}")
    return keys[0]
