"""All randomness of a round as a value: cohort, minibatches, drop-outs and keys; and schedules of several rounds.

Every random stream is seeded with (domain, seed, round, client id) alone, so a round is the same in any executor, in
any chunk and after resuming. NumPy arrays; shapes depend on the settings, never on the partition or the seed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import jax
import numpy as np

from fedvg_jax.core import tree
from fedvg_jax.core.types import Schedule
from fedvg_jax.engine import lane_plan

_COHORT, _MINIBATCHES, _PROBE, _EPOCHS, _KEY, _SELECTION = range(6)  # domains of the random streams


def make(
    round: int,
    train_rows: Sequence[np.ndarray],
    *,
    seed: int,
    cohort_size: int,
    local_epochs: tuple[int, int],
    batch_size: int,
    num_lanes: int,
    lanes_together: int = 1,
    probe_ratio: float = 0.0,
    probe_apart: bool = False,
    single_batches: bool = False,
    keep_single: bool = False,
    dropout: float = 0.0,
    clients: np.ndarray | None = None,
    trainings: np.ndarray | None = None,
    client_chunk_size: int | None = None,
) -> Schedule:
    """Returns the schedule of one round; its table has no padding, see `padded`.

    Args:
        round: number of the round, from 0.
        train_rows: for every client, int32 [n_k], its rows of the pool.
        seed: of the run.
        cohort_size: K.
        local_epochs: fewest and most local epochs; a client's number is drawn between them.
        batch_size: B.
        num_lanes: L of the executor.
        lanes_together: the executor's lanes of one device.
        probe_ratio: share of a client's rows that the algorithm's probe reads.
        probe_apart: whether a client trains on its other rows only; n_k is then their number.
        single_batches: whether a local epoch is one minibatch.
        keep_single: whether a last minibatch of a single row is trained on; by default it is skipped.
        dropout: probability that a client of the cohort drops out.
        clients: int32 [K], the cohort; None draws it.
        trainings: int [K], the number of each client's training, from 0, which takes the place of the round in its
            random streams; None for the round.
        client_chunk_size: H, clients of a client chunk; None for the whole cohort.

    >>> rows = [np.arange(4), np.arange(4, 6)]
    >>> settings = {"seed": 0, "cohort_size": 2, "local_epochs": (1, 1), "batch_size": 2, "num_lanes": 1}
    >>> schedule = make(0, rows, **settings)
    >>> sorted(zip(schedule.clients.tolist(), schedule.num_steps.tolist())), sorted(schedule.rows.ravel().tolist())
    ([(0, 2), (1, 1)], [0, 1, 2, 3, 4, 5])
    """
    sampled, participating, shuffle = cohort(seed, round, len(train_rows), cohort_size, dropout)
    clients = sampled if clients is None else clients
    numbers = [round] * len(clients) if trainings is None else trainings.tolist()
    batches, probes, sizes = [], [], []
    for number, client in zip(numbers, clients, strict=True):
        rows = train_rows[client]
        if probe_ratio:
            order = np.random.default_rng([_PROBE, seed, number, client]).permutation(rows)
            num_probed = int(probe_ratio * len(rows))
            probed = order[:num_probed]
            probes.append(split_into_minibatches(probed, batch_size, keep_single))
            rows = order[num_probed:] if probe_apart else rows
        epochs = num_epochs(seed, (number, client), local_epochs)
        rng = np.random.default_rng([_MINIBATCHES, seed, number, client])
        of_client = minibatches(rows, epochs, batch_size, rng, keep_single)
        batches.append(of_client[:epochs] if single_batches else of_client)
        sizes.append(len(rows))
    schedule = pack(
        clients,
        batches,
        sizes,
        num_lanes=num_lanes,
        lanes_together=lanes_together,
        probes=probes,
        client_chunk_size=client_chunk_size,
    )
    keys = None if trainings is None else np.stack([key(seed, number) for number in numbers])
    return schedule._replace(
        participating=participating, shuffle=shuffle, key=key(seed, round), keys=keys
    )


def num_epochs(seed: int, training: tuple[int, int], local_epochs: tuple[int, int]) -> int:
    """Returns the local epochs of a training (round, client), drawn between the fewest and the most."""
    fewest, most = local_epochs
    if fewest == most:
        return fewest
    return int(np.random.default_rng([_EPOCHS, seed, *training]).integers(fewest, most + 1))


def num_local_steps(
    round: int,
    clients: Sequence[int],
    sizes: np.ndarray,
    *,
    seed: int,
    local_epochs: tuple[int, int],
    batch_size: int,
    probe_ratio: float = 0.0,
    probe_apart: bool = False,
    single_batches: bool = False,
    keep_single: bool = False,
) -> np.ndarray:
    """Returns the local steps of clients, int [K], as `make` plans them, without drawing minibatches.

    Args:
        round: number of the round, from 0.
        clients: ids [K].
        sizes: int [N], training rows of every client.
        seed, local_epochs, batch_size, probe_ratio, probe_apart, single_batches, keep_single: as in `make`.
    """
    epochs = np.array([num_epochs(seed, (round, client), local_epochs) for client in clients])
    rows = sizes[clients]
    if probe_apart:
        rows = rows - (probe_ratio * rows).astype(np.int64)
    if not keep_single:
        rows = rows - (rows % batch_size == 1)
    steps = epochs * -(-rows // batch_size)
    return np.minimum(epochs, steps) if single_batches else steps


def cohort(
    seed: int,
    round: int,
    num_clients: int,
    cohort_size: int,
    dropout: float = 0.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws the cohort of a round.

    Returns:
        int32 [K], ids of the clients, sampled uniformly without replacement, in sampling order.
        bool [K], False for a client that drops out.
        int32 [K], a permutation of the cohort.
    """
    rng = np.random.default_rng([_COHORT, seed, round])
    clients = rng.choice(num_clients, cohort_size, replace=False).astype(np.int32)
    return (
        clients,
        rng.random(cohort_size) >= dropout,
        rng.permutation(cohort_size).astype(np.int32),
    )


