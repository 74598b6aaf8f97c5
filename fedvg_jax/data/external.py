"""External validation sets: images of another data set with this data set's labels, by a map of class names.

The published code uses the official training images of the mapped classes: 50 of every class, and then all of them
once more in random order, at most 5,000. STL-10 gives 9 (500 + 50) = 4,950 images. CIFAR-100's seven classes give
7 x 500 + 3 x 50 = 3,650, which the paper calls a balanced sample.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import datasets, images
from fedvg_jax.data.arrays import Arrays, is_features
from fedvg_jax.data.readers import npz

CIFAR100 = {
    "bus": "automobile",
    "motorcycle": "automobile",
    "leopard": "cat",
    "lion": "cat",
    "tiger": "cat",
    "wolf": "dog",
    "fox": "dog",
}
"""The paper's map to CIFAR-10; it covers three of the ten classes."""

PICKUP_TRUCK = {"pickup_truck": "truck"}
"""In the published code too, where a misspelled name matches no class."""

STL10 = {name: name for name in ("airplane", "bird", "cat", "deer", "dog", "horse", "ship", "truck")} | {
    "car": "automobile"
}
"""STL-10's classes -> nine classes of CIFAR-10. STL-10 has no frog, CIFAR-10 no monkey."""

MANIFEST = ("model", "weights", "shape", "normalise")
"""Entries of a manifest of features that D_val and the clients share."""

COPIES, MAX_IMAGES = 50, 5000
"""In the published code: images of every class that come first, and the maximum of all images."""


def load(
    source: str, data_dir: Path, target: Arrays, all_classes: bool = False, cache_dir: Path | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Loads the mapped official training images of an external set.

    Args:
        source: "cifar100", "stl10" or "npz". An npz has the target's class names, or no names and the target's numbers.
        data_dir: folder or file of the external set.
        target: data set whose labels and image size are used.
        all_classes: whether `PICKUP_TRUCK` is mapped, too.
        cache_dir: folder of the decoded data sets.

    Returns:
        x, uint8 images [E, H, W, D] of the target's size, or features [E, F]; and y int32 [E].

    Raises:
        UsageError: as `datasets.load`; no class in common; images with another number of channels; features of another
            length, or of images.
    """
    outside = datasets.load(source, data_dir, cache_dir)
    label_of = _labels(source, outside, target, all_classes)
    x, y = outside.x[: outside.num_train], outside.y[: outside.num_train]
    mapped = np.array([label_of.get(name, -1) for name in outside.class_names], np.int32)[y]
    rows = np.flatnonzero(mapped >= 0)
    if not len(rows):
        raise UsageError(f"{data_dir}: holds no training image of {', '.join(label_of)}; use a set with these classes")
    x, shape = np.asarray(x[rows]), target.x.shape[1:]
    if is_features(x) or is_features(target.x):
        if x.shape[1:] != shape or x.dtype.kind != target.x.dtype.kind:
            raise UsageError(
                f"{data_dir}: rows are {x.dtype} {list(x.shape[1:])}, those of {target.name} {target.x.dtype}"
                f" {list(shape)}; features of D_val and of the clients must come from one network"
            )
        return x, mapped[rows]
    return resized(x, shape, data_dir), mapped[rows]


def refuse_other_network(path: Path, own: Path) -> None:
    """Raises UsageError for features made otherwise than those of the clients, by the manifests of both files.

    Args:
        path: .npz file of D_val, or its folder; of a file without a manifest nothing is known.
        own: that of the clients' data.
    """
    theirs, ours = _manifest(path), _manifest(own)
    for name in MANIFEST:
        if name in theirs and name in ours and theirs[name] != ours[name]:
            raise UsageError(
                f"{path}: features of {name} {theirs[name]}, those of {own} of {ours[name]}; features of D_val and of"
                " the clients must come from one network and size"
            )


def _manifest(path: Path) -> dict[str, Any]:
    """Returns the manifest that `prepare features` wrote into an .npz file; {} where another program made it."""
    try:
        return dict(json.loads(str(npz.read(npz.find(path, npz.LAYOUT), ["manifest"])["manifest"])))
    except (KeyError, TypeError, ValueError, UsageError):
        return {}


def order(labels: np.ndarray, has_copies: bool, stream: np.random.Generator) -> np.ndarray:
    """Returns the order of the images in D_val, int64 [V].

    Args:
        labels: int [E].
        has_copies: whether the order is the published one, with copies; else every image comes once, in random order.
        stream: consumed.

    >>> len(order(np.repeat([1, 3, 5], [1000, 1500, 1000]), True, np.random.default_rng(0)))
    3650
    """
    shuffled = stream.permutation(len(labels))
    if not has_copies:
        return shuffled
    members = (np.flatnonzero(labels == c) for c in np.unique(labels))
    first = np.concatenate([stream.permutation(rows)[:COPIES] for rows in members])
    return np.concatenate([first, shuffled])[: max(MAX_IMAGES, len(first))]


def resized(x: np.ndarray, shape: tuple[int, ...], source: object) -> np.ndarray:
    """Resizes images to [E, *shape] with Pillow's bilinear filter, which averages when it shrinks; repeats grey as RGB.

    Args:
        x: uint8 [E, h, w, d].
        shape: (H, W, D).
        source: its name in errors.

    Raises:
        UsageError: colour images where grey ones are needed.
    """
    height, width, depth = shape
    if x.shape[-1] not in (1, depth):
        raise UsageError(f"{source}: images have {x.shape[-1]} channels, but those of the training set have {depth}")
    if x.shape[1:3] != (height, width):
        x = np.stack([_scaled(image, height, width) for image in x])
    return np.broadcast_to(x, (len(x), *shape))


def _scaled(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resizes one image [h, w, d] to [height, width, d]; all channels but RGB one by one.

    Pillow takes the last of two or four channels for opacity, which weighs the pixels of the others, and has no mode
    for other numbers of channels.
    """
    module = images.pillow()
    pictures = [image] if image.shape[-1] == 3 else list(np.moveaxis(image, -1, 0))
    scaled = [module.fromarray(picture).resize((width, height), module.Resampling.BILINEAR) for picture in pictures]
    return np.concatenate([np.asarray(picture).reshape(height, width, -1) for picture in scaled], -1)


def _labels(source: str, outside: Arrays, target: Arrays, all_classes: bool) -> dict[str, int]:
    """Returns the target's label of each mapped class of the external set."""
    number = {name: c for c, name in enumerate(target.class_names)}
    numbered = outside.class_names == tuple(map(str, range(len(outside.class_names))))
    is_named = number.keys() >= set(outside.class_names)
    if source == "npz" and numbered and not is_named and len(outside.class_names) <= len(number):
        return {name: int(name) for name in outside.class_names}
    named = {"stl10": STL10, "cifar100": CIFAR100 | (PICKUP_TRUCK if all_classes else {})}
    names = named.get(source) or {name: name for name in outside.class_names}
    mapped = {name: number[own] for name, own in names.items() if own in number}
    missing = sorted(set(names.values()) - number.keys()) if source != "npz" else []
    if not mapped or missing:
        raise UsageError(
            f"validation.source {source} maps to the classes {', '.join(dict.fromkeys(names.values()))}, and"
            f" {target.name} has {', '.join(target.class_names)}; use a source with the same classes"
        )
    return mapped
