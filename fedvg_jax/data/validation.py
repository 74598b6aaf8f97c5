"""The shared validation set D_val: the clients' validation rows or an external set; smaller, imbalanced or noisy.

Of an external set, the published code uses the official training images of the mapped classes: 50 of every class, and
then all of them once more in random order, at most 5,000. STL-10 gives 9 (500 + 50) = 4,950 images. CIFAR-100's seven
classes give 7 x 500 + 3 x 50 = 3,650, which the paper calls a balanced sample.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import corrupt, datasets
from fedvg_jax.data.arrays import Arrays, shape
from fedvg_jax.data.partitions.client_rows import Partition, joined
from fedvg_jax.host.files import user_path

_SOURCE, _CLIENTS, _SUBSET, _RHO, _NOISE = range(5)
_DOMAIN = int.from_bytes(b"validation")
"""Separates these streams from others that are seeded with the same number."""


class Shared(NamedTuple):
    """D_val, and the pool that it is part of."""

    x: np.ndarray
    """[T + E, H, W, D], the data set's images, then E external images."""
    y: np.ndarray
    """[T + E] labels."""
    rows: np.ndarray
    """int32 [V], rows of D_val in the order of scoring."""
    most: int
    """Largest number of rows over all partitions and seeds."""
    clients: np.ndarray | None
    """int [m], the clients that contribute rows; None for all clients or an external set."""


def from_clients(
    arrays: Arrays, parts: Partition, share: float, val_ratio: float, seed: int
) -> Shared:
    """Builds D_val from the clients' validation rows in the order of clients, as published.

    Args:
        arrays: the data set.
        parts: the partition.
        share: share of the clients that contribute, chosen by `seed`, in (0, 1].
        val_ratio: the partition's, for `Shared.most`.
        seed: the partition's.

    Raises:
        UsageError: the chosen clients have no validation row.
    """
    chosen, members = None, parts.val
    if share < 1:
        if len(parts.val) < len(parts.train):
            raise UsageError(
                "validation.source clients:F chooses among clients, and validation rows belong to none; leave it out"
            )
        count = max(1, round(share * len(parts.val)))
        chosen = np.sort(_stream(seed, _CLIENTS).choice(len(parts.val), count, replace=False))
        members = [parts.val[k] for k in chosen]
    rows = joined(members)
    if not len(rows):
        raise UsageError(
            "the clients of D_val have no validation row; use a larger share, --validation.source clients:F, or another"
        )
    return Shared(arrays.x, arrays.y, rows, int(val_ratio * len(arrays.y)), chosen)


def from_outside(
    arrays: Arrays, x: np.ndarray, y: np.ndarray, has_copies: bool, seed: int
) -> Shared:
    """Builds D_val from external images, in the order of `order`; equal for every partition.

    Args:
        arrays: the data set; the external images are appended to its pool.
        x: uint8 [E, H, W, D], or features [E, F].
        y: int32 [E].
        has_copies: see `order`.
        seed: the partition's.
    """
    rows = len(arrays.y) + order(y, has_copies, _stream(seed, _SOURCE)).astype(np.int32)
    pool = np.concatenate([arrays.x, x]), np.concatenate([arrays.y, y])
    return Shared(*pool, rows, len(rows), None)


def subset(shared: Shared, size: int, seed: int) -> Shared:
    """Keeps random images in their order; a smaller subset is part of every larger one.

    Args:
        shared: D_val of V images.
        size: number of images.
        seed: the partition's.

    Raises:
        UsageError: `size` exceeds V.

    >>> whole = Shared(np.zeros((5, 1)), np.zeros(5), np.arange(5), 5, None)
    >>> len(subset(whole, 2, seed=0).rows)
    2
    """
    available = len(shared.rows)
    if size > available:
        raise UsageError(
            f"validation.size must be at most {available}, the number of images, got {size}"
        )
    places = np.sort(_stream(seed, _SUBSET).permutation(available)[:size])
    return shared._replace(rows=shared.rows[places])


