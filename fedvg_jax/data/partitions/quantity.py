"""Partitions without label skew: equal clients (IID), and clients that differ in size alone."""

from __future__ import annotations

import numpy as np

from fedvg_jax.data.partitions import dirichlet


def iid(labels: np.ndarray, num_clients: int, stream: np.random.Generator) -> list[np.ndarray]:
    """Rows shuffled and cut into equal clients; sizes differ by at most 1.

    >>> [len(rows) for rows in iid(np.zeros(8), 3, np.random.default_rng(0))]
    [3, 3, 2]

    Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
    """
    return np.array_split(stream.permutation(len(labels)), num_clients)


def quantity(
    labels: np.ndarray,
    num_clients: int,
    alpha: float,
    stream: np.random.Generator,
    min_samples: int = 10,
    rule: str = "redraw",
    progress: dirichlet.Progress | None = None,
) -> list[np.ndarray]:
    """Sizes n ~ T Dirichlet(alpha 1_K); every client has the labels of the pool in proportion.

    With q_c the pool's share of class c of C, a client of n rows holds n q_c of them, give or take 2 (1 + C q_c).

    Args and Raises: as `dirichlet.bulk`; `rule` "top_up" draws once, and clients too small take from the largest.

    Source: Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022.
    """
    one_class, redraws = np.zeros(len(labels), np.int32), rule == "redraw"
    rows = dirichlet.bulk(one_class, num_clients, alpha, stream, min_samples * redraws, progress=progress).rows
    if not redraws:
        rows = dirichlet.top_up(rows, min_samples, stream)
    ends = np.cumsum([len(mine) for mine in rows])
    return np.split(proportional_order(labels, stream), ends[:-1])


def proportional_order(labels: np.ndarray, stream: np.random.Generator) -> np.ndarray:
    """All rows in a random order any stretch of which has the pool's labels in proportion.

    Row j of the n_c shuffled rows of class c stands at (j + u_c) / n_c, u_c uniform in [0, 1).
    """
    order = stream.permutation(len(labels))
    shuffled = np.asarray(labels)[order]
    by_class = np.argsort(shuffled, kind="stable")
    _, first, inverse, counts = np.unique(
        shuffled[by_class], return_index=True, return_inverse=True, return_counts=True
    )
    place = (np.arange(len(labels)) - first[inverse] + stream.random(len(counts))[inverse]) / counts[inverse]
    return order[by_class[np.argsort(place, kind="stable")]]
