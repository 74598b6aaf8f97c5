"""Virtual time: how long clients take, which of a cohort a synchronous server waits for, and buffered servers' updates.

A training of client k with S local steps takes

    t_k = f_k (bytes_down / download + fixed + S step + bytes_up / upload) j,   j = exp(jitter z), z ~ N(0, 1)

f_k is the client's factor, and z is drawn from (seed, round, client). Durations depend on numbers of steps and bytes
alone, never on what is trained, so the host knows every arrival beforehand. NumPy only.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError, Vector

__all__ = ("Timeline", "timeline")

_JITTER, _SPEED, _START = 201, 202, 203
"""Domains of the random streams, distinct from the schedule's."""

HALF_NORMAL_MEDIAN = 0.6744897501960817
"""Median of |z|, z ~ N(0, 1)."""


class Clock(NamedTuple):
    """Durations of clients. Every field is one number for all clients, or one for each, float [N].

    >>> slow = Clock(step_seconds=[0.1, 0.5], upload=[np.inf, 1000.0])
    >>> slow.seconds([0, 1], steps=[10, 10], bytes_down=0, bytes_up=2000, round=0, seed=0).tolist()
    [1.0, 7.0]
    """

    step_seconds: Vector = 0.0
    """seconds of a local step"""
    fixed_seconds: Vector = 0.0
    """seconds of a training, whatever its steps"""
    upload: Vector = math.inf
    """bytes a second"""
    download: Vector = math.inf
    """bytes a second"""
    jitter: Vector = 0.0
    """standard deviation of the logarithm of a factor on each training"""

    def seconds(
        self,
        clients: Vector,
        steps: Vector,
        bytes_down: int,
        bytes_up: int,
        round: int,
        seed: int,
    ) -> np.ndarray:
        """Returns the duration of each client's training, float64 [K].

        Args:
            clients: int [K], ids.
            steps: int [K], local steps.
            bytes_down: that a client receives.
            bytes_up: that it sends.
            round: number of the round, or of the client's training.
            seed: of the run.
        """
        clients = np.asarray(clients)
        fields = (np.asarray(field, np.float64) for field in self)
        step, fixed, upload, download, jitter = (
            values[clients] if values.ndim else values for values in fields
        )
        total = bytes_down / download + fixed + np.asarray(steps) * step + bytes_up / upload
        if not jitter.any():
            return total
        normal = [
            np.random.default_rng([_JITTER, seed, round, client]).standard_normal()
            for client in clients.tolist()
        ]
        return total * np.exp(jitter * np.array(normal))


def checked(clock: Clock, num_clients: int) -> Clock:
    """Returns a clock of a federation of N clients, with arrays.

    Raises:
        UsageError: a field is not of numbers, negative or not finite, or has another length than N.

    >>> checked(Clock([0.1, 0.2]), 3)
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: clock: step_seconds must be finite and >= 0, one number or one for each of 3 clients; got \
[0.1, 0.2]
    """
    if not isinstance(clock, Clock):
        raise UsageError(f"clock must be a fedvg_jax.Clock; got a {type(clock).__name__}")
    fields = {}
    for name, field in clock._asdict().items():
        values = fields[name] = _numbers(field)
        is_rate = name in ("upload", "download")
        is_allowed = (values > 0) if is_rate else (values >= 0) & (values < math.inf)
        if values.shape not in ((), (num_clients,)) or not is_allowed.all():
            allowed = "> 0" if is_rate else "finite and >= 0"
            got = " ".join(f"{field!s:.60}".split())
            raise UsageError(
                f"clock: {name} must be {allowed}, one number or one for each of {num_clients} clients; got {got}"
            )
    return Clock(**fields)


def _numbers(values: Vector) -> np.ndarray:
    """Returns values as float64; NaN for anything else than numbers."""
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        return np.array(math.nan)


