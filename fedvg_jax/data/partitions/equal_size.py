"""Label skew at equal sizes: FedAvg's weights are uniform, so differences between methods are not due to size."""

from __future__ import annotations

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.partitions import dirichlet


def dirichlet_equal(
    labels: np.ndarray, num_clients: int, alpha: float, stream: np.random.Generator
) -> list[np.ndarray]:
    """Draws the published label skew with sizes T / K that differ by at most 1.

    As published, p_c ~ Dirichlet(alpha 1_K) for each class c. Client k draws class c with probability q_kc ~ n_c p_ck.
    In every turn, in random order, each client takes one row of a class drawn from its q_k among the classes with
    remaining rows. The last turns take the remaining rows, whatever the q_k.

    Args:
        labels: int [T], 0..C-1.
        num_clients: K.
        alpha: concentration, > 0; small values give skewed clients.
        stream: consumed; determines the outcome.

    >>> rows = dirichlet_equal(np.array([0, 0, 1, 1, 1]), 2, 0.1, np.random.default_rng(0))
    >>> sorted(len(client_rows) for client_rows in rows)
    [2, 3]
    """
    rows = stream.permutation(len(labels))
    classes, inverse, left = np.unique(labels[rows], return_inverse=True, return_counts=True)
    piles = np.split(rows[np.argsort(inverse, kind="stable")], np.cumsum(left)[:-1])
    wants = np.log(left) + dirichlet.log_shares(stream, alpha, len(classes), num_clients).T
    taken = np.zeros((num_clients, len(classes)), np.int64)
    for turn in range(-(-len(labels) // num_clients)):
        present = min(num_clients, len(labels) - turn * num_clients)
        _take_turn(stream.permutation(num_clients)[:present], wants, left, taken, stream)
    pieces = [np.split(pile, np.cumsum(taken[:-1, c])) for c, pile in enumerate(piles)]
    return [np.concatenate(of_client) for of_client in zip(*pieces, strict=True)]


def balanced_client(
    labels: np.ndarray, num_clients: int, alpha: float, stream: np.random.Generator
) -> list[np.ndarray]:
    """Gives client 0 equally many rows of every class that has any, and divides the others by `dirichlet_equal`.

    Sizes differ by at most 1. In the paper's norm ablation, one client of ten is balanced: a good norm gives it the
    largest weight.

    Args:
        labels: int [T].
        num_clients: K >= 2.
        alpha: concentration, > 0.
        stream: consumed.

    Raises:
        UsageError: a class has too few rows.
    """
    size, (classes, counts) = len(labels) // num_clients, np.unique(labels, return_counts=True)
    wanted = np.full(len(counts), size // len(counts))
    wanted[stream.permutation(len(counts))[: size % len(counts)]] += 1
    if (counts < wanted).any():
        scarce = int(np.argmin(counts - wanted))
        raise UsageError(
            f"a balanced client of {size} rows needs {wanted[scarce]} of class {classes[scarce]}, which has"
            f" {counts[scarce]}; use more clients"
        )
    members = [stream.permutation(np.flatnonzero(labels == c)) for c in classes]
    balanced = np.concatenate([rows[:n] for rows, n in zip(members, wanted, strict=True)])
    rest = np.setdiff1d(np.arange(len(labels)), balanced)
    return [balanced, *(rest[rows] for rows in dirichlet_equal(labels[rest], num_clients - 1, alpha, stream))]


def _take_turn(
    waiting: np.ndarray, wants: np.ndarray, left: np.ndarray, taken: np.ndarray, stream: np.random.Generator
) -> None:
    """Takes one row for each client in `waiting`, in this order of precedence, in place.

    Args:
        waiting: int [k] client ids.
        wants: [K, C] log probabilities.
        left: int [C] remaining rows per class; decreased.
        taken: int [K, C] rows taken; increased.
        stream: consumed.
    """
    while len(waiting):
        noise = stream.gumbel(size=(len(waiting), len(left)))  # argmax of log q + noise is a draw from q
        drawn = np.where(left > 0, wants[waiting] + noise, -np.inf).argmax(1)
        by_class = np.argsort(drawn, kind="stable")
        ordered = drawn[by_class]
        rank = np.empty(len(drawn), np.int64)
        rank[by_class] = np.arange(len(drawn)) - np.searchsorted(ordered, ordered)
        served = rank < left[drawn]
        taken[waiting[served], drawn[served]] += 1
        left -= np.bincount(drawn[served], minlength=len(left))
        waiting = waiting[~served]
