"""The timeline of a buffered server, which updates whenever B clients have arrived, without waiting for others.

M clients train at any time. When one arrives, another client that is not in training receives the present model at
once; with B arrivals the server updates (FedBuff, Nguyen et al. 2022; B = 1 as in FedAsync, Xie et al. 2019). A client
that arrives and fills the buffer is replaced after the update, and arrivals at one instant all enter before any
replacement starts.

The timeline depends on durations alone, never on what is trained. NumPy only.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError

__all__ = ("Timeline", "timeline")

_START = 203  # domain of the random stream, distinct from the schedule's and the clock's

Durations = Sequence[float] | np.ndarray | Callable[[int, int], float]
"""seconds of every client [N], or (client, number of its training from 0) -> seconds"""


class Timeline(NamedTuple):
    """The updates of a buffered server, in order."""

    virtual_seconds: np.ndarray
    """float64 [R], the time of each update since the start"""
    clients: np.ndarray
    """int32 [R, B], the clients of each update in the order of their arrival; one may stand twice"""
    arrived: np.ndarray
    """float64 [R, B], the time at which each client arrived"""
    staleness: np.ndarray
    """int32 [R, B], updates between the model that a client received and the update that it is part of"""
    training: np.ndarray
    """int32 [R, B], the number of each client's training, from 0"""
    pending: np.ndarray
    """int32 [n], updates before the model that each client received which is still in training after the last update"""


def timeline(
    durations: Durations,
    *,
    concurrency: int,
    buffer: int,
    updates: int,
    num_clients: int | None = None,
    seed: int = 0,
) -> Timeline:
    """Returns the updates of a buffered server.

    Args:
        durations: of the clients' trainings.
        concurrency: M, clients in training at any time.
        buffer: B, arrivals of an update.
        updates: R.
        num_clients: N, where `durations` is a function.
        seed: of the draws of clients.

    Raises:
        UsageError: a number is out of its range, or a duration is negative or not finite.

    Both clients are in training; the fast one arrives twice before the slow one:

    >>> few = timeline([1.0, 2.5], concurrency=2, buffer=2, updates=2)
    >>> few.virtual_seconds.tolist(), few.clients.tolist(), few.staleness.tolist()
    ([2.0, 3.0], [[0, 0], [1, 0]], [[0, 0], [1, 0]])
    """
    known = [] if callable(durations) else _of_clients(durations).tolist()
    num_clients = len(known) or num_clients
    if num_clients is None:
        raise UsageError("num_clients must be given where durations is a function")
    for name, number, most in (
        ("concurrency", concurrency, num_clients),
        ("buffer", buffer, math.inf),
        ("updates", updates, math.inf),
    ):
        if not (isinstance(number, int | np.integer) and 1 <= number <= most):
            raise UsageError(f"{name} must be a whole number from 1 to {most}; got {number!r}")

    rng = np.random.default_rng([_START, seed])
    idle = rng.permutation(num_clients).tolist()  # its end is taken at the start
    trainings: dict[int, int] = {}
    in_training: list[tuple[float, int, int, int, int]] = []
    now, version, order = 0.0, 0, 0

    def start(client: int) -> None:
        nonlocal order
        number = trainings.get(client, 0)
        duration = durations(client, number) if callable(durations) else known[client]
        if not 0 <= duration < np.inf:
            raise UsageError(f"client {client} takes {duration} s; expected a finite number >= 0")
        heapq.heappush(in_training, (now + duration, order, client, version, number))
        trainings[client], order = number + 1, order + 1

    for _ in range(concurrency):
        start(idle.pop())
    arrived: list[tuple[int, float, int, int]] = []
    seconds, times = np.zeros(updates), np.zeros((updates, buffer))
    clients, staleness, training = np.zeros((3, updates, buffer), np.int32)
    fields = clients, times, staleness, training
    while version < updates:
        now, count = in_training[0][0], 0
        while version < updates and in_training and in_training[0][0] == now:
            _, _, client, received, number = heapq.heappop(in_training)
            arrived.append((client, now, version - received, number))
            idle.append(client)
            count += 1
            if len(arrived) == buffer:
                for field, column in zip(fields, zip(*arrived, strict=True), strict=True):
                    field[version] = column
                seconds[version] = now
                version, arrived = version + 1, []
        if version < updates:
            for place in rng.random(count):
                chosen = int(place * len(idle))
                idle[chosen], idle[-1] = idle[-1], idle[chosen]
                start(idle.pop())
    pending = np.array([received for _, _, _, received, _ in in_training], np.int32)
    return Timeline(seconds, *fields, pending)


def _of_clients(durations: Sequence[float] | np.ndarray) -> np.ndarray:
    try:
        array = np.asarray(durations, np.float64)
    except (TypeError, ValueError):
        array = np.zeros(())
    if array.ndim != 1 or not array.size:
        expected = "one number for each client, or a function of (client, training)"
        raise UsageError(f"durations must be {expected}; got {durations!s:.60}")
    return array
