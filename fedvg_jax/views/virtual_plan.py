"""What a dry run shows of virtual time: how long clients wait, and the first arrivals of a buffered server."""

from __future__ import annotations

import statistics

import jax

from fedvg_jax.core import tree
from fedvg_jax.engine.virtual_time import Clock, Timeline
from fedvg_jax.runs.assemble.simulation import Simulation
from fedvg_jax.views.output import Rows, duration

ROUNDS = 20
"""Rounds of a synchronous server that are planned."""

ARRIVALS, IN_A_LINE = 100, 10
"""Arrivals that a picture shows."""


def rows(sim: Simulation) -> Rows:
    """Returns rows of the plan by name; none without a clock."""
    clock = sim.experiment.cohorts.clock
    if sim.timeline:
        return _buffered_rows(sim, sim.timeline)
    return _synchronous_rows(sim, clock) if clock else {}


def _synchronous_rows(sim: Simulation, clock: Clock) -> Rows:
    rounds, seed = sim.experiment.rounds, sim.experiment.cohorts.seed
    sent = sim.traffic.down, sim.traffic.up
    seconds, trained, present = [], 0.0, 0.0
    for number in range(min(ROUNDS, rounds)):
        planned = sim.draw(number)
        of_clients = clock.seconds(planned.clients, planned.num_steps, *sent, number, seed)
        seconds.append(planned.waited.seconds)
        trained += of_clients[planned.participating].sum()
        present += planned.participating.sum() * planned.waited.seconds
    waiting = 1 - trained / present if present else 0.0
    return {
        "virtual time": f"about {duration(rounds * statistics.fmean(seconds))}",
        "first rounds": ", ".join(map(duration, seconds[:5])),
        "clients wait": f"{waiting:.0%} of their time, for the slowest",
    }


def _buffered_rows(sim: Simulation, timeline: Timeline) -> Rows:
    """Returns rows of a buffered server; M clients are in training at any time."""
    cohorts = sim.experiment.cohorts
    ends, staleness, versions = timeline.virtual_seconds, timeline.staleness, sim.state.versions
    waiting = (ends[:, None] - timeline.arrived).sum()
    present = waiting + cohorts.concurrency * ends[-1]
    num_slots = len(jax.tree.leaves(versions)[0])
    return {
        "virtual time": duration(ends[-1]),
        "staleness": f"mean {staleness.mean():.3g}, largest {staleness.max()}",
        "in the buffer": f"{waiting / present if present else 0:.0%} of client time",
        "dropped": f"{(staleness > cohorts.max_staleness).mean():.0%} of arrivals",
        "versions": f"{num_slots} slots, {tree.num_bytes(versions) / 2**20:.2f} MiB",
    }


def picture(timeline: Timeline, max_staleness: float) -> str:
    """Returns the first arrivals as client:staleness, ten a line after the time of the first of them.

    | is an update of the server, and x a client over `max_staleness`, which is dropped.

    >>> from fedvg_jax.engine.virtual_time import timeline
    >>> print(picture(timeline([1.0, 2.5], concurrency=2, buffer=2, updates=2), 0).splitlines()[1])
           1 s  0:0   0:0| 1:1x   0:0|
    """
    clients, staleness, arrived = (
        field.ravel()[:ARRIVALS]
        for field in (timeline.clients, timeline.staleness, timeline.arrived)
    )
    size = timeline.clients.shape[1]
    texts = []
    for number, (client, late) in enumerate(zip(clients, staleness, strict=True), 1):
        dropped = "x" if late > max_staleness else ""
        end = "|" if number % size == 0 else " "
        texts.append(f"{client}:{late}{dropped}{end}")
    width = max(map(len, texts)) + 1
    lines = [f"first {len(texts)} arrivals, client:staleness; | the server updates, x dropped"]
    for start in range(0, len(texts), IN_A_LINE):
        entries = "".join(f"{text:>{width}}" for text in texts[start : start + IN_A_LINE])
        lines.append(f"{duration(arrived[start]):>10}{entries}".rstrip())
    return "\n".join(lines)
