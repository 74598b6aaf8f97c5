"""All randomness of a round as a value: who plays, which rows are in which minibatch, and the plan of the lanes.

Every stream is drawn from (seed, round, client id) alone, so a round is the same however it is executed, in whatever
chunk it runs, and after any resume. NumPy only; shapes depend on the settings, never on the partition or the seed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedvg_jax.core.types import Plan, Schedule

_COHORT, _MINIBATCHES, _PROBE, _EPOCHS, _KEY = range(5)  # domains of the random streams


def make(
    round: int,
    train_rows: Sequence[np.ndarray],
    *,
    seed: int,
    cohort_size: int,
    local_epochs: tuple[int, int],
    batch_size: int,
    num_lanes: int,
    capacity: int,
    lanes_together: int = 1,
    probe_ratio: float = 0.0,
    probe_apart: bool = False,
    single_batches: bool = False,
    dropout: float = 0.0,
    clients: np.ndarray | None = None,
    block_size: int | None = None,
) -> Schedule:
    """The schedule of one round.

    Args:
        round: number of the round, from 0.
        train_rows: for every client, its rows of the pool (int32).
        local_epochs: fewest and most epochs of a client; a straggler's number is drawn between them.
        num_lanes, lanes_together: the executor's.
        capacity: F, minibatches the table can hold; see `capacity`.
        probe_ratio: share of a client's rows that its algorithm's probe sees.
        probe_apart: whether a client trains on the other rows only; n_k is then their number.
        single_batches: whether a local "epoch" is one minibatch.
        dropout: probability that a client of the cohort is not heard of again.
        clients: the cohort, where it is not to be drawn here.
        block_size: H, clients held at a time; by default the whole cohort.
    """
    drawn, heard, shuffle = cohort(seed, round, len(train_rows), cohort_size, dropout)
    clients = drawn if clients is None else clients

    def stream(domain: int, client: int) -> np.random.Generator:
        return np.random.default_rng([domain, seed, round, client])

    def epochs(client: int) -> int:
        fewest, most = local_epochs
        return fewest if fewest == most else int(stream(_EPOCHS, client).integers(fewest, most + 1))

    def rows(client: int) -> tuple[np.ndarray, np.ndarray]:
        """To train on, and to probe."""
        mine = train_rows[client]
        if not probe_ratio:
            return mine, mine[:0]
        order = stream(_PROBE, client).permutation(mine)
        num_probed = int(probe_ratio * len(mine))
        return (order[num_probed:] if probe_apart else mine), order[:num_probed]

    def train(client: int, mine: np.ndarray) -> np.ndarray:
        batches = minibatches(mine, epochs(client), batch_size, stream(_MINIBATCHES, client))
        return batches[: epochs(client)] if single_batches else batches

    parts = [rows(c) for c in clients]
    batches = [train(c, mine) for c, (mine, _) in zip(clients, parts, strict=True)]
    probes = [cut(probed, batch_size) for _, probed in parts] if probe_ratio else ()
    sizes = [len(mine) for mine, _ in parts]
    lanes = {"num_lanes": num_lanes, "lanes_together": lanes_together}
    packed = pack(clients, batches, sizes, **lanes, capacity=capacity, probes=probes, block_size=block_size)
    return packed._replace(heard=heard, shuffle=shuffle, key=key(seed, round))


def cohort(
    seed: int, round: int, num_clients: int, cohort_size: int, dropout: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids of the sampled clients, int32 [K], uniform without replacement, in sampling order; who is heard of again,
    bool [K]; and a permutation of the cohort, int32 [K]."""
    rng = np.random.default_rng([_COHORT, seed, round])
    clients = rng.choice(num_clients, cohort_size, replace=False).astype(np.int32)
    return clients, rng.random(cohort_size) >= dropout, rng.permutation(cohort_size).astype(np.int32)


def key(seed: int, round: int) -> np.ndarray:
    """Key data of the round, uint32 [2], for what is drawn on the device."""
    return np.random.default_rng([_KEY, seed, round]).integers(0, 2**32, 2, np.uint32)


def official_cohorts(seed: int, num_clients: int, cohort_size: int) -> Callable[[int], np.ndarray]:
    """round -> the published cohort: Python's `random`, seeded once, samples the clients of one round after the other.

    Rounds are drawn up to the one that is asked for, and kept.
    """
    stream, drawn = random.Random(seed), []
    everyone = list(range(num_clients))

    def of_round(number: int) -> np.ndarray:
        while len(drawn) <= number:
            drawn.append(np.array(stream.sample(everyone, cohort_size), np.int32))
        return drawn[number]

    return of_round


