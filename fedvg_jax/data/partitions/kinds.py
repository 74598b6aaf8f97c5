"""Kinds of partitions without a published random stream: equal sizes, sizes alone, few classes, and groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedvg_jax.core.types import UsageError
from fedvg_jax.data.partitions import label_skew
from fedvg_jax.data.partitions.client_rows import from_sizes


def proportional_order(labels: np.ndarray, stream: np.random.Generator) -> np.ndarray:
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
    place = np.arange(len(labels)) - first[inverse]
    key = (place + stream.random(len(counts))[inverse]) / counts[inverse]
    return order[by_class[np.argsort(key, kind="stable")]]


# --- label skew at equal sizes, which make FedAvg's weights uniform


def dirichlet_equal(
    labels: np.ndarray, num_clients: int, stream: np.random.Generator, alpha: float
) -> list[np.ndarray]:
    """Draws the published label skew with sizes T / K that differ by at most 1.

    As published, p_c ~ Dirichlet(alpha 1_K) for each class c. Client k draws class c with probability q_kc ~ n_c p_ck.
    In every turn, in random order, each client takes one row of a class drawn from its q_k among the classes with
    remaining rows. The last turns take the remaining rows, whatever the q_k.

    Args:
        labels: int [T], 0..C-1.
        num_clients: K.
        stream: consumed; determines the outcome.
        alpha: concentration, > 0; small values give skewed clients.

    >>> rows = dirichlet_equal(np.array([0, 0, 1, 1, 1]), 2, np.random.default_rng(0), 0.1)
    >>> sorted(len(client_rows) for client_rows in rows)
    [2, 3]
    """
    rows = stream.permutation(len(labels))
    classes, inverse, left = np.unique(labels[rows], return_inverse=True, return_counts=True)
    piles = np.split(rows[np.argsort(inverse, kind="stable")], np.cumsum(left)[:-1])
    wants = np.log(left) + label_skew.log_shares(stream, alpha, len(classes), num_clients).T
    taken = np.zeros((num_clients, len(classes)), np.int64)
    for turn in range(-(-len(labels) // num_clients)):
        waiting = stream.permutation(num_clients)[: len(labels) - turn * num_clients]
        while len(waiting):
            # argmax of log q + noise is a draw from q
            noise = stream.gumbel(size=(len(waiting), len(left)))
            drawn = np.where(left > 0, wants[waiting] + noise, -np.inf).argmax(1)
            by_class = np.argsort(drawn, kind="stable")
            ordered = drawn[by_class]
            rank = np.empty(len(drawn), np.int64)
            rank[by_class] = np.arange(len(drawn)) - np.searchsorted(ordered, ordered)
            served = rank < left[drawn]
            taken[waiting[served], drawn[served]] += 1
            left -= np.bincount(drawn[served], minlength=len(left))
            waiting = waiting[~served]
    return label_skew.deal(piles, np.cumsum(taken[:-1], 0).T)


def balanced_client(
    labels: np.ndarray, num_clients: int, stream: np.random.Generator, alpha: float
) -> list[np.ndarray]:
    """Gives client 0 equally many rows of every class that has any, and divides the others by `dirichlet_equal`.

    Sizes differ by at most 1. In the paper's norm ablation, one client of ten is balanced: a good norm gives it the
    largest weight.

    Args:
        labels: int [T].
        num_clients: K >= 2.
        stream: consumed.
        alpha: concentration, > 0.

    Raises:
        UsageError: a class has too few rows.
    """
    size, (classes, counts) = len(labels) // num_clients, np.unique(labels, return_counts=True)
    wanted = np.full(len(counts), size // len(counts))
    wanted[stream.permutation(len(counts))[: size % len(counts)]] += 1
    if len(scarce := classes[counts < wanted]):
        raise UsageError(
            f"a balanced client of {size} rows needs {wanted.max()} of class {scarce[0]}, which has fewer; use more"
            " clients"
        )
    members = [stream.permutation(np.flatnonzero(labels == c)) for c in classes]
    balanced = np.concatenate([rows[:n] for rows, n in zip(members, wanted, strict=True)])
    rest = np.setdiff1d(np.arange(len(labels)), balanced)
    others = dirichlet_equal(labels[rest], num_clients - 1, stream, alpha)
    return [balanced, *(rest[rows] for rows in others)]


# --- few classes


def shards(
    labels: np.ndarray, num_clients: int, stream: np.random.Generator, per_client: int
) -> list[np.ndarray]:
    """Sorts rows by label, cuts them into K s equal shards (sizes differ by at most 1), and deals s to each client.

    A client holds at most s classes if no shard spans two classes, and at most 2 s if shards are smaller than classes.

    Args:
        labels: int [T].
        num_clients: K.
        stream: consumed.
        per_client: s.

    >>> rows = shards(np.array([0, 0, 1, 1]), 2, np.random.default_rng(0), 1)
    >>> sorted(sorted(client_rows.tolist()) for client_rows in rows)
    [[0, 1], [2, 3]]

    Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
    """
    order = stream.permutation(len(labels))
    pieces = np.array_split(
        order[np.argsort(labels[order], kind="stable")], num_clients * per_client
    )
    hands = stream.permutation(len(pieces)).reshape(num_clients, per_client)
    clients = []
    for hand in hands:
        clients.append(np.concatenate([pieces[i] for i in hand]))
    return clients


# --- natural groups


def by_group(
    groups: np.ndarray, num_clients: int, stream: np.random.Generator
) -> Sequence[np.ndarray]:
    """Assigns whole groups to clients: group i to client i, or shuffled groups in turn where clients are fewer.

    Args:
        groups: int [T], the group of every row.
        num_clients: clients beyond the number of groups get no rows.
        stream: consumed.

    >>> [rows.tolist() for rows in by_group(np.array([7, 5, 7]), 2, np.random.default_rng(0))]
    [[1], [0, 2]]

    Source: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018.
    """
    names, member = np.unique(groups, return_inverse=True)
    order = np.arange(len(names)) if len(names) == num_clients else stream.permutation(len(names))
    place = np.argsort(order)  # of every group in the order
    owner = place[member] % num_clients
    return from_sizes(np.argsort(owner, kind="stable"), np.bincount(owner, minlength=num_clients))
