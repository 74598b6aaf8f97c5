"""Clients with few classes: shards of the rows sorted by label, or a fixed number of classes per client."""

from __future__ import annotations

import numpy as np

from fedvg_jax.core.types import UsageError


def shards(labels: np.ndarray, num_clients: int, per_client: int, stream: np.random.Generator) -> list[np.ndarray]:
    """Sorts rows by label, cuts them into K s equal shards (sizes differ by at most 1), and deals s to each client.

    A client holds at most s classes if no shard spans two classes, and at most 2 s if shards are smaller than classes.

    Args:
        labels: int [T].
        num_clients: K.
        per_client: s.
        stream: consumed.

    Raises:
        UsageError: there are more shards than rows.

    >>> rows = shards(np.array([0, 0, 1, 1]), 2, 1, np.random.default_rng(0))
    >>> sorted(sorted(client_rows.tolist()) for client_rows in rows)
    [[0, 1], [2, 3]]

    Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
    """
    if num_clients * per_client > len(labels):
        raise UsageError(
            f"shards_per_client must be at most {len(labels) // num_clients} for {num_clients} clients to share"
            f" {len(labels)} rows, got {per_client}"
        )
    order = stream.permutation(len(labels))
    pieces = np.array_split(order[np.argsort(labels[order], kind="stable")], num_clients * per_client)
    hands = stream.permutation(len(pieces)).reshape(num_clients, per_client)
    return [np.concatenate([pieces[i] for i in hand]) for hand in hands]


def classes(labels: np.ndarray, num_clients: int, per_client: int, stream: np.random.Generator) -> list[np.ndarray]:
    """Gives every client k different classes, and divides the rows of a class equally among its clients.

    Each client in turn takes the k classes with the fewest clients so far, ties at random. Numbers of clients per
    class differ by at most 1, and so do the clients' numbers of rows of a class.

    Args:
        labels: int [T].
        num_clients: K.
        per_client: k.
        stream: consumed.

    Raises:
        UsageError: k exceeds the number of classes, or is so small that a class would have no client.

    >>> rows = classes(np.array([0, 0, 1, 1]), 2, 2, np.random.default_rng(0))
    >>> [len(client_rows) for client_rows in rows]
    [2, 2]

    Source: Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022 (#C = k).
    """
    present = np.unique(labels)
    if not len(present) <= num_clients * per_client or per_client > len(present):
        least = -(-len(present) // num_clients)
        raise UsageError(
            f"classes_per_client must be {least}..{len(present)} for {num_clients} clients to hold all {len(present)}"
            f" classes, got {per_client}"
        )
    clients_of: list[list[int]] = [[] for _ in present]
    for client in range(num_clients):
        order = stream.permutation(len(present))
        fewest = order[np.argsort([len(clients_of[c]) for c in order], kind="stable")]
        for c in fewest[:per_client]:
            clients_of[c].append(client)
    hands: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for label, owners in zip(present, clients_of, strict=True):
        pieces = np.array_split(stream.permutation(np.flatnonzero(labels == label)), len(owners))
        for client, piece in zip(stream.permutation(owners), pieces, strict=True):
            hands[client].append(piece)
    return [np.concatenate(hand) for hand in hands]
