"""How long clients take, in virtual seconds, and which of a cohort a synchronous server waits for.

A training of client k with S local steps takes

    t_k = f_k (bytes_down / download + fixed + S step + bytes_up / upload) j,   j = exp(jitter z), z ~ N(0, 1)

f_k is the client's factor, and z is drawn from (seed, round, client). Durations depend on numbers of steps and bytes
alone, so the host knows every arrival before anything is trained. NumPy only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedvg_jax.core.types import UsageError, Vector

_JITTER, _SPEED = 201, 202  # domains of the random streams, distinct from the schedule's

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
        UsageError: a field is no number, negative or not finite, or has another length than N.

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
        got = " ".join(f"{field!s:.60}".split())
        try:
            values = np.asarray(field, np.float64)
        except (TypeError, ValueError):
            raise UsageError(f"clock: {name} must be numbers; got {got}") from None
        is_rate = name in ("upload", "download")
        is_allowed = (values > 0) if is_rate else (values >= 0) & (values < math.inf)
        if values.shape not in ((), (num_clients,)) or not is_allowed.all():
            allowed = "> 0" if is_rate else "finite and >= 0"
            raise UsageError(
                f"clock: {name} must be {allowed}, one number or one for each of {num_clients} clients; got {got}"
            )
        fields[name] = values
    return Clock(**fields)


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
        step_seconds=np.asarray(clock.step_seconds) * factor,
        fixed_seconds=np.asarray(clock.fixed_seconds) * factor,
        upload=np.asarray(clock.upload) / factor,
        download=np.asarray(clock.download) / factor,
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
    # clients that drop out are last
    order = np.lexsort((np.arange(len(seconds)), seconds, ~responds))
    taken = np.sort(order[:size])
    in_time = seconds[taken] <= deadline
    is_averaged = np.zeros(len(seconds), bool)
    is_averaged[taken[in_time]] = True
    late = np.flatnonzero(responds & ~is_averaged)
    awaited = seconds[taken][responds[taken]]
    end = float(awaited.max(initial=0.0))
    return Arrivals(taken, in_time, late, min(end, deadline))
