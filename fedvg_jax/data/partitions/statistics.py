"""Statistics of a partition: samples and classes of every client, and their skew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedvg_jax.data.partitions import client_rows
from fedvg_jax.data.partitions.client_rows import Partition

MAX_LISTED = 100_000
"""Clients up to which the statistics list every client."""

_PREFIXES = ("", "val_", "test_")


def describe(labels: np.ndarray, class_names: Sequence[str], parts: Partition) -> dict[str, Any]:
    """Returns training samples and label counts of every client, with `skew`, as JSON values.

    Beyond `MAX_LISTED` clients there are no lists of all clients, which would take hundreds of megabytes.

    Args:
        labels: [T]. For labels that are not integers, or without class names (regression), only sizes are counted.
        class_names: [C], or empty.
        parts: the partition.
    """
    counts_of = {f"{prefix}samples": client_rows.sizes(part) for prefix, part in zip(_PREFIXES, parts, strict=True)}
    sizes, is_listed = counts_of["samples"], len(parts.train) <= MAX_LISTED
    sizes_only = {
        "clients": len(sizes),
        **{name: counts.tolist() for name, counts in counts_of.items() if is_listed},
        "size_min": int(sizes.min()),
        "size_max": int(sizes.max()),
        "size_gini": round(gini(sizes), 6),
    }
    if not class_names or labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        return sizes_only
    owner = np.repeat(np.arange(len(sizes)), sizes)
    cells = owner * len(class_names) + labels[client_rows.joined(parts.train)]
    counts = np.bincount(cells, minlength=len(sizes) * len(class_names)).reshape(len(sizes), -1)
    about: dict[str, Any] = {"class_names": list(class_names)}
    if is_listed:
        about |= {"classes": (counts > 0).sum(1).tolist(), "counts": counts.tolist()}
    return sizes_only | {name: round(value, 6) for name, value in skew(counts).items()} | about


def skew(counts: np.ndarray) -> dict[str, float]:
    """Returns measures of label skew, each a mean over the clients with at least one row.

    With client k's label shares p_k and those of all rows q: the entropy H(p_k) = -sum_c p_kc log p_kc in nats, the
    effective number of classes exp H(p_k), from 1 to C, and the distance sum_c |p_kc - q_c| / 2, from 0 to 1.

    Args:
        counts: int [N, C], rows of each class.

    >>> skew(np.array([[2, 0], [0, 2]]))["mean_label_distance"]
    0.5
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
    """Returns the Gini coefficient of sizes, sum_ij |n_i - n_j| / (2 N sum_i n_i).

    It is 0 for equal sizes, and 1 - 1/N if one client has all rows.

    >>> gini(np.array([5, 5])), gini(np.array([0, 10]))
    (0.0, 0.5)
    """
    ordered, count = np.sort(sizes), len(sizes)
    ranks = 2 * np.arange(1, count + 1) - count - 1
    return float((ranks * ordered).sum() / max(count * ordered.sum(), 1))
