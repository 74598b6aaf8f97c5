"""External validation sets: another set's images under this set's labels, by a map of class names.

The published code takes, from the official training images of the mapped classes, 50 of every class first and then all
of them once more in random order, 5,000 at most: STL-10 gives 9 (500 + 50) = 4,950, CIFAR-100's seven classes
7 x 500 + 3 x 50 = 3,650, which the paper calls a balanced sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import datasets
from fedvg_jax.data.arrays import Arrays

CIFAR100 = {
    "bus": "automobile",
    "motorcycle": "automobile",
    "leopard": "cat",
    "lion": "cat",
    "tiger": "cat",
    "wolf": "dog",
    "fox": "dog",
}
"""The paper's map to CIFAR-10: three of its ten classes."""

PICKUP_TRUCK = {"pickup_truck": "truck"}
"""Meant by the published code too, which misspells it and so finds none."""

STL10 = {name: name for name in ("airplane", "bird", "cat", "deer", "dog", "horse", "ship", "truck")} | {
    "car": "automobile"
}
"""Nine classes of CIFAR-10; STL-10 has no frog, CIFAR-10 no monkey."""

COPIES, MOST = 50, 5000
"""Images of every class taken first, and images in all, in the published code."""


def load(
    source: str, data_dir: Path, target: Arrays, classes: str = "paper", cache_dir: Path | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The mapped official training images of an external set: (x uint8 [E, H, W, D] as the target's, y int32 [E]).

    Args:
        source: cifar100, stl10, or npz, whose class names are the target's, or has none and so its numbers.
        data_dir: the folder or file of the external set.
        target: the set its labels and the size of its images become those of.
        classes: "paper", or "all" with `PICKUP_TRUCK`.
        cache_dir: where the decoded set is kept.

    Raises:
        UsageError: as `data.load`; no class in common; images of another number of channels.
    """
    found = datasets.load(source, data_dir, cache_dir)
    label_of = _labels(source, found, target, classes)
    x, y = found.x[: found.num_train], found.y[: found.num_train]
    mapped = np.array([label_of.get(name, -1) for name in found.class_names], np.int32)[y]
    rows = np.flatnonzero(mapped >= 0)
    if not len(rows):
        raise UsageError(f"{data_dir}: holds no training image of {', '.join(label_of)}")
    return resized(np.asarray(x[rows]), target.x.shape[1:], data_dir), mapped[rows]


def order(labels: np.ndarray, copies: str, stream: np.random.Generator) -> np.ndarray:
    """Which images are in D_val, and in which order: every one once at random ("none"), or as published ("official").

    >>> len(order(np.repeat([1, 3, 5], [1000, 1500, 1000]), "official", np.random.default_rng(0)))
    3650
    """
    everyone = stream.permutation(len(labels))
    if copies == "none":
        return everyone
    members = (np.flatnonzero(labels == c) for c in np.unique(labels))
    first = np.concatenate([stream.permutation(rows)[:COPIES] for rows in members])
    return np.concatenate([first, everyone])[: max(MOST, len(first))]


def resized(x: np.ndarray, shape: tuple[int, ...], source: object) -> np.ndarray:
    """Images as [E, *shape]: resized by Pillow's bilinear filter, which averages where it shrinks; grey becomes colour.

    Raises:
        UsageError: colour images where grey ones are needed.
    """
    height, width, depth = shape
    if x.shape[-1] not in (1, depth):
        raise UsageError(f"{source}: images have {x.shape[-1]} channels, but those of the training set have {depth}")
    if x.shape[1:3] != (height, width):
        try:
            from PIL import Image  # only external sets of another size need it
        except ImportError:
            raise UsageError(f"{source}: images of another size need Pillow; pip install pillow") from None
        pictures = (Image.fromarray(i.squeeze(-1) if i.shape[-1] == 1 else i) for i in x)
        small = [np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR)) for picture in pictures]
        x = np.stack(small).reshape(len(x), height, width, -1)
    return np.broadcast_to(x, (len(x), *shape))


def _labels(source: str, found: Arrays, target: Arrays, classes: str) -> dict[str, int]:
    """Name of a class of the external set -> label in the target."""
    number = {name: c for c, name in enumerate(target.class_names)}
    numbered = found.class_names == tuple(map(str, range(len(found.class_names))))
    if source == "npz" and numbered and len(found.class_names) <= len(number):
        return {name: int(name) for name in found.class_names}
    names = _names(source, found, classes)
    known = {name: number[own] for name, own in names.items() if own in number}
    lacking = sorted(set(names.values()) - number.keys()) if source != "npz" else []
    if not known or lacking:
        raise UsageError(
            f"validation.source {source} maps to the classes {', '.join(dict.fromkeys(names.values()))}, and"
            f" {target.name} has {', '.join(target.class_names)}"
        )
    return known


def _names(source: str, found: Arrays, classes: str) -> Mapping[str, str]:
    """Name of a class of the external set -> the target's name for it."""
    named = {"stl10": STL10, "cifar100": CIFAR100 | (PICKUP_TRUCK if classes == "all" else {})}
    return named.get(source) or {name: name for name in found.class_names}