def imbalanced(
    shared: Shared, rho: float, num_classes: int, seed: int, batch_size: int = 0
) -> Shared:
    """Keeps n_i = min(floor(p_i floor(V / 2)), V_i) random images of class i, with p_i = rho^i / sum_j rho^j.

    V_i is the number of images of class i. This cap makes the subset smaller than V / 2 if rho is small. Images keep
    their order.

    Args:
        shared: D_val of V images.
        rho: in (0, 1]; 1 is balanced.
        num_classes: C, i = 0..C-1.
        seed: the partition's.
        batch_size: > 0 sorts rows by class and drops an incomplete last batch, as published; 0 does neither.

    Raises:
        UsageError: a class has no image, or fewer than two images remain.

    Source: Devkota et al., appendix; the cap is the published code's.
    """
    labels = shared.y[shared.rows]
    available = np.bincount(labels, minlength=num_classes)
    shares = rho ** np.arange(num_classes)
    # equal shares divide exactly
    wanted = np.floor(shares * (len(labels) // 2) / shares.sum()).astype(int)
    stream = _stream(seed, _RHO)
    drawn = [stream.permutation(np.flatnonzero(labels == c))[:n] for c, n in enumerate(wanted)]
    kept = np.sort(np.concatenate(drawn))
    if batch_size:
        kept = kept[np.argsort(labels[kept], kind="stable")]
        kept = kept[: len(kept) // batch_size * batch_size]
    if len(kept) < 2 or not available.all():
        raise UsageError(
            f"validation.rho {rho} needs images of every class and two or more in the end; got {available.tolist()} of"
            f" the classes, and {len(kept)} in the end; use more images, or rho 0"
        )
    return shared._replace(rows=shared.rows[kept])


def noisy(shared: Shared, label_noise: float, num_classes: int, seed: int) -> Shared:
    """Changes labels of D_val. Its rows belong to no other set, so only its rows of the pool change.

    Args:
        shared: D_val.
        label_noise: share of the images that get another label.
        num_classes: C.
        seed: the partition's.
    """
    rows = np.unique(shared.rows)
    labels = corrupt.label_noise(shared.y[rows], label_noise, num_classes, _stream(seed, _NOISE))
    return shared._replace(y=corrupt.rewritten(shared.y, rows, labels))


def _stream(seed: int, domain: int) -> np.random.Generator:
    return np.random.default_rng([_DOMAIN, domain, seed])


# --- external sets

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

STL10 = {"car": "automobile"}
"""STL-10's other classes have the names of CIFAR-10's. STL-10 has no frog, CIFAR-10 no monkey."""

COPIES, MAX_IMAGES = 50, 5000
"""In the published code: images of every class that come first, and the maximum of all images."""


def outside_images(
    source: str,
    data_dir: Path | None,
    target: Arrays,
    all_classes: bool = False,
    cache_dir: Path | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Loads the mapped official training images of an external set.

    Args:
        source: "cifar100", "stl10" or "npz", of the same names of classes.
        data_dir: folder or file of the external set; None for a downloaded one.
        target: data set that gives labels and image size.
        all_classes: whether `PICKUP_TRUCK` is mapped, too.
        cache_dir: folder of the decoded data sets.

    Returns:
        x, uint8 images [E, H, W, D] of the target's size, or features [E, F]; and y int32 [E].

    Raises:
        UsageError: as `datasets.load`; no class in common; images with another number of channels; features of another
            length, or of images.
    """
    if data_dir and not user_path(data_dir).exists():
        raise UsageError(f"validation.data_dir {data_dir}: no such file or folder")
    outside = datasets.load(source, data_dir, cache_dir)
    cifar100 = CIFAR100 | PICKUP_TRUCK if all_classes else CIFAR100
    renamed = {"stl10": STL10, "cifar100": cifar100}.get(source, {})
    number = {name: c for c, name in enumerate(target.class_names)}
    labels = np.array([number.get(renamed.get(name, name), -1) for name in outside.class_names])
    y = labels[outside.y[: outside.num_train]].astype(np.int32)
    rows = np.flatnonzero(y >= 0)
    if not len(rows) or not {*renamed.values()} <= {*number}:
        raise UsageError(
            f"validation.source {source} has rows of {', '.join(outside.class_names)[:200]}, and {target.name} has"
            f" {', '.join(target.class_names)[:200]}; use a source with the same names of classes"
        )
    x, like = np.asarray(outside.x[rows]), target.x
    if x.ndim == like.ndim == 4 and x.shape[-1] in (1, like.shape[-1]):
        x = resized(x, like.shape[1:])
    if x.shape[1:] != like.shape[1:]:
        raise UsageError(
            f"{source} of D_val: is {shape(x)}, and {target.name} is {shape(like)}; use images with as many"
            " channels, or features from the network of the clients' features"
        )
    return x, y[rows]


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


def resized(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Resizes images to [E, *shape] with Pillow's bilinear filter, which averages when it shrinks; repeats grey as RGB.

    Args:
        x: uint8 [E, h, w, d], d = 1 or D.
        shape: (H, W, D).
    """
    height, width, _ = shape
    if x.shape[1:3] != (height, width):
        from fedvg_jax.data import images

        pillow = images.pillow()
        # grey images have no last axis in Pillow
        pictures = map(pillow.fromarray, x[..., 0] if x.shape[-1] == 1 else x)
        bilinear = pillow.Resampling.BILINEAR
        x = np.stack([np.asarray(image.resize((width, height), bilinear)) for image in pictures])
    return np.broadcast_to(x.reshape(len(x), height, width, -1), (len(x), *shape))
