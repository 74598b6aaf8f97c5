"""Natural partitions: all rows of a group (a user, a patient, a lesion) belong to one client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.partitions.client_rows import from_sizes


def by_group(groups: np.ndarray, num_clients: int, stream: np.random.Generator) -> Sequence[np.ndarray]:
    """Assigns whole groups to clients: group i to client i, or shuffled groups in turn where clients are fewer.

    Args:
        groups: int [T], the group of every row.
        num_clients: at most the number of groups.
        stream: consumed.

    Raises:
        UsageError: fewer groups than clients.

    >>> [rows.tolist() for rows in by_group(np.array([7, 5, 7]), 2, np.random.default_rng(0))]
    [[1], [0, 2]]

    Source: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018.
    """
    names, member = np.unique(groups, return_inverse=True)
    if len(names) < num_clients:
        raise UsageError(
            f"partition group has {len(names)} groups for {num_clients} clients; use --clients {len(names)}"
        )
    order = np.arange(len(names)) if len(names) == num_clients else stream.permutation(len(names))
    client_of = np.empty(len(names), np.int64)
    client_of[order] = np.arange(len(names)) % num_clients
    owner = client_of[member]
    return from_sizes(np.argsort(owner, kind="stable"), np.bincount(owner, minlength=num_clients))