def minibatches(rows: np.ndarray, epochs: int, batch_size: int, rng: np.random.Generator) -> np.ndarray:
    """int32 [S, B]: every row once per epoch in a fresh order, cut into batches."""
    return cut(rng.permuted(np.broadcast_to(rows, (epochs, len(rows))), axis=1), batch_size)


def cut(rows: np.ndarray, batch_size: int, keep_single: bool = False) -> np.ndarray:
    """int32 [S, B]: rows [n] in order, the last batch filled up with -1; of rows [E, n] every epoch so.

    A last batch of a single row is skipped unless `keep_single`. The published code skips it in training, whatever the
    model, because a BatchNorm after flattening has no variance there.
    """
    epochs = np.atleast_2d(rows)
    if epochs.shape[1] % batch_size == 1 and not keep_single:
        epochs = epochs[:, :-1]
    count, size = epochs.shape
    table = np.full((count, -(-size // batch_size) * batch_size), -1, np.int32)
    table[:, :size] = epochs
    return table.reshape(-1, batch_size)


def table(rows: np.ndarray, batch_size: int, capacity: int, keep_single: bool = True) -> np.ndarray:
    """`cut`, filled up with empty batches to `capacity`, so that its shape says nothing of the partition."""
    batches = cut(rows, batch_size, keep_single)
    return np.concatenate([batches, np.full((capacity - len(batches), batch_size), -1, np.int32)])


def capacity(pool_size: int, cohort_size: int, local_epochs: int, batch_size: int) -> int:
    """F: minibatches of any cohort of any partition, sum ceil(n_k / B) <= T / B + K; at least 1 MiB of rows, so that
    several rounds of a small set share one table. A probe counts as one more epoch."""
    return max(local_epochs * (pool_size // batch_size + cohort_size + 1), 2**18 // batch_size)


def pack(
    clients: np.ndarray,
    batches: Sequence[np.ndarray],
    num_samples: Sequence[int],
    *,
    num_lanes: int,
    capacity: int,
    lanes_together: int = 1,
    probes: Sequence[np.ndarray] = (),
    block_size: int | None = None,
) -> Schedule:
    """A schedule from each client's own minibatches [S_k, B], and its probe's; all are heard of, the key is 0."""
    num_steps = np.array([len(b) for b in batches], np.int32)
    probes = probes or [batches[0][:0]] * len(batches)
    probe_steps = np.array([len(p) for p in probes], np.int32)
    used = num_steps + probe_steps
    rows = np.full((capacity, batches[0].shape[1]), -1, np.int32)
    rows[: used.sum()] = np.concatenate([part for pair in zip(batches, probes, strict=True) for part in pair])
    return Schedule(
        clients=np.asarray(clients, np.int32),
        num_samples=np.asarray(num_samples, np.int32),
        num_steps=num_steps,
        start=(np.cumsum(used) - used).astype(np.int32),
        probe_steps=probe_steps,
        heard=np.ones(len(clients), bool),
        shuffle=np.arange(len(clients), dtype=np.int32),
        key=np.zeros(2, np.uint32),
        plan=plans(num_steps, num_lanes, lanes_together, block_size),
        rows=rows,
    )


def plans(num_steps: np.ndarray, num_lanes: int, lanes_together: int = 1, block_size: int | None = None) -> Plan:
    """The plan of a cohort; or those of its blocks, stacked, the last filled up with clients without steps."""
    if block_size is None or block_size >= len(num_steps):
        return plan(num_steps, num_lanes, lanes_together)
    filled = np.pad(num_steps, (0, -len(num_steps) % block_size)).reshape(-1, block_size)
    of_blocks = (plan(block, num_lanes, lanes_together) for block in filled)
    return Plan(*(np.stack(leaf) for leaf in zip(*of_blocks, strict=True)))


def plan(num_steps: np.ndarray, num_lanes: int, lanes_together: int = 1) -> Plan:
    """Who is on which lane when, cut wherever a lane changes client.

    Longest client first, each to the device that has least to do (LPT). The lanes of a device take

        T = max(longest client, all its clients' steps / its lanes)

    which is the least there is: its clients are laid end to end and cut at every T, a lane each (R. McNaughton,
    Scheduling with Deadlines and Loss Functions, Management Science 6, 1959). Who is cut begins on the later lane.

    A client without steps enters no lane. An idle lane repeats client 0's work, which is never stored.

    Args:
        lanes_together: lanes of one device.

    >>> found = plan(np.array([2, 2, 2]), 2, lanes_together=2)
    >>> int(found.length.sum()), found.client[: found.num_segments].tolist()
    (3, [[0, 1], [0, 2], [1, 2]])
    """
    pieces = [
        (lanes_together * device + lane, *piece)
        for device, clients in enumerate(_longest_first(num_steps, num_lanes // lanes_together))
        for lane, *piece in _wrapped(num_steps, clients, lanes_together)
    ]
    lane, k, begin, first, count = np.array(pieces, np.int64).reshape(-1, 5).T
    cuts = np.unique([0, *(begin + count)])
    num_segments, most = len(cuts) - 1, len(num_steps) + num_lanes  # each lane but a device's last may cut one client
    length, size = np.zeros(most, np.int32), (most, num_lanes)
    length[:num_segments] = np.diff(cuts)
    client, step = np.zeros(size, np.int32), np.zeros(size, np.int32)
    reset, finish = np.zeros(size, bool), np.zeros(size, bool)
    taken, laid = np.searchsorted(cuts, begin), np.searchsorted(cuts, begin + count)
    piece = np.repeat(np.arange(len(k)), laid - taken)  # once for each of its segments
    segment = np.concatenate([[], *map(np.arange, taken, laid)]).astype(np.int64)
    client[segment, lane[piece]] = k[piece]
    step[segment, lane[piece]] = (first - begin)[piece] + cuts[segment]
    reset[taken, lane] = finish[laid - 1, lane] = True
    return Plan(np.int32(num_segments), length, client, step, reset, finish)


def block_size(plan: Plan) -> int:
    """Clients of a plan, or of each of its blocks."""
    return plan.length.shape[-1] - plan.client.shape[-1]


def _longest_first(num_steps: np.ndarray, num_devices: int) -> list[list[int]]:
    """The clients of every device."""
    clients: list[list[int]] = [[] for _ in range(num_devices)]
    loads = [(0, device) for device in range(num_devices)]
    for k in np.argsort(-num_steps, kind="stable"):
        load, device = loads[0]
        clients[device].append(int(k))
        heapq.heapreplace(loads, (load + int(num_steps[k]), device))
    return clients


def _wrapped(num_steps: np.ndarray, clients: Sequence[int], num_lanes: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(lane, client, when it is taken up there, its first step there, how many) of a device's clients."""
    steps = [int(num_steps[k]) for k in clients]
    end = max(max(steps, default=0), -(-sum(steps) // num_lanes))
    lane, now = 0, 0
    for k, count in zip(clients, steps, strict=True):
        here = min(count, end - now)
        rest = count - here
        if rest:
            yield lane + 1, k, 0, 0, rest
        if here:
            yield lane, k, now, rest, here
        lane, now = (lane + 1, rest) if now + here == end else (lane, now + here)


def stack(rounds: Sequence[Schedule], max_rounds: int) -> Schedule:
    """The schedules of a chunk as one: a leading axis [R] on all but `rows`, which hold every round's minibatches."""
    used = [length(s) for s in rounds]
    rows = np.full_like(rounds[0].rows, -1)
    rows[: sum(used)] = np.concatenate([s.rows[:n] for s, n in zip(rounds, used, strict=True)])
    first = np.cumsum(used) - used
    moved = [s._replace(start=s.start + np.int32(f), rows=()) for s, f in zip(rounds, first, strict=True)]
    moved += [moved[0]] * (max_rounds - len(moved))
    plans = Plan(*(np.stack(leaf) for leaf in zip(*(s.plan for s in moved), strict=True)))
    fields = (np.stack(leaf) for leaf in zip(*(s[:-2] for s in moved), strict=True))
    return Schedule(*fields, plan=plans, rows=rows)


def length(schedule: Schedule) -> int:
    """Minibatches a schedule holds."""
    return int(schedule.num_steps.sum() + schedule.probe_steps.sum())


def at(rounds: Schedule, r) -> Schedule:
    """Round `r` of a stacked schedule."""
    plan = Plan(*(leaf[r] for leaf in rounds.plan))
    return Schedule(*(leaf[r] for leaf in rounds[:-2]), plan=plan, rows=rounds.rows)