def key(seed: int, round: int) -> np.ndarray:
    """Returns the round's key data, uint32 [2], for draws on the device."""
    return np.random.default_rng([_KEY, seed, round]).integers(0, 2**32, 2, np.uint32)


def selection_stream(seed: int, round: int) -> np.random.Generator:
    """Returns the generator of a round's selection."""
    return np.random.default_rng([_SELECTION, seed, round])


def official_cohorts(seed: int, num_clients: int, cohort_size: int) -> Callable[[int], np.ndarray]:
    """Returns round -> the published cohort, int32 [K].

    Python's `random`, seeded once, samples the cohorts of rounds 0, 1, ... in order. Cohorts are drawn when first
    needed and kept.
    """
    stream, cohorts = random.Random(seed), []
    ids = range(num_clients)

    def cohort_of_round(number: int) -> np.ndarray:
        while len(cohorts) <= number:
            cohorts.append(np.array(stream.sample(ids, cohort_size), np.int32))
        return cohorts[number]

    return cohort_of_round


def minibatches(
    rows: np.ndarray,
    epochs: int,
    batch_size: int,
    rng: np.random.Generator,
    keep_single: bool = False,
) -> np.ndarray:
    """Returns int32 [S, B]: every row once per epoch, each epoch in a fresh order; see `split_into_minibatches`."""
    orders = rng.permuted(np.broadcast_to(rows, (epochs, len(rows))), axis=1)
    return split_into_minibatches(orders, batch_size, keep_single)


