"""Partitions without label skew: equal clients (IID), and clients that differ in size only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedvg_jax.data.partitions import client_rows, dirichlet


def iid(labels: np.ndarray, num_clients: int, stream: np.random.Generator) -> Sequence[np.ndarray]:
    """Shuffles the rows and cuts them into clients whose sizes differ by at most 1.

    >>> [len(rows) for rows in iid(np.zeros(8), 3, np.random.default_rng(0))]
    [3, 3, 2]

    Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
    """
    counts = np.full(num_clients, len(labels) // num_clients)
    counts[: len(labels) % num_clients] += 1
    return client_rows.from_sizes(stream.permutation(len(labels)), counts)


def quantity(
    labels: np.ndarray,
    num_clients: int,
    alpha: float,
    stream: np.random.Generator,
    min_samples: int = 10,
    rule: str = "redraw",
    progress: dirichlet.Progress | None = None,
) -> Sequence[np.ndarray]:
    """Draws sizes n ~ T Dirichlet(alpha 1_K); every client has the pool's labels in proportion.

    With q_c the pool's share of class c of C, a client of n rows holds n q_c rows of c, within 2 (1 + C q_c).

    Args:
        labels: int [T].
        num_clients: K.
        alpha: concentration, > 0.
        stream: consumed.
        min_samples: rows that every client has.
        rule: "redraw" repeats until the minimum is met; "top_up" draws once and applies `dirichlet.top_up`.
        progress: called with (draws done, maximum of draws).

    Raises:
        UsageError: as `dirichlet.bulk`.

    Source: Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022.
    """
    one_class, redraws = np.zeros(len(labels), np.int32), rule == "redraw"
    rows = dirichlet.bulk(one_class, num_clients, alpha, stream, min_samples * redraws, progress=progress).rows
    if not redraws:
        rows = dirichlet.top_up(rows, min_samples, stream)
    return client_rows.from_sizes(proportional_order(labels, stream), [len(own) for own in rows])


def proportional_order(labels: np.ndarray, stream: np.random.Generator | np.random.RandomState) -> np.ndarray:
    """Returns all rows in a random order in which every contiguous range has the pool's labels in proportion.

    Row j of the n_c shuffled rows of class c has the sort key (j + u_c) / n_c, with u_c uniform in [0, 1).

    Args:
        labels: int [T].
        stream: consumed.
    """
    order = stream.permutation(len(labels))
    shuffled = np.asarray(labels)[order]
    by_class = np.argsort(shuffled, kind="stable")
    _, first, inverse, counts = np.unique(
        shuffled[by_class], return_index=True, return_inverse=True, return_counts=True
    )
    key = (np.arange(len(labels)) - first[inverse] + stream.random(len(counts))[inverse]) / counts[inverse]
    return order[by_class[np.argsort(key, kind="stable")]]
