"""A partition in numbers: samples and classes of every client, and how skewed they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedvg_jax.data.partitions.split import Partition


def describe(labels: np.ndarray, class_names: Sequence[str], parts: Partition) -> dict[str, Any]:
    """Training samples and label counts of every client, with `skew`, as JSON values.

    Args:
        labels: [T]; where they are not integers, or there are no names (regression), only sizes are counted.
    """
    sizes = np.array([len(rows) for rows in parts.train])
    told = {
        "clients": len(sizes),
        "samples": sizes.tolist(),
        "val_samples": [len(rows) for rows in parts.val],
        "test_samples": [len(rows) for rows in parts.test],
        "size_min": int(sizes.min()),
        "size_max": int(sizes.max()),
        "size_gini": _rounded(gini(sizes)),
    }
    if not class_names or labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        return told
    counts = np.array([np.bincount(labels[rows], minlength=len(class_names)) for rows in parts.train])
    about = {"class_names": list(class_names), "classes": (counts > 0).sum(1).tolist(), "counts": counts.tolist()}
    return told | {name: _rounded(value) for name, value in skew(counts).items()} | about


def skew(counts: np.ndarray) -> dict[str, float]:
    """How far the clients' labels are from one another: means over the clients that hold a row.

    With client k's label shares p_k and the union's q: entropy H(p_k) = -sum_c p_kc log p_kc in nats; effective number
    of classes exp H(p_k), 1 to C; distance sum_c |p_kc - q_c| / 2, 0 to 1.

    Args:
        counts: [N, C] rows of each class.
    """
    held = counts[counts.sum(1) > 0]
    if not len(held):
        return {}
    shares = held / held.sum(1, keepdims=True)
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(1)
    distance = np.abs(shares - held.sum(0) / held.sum()).sum(1) / 2
    return {
        "mean_classes": float((held > 0).sum(1).mean()),
        "mean_label_entropy": float(entropy.mean()),
        "mean_effective_classes": float(np.exp(entropy).mean()),
        "mean_label_distance": float(distance.mean()),
    }


def gini(sizes: np.ndarray) -> float:
    """Gini coefficient of sizes, sum_ij |n_i - n_j| / (2 N sum_i n_i): 0 for equal ones, 1 - 1/N where one has all.

    >>> gini(np.array([5, 5])), gini(np.array([0, 10]))
    (0.0, 0.5)
    """
    ordered, count = np.sort(sizes), len(sizes)
    ranks = 2 * np.arange(1, count + 1) - count - 1
    return float((ranks * ordered).sum() / max(count * ordered.sum(), 1))


def _rounded(value: float) -> float:
    return round(value, 6)
