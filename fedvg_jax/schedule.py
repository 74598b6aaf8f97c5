"""All randomness of a round as a value: who plays, which rows are in which minibatch, and the plan of the lanes.

Every stream is drawn from (seed, round, client id) alone, so a round is the same however it is executed, in whatever
chunk it runs, and after any resume. NumPy only; shapes depend on the settings, never on the partition or the seed.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from fedvg_jax.types import Plan, Schedule

_COHORT, _MINIBATCHES = 0, 1  # domains of the random streams


def make(
    round: int,
    train_rows: Sequence[np.ndarray],
    *,
    seed: int,
    cohort_size: int,
    local_epochs: int,
    batch_size: int,
    num_lanes: int,
    capacity: int,
) -> Schedule:
    """The schedule of one round.

    Args:
        round: number of the round, from 0.
        train_rows: for every client, its rows of the pool (int32).
        capacity: F, minibatches the table can hold; see `capacity`.
    """
    clients = cohort(seed, round, len(train_rows), cohort_size)
    batches = [
        minibatches(train_rows[c], local_epochs, batch_size, np.random.default_rng([_MINIBATCHES, seed, round, c]))
        for c in clients
    ]
    return pack(clients, batches, [len(train_rows[c]) for c in clients], num_lanes=num_lanes, capacity=capacity)


def cohort(seed: int, round: int, num_clients: int, cohort_size: int) -> np.ndarray:
    """Ids of the sampled clients, int32 [K], uniform without replacement, in sampling order."""
    rng = np.random.default_rng([_COHORT, seed, round])
    return rng.choice(num_clients, cohort_size, replace=False).astype(np.int32)


def minibatches(rows: np.ndarray, epochs: int, batch_size: int, rng: np.random.Generator) -> np.ndarray:
    """int32 [S, B]: every row once per epoch in a fresh order, cut into batches."""
    order = rng.permuted(np.broadcast_to(rows, (epochs, len(rows))), axis=1)
    return np.concatenate([cut(epoch, batch_size) for epoch in order])


def cut(rows: np.ndarray, batch_size: int, keep_single: bool = False) -> np.ndarray:
    """int32 [S, B]: rows in order, the last batch filled up with -1.

    A last batch of a single row is skipped, as published (BatchNorm has no variance there), unless `keep_single`.
    """
    if len(rows) % batch_size == 1 and not keep_single:
        rows = rows[:-1]
    table = np.full((-(-len(rows) // batch_size), batch_size), -1, np.int32)
    table.reshape(-1)[: len(rows)] = rows
    return table


def table(rows: np.ndarray, batch_size: int, capacity: int, keep_single: bool = True) -> np.ndarray:
    """`cut`, filled up with empty batches to `capacity`, so that its shape says nothing of the partition."""
    batches = cut(rows, batch_size, keep_single)
    return np.concatenate([batches, np.full((capacity - len(batches), batch_size), -1, np.int32)])


def capacity(pool_size: int, cohort_size: int, local_epochs: int, batch_size: int) -> int:
    """F: minibatches of any cohort of any partition, sum ceil(n_k / B) <= T / B + K; at least 1 MiB of rows, so that
    several rounds of a small set share one table."""
    return max(local_epochs * (pool_size // batch_size + cohort_size + 1), 2**18 // batch_size)


def pack(
    clients: np.ndarray, batches: Sequence[np.ndarray], num_samples: Sequence[int], *, num_lanes: int, capacity: int
) -> Schedule:
    """A schedule from each client's own minibatches [S_k, B]."""
    num_steps = np.array([len(b) for b in batches], np.int32)
    rows = np.full((capacity, batches[0].shape[1]), -1, np.int32)
    rows[: num_steps.sum()] = np.concatenate(batches)
    start = (np.cumsum(num_steps) - num_steps).astype(np.int32)
    samples = np.asarray(num_samples, np.int32)
    return Schedule(np.asarray(clients, np.int32), samples, num_steps, start, plan(num_steps, num_lanes), rows)


def plan(num_steps: np.ndarray, num_lanes: int) -> Plan:
    """Longest client first, each to the lane that is free soonest (LPT), cut wherever a lane changes client.

    A client without steps enters no lane. An idle lane repeats client 0's work, which is never stored.
    """
    begin, lane_of = _longest_first(num_steps, num_lanes)
    end = begin + num_steps
    busy = num_steps > 0
    cuts = np.unique(np.concatenate([[0], end[busy]]))
    num_segments, size = len(cuts) - 1, (len(num_steps), num_lanes)
    length = np.zeros(len(num_steps), np.int32)
    length[:num_segments] = np.diff(cuts)
    client, step = np.zeros(size, np.int32), np.zeros(size, np.int32)
    reset, finish = np.zeros(size, bool), np.zeros(size, bool)
    for lane in range(num_lanes):
        jobs = np.flatnonzero(busy & (lane_of == lane))
        jobs = jobs[np.argsort(begin[jobs])]
        segments = np.flatnonzero(cuts[:-1] < end[jobs].max(initial=0))  # a lane is idle only after its last client
        now = jobs[np.searchsorted(end[jobs], cuts[segments], side="right")]
        client[segments, lane] = now
        step[segments, lane] = cuts[segments] - begin[now]
        reset[segments, lane] = cuts[segments] == begin[now]
        finish[segments, lane] = cuts[segments + 1] == end[now]
    return Plan(np.int32(num_segments), length, client, step, reset, finish)


def _longest_first(num_steps: np.ndarray, num_lanes: int) -> tuple[np.ndarray, np.ndarray]:
    """When each client begins, and on which lane."""
    begin, lane_of = np.zeros(len(num_steps), np.int64), np.zeros(len(num_steps), np.int64)
    free = [(0, lane) for lane in range(num_lanes)]
    for k in np.argsort(-num_steps, kind="stable"):
        begin[k], lane_of[k] = free[0]
        heapq.heapreplace(free, (int(begin[k] + num_steps[k]), int(lane_of[k])))
    return begin, lane_of


def stack(rounds: Sequence[Schedule], max_rounds: int) -> Schedule:
    """The schedules of a chunk as one: a leading axis [R] on all but `rows`, which hold every round's minibatches."""
    used = [int(s.num_steps.sum()) for s in rounds]
    rows = np.full_like(rounds[0].rows, -1)
    rows[: sum(used)] = np.concatenate([s.rows[:n] for s, n in zip(rounds, used, strict=True)])
    first = np.cumsum(used) - used
    moved = [s._replace(start=s.start + np.int32(f), rows=()) for s, f in zip(rounds, first, strict=True)]
    moved += [moved[0]] * (max_rounds - len(moved))
    plans = Plan(*(np.stack(leaf) for leaf in zip(*(s.plan for s in moved), strict=True)))
    fields = (np.stack(leaf) for leaf in zip(*(s[:4] for s in moved), strict=True))
    return Schedule(*fields, plans, rows)


def at(rounds: Schedule, r) -> Schedule:
    """Round `r` of a stacked schedule."""
    plan = Plan(*(leaf[r] for leaf in rounds.plan))
    return Schedule(*(leaf[r] for leaf in rounds[:4]), plan, rounds.rows)
