"""Corrupt training rows of a few clients, and feature shift: each of them sees the world in a way of its own.

Validation and test rows stay as they are. What the server is told (corrupt updates) is a matter of `attacks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

_DOMAIN = int.from_bytes(b"corrupt")
"""Keeps these streams apart from others that begin with the same seed."""


def apply(
    kind: str,
    x: np.ndarray,
    y: np.ndarray,
    clients: Sequence[np.ndarray],
    *,
    ids: np.ndarray,
    strength: float,
    num_classes: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The pool (x, y) with the training rows of the clients `ids` corrupt; what changes is a copy.

    Args:
        kind: one of `LABELS` or `IMAGES`, or none.
        clients: the training rows of every client.
        ids: ascending; the i-th of m has the feature shift (i + 1) / m.
        strength: in (0, 1]; see the kinds.
    """
    pool = x if kind in IMAGES else y
    if kind not in LABELS | IMAGES or not len(ids):
        return x, y
    copy = np.array(pool)
    for i, client in enumerate(ids):
        rows, stream = clients[client], np.random.default_rng([_DOMAIN, seed, int(client)])
        if kind in LABELS:
            copy[rows] = LABELS[kind](pool[rows], strength, num_classes, stream)
        elif len(rows):
            copy[rows] = IMAGES[kind](pool[rows], strength, stream, (i + 1) / len(ids))
    return (x, copy) if kind in LABELS else (copy, y)


def rewritten(array: np.ndarray, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A copy of `array` with `values` at `rows`."""
    copy = np.array(array)
    copy[rows] = values
    return copy


def label_flip(y: np.ndarray, share: float, num_classes: int, stream: np.random.Generator) -> np.ndarray:
    """Label c becomes C - 1 - c in floor(share n) random rows.

    Source: Fang et al., "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", USENIX Security 2020.
    """
    hit = stream.permutation(len(y))[: int(share * len(y))]
    return rewritten(y, hit, num_classes - 1 - y[hit])


def label_noise(y: np.ndarray, share: float, num_classes: int, stream: np.random.Generator) -> np.ndarray:
    """Another label, uniform among the C - 1 wrong ones, in floor(share n) random rows."""
    hit = stream.permutation(len(y))[: int(share * len(y))]
    return rewritten(y, hit, (y[hit] + stream.integers(1, max(num_classes, 2), len(hit))) % num_classes)


def pixel_noise(x: np.ndarray, deviation: float, stream: np.random.Generator, place: float = 1.0) -> np.ndarray:
    """x + deviation N(0, 1), pixels being 0 to 1, clipped; uint8 in, uint8 out."""
    noise = stream.standard_normal(x.shape, np.float32)
    return np.rint(np.clip(x + np.float32(255 * deviation) * noise, 0, 255)).astype(np.uint8)


def feature_noise(x: np.ndarray, strength: float, stream: np.random.Generator, place: float) -> np.ndarray:
    """Feature shift: noise of a client's own deviation, strength x place.

    Source: Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022.
    """
    return pixel_noise(x, strength * place, stream)


def rotate90(x: np.ndarray, strength: float, stream: np.random.Generator, place: float = 1.0) -> np.ndarray:
    """Feature shift: a client's own quarter turns, 1 to 3; images that are not square take the half turn."""
    turns = int(stream.integers(1, 4)) if x.shape[1] == x.shape[2] else 2
    return np.rot90(x, turns, (1, 2))


def rotate(x: np.ndarray, strength: float, stream: np.random.Generator, place: float = 1.0) -> np.ndarray:
    """Feature shift: a client's own angle, uniform within +- strength x 180 degrees, linearly interpolated; what comes
    into view repeats the border."""
    from scipy import ndimage  # only this kind needs it

    angle = stream.uniform(-180, 180) * strength
    return np.stack([ndimage.rotate(image, angle, reshape=False, order=1, mode="nearest") for image in x])


LABELS: dict[str, Callable] = {"label_flip": label_flip, "label_noise": label_noise}
"""kind -> (labels, strength, number of classes, stream) -> labels"""

IMAGES: dict[str, Callable] = {
    "pixel_noise": pixel_noise,
    "feature_noise": feature_noise,
    "rotate90": rotate90,
    "rotate": rotate,
}
"""kind -> (images, strength, stream, place) -> images"""
