"""Reads the COVID-19 chest X-rays: four folders of images, or the arrays of the published code."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import archive, cache, images
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.readers import folder, npy

NUM_CLASSES = 4
SIZE = (244, 224)
"""Height and width of the published arrays (244, not 224)."""

LAYOUT = f"four folders of images, one per class (there, in its only folder, or in its only .zip), or {npy.LAYOUT}"
SOURCE = (
    '"Curated Dataset for COVID-19 Posterior-Anterior Chest Radiography Images (X-Rays)",'
    " https://doi.org/10.17632/9xkhgts2s6"
)


def load(data_dir: Path, cache_dir: Path | None = None, **how: Unpack[images.Decoding]) -> Arrays:
    """Reads chest X-rays of four classes, x uint8 [T, 244, 224, 3] from images, or of the arrays' size.

    Args:
        data_dir: a folder with `LAYOUT`, or the .zip itself.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        how: see `images.Decoding`; the size is `SIZE` by default.

    Raises:
        UsageError: files missing or damaged, or another number of classes.

    Source: U. Sait et al., Curated Dataset for COVID-19 Posterior-Anterior Chest Radiography Images, 2020.
    """
    if data_dir.is_dir() and npy.is_layout_of(data_dir):
        if how.get("size"):
            raise UsageError(f"{data_dir}: the arrays in xdata.npy have a fixed size; leave --image-size out")
        return npy.load(data_dir, cache_dir, name="covid19", class_names=[str(c) for c in range(NUM_CLASSES)])
    how["size"] = how.get("size") or SIZE
    place = _only_zip(data_dir)
    if not place.is_file():
        return _decode(place, cache_dir, **how)
    sources = [place, f"{how.get('size')}"]
    return cache.cached("covid19", sources, lambda: archive.unzipped(place, SOURCE, _decode, **how), cache_dir)


def _decode(place: Path, cache_dir: Path | None = None, **how: Unpack[images.Decoding]) -> Arrays:
    root = _only_folder(place)
    names = [inner.name for inner in _folders(root)]
    if len(names) != NUM_CLASSES:
        got = ", ".join(names[:6]) or "none"
        raise UsageError(f"{root}: holds {len(names)} folders ({got}); it must hold {LAYOUT}; put {SOURCE} there")
    return folder.decode("covid19", root, cache_dir, **how)


def _only_zip(data_dir: Path) -> Path:
    """Returns the only .zip of a folder without sub-folders, otherwise the argument."""
    if data_dir.is_file() or _folders(data_dir):
        return data_dir
    zips = [data_dir / file.name for file in folder.visible(data_dir) if file.suffix.lower() == ".zip"]
    return zips[0] if len(zips) == 1 else data_dir


def _only_folder(place: Path) -> Path:
    """Returns the only sub-folder, which archives often have around all others; otherwise the argument."""
    inner = _folders(place)
    return inner[0] if len(inner) == 1 else place


def _folders(place: Path) -> list[Path]:
    return [inner for inner in folder.visible(place) if inner.is_dir()]