def factors(kind: str, parameters: Sequence[float], num_clients: int, seed: int) -> np.ndarray:
    """Returns the factors f_k of clients on all their durations, float [N], drawn from the seed.

    Args:
        kind: equal; lognormal, exp(sigma z) of median 1; halfnormal, |z| over its median (Nguyen et al. 2022);
            or uniform between two numbers.
        parameters: sigma of lognormal; lowest and highest of uniform.
        num_clients: N.
        seed: of the run.

    >>> factors("equal", (), 2, 0).tolist(), factors("uniform", (2, 2), 2, 0).tolist()
    ([1.0, 1.0], [2.0, 2.0])
    """
    rng = np.random.default_rng([_SPEED, seed])
    if kind == "lognormal":
        return np.exp(parameters[0] * rng.standard_normal(num_clients))
    if kind == "halfnormal":
        return np.abs(rng.standard_normal(num_clients)) / HALF_NORMAL_MEDIAN
    if kind == "uniform":
        low, high = parameters
        return rng.uniform(low, high, num_clients)
    return np.ones(num_clients)


def scaled(clock: Clock, factor: np.ndarray) -> Clock:
    """Returns a clock in which every duration of client k is `factor[k]` times as long."""
    return clock._replace(
        step_seconds=clock.step_seconds * factor,
        fixed_seconds=clock.fixed_seconds * factor,
        upload=clock.upload / factor,
        download=clock.download / factor,
    )


class Arrivals(NamedTuple):
    """What a synchronous server gets of the clients that it asked in a round."""

    taken: np.ndarray
    """int [K], positions among the clients asked: the first K that arrive, in the order in which they were asked"""
    in_time: np.ndarray
    """bool [K], whether these arrive by the deadline"""
    late: np.ndarray
    """int [n], positions of clients that train and are not averaged"""
    seconds: float
    """of the round"""


def wait(
    seconds: np.ndarray, responds: np.ndarray, size: int, deadline: float = math.inf
) -> Arrivals:
    """Returns the arrivals that a server averages: the first `size` clients, and of these the ones in time.

    The round ends with the last of them, or at the deadline where one of them has not arrived by then.

    Args:
        seconds: float [n], durations of the clients asked.
        responds: bool [n], False for clients that drop out.
        size: K.
        deadline: seconds.

    >>> first = wait(np.array([3.0, 1.0, 2.0]), np.ones(3, bool), size=2)
    >>> first.taken.tolist(), first.late.tolist(), first.seconds
    ([1, 2], [0], 2.0)
    """
    # of equal durations the client asked first; clients that drop out are last
    order = np.lexsort((seconds, ~responds))
    taken = np.sort(order[:size])
    in_time = seconds[taken] <= deadline
    late = np.setdiff1d(np.flatnonzero(responds), taken[in_time])
    awaited = seconds[taken][responds[taken]]
    end = float(awaited.max(initial=0.0))
    return Arrivals(taken, in_time, late, min(end, deadline))


# --- a buffered server


Durations = Sequence[float] | np.ndarray | Callable[[int, int], float]
"""seconds of every client [N], or (client, number of its training from 0) -> seconds"""


