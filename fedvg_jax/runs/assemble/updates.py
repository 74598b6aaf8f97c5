"""The updates of a run with a buffered server: which clients arrive when, and from which version of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedvg_jax.core.types import Schedule, UsageError, Waited
from fedvg_jax.engine import buffered, schedule, virtual_time
from fedvg_jax.runs.experiment import Cohorts


class Updates(NamedTuple):
    """All updates of a run."""

    timeline: virtual_time.Timeline
    slots: buffered.Slots
    is_fresh: np.ndarray
    """bool [R, B], whether a client's staleness is within the limit, so that it is averaged"""

    def clients_and_trainings(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the clients of an update in the order of arrival, and the number of each one's training, int32 [B].

        Raises:
            UsageError: the run has fewer updates.
        """
        if number >= len(self.is_fresh):
            raise UsageError(
                f"round {number} of a buffered server is not planned; use rounds {number + 1} or more"
            )
        return self.timeline.clients[number], self.timeline.training[number]

    def scheduled(self, number: int, drawn: Schedule) -> Schedule:
        """Returns the schedule of an update, from one of its clients and trainings."""
        timeline, is_fresh = self.timeline, self.is_fresh[number]
        earlier = timeline.virtual_seconds[number - 1] if number else 0.0
        size = len(is_fresh)
        return drawn._replace(
            participating=is_fresh,
            received=self.slots.received[number],
            stored=self.slots.stored[number],
            staleness=timeline.staleness[number],
            waited=Waited(timeline.virtual_seconds[number] - earlier, (), size, size),
        )


def make_updates(
    cohorts: Cohorts,
    rounds: int,
    sizes: np.ndarray,
    training: Mapping[str, Any],
    traffic: tuple[int, int],
) -> Updates | None:
    """Returns the updates of a run; None for a synchronous server.

    Args:
        cohorts: of the run.
        rounds: R, updates.
        sizes: int [N], training rows of every client.
        training: keyword arguments of `schedule.num_local_steps`.
        traffic: bytes that a client receives and sends.
    """
    server = cohorts.buffer
    if server is None:
        return None
    timeline = virtual_time.timeline(
        durations_of(cohorts, sizes, training, traffic),
        concurrency=server.concurrency,
        buffer=cohorts.size,
        updates=rounds,
        num_clients=len(sizes),
        seed=cohorts.seed,
    )
    is_fresh = timeline.staleness <= server.max_staleness
    slots = buffered.assign_slots(timeline.staleness, timeline.pending, server.max_staleness)
    return Updates(timeline, slots, is_fresh)


def durations_of(
    cohorts: Cohorts, sizes: np.ndarray, training: Mapping[str, Any], traffic: tuple[int, int]
) -> np.ndarray | Callable[[int, int], float]:
    """Returns the seconds of every client [N], or a function of (client, training) where trainings of one differ."""
    clock, seed = cohorts.clock, cohorts.seed
    assert clock is not None, "a buffered server has one"

    def seconds(clients: np.ndarray, number: int) -> np.ndarray:
        steps = schedule.num_local_steps(number, clients.tolist(), sizes, **training)
        return clock.seconds(clients, steps, *traffic, number, seed)

    fewest, most = cohorts.local_epochs
    if np.any(clock.jitter) or fewest < most:
        return lambda client, number: float(seconds(np.array([client]), number)[0])
    return seconds(np.arange(len(sizes)), 0)