def split_into_minibatches(
    rows: np.ndarray, batch_size: int, keep_single: bool = False
) -> np.ndarray:
    """Returns int32 [S, B]: the rows in order, the last minibatch padded with -1.

    Args:
        rows: [n], or [E, n] for E epochs, each split separately.
        batch_size: B.
        keep_single: whether to keep a last minibatch of a single row. BatchNorm may have undefined statistics there;
            the published code skips it in training for every model.

    >>> split_into_minibatches(np.arange(5), 2).tolist()
    [[0, 1], [2, 3]]
    >>> split_into_minibatches(np.arange(5), 2, keep_single=True).tolist()
    [[0, 1], [2, 3], [4, -1]]
    """
    epochs = np.atleast_2d(rows)
    if epochs.shape[1] % batch_size == 1 and not keep_single:
        epochs = epochs[:, :-1]
    count, size = epochs.shape
    padded = np.full((count, -(-size // batch_size) * batch_size), -1, np.int32)
    padded[:, :size] = epochs
    return padded.reshape(-1, batch_size)


def table(rows: np.ndarray, batch_size: int, capacity: int, keep_single: bool = True) -> np.ndarray:
    """Returns int32 [capacity, B]: `split_into_minibatches`, padded with empty minibatches.

    Its shape does not depend on the partition.
    """
    return _with_empty(split_into_minibatches(rows, batch_size, keep_single), capacity)


def _with_empty(minibatches: np.ndarray, capacity: int) -> np.ndarray:
    """Returns int32 [capacity, B]: the minibatches, and empty ones."""
    empty = np.full((capacity - len(minibatches), minibatches.shape[1]), -1, np.int32)
    return np.concatenate([minibatches, empty])


def capacity(
    pool_size: int, cohort_size: int, local_epochs: int, batch_size: int, largest: int | None = None
) -> int:
    """Returns F, a bound on the minibatches of any cohort of any partition.

        E sum_k ceil(n_k / B) <= E (T / B + K)

    F is at least 2^18 / B (1 MiB of rows), so that several rounds of a small data set share one table. A probe counts
    as one more epoch. Where the table would take more than 2^24 rows (64 MiB), as in a federation of a million clients,
    E K ceil(n / B) with the n rows of the largest client bounds it too, rounded up to a power of two: F then depends on
    the partition.

    Args:
        pool_size: T.
        cohort_size: K.
        local_epochs: E.
        batch_size: B.
        largest: n, training rows of the largest client; None if it is unknown.
    """
    least, of_any = 2**18 // batch_size, local_epochs * (pool_size // batch_size + cohort_size + 1)
    if largest is not None and of_any * batch_size > 2**24:
        of_this = local_epochs * cohort_size * -(-largest // batch_size)
        of_any = min(of_any, 1 << max(0, of_this - 1).bit_length())
    return max(of_any, least)


def pack(
    clients: np.ndarray,
    batches: Sequence[np.ndarray],
    num_samples: Sequence[int],
    *,
    num_lanes: int,
    lanes_together: int = 1,
    probes: Sequence[np.ndarray] = (),
    client_chunk_size: int | None = None,
) -> Schedule:
    """Returns a schedule of these minibatches, in which no client drops out and the key is 0.

    Args:
        clients: int [K], ids of the cohort.
        batches: for each client, its minibatches int32 [S_k, B].
        num_samples: for each client, n_k.
        num_lanes: L of the executor.
        lanes_together: the executor's lanes of one device.
        probes: for each client, the minibatches of its probe int32 [P_k, B]; () without a probe.
        client_chunk_size: H, clients of a client chunk; None for the whole cohort.
    """
    num_steps = np.array([len(b) for b in batches], np.int32)
    probes = probes or [batches[0][:0]] * len(batches)
    probe_steps = np.array([len(p) for p in probes], np.int32)
    num_used = num_steps + probe_steps
    in_order = itertools.chain.from_iterable(zip(batches, probes, strict=True))
    return Schedule(
        clients=np.asarray(clients, np.int32),
        num_samples=np.asarray(num_samples, np.int32),
        num_steps=num_steps,
        start=(np.cumsum(num_used) - num_used).astype(np.int32),
        probe_steps=probe_steps,
        participating=np.ones(len(clients), bool),
        shuffle=np.arange(len(clients), dtype=np.int32),
        key=np.zeros(2, np.uint32),
        plan=lane_plan.plan_chunks(num_steps, num_lanes, lanes_together, client_chunk_size),
        rows=np.concatenate(list(in_order)),
    )


def padded(schedule: Schedule, capacity: int) -> Schedule:
    """Returns a schedule with a table of F minibatches, so that all rounds have one shape.

    Args:
        schedule: of a round.
        capacity: F; see `capacity`.

    Raises:
        ValueError: its minibatches exceed F.
    """
    return schedule._replace(rows=_with_empty(schedule.rows, capacity))


def stack(rounds: Sequence[Schedule], max_rounds: int, capacity: int | None = None) -> Schedule:
    """Returns the schedules of a chunk as one, padded to `max_rounds` with copies of the first.

    All leaves have a leading axis [R], except `rows`, a single table with every round's minibatches.

    Args:
        rounds: the schedules, in order.
        max_rounds: R.
        capacity: F, minibatches that the table can hold; None for the length of the first round's table.
    """
    used = [num_minibatches(s) for s in rounds]
    of_rounds = np.concatenate([s.rows[:n] for s, n in zip(rounds, used, strict=True)])
    rows = _with_empty(of_rounds, len(rounds[0].rows) if capacity is None else capacity)
    offsets = np.cumsum(used) - used
    moved = [
        s._replace(start=s.start + np.int32(o), rows=(), waited=None)
        for s, o in zip(rounds, offsets, strict=True)
    ]
    moved += [moved[0]] * (max_rounds - len(moved))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *moved)._replace(rows=rows)


def num_minibatches(schedule: Schedule) -> int:
    """Returns the number of minibatches in a schedule, of training and of probes."""
    return int(schedule.num_steps.sum() + schedule.probe_steps.sum())


def round_at(rounds: Schedule, r) -> Schedule:
    """Returns round `r` of a stacked schedule."""
    return tree.take(rounds._replace(rows=()), r)._replace(rows=rounds.rows)
