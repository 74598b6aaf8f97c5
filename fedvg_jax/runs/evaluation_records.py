"""Entries of a record at evaluations that are recorded on demand, of the global model on the test rows.

confusion             the confusion matrix
calibration           bins of confidence, and the expected calibration error
accuracy_by_client    accuracy on each client's own test rows, its mean and the mean of the worst decile
personal_accuracy     the same of each client's own model: the global one with the client's local tensors
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedvg_jax.config import Config
from fedvg_jax.config.options import recorded_names
from fedvg_jax.core.types import Task, UsageError
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions import client_rows
from fedvg_jax.data.partitions.split import Partition
from fedvg_jax.data.partitions.statistics import MAX_LISTED
from fedvg_jax.engine.evaluate import Detailed
from fedvg_jax.runs import contracts
from fedvg_jax.runs.record.history import Record, number

BY_CLIENT, CALIBRATION, CONFUSION = "accuracy_by_client", "calibration", "confusion"
PERSONAL = "personal_accuracy"


def is_detailed(config: Config) -> bool:
    """Returns whether evaluations need more than the sums of `task.measure`."""
    return not {BY_CLIENT, CALIBRATION}.isdisjoint(recorded_names(config))


def names(config: Config) -> tuple[str, ...]:
    """Returns the keys that `record` adds besides those of `history.is_reserved`."""
    wanted = recorded_names(config)
    of_global = (BY_CLIENT, f"{BY_CLIENT}_mean", "worst_decile") if BY_CLIENT in wanted else ()
    return of_global + ((PERSONAL, f"{PERSONAL}_mean", "personal_worst_decile") if PERSONAL in wanted else ())


def check_test_rows(config: Config, parts: Partition) -> None:
    """Raises UsageError where accuracies by client are recorded and the test rows belong to no client."""
    by_client = [name for name in (BY_CLIENT, PERSONAL) if name in recorded_names(config)]
    if by_client and len(parts.test) != len(parts.train):
        raise UsageError(
            f"record {by_client[0]} needs test rows of every client; they were held out before the division among"
            f" clients (split {config.split}), so use --split client"
        )


def check_personal(config: Config, *, is_on_device: bool) -> None:
    """Raises UsageError where personal accuracies are recorded without local tensors, or these are on the host."""
    if PERSONAL in recorded_names(config) and not config.local:
        raise UsageError(f"record {PERSONAL} is of the tensors that stay with clients; name them by --local REGEX")
    if PERSONAL in recorded_names(config) and not is_on_device:
        raise UsageError(
            f"record {PERSONAL} needs the data set and the clients' tensors on the devices; use --pool device and"
            " --memories device"
        )


def personal_rows(parts: Partition, batch_size: int) -> np.ndarray:
    """Returns the test rows of every client as a table, int32 [N, V, B], -1 for padding."""
    sizes = client_rows.sizes(parts.test)
    table = np.full((len(sizes), max(1, -(-int(sizes.max(initial=0)) // batch_size)) * batch_size), -1, np.int32)
    for row, own in zip(table, parts.test, strict=True):
        row[: len(own)] = own
    return table.reshape(len(sizes), -1, batch_size)


def personal_entries(arrays: Arrays, parts: Partition, correct: np.ndarray) -> Record:
    """Returns the personal accuracies from the number of correct labels of every client, int [N]."""
    sizes = client_rows.sizes(parts.test)
    shares = np.repeat(correct / np.maximum(sizes, 1) / math.prod(arrays.y.shape[1:]), sizes)
    found = _by_client(shares, sizes)
    renamed = {BY_CLIENT: PERSONAL, f"{BY_CLIENT}_mean": f"{PERSONAL}_mean", "worst_decile": "personal_worst_decile"}
    return {renamed[name]: value for name, value in found.items()}


def check_sums(config: Config, task: Task, pool: Any) -> None:
    """Raises UsageError where the confusion matrix is recorded and a task does not count one."""
    if CONFUSION in recorded_names(config) and not contracts.counts_confusion(task, pool):
        raise UsageError(
            f"record {CONFUSION} needs a task whose measure returns a dict with '{CONFUSION}', [C * C] counts; leave"
            f" {CONFUSION} out of record, or count it"
        )


def entries(config: Config, arrays: Arrays, parts: Partition, rows: Any, result: Any) -> Record:
    """Returns the entries of a record that `record` asks for.

    Args:
        config: settings of the run.
        arrays: the data set; its rows have one label, or one for each place of a sequence.
        parts: rows of the clients.
        rows: int32 [V, B] table of the test rows, client after client.
        result: of the evaluation on these rows and perhaps on empty groups after them, on the host.
    """
    wanted = recorded_names(config)
    record = _confusion(sums_of(result)) if CONFUSION in wanted else {}
    if CALIBRATION in wanted:
        record |= _calibration(np.asarray(result.bins, np.float64))
    if BY_CLIENT in wanted:
        table = np.asarray(rows)
        correct = np.asarray(result.correct)[: len(table)]
        num_labels = math.prod(arrays.y.shape[1:])
        record |= _by_client(correct[table >= 0] / num_labels, client_rows.sizes(parts.test))
    return record


def sums_of(result: Any) -> Any:
    """Returns the sums of `task.measure`, of an evaluation with or without details."""
    return result.sums if isinstance(result, Detailed) else result


def _confusion(sums: Any) -> Record:
    """Returns the confusion matrix of the test set, [true, predicted]; {} for a task that does not count one."""
    if not isinstance(sums, dict) or "confusion" not in sums:
        return {}
    matrix = np.asarray(sums["confusion"])
    return {"test_confusion": matrix.reshape(2 * [round(matrix.size**0.5)]).tolist()}


def _calibration(bins: np.ndarray) -> Record:
    """Returns the bins of confidence, and the expected calibration error.

        ECE = sum_m (n_m / n) |accuracy_m - confidence_m|

    Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, equation 3, with bins of equal width.

    Args:
        bins: [3, M] number of labels n_m, summed confidence and number of correct labels of every bin.

    >>> record = _calibration(np.array([[0, 4, 4], [0, 2.0, 4.0], [0, 2, 3]]))
    >>> record["test_calibration_error"], record["test_calibration"]
    (0.125, [[0, None, None], [4, 0.5, 0.5], [4, 1.0, 0.75]])
    """
    counts, confidence, correct = bins
    with np.errstate(invalid="ignore"):
        means, accuracy = confidence / counts, correct / counts
    error = np.abs(correct - confidence).sum() / max(counts.sum(), 1)
    rows = [[round(float(n)), number(c), number(a)] for n, c, a in zip(counts, means, accuracy, strict=True)]
    return {"test_calibration_error": number(error), "test_calibration": rows}


def _by_client(correct: np.ndarray, sizes: np.ndarray) -> Record:
    """Returns the accuracy on every client's test rows, with its mean and worst decile over clients that have some.

    Args:
        correct: [n] share of correct labels of every test row, client after client.
        sizes: int [N] test rows of every client.

    >>> _by_client(np.array([1.0, 0.0, 1.0]), np.array([2, 0, 1]))
    {'accuracy_by_client': [0.5, None, 1.0], 'accuracy_by_client_mean': 0.75, 'worst_decile': 0.5}
    """
    sums = np.bincount(np.repeat(np.arange(len(sizes)), sizes), weights=correct, minlength=len(sizes))
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracy = sums / sizes
    of_some = accuracy[sizes > 0]
    mean = number(of_some.mean()) if of_some.size else None
    listed = {BY_CLIENT: [number(value) for value in accuracy]} if len(sizes) <= MAX_LISTED else {}
    return listed | {f"{BY_CLIENT}_mean": mean, "worst_decile": worst_decile(of_some)}


def worst_decile(accuracies: Sequence[float] | np.ndarray) -> float | None:
    """Returns the mean of the lowest tenth of the accuracies, rounded up to a whole client; None without any.

    Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020, report it as the worst 10 %.

    >>> worst_decile([0.9] * 9 + [0.25]), worst_decile([1.0, 0.5, 0.0] + [1.0] * 17), worst_decile([])
    (0.25, 0.25, None)
    """
    lowest = np.sort(accuracies)[: math.ceil(len(accuracies) / 10)]
    return number(lowest.mean()) if lowest.size else None
