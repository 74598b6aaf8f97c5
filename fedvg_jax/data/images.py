"""Decodes image files to pixels; the only module of the data package that needs Pillow to read images."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.arrays import Size, reading
from fedvg_jax.host import extras

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
SUFFIXES = (
    ".jpg",
    ".jpeg",
    ".png",
    ".bmp",
    ".gif",
    ".tif",
    ".tiff",
    ".webp",
    ".ppm",
    ".pgm",
    ".jfif",
    ".jpe",
)

_IMAGES_PER_TASK = 64
"""Images that a thread decodes per task."""

_DEEP = ("I", "F")
"""Pillow's modes of more than 8 bits per channel; conversion to 8 bits would clip them."""

_MODES = {1: "L", 3: "RGB"}


def decode(data: bytes, source: object, size: Size | None = None, channels: int = 3) -> np.ndarray:
    """Decodes one image, turned or mirrored as its EXIF orientation says.

    Args:
        data: bytes of a file of one of `FORMATS`.
        source: its name in errors.
        size: (H, W) to resize to, bilinear with antialiasing; None keeps its size.
        channels: 1 (grey) or 3.

    Returns:
        uint8 [H, W, channels]

    Raises:
        UsageError: no image, a damaged one, or one with more than 8 bits per channel.
    """
    with _opened(data, source) as image:
        if image.mode.startswith(_DEEP):
            raise UsageError(
                f"{source}: more than 8 bits per channel (mode {image.mode}); convert it to 8 bits"
            )
        from PIL import ImageOps

        upright = ImageOps.exif_transpose(image)
        pixels = upright.convert(_MODES[channels])
        if size:
            pixels = pixels.resize((size[1], size[0]), pillow().Resampling.BILINEAR)
    return np.asarray(pixels).reshape(*pixels.size[::-1], channels)


def is_grey(data: bytes, source: object) -> bool:
    """Returns whether an image has no colours: Pillow's modes 1, L and LA. A damaged image is none; see `decode`."""
    with _opened(data, source) as image:
        return image.mode in ("1", "L", "LA")


@contextlib.contextmanager
def _opened(data: bytes, source: object) -> Iterator[Any]:
    """Yields Pillow's image; a UsageError if it cannot be read."""
    image_module = pillow()
    with (
        reading(
            source, f"a complete image of {', '.join(FORMATS)}", "fetch it again, or remove it"
        ),
        image_module.open(io.BytesIO(data), formats=FORMATS) as image,
    ):
        yield image


def stack(
    num: int,
    read: Callable[[int], tuple[bytes, object]],
    size: Size | None = None,
    channels: int = 3,
) -> np.ndarray:
    """Decodes images into one array, with one thread per core.

    Args:
        num: number of images, >= 1.
        read: (index of an image) -> its bytes, and its name in errors.
        size: as `decode`; if None, all images must have the same size.
        channels: 1 (grey) or 3.

    Returns:
        uint8 [num, H, W, channels]

    Raises:
        UsageError: for the first image (in order) that `decode` refuses or that has another size.
    """
    first = decode(*read(0), size, channels)
    x = np.empty((num, *first.shape), np.uint8)

    def fill(i: int) -> None:
        data, source = read(i)
        pixels = decode(data, source, size, channels)
        if pixels.shape != first.shape:
            raise UsageError(
                f"{source}: is an image of {pixels.shape}, others have {first.shape}; resize all: --image-size HxW"
            )
        x[i] = pixels

    with ThreadPool(os.cpu_count()) as threads:
        for _ in threads.imap(fill, range(num), _IMAGES_PER_TASK):
            pass
    return x


def decode_files(files: Sequence[Path], size: Size | None) -> np.ndarray:
    """Returns `stack` of image files."""
    return stack(len(files), lambda i: (files[i].read_bytes(), files[i]), size)


def pillow() -> Any:
    """Returns Pillow's module of images; `UsageError` where it is not installed."""
    return extras.load("PIL.Image", "images", "reading images")
