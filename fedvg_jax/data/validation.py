"""The shared validation set D_val: the clients' validation rows or an external set; smaller, imbalanced or noisy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import corrupt, external
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions.client_rows import Partition, joined

_SOURCE, _CLIENTS, _SUBSET, _RHO, _NOISE, _SELECTION = range(6)
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


def from_clients(arrays: Arrays, parts: Partition, share: float, val_ratio: float, seed: int) -> Shared:
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
    chosen = None
    if share < 1:
        if len(parts.val) < len(parts.train):
            raise UsageError(
                f"validation.source clients:{share} chooses among clients, and validation rows belong to none here;"
                " leave it out"
            )
        count = max(1, round(share * len(parts.val)))
        chosen = np.sort(_stream(seed, _CLIENTS).choice(len(parts.val), count, replace=False))
    rows = joined(parts.val if chosen is None else [parts.val[k] for k in chosen])
    if not len(rows):
        owners = "the partition" if chosen is None else f"clients {', '.join(map(str, chosen))}"
        advice = "add some to it, or use another --validation.source"
        advice = advice if chosen is None else "use a larger share, --validation.source clients:F"
        raise UsageError(f"{owners} left no validation row; {advice}")
    return Shared(arrays.x, arrays.y, rows.astype(np.int32), int(val_ratio * len(arrays.y)), chosen)


def from_outside(arrays: Arrays, x: np.ndarray, y: np.ndarray, has_copies: bool, seed: int) -> Shared:
    """Builds D_val from external images, in the order of `external.order`; equal for every partition.

    Args:
        arrays: the data set; the external images are appended to its pool.
        x: uint8 [E, H, W, D], or features [E, F].
        y: int32 [E].
        has_copies: see `external.order`.
        seed: the partition's.
    """
    rows = len(arrays.y) + external.order(y, has_copies, _stream(seed, _SOURCE)).astype(np.int32)
    pool = np.concatenate([arrays.x, x]), np.concatenate([arrays.y, y])
    return Shared(*pool, rows.astype(np.int32), len(rows), None)


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
        raise UsageError(f"validation.size must be at most {available}, the number of images, got {size}")
    places = np.sort(_stream(seed, _SUBSET).permutation(available)[:size])
    return shared._replace(rows=shared.rows[places])


def imbalanced(shared: Shared, rho: float, num_classes: int, seed: int, batch_size: int = 0) -> Shared:
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
    if not available.all():
        missing = ", ".join(map(str, np.flatnonzero(available == 0)))
        raise UsageError(f"validation.rho needs images of every class, and there is none of {missing}; use rho 0")
    shares = rho ** np.arange(num_classes)
    wanted = np.floor(shares * (len(labels) // 2) / shares.sum()).astype(int)  # equal shares divide exactly
    stream = _stream(seed, _RHO)
    drawn = [stream.permutation(np.flatnonzero(labels == c))[:n] for c, n in enumerate(wanted)]
    kept = np.sort(np.concatenate(drawn))
    if batch_size:
        kept = kept[np.argsort(labels[kept], kind="stable")]
        kept = kept[: len(kept) // batch_size * batch_size]
    if len(kept) < 2:
        raise UsageError(f"validation.rho {rho} leaves {len(kept)} of {len(labels)} validation images; use more images")
    return shared._replace(rows=shared.rows[kept])


def noisy(shared: Shared, label_noise: float, num_classes: int, seed: int) -> Shared:
    """Changes labels of D_val. Its rows belong to no other set, so only its rows of the pool change.

    Args:
        shared: D_val.
        label_noise: share of the images that get another label.
        num_classes: C.
        seed: the partition's.
    """
    if not label_noise:
        return shared
    rows = np.unique(shared.rows)
    labels = corrupt.label_noise(shared.y[rows], label_noise, num_classes, _stream(seed, _NOISE))
    return shared._replace(y=corrupt.rewritten(shared.y, rows, labels))


def halves(rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits D_val at random into rows for scoring and rows for the choice of the best round, each in their order.

    Copies of an image stay together. The half for scoring is the larger one for an odd number of images.

    Args:
        rows: int [V], rows of D_val.
        seed: the partition's.

    Raises:
        UsageError: for fewer than two images.

    >>> scored, selected = halves(np.array([7, 3, 5, 3]), 0)
    >>> sorted([*scored.tolist(), *selected.tolist()])
    [3, 3, 5, 7]
    """
    images = np.unique(rows)
    if len(images) < 2:
        raise UsageError(f"best_on held_out needs 2 validation images or more, got {len(images)}; use --best-on shared")
    is_held_out = np.isin(rows, _stream(seed, _SELECTION).permutation(images)[: len(images) // 2])
    return rows[~is_held_out], rows[is_held_out]


def _stream(seed: int, domain: int) -> np.random.Generator:
    return np.random.default_rng([_DOMAIN, domain, seed])
