"""Entries of a record at evaluations that are recorded on demand, on the test rows.

confusion             the confusion matrix
accuracy_by_client    accuracy on each client's own test rows, with its mean, worst decile and spread over clients
personal_accuracy     the same of each client's own model: its personal one, or the global one with its
                      local tensors; of the global one for a method without such models
finetuned_accuracy    the same of the global model after local epochs on the client's own training rows
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedvg_jax.config import Config
from fedvg_jax.data.partitions.client_rows import MAX_LISTED
from fedvg_jax.paper.fidelity import listed
from fedvg_jax.runs.record.history import CLIENT_ACCURACIES, Record, number

BY_CLIENT, PERSONAL, FINETUNED = CLIENT_ACCURACIES
CONFUSION = "confusion"


def entries(config: Config, sums: Any) -> Record:
    """Returns the confusion matrix of the test set, [true, predicted], where `record` asks for it.

    Args:
        config: of the run.
        sums: of `task.measure` on the test rows.
    """
    if CONFUSION not in listed(config.record):
        return {}
    matrix = np.asarray(sums[CONFUSION])
    return {"test_confusion": matrix.reshape(2 * [round(matrix.size**0.5)]).tolist()}


def by_client(name: str, correct: np.ndarray, sizes: np.ndarray) -> Record:
    """Returns accuracies of clients, and their mean, worst decile and standard deviation over those with test rows.

    Args:
        name: a key of `history.CLIENT_ACCURACIES`.
        correct: [N] correctly predicted rows of every client, in parts where rows have several labels.
        sizes: int [N] test rows of every client.

    >>> by_client("accuracy_by_client", np.array([1.0, 0.0, 1.0]), np.array([2, 0, 1]))
    {'accuracy_by_client': [0.5, None, 1.0], 'accuracy_by_client_mean': 0.75, 'worst_decile': 0.5, 'spread': 0.25}
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracy = correct / sizes
    of_some = accuracy[sizes > 0]
    mean, spread = (number(of_some.mean()), number(of_some.std())) if of_some.size else (None, None)
    listed = {name: [number(value) for value in accuracy]} if len(sizes) <= MAX_LISTED else {}
    return listed | dict(zip(CLIENT_ACCURACIES[name], (mean, worst_decile(of_some), spread), strict=True))


def worst_decile(accuracies: Sequence[float] | np.ndarray) -> float | None:
    """Returns the mean of the lowest tenth of the accuracies, rounded up to a whole client; None without any.

    Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020, report it as the worst 10 %.

    >>> worst_decile([0.9] * 9 + [0.25]), worst_decile([1.0, 0.5, 0.0] + [1.0] * 17), worst_decile([])
    (0.25, 0.25, None)
    """
    lowest = np.sort(accuracies)[: math.ceil(len(accuracies) / 10)]
    return number(lowest.mean()) if lowest.size else None
