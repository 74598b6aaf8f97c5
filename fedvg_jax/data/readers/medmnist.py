"""Reads the paper's two MedMNIST data sets, in any of their published sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import cache, images
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.readers import npz

SIZES = (28, 64, 128, 224)
SOURCE = "of https://medmnist.com"


class Published(NamedTuple):
    """One of the data sets."""

    class_names: tuple[str, ...]
    size: int
    """Height and width of the paper's images."""
    left_out: tuple[str, ...] = ()
    """Splits that the published code leaves out."""


SETS = {
    "organamnist": Published(
        (
            *("bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right"),
            *("liver", "lung-left", "lung-right", "pancreas", "spleen"),
        ),
        28,
    ),
    "dermamnist": Published(
        (
            "actinic keratoses and intraepithelial carcinoma",
            "basal cell carcinoma",
            "benign keratosis-like lesions",
            "dermatofibroma",
            "melanoma",
            "melanocytic nevi",
            "vascular lesions",
        ),
        224,
        ("val",),
    ),
}


def file_name(name: str, size: int) -> str:
    """Returns the name of the published file.

    >>> file_name("organamnist", 28), file_name("dermamnist", 224)
    ('organamnist.npz', 'dermamnist_224.npz')
    """
    return f"{name}.npz" if size == 28 else f"{name}_{size}.npz"


def layout(name: str) -> str:
    """Returns a text that says what the folder must hold."""
    files = ", ".join(f"{file_name(name, size)}" for size in SIZES)
    return f"{file_name(name, SETS[name].size)} (--image-size chooses among {files})"


def load(
    data_dir: Path,
    cache_dir: Path | None = None,
    *,
    name: str,
    size: images.Size | None = None,
    splits: Literal["all", "official"] = "all",
) -> Arrays:
    """Reads OrganAMNIST (58,830 grey images) or DermaMNIST (10,015 in colour), all splits pooled, training set first.

    Args:
        data_dir: a folder with `layout(name)`, or the .npz file itself.
        cache_dir: folder of the decoded data sets; None keeps nothing.
        name: one of `SETS`.
        size: (S, S) with S in `SIZES`; by default the paper's.
        splits: "official" leaves the validation split out, as the published code does for DermaMNIST (9,012 images).

    Raises:
        UsageError: files missing or damaged, or images of another size.

    Source: J. Yang et al., MedMNIST v2, Scientific Data, 2023.
    """
    names, left_out = SETS[name].class_names, SETS[name].left_out if splits == "official" else ()
    side = size[0] if size else SETS[name].size
    file = data_dir if data_dir.is_file() else data_dir / file_name(name, side)
    if not file.is_file():
        raise UsageError(f"{data_dir}: holds no {file.name}; put {layout(name)} {SOURCE} there")
    arrays = cache.cached(
        name, [file, f"without {left_out}"], lambda: npz.decode(file, name, names, left_out), cache_dir
    )
    if size and arrays.x.shape[1:3] != size:
        got = " x ".join(map(str, arrays.x.shape[1:3]))
        raise UsageError(f"{file}: images of {got}, but --image-size asks for {size[0]} x {size[1]}; fetch it again")
    return arrays