class Timeline(NamedTuple):
    """The updates of a buffered server, in order.

    M clients train at any time. When one arrives, another client that is not in training receives the present model at
    once; with B arrivals the server updates (FedBuff, Nguyen et al. 2022; B = 1 as in FedAsync, Xie et al. 2019). A
    client that arrives and fills the buffer is replaced after the update, and arrivals at one instant all enter before
    any replacement starts.
    """

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
    duration_of, num_clients = _durations(durations, num_clients)
    sizes = {"concurrency": concurrency, "buffer": buffer, "updates": updates}
    for name, number in sizes.items():
        most = num_clients if name == "concurrency" else math.inf
        if not (isinstance(number, int | np.integer) and 1 <= number <= most):
            raise UsageError(f"{name} must be a whole number from 1 to {most}; got {number!r}")

    rng = np.random.default_rng([_START, seed])
    idle = rng.permutation(num_clients).tolist()  # its end is taken at the start
    trainings = collections.Counter[int]()
    in_training: list[tuple[float, int, int, int, int]] = []
    order = itertools.count()
    now, version = 0.0, 0

    def start(client: int) -> None:
        number = trainings[client]
        duration = duration_of(client, number)
        if not 0 <= duration < np.inf:
            raise UsageError(f"client {client} takes {duration} s; expected a finite number >= 0")
        heapq.heappush(in_training, (now + duration, next(order), client, version, number))
        trainings[client] += 1

    for _ in range(concurrency):
        start(idle.pop())
    arrivals: list[tuple[int, int, int, float]] = []
    while version < updates:
        now, count = in_training[0][0], 0
        while version < updates and in_training and in_training[0][0] == now:
            _, _, client, received, number = heapq.heappop(in_training)
            arrivals.append((client, version - received, number, now))
            idle.append(client)
            count += 1
            version += len(arrivals) % buffer == 0
        if version < updates:
            for place in rng.random(count):
                chosen = int(place * len(idle))
                idle[chosen], idle[-1] = idle[-1], idle[chosen]
                start(idle.pop())
    pending = np.array([received for _, _, _, received, _ in in_training], np.int32)
    *counts, arrived = np.array(arrivals).T.reshape(4, updates, buffer)
    clients, staleness, training = np.array(counts, np.int32)
    return Timeline(arrived[:, -1], clients, arrived, staleness, training, pending)


def _durations(
    durations: Durations, num_clients: int | None
) -> tuple[Callable[[int, int], float], int]:
    """Returns the seconds of a client's training as a function, and the number of clients."""
    if callable(durations):
        if num_clients is None:
            raise UsageError("num_clients is needed where durations is a function")
        return durations, num_clients
    of_clients = _numbers(durations)
    if of_clients.ndim != 1 or not of_clients.size:
        expected = "one number for each client, or a function of (client, training)"
        raise UsageError(f"durations must be {expected}; got {durations!s:.60}")
    seconds = of_clients.tolist()
    return lambda client, number: seconds[client], len(seconds)


class Slots(NamedTuple):
    """Places for the versions of the model that some client still trains from."""

    received: np.ndarray
    """int32 [R, B], the slot of the model that each client of an update received"""
    stored: np.ndarray
    """int32 [R], the slot that the model after each update takes; `count` if no client receives it"""
    count: int
    """slots that are needed; at most one more than the clients in training at any time"""


def assign_slots(
    staleness: np.ndarray,
    pending: Sequence[int] | np.ndarray = (),
    max_staleness: float = math.inf,
) -> Slots:
    """Returns slots for the versions that clients train from; a version takes the lowest free one.

    The slots of the first updates do not depend on the number of updates.

    Args:
        staleness: int [R, B], updates since each client received its model.
        pending: int [n], versions that clients still in training after the last update received.
        max_staleness: updates for which a version is kept at most; a later client gets the slot 0.

    One client trains from the initial model during the first update, so two models are kept:

    >>> slots = assign_slots(np.array([[0, 0], [0, 1], [0, 0]]))
    >>> slots.received.tolist(), slots.stored.tolist(), slots.count
    ([[0, 0], [1, 0], [0, 0]], [1, 0, 0], 2)
    """
    num_updates = len(staleness)
    versions = np.arange(num_updates)[:, None] - staleness
    last_use = {v: update for update, row in enumerate(versions.tolist()) for v in row}
    last_use |= dict.fromkeys([*np.asarray(pending).tolist(), num_updates], num_updates)
    slots = np.full(num_updates + 1, -1, np.int32)
    free: list[int] = []
    ending = collections.defaultdict(list)  # update -> slots that no later one needs
    count = 0
    for version in range(num_updates + 1):
        if version in last_use:
            slot = heapq.heappop(free) if free else count
            ending[min(last_use[version], version + max_staleness)].append(slot)
            slots[version], count = slot, max(count, slot + 1)
        for slot in ending[version]:
            heapq.heappush(free, slot)
    received = np.where(staleness <= max_staleness, slots[versions], 0)
    return Slots(received, np.where(slots < 0, count, slots)[1:], count)
