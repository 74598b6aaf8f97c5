"""The clients that a server averages in virtual time, and what it waits for.

A synchronous server averages the first that arrive of those that it asks. A buffered server updates whenever K clients
have arrived, see `engine.buffered`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedvg_jax.core.types import UsageError, Waited
from fedvg_jax.data.partitions import client_rows
from fedvg_jax.engine import schedule, virtual_time
from fedvg_jax.engine.virtual_time import Clock, Timeline
from fedvg_jax.runs.experiment import Experiment

Arrive = Callable[[int, np.ndarray | None], tuple[np.ndarray, np.ndarray | None, Mapping[str, Any]]]
"""(round, clients that are asked, or None to draw them) -> the cohort; the number of each client's training, None for
the round; and fields of the schedule"""

Seconds = Callable[[np.ndarray, int], np.ndarray]
"""(clients, the number of their training) -> how long they take"""


def seconds_of(
    experiment: Experiment, clock: Clock, training: Mapping[str, Any], sent: tuple[int, int]
) -> Seconds:
    """Returns how long clients take.

    Args:
        experiment: of the run.
        clock: its clock.
        training: keyword arguments of `schedule.num_local_steps`.
        sent: bytes that a client receives and sends.
    """
    sizes = client_rows.sizes(experiment.population.partition.train)

    def seconds(clients: np.ndarray, number: int) -> np.ndarray:
        steps = schedule.num_local_steps(number, clients.tolist(), sizes, **training)
        return clock.seconds(clients, steps, *sent, number, experiment.cohorts.seed)

    return seconds


def trainings_differ(experiment: Experiment, clock: Clock) -> bool:
    """Returns whether trainings of one client take different times."""
    fewest, most = experiment.cohorts.local_epochs
    return fewest < most or bool(np.any(clock.jitter))


def synchronous(
    experiment: Experiment, clock: Clock, training: Mapping[str, Any], sent: tuple[int, int]
) -> Arrive:
    """Returns the arrivals of a synchronous server.

    Args:
        experiment, clock, training, sent: as in `seconds_of`.

    Raises:
        UsageError: no client meets the deadline.
    """
    cohorts = experiment.cohorts
    seconds = seconds_of(experiment, clock, training, sent)
    if math.isfinite(cohorts.deadline) and not trainings_differ(experiment, clock):
        least = seconds(np.arange(cohorts.num_clients), 0).min()
        if least > cohorts.deadline:
            raise UsageError(
                f"deadline {cohorts.deadline:g}: the fastest client takes {least:.3g} s; use a longer one"
            )

    def arrive(number: int, clients: np.ndarray | None) -> tuple[np.ndarray, None, dict[str, Any]]:
        sampled, responds, _ = schedule.cohort(
            cohorts.seed, number, cohorts.num_clients, cohorts.num_asked, cohorts.dropout
        )
        clients = sampled if clients is None else clients
        got = virtual_time.wait(seconds(clients, number), responds, cohorts.size, cohorts.deadline)
        waited = Waited(got.seconds, clients[got.late], len(clients), int(responds.sum()))
        is_averaged = responds[got.taken] & got.in_time
        return clients[got.taken], None, {"participating": is_averaged, "waited": waited}

    return arrive


def buffered(
    experiment: Experiment, clock: Clock, training: Mapping[str, Any], sent: tuple[int, int]
) -> tuple[Arrive, Timeline, int]:
    """Returns the arrivals of a buffered server, all its updates, and how many versions of the model it keeps.

    Args:
        experiment, clock, training, sent: as in `seconds_of`.
    """
    cohorts = experiment.cohorts
    seconds = seconds_of(experiment, clock, training, sent)
    if trainings_differ(experiment, clock):
        durations = lambda client, number: float(seconds(np.array([client]), number)[0])  # noqa: E731
    else:
        durations = seconds(np.arange(cohorts.num_clients), 0)
    timeline = virtual_time.timeline(
        durations,
        concurrency=cohorts.concurrency,
        buffer=cohorts.size,
        updates=experiment.rounds,
        num_clients=cohorts.num_clients,
        seed=cohorts.seed,
    )
    is_fresh = timeline.staleness <= cohorts.max_staleness
    slots = virtual_time.assign_slots(timeline.staleness, timeline.pending, cohorts.max_staleness)
    waits = np.diff(timeline.virtual_seconds, prepend=0.0)

    def arrive(number: int, _) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        if number >= experiment.rounds:
            raise UsageError(
                f"round {number} of a buffered server is not planned; use rounds {number + 1} or more"
            )
        fields = {
            "participating": is_fresh[number],
            "received": slots.received[number],
            "stored": slots.stored[number],
            "staleness": timeline.staleness[number],
            "waited": Waited(waits[number], (), cohorts.size, cohorts.size),
        }
        return timeline.clients[number], timeline.training[number], fields

    return arrive, timeline, slots.count
