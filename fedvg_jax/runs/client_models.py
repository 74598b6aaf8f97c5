"""Accuracies on each client's test rows, which are recorded on demand, with mean, worst decile and spread.

accuracy_by_client    of the global model
personal_accuracy     of each client's model: its personal one, or the global one with its local tensors

Clients are evaluated in pieces of bounded size. The rows and states of a piece are copied to the devices, so it does
not matter where a run keeps them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
from jax import Array

from fedvg_jax.core.trained_part import LocalPart, whole
from fedvg_jax.core.tree import num_bytes
from fedvg_jax.core.types import Batch, Executor, SimState, Tree, Variables
from fedvg_jax.data.partitions import client_rows
from fedvg_jax.engine import evaluate
from fedvg_jax.host import processes
from fedvg_jax.runs.assemble import programs, simulation
from fedvg_jax.runs.placement.client_states import copied_rows
from fedvg_jax.runs.record.history import CLIENT_ACCURACIES, Record, number

BY_CLIENT, PERSONAL = CLIENT_ACCURACIES

PIECE_BYTES = 2**26
"""Bytes of the models and rows of the clients that are evaluated at a time; one client may take more."""


def entries(sim: simulation.Simulation, state: SimState, store: Tree) -> Record:
    """Returns the entries of `record` that are accuracies by client. All processes must call it.

    Args:
        sim: of the run.
        state: after a round.
        store: of the client states, see `Placement`.
    """
    keeps_models = bool(sim.local.is_local or sim.algorithm.personal)
    labels_per_row = np.prod(sim.arrays.y.shape[1:], dtype=int)
    record: Record = {}
    for name in CLIENT_ACCURACIES:
        if name in sim.experiment.recorded:
            is_personal = keeps_models and name == PERSONAL
            correct = _count_correct(sim, state, store, is_personal)
            sizes = client_rows.sizes(sim.partition.test)
            record |= by_client(name, correct / labels_per_row, sizes)
    return record


def _count_correct(
    sim: simulation.Simulation, state: SimState, store: Tree, is_personal: bool
) -> np.ndarray:
    """Returns each client's correct labels, int [N], of its personal model or of the global one."""
    make = functools.partial(_make, sim.bind, sim.executor, sim.local, is_personal)
    count = sim.cached(("client models", is_personal), make)
    correct = np.zeros(len(sim.partition.test), np.int64)
    for clients, inputs in _pieces(sim):
        tensors = sim.state_placement.read(store, state, clients) if is_personal else ()
        placed = processes.place(inputs, sim.executor.placement)
        counts = processes.wait(count(state.variables, tensors, *placed, sim.base))
        correct[clients] = jax.device_get(counts)
    return correct


def by_client(name: str, correct: np.ndarray, sizes: np.ndarray) -> Record:
    """Returns accuracies of clients, and their mean, worst decile and standard deviation over those with test rows.

    Args:
        name: a key of `history.CLIENT_ACCURACIES`.
        correct: [N] correctly predicted rows of every client, in parts where rows have several labels.
        sizes: int [N] test rows of every client.

    >>> by_client("accuracy_by_client", np.array([1.0, 0.0, 1.0]), np.array([2, 0, 1]))
    {'accuracy_by_client': [0.5, None, 1.0], 'accuracy_by_client_mean': 0.75, 'worst_decile': 0.5, 'spread': 0.25}
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracy = correct / sizes
    of_some = accuracy[sizes > 0]
    mean, spread = (number(of_some.mean()), number(of_some.std())) if of_some.size else (None, None)
    of_each = (
        {name: [number(value) for value in accuracy]}
        if len(sizes) <= client_rows.MAX_LISTED
        else {}
    )
    return of_each | dict(
        zip(CLIENT_ACCURACIES[name], (mean, worst_decile(of_some), spread), strict=True)
    )


def worst_decile(accuracies: Sequence[float] | np.ndarray) -> float | None:
    """Returns the mean of the lowest tenth of the accuracies, rounded up to a whole client; None without any.

    Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020, report it as the worst 10 %.

    >>> worst_decile([0.9] * 9 + [0.25]), worst_decile([1.0, 0.5, 0.0] + [1.0] * 17), worst_decile([])
    (0.25, 0.25, None)
    """
    lowest = np.sort(accuracies)[: math.ceil(len(accuracies) / 10)]
    return number(lowest.mean()) if lowest.size else None


def _pieces(
    sim: simulation.Simulation,
) -> Iterator[tuple[np.ndarray, tuple[Batch, np.ndarray]]]:
    """Yields clients, int32 [P], with the pool and the table of their test rows, [P, V, B], of equal shapes.

    The last clients may repeat some.
    """
    arrays, parts = sim.arrays, sim.partition
    sizes = client_rows.sizes(parts.test)
    largest = int(sizes.max(initial=1))
    row_bytes = (arrays.x.nbytes + arrays.y.nbytes) // len(arrays.y)
    client_bytes = 3 * num_bytes(sim.state.variables) + largest * row_bytes
    size = min(len(sizes), max(sim.executor.num_lanes, PIECE_BYTES // client_bytes))
    table_shape = (size, -(-largest // evaluate.ROWS) * evaluate.ROWS)
    for begin in range(0, len(sizes), size):
        piece = np.arange(size, dtype=np.int32) + min(begin, len(sizes) - size)
        tested = np.concatenate([parts.test[k] for k in piece.tolist()])
        # clients train on these rows, of which some may be corrupt
        pool = copied_rows(sim.experiment.population.pool, tested, size * largest)
        table = np.full(table_shape, -1, np.int32)
        table[np.arange(table_shape[1]) < sizes[piece][:, None]] = np.arange(len(tested))
        yield piece, (pool, table.reshape(size, -1, evaluate.ROWS))


def _make(
    bind: Callable[[Tree], programs.Bound], executor: Executor, local: LocalPart, is_personal: bool
) -> Callable[..., Array]:
    """Returns a jitted function that counts each client's correct labels, int32 [P], under its model or one model."""

    def count(theta: Variables, tensors: Tree, pool: Batch, tables: Array, base: Tree) -> Array:
        count_correct = evaluate.make_count_correct(bind(base).task)

        def count_one(shared: tuple[Variables, Batch], client: tuple[Tree, Array]) -> Array:
            (model, pool), (kept, rows) = shared, client
            if is_personal:
                model = whole(model, kept) if local.is_local else kept
            return count_correct(model, pool, rows)

        return executor.map(count_one, (theta, pool), (tensors, tables))

    return jax.jit(count, out_shardings=executor.placement)
