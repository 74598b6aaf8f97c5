"""The shared validation set D_val: the clients' own parts or an external set; fewer, imbalanced or noisy images."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data import corrupt, external
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions.split import Partition

_SOURCE, _CLIENTS, _SUBSET, _RHO, _NOISE, _SELECTION = range(6)
_DOMAIN = int.from_bytes(b"validation")
"""Keeps these streams apart from others that begin with the same seed."""


class Shared(NamedTuple):
    """D_val, and the pool it is part of."""

    x: np.ndarray
    """[T + E, H, W, D] the data set's images, then E external ones"""
    y: np.ndarray
    """[T + E]"""
    rows: np.ndarray
    """int32 [V] D_val in the order it is scored in"""
    most: int
    """rows that any partition and seed could have given"""
    clients: np.ndarray | None
    """int [.] whose rows they were drawn from; None for all, or for an external set"""


def from_clients(arrays: Arrays, parts: Partition, share: float, val_ratio: float, seed: int) -> Shared:
    """As published: every client's validation rows in client order; or those of a share of the clients only.

    Raises:
        UsageError: the chosen clients have no validation row.
    """
    chosen = None
    if share < 1:
        if len(parts.val) < len(parts.train):
            raise UsageError("validation.clients chooses among clients, and these validation rows are nobody's; use 1")
        count = max(1, round(share * len(parts.val)))
        chosen = np.sort(_stream(seed, _CLIENTS).choice(len(parts.val), count, replace=False))
    rows = np.concatenate([parts.val[k] for k in (range(len(parts.val)) if chosen is None else chosen)])
    if not len(rows):
        whose = "the partition" if chosen is None else f"clients {', '.join(map(str, chosen))}"
        raise UsageError(f"{whose} left no validation row; use a larger --val-ratio or more --validation.clients")
    return Shared(arrays.x, arrays.y, rows.astype(np.int32), int(val_ratio * len(arrays.y)), chosen)


def from_outside(arrays: Arrays, x: np.ndarray, y: np.ndarray, copies: str, seed: int) -> Shared:
    """External images behind the pool, in the order `external.order` gives; they are the same for every partition."""
    rows = len(arrays.y) + external.order(y, copies, _stream(seed, _SOURCE)).astype(np.int32)
    pool = np.concatenate([arrays.x, x]), np.concatenate([arrays.y, y])
    return Shared(*pool, rows.astype(np.int32), len(rows), None)


def subset(shared: Shared, size: int, fraction: float, seed: int) -> Shared:
    """`size` random images, or floor(fraction V) where that is 0, in the order they had; smaller sets are in larger.

    Raises:
        UsageError: more than there are.
    """
    available = len(shared.rows)
    if size > available:
        raise UsageError(f"validation.size must be at most the {available} images there are, got {size}")
    wanted = size or max(1, int(fraction * available))
    kept = np.sort(_stream(seed, _SUBSET).permutation(available)[:wanted])
    return shared._replace(rows=shared.rows[kept])


def imbalanced(shared: Shared, rho: float, num_classes: int, seed: int, batch_size: int = 0) -> Shared:
    """Of class i, n_i = min(floor(p_i floor(V / 2)), what there is) of the V images, with p_i = rho^i / sum_j rho^j.

    The cap makes the whole smaller than V / 2 where rho is small. Rows are random and stay in the order they had.

    Args:
        rho: in (0, 1]; 1 is balanced.
        num_classes: C, i = 0..C-1.
        batch_size: as published, rows sorted by class, without those that do not fill a last batch; 0 for neither.

    Raises:
        UsageError: a class has no image at all, or nothing is left.

    Source: Devkota et al., appendix; the cap is the published code's.
    """
    labels = shared.y[shared.rows]
    available = np.bincount(labels, minlength=num_classes)
    if not available.all():
        lacking = ", ".join(map(str, np.flatnonzero(available == 0)))
        raise UsageError(f"validation.rho needs images of every class, and there is none of {lacking}; use rho 0")
    shares = rho ** np.arange(num_classes)
    wanted = np.floor(shares / shares.sum() * (len(labels) // 2)).astype(int)
    stream = _stream(seed, _RHO)
    drawn = [stream.permutation(np.flatnonzero(labels == c))[:n] for c, n in enumerate(wanted)]
    kept = np.sort(np.concatenate(drawn))
    if batch_size:
        kept = kept[np.argsort(labels[kept], kind="stable")]
        kept = kept[: len(kept) // batch_size * batch_size]
    if len(kept) < 2:
        raise UsageError(f"validation.rho {rho} leaves {len(kept)} of {len(labels)} validation images; use more images")
    return shared._replace(rows=shared.rows[kept])


def noisy(shared: Shared, pixel_noise: float, label_noise: float, num_classes: int, seed: int) -> Shared:
    """Noise on D_val alone: its rows are in no other set, so the pool's copies of them are rewritten.

    Args:
        pixel_noise: standard deviation, pixels being 0 to 1.
        label_noise: share of the images whose label becomes another one.
    """
    rows, stream = np.unique(shared.rows), _stream(seed, _NOISE)
    x, y = shared.x, shared.y
    if pixel_noise:
        x = corrupt.rewritten(x, rows, corrupt.pixel_noise(x[rows], pixel_noise, stream))
    if label_noise:
        y = corrupt.rewritten(y, rows, corrupt.label_noise(y[rows], label_noise, num_classes, stream))
    return shared._replace(x=x, y=y)


def halves(rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits D_val at random into rows to score on and rows to choose the best round by, each in their order.

    Copies of an image stay together; of an odd number of images the larger half is scored on.

    Args:
        rows: int [V] D_val.
        seed: the partition's.

    Raises:
        UsageError: for fewer than two images.

    >>> scored, selected = halves(np.array([7, 3, 5, 3]), 0)
    >>> sorted([*scored.tolist(), *selected.tolist()])
    [3, 3, 5, 7]
    """
    images = np.unique(rows)
    if len(images) < 2:
        raise UsageError(f"select held_out needs 2 validation images or more, got {len(images)}; use --select shared")
    is_held_out = np.isin(rows, _stream(seed, _SELECTION).permutation(images)[: len(images) // 2])
    return rows[~is_held_out], rows[is_held_out]


def _stream(seed: int, domain: int) -> np.random.Generator:
    return np.random.default_rng([_DOMAIN, domain, seed])
