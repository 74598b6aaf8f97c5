"""Corrupt training rows of some clients: wrong labels, noise, and feature shift that differs between clients.

Validation and test rows do not change. Corrupt updates are in `engine.attacks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

_DOMAIN = int.from_bytes(b"corrupt")
"""Separates these streams from others that are seeded with the same number."""


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
    """Returns the pool (x, y) with corrupt training rows of the clients `ids`; a changed array is a copy.

    Args:
        kind: one of `LABELS`, or feature_noise.
        x: [T, ...] images.
        y: [T] labels, or [T, L] of sequences.
        clients: training rows of every client.
        ids: int [m], ascending; client ids[i] has the relative feature shift (i + 1) / m.
        strength: in (0, 1]; its meaning depends on the kind.
        num_classes: C.
        seed: with the client's id, determines its random stream.
    """
    is_of_labels = kind in LABELS
    copy = np.array(y if is_of_labels else x)
    for i, client in enumerate(ids):
        rows, stream = clients[client], np.random.default_rng([_DOMAIN, seed, int(client)])
        if is_of_labels:
            copy[rows] = LABELS[kind](copy[rows], strength, num_classes, stream)
        else:
            copy[rows] = feature_noise(copy[rows], strength * (i + 1) / len(ids), stream)
    return (x, copy) if is_of_labels else (copy, y)


def rewritten(array: np.ndarray, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns a copy of `array` with `values` at `rows`.

    >>> rewritten(np.array([1, 2, 3]), np.array([1]), np.array([7])).tolist()
    [1, 7, 3]
    """
    copy = np.array(array)
    copy[rows] = values
    return copy


def label_flip(
    y: np.ndarray, share: float, num_classes: int, stream: np.random.Generator
) -> np.ndarray:
    """Replaces label c by C - 1 - c in floor(share n) random rows.

    >>> label_flip(np.array([0, 1, 2]), 1.0, 3, np.random.default_rng(0)).tolist()
    [2, 1, 0]

    Source: Fang et al., "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", USENIX Security 2020.
    """
    rows = stream.permutation(len(y))[: int(share * len(y))]
    return rewritten(y, rows, num_classes - 1 - y[rows])


def label_noise(
    y: np.ndarray, share: float, num_classes: int, stream: np.random.Generator
) -> np.ndarray:
    """Replaces labels by uniformly random other ones in floor(share n) random rows."""
    rows = stream.permutation(len(y))[: int(share * len(y))]
    steps = stream.integers(1, max(num_classes, 2), y[rows].shape)
    return rewritten(y, rows, (y[rows] + steps) % num_classes)


def feature_noise(x: np.ndarray, deviation: float, stream: np.random.Generator) -> np.ndarray:
    """Adds noise of this deviation to pixels in units of 0 to 1, and clips.

    Source: Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022.
    """
    noise = stream.standard_normal(x.shape, np.float32)
    return np.rint(np.clip(x + np.float32(255 * deviation) * noise, 0, 255)).astype(np.uint8)


LABELS: dict[str, Callable] = {"label_flip": label_flip, "label_noise": label_noise}
"""Kind -> (labels, strength, number of classes, stream) -> labels."""
