"""Clients that hold only a few classes: shards of the sorted set, and a number of classes for each."""

from __future__ import annotations

import numpy as np

from fedvg_jax.core.types import UsageError


def shards(labels: np.ndarray, num_clients: int, per_client: int, stream: np.random.Generator) -> list[np.ndarray]:
    """Rows sorted by label, cut into K s shards of equal size (give or take 1), s of them at random for each client.

    A client holds at most s classes where no shard crosses a border of classes, and at most 2 s where shards are
    smaller than classes.

    Raises:
        UsageError: more shards than rows.

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
    """Every client holds k different classes; a class's rows are shared equally (give or take 1) by who holds it.

    Each client in turn takes the k classes that the fewest hold so far, ties at random, so that the numbers of holders
    differ by at most 1.

    Raises:
        UsageError: more classes than there are, or so few that some class would be nobody's.

    Source: Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022 (#C = k).
    """
    found = np.unique(labels)
    if not len(found) <= num_clients * per_client or per_client > len(found):
        least = -(-len(found) // num_clients)
        raise UsageError(
            f"classes_per_client must be {least}..{len(found)} for {num_clients} clients to hold all {len(found)}"
            f" classes, got {per_client}"
        )
    holders: list[list[int]] = [[] for _ in found]
    for client in range(num_clients):
        order = stream.permutation(len(found))
        fewest = order[np.argsort([len(holders[c]) for c in order], kind="stable")]
        for c in fewest[:per_client]:
            holders[c].append(client)
    hands: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for label, held_by in zip(found, holders, strict=True):
        pieces = np.array_split(stream.permutation(np.flatnonzero(labels == label)), len(held_by))
        for client, piece in zip(stream.permutation(held_by), pieces, strict=True):
            hands[client].append(piece)
    return [np.concatenate(hand) for hand in hands]
