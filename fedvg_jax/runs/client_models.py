"""Accuracies on each client's own test rows: of the global model, and of the client's own.

Clients are evaluated in pieces of bounded size, whose rows and memories are copied to the devices. So it is the same
wherever a run keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import numpy as np

from fedvg_jax.config.options import recorded_names
from fedvg_jax.core import processes
from fedvg_jax.core.local_part import LocalPart
from fedvg_jax.core.stores import stored
from fedvg_jax.core.types import Batch, Executor, SimState, Task, Tree, Variables
from fedvg_jax.data.partitions import client_rows
from fedvg_jax.engine import evaluate
from fedvg_jax.runs import client_memories, evaluation_records, simulation
from fedvg_jax.runs.evaluation_records import BY_CLIENT, PERSONAL
from fedvg_jax.runs.memory import num_bytes
from fedvg_jax.runs.record.history import CLIENT_ACCURACIES, Record
from fedvg_jax.runs.registry import make_local

PIECE_BYTES = 2**26
"""Bytes of the models and rows of the clients that are evaluated at a time; one client may take more."""


def entries(sim: simulation.Simulation, state: SimState, store: client_memories.Store | None) -> Record:
    """Returns the entries of `record` accuracy_by_client and personal_accuracy. All processes must call it.

    Args:
        sim: of the run.
        state: after a round.
        store: of the clients' memories; None where the devices hold them.
    """
    wanted = tuple(name for name in CLIENT_ACCURACIES if name in recorded_names(sim.config))
    if not wanted:
        return {}
    count = _make(sim.task, sim.executor, make_local(sim.config), wanted)
    sizes = client_rows.sizes(sim.partition.test)
    correct = {name: np.zeros(len(sizes), np.int64) for name in wanted}
    for clients, inputs in _pieces(sim):
        own = client_memories.own_parts(sim.memories, store, state, clients) if PERSONAL in wanted else ()
        placed = processes.place(inputs, sim.executor.placement)
        for name, values in jax.device_get(count(state.variables, own, *placed)).items():
            correct[name][clients] = values
    labels_per_row = np.prod(sim.arrays.y.shape[1:], dtype=int)
    record: Record = {}
    for name, values in correct.items():
        record |= evaluation_records.by_client(name, values / labels_per_row, sizes)
    return record


def _pieces(sim: simulation.Simulation) -> Iterator[tuple[np.ndarray, tuple[Batch, np.ndarray]]]:
    """Yields clients, int [P], with the pool of their test rows and its table [P, V, B], of equal shapes.

    The last clients may repeat some.
    """
    arrays, rows_of = sim.arrays, sim.partition.test
    sizes, row_bytes = client_rows.sizes(rows_of), (arrays.x.nbytes + arrays.y.nbytes) // len(arrays.y)
    most = max(1, int(sizes.max()))
    size = min(
        len(sizes), max(sim.executor.num_lanes, PIECE_BYTES // (num_bytes(sim.state.variables) + most * row_bytes))
    )
    width = -(-most // simulation.EVAL_BATCH) * simulation.EVAL_BATCH
    for begin in range(0, len(sizes), size):
        piece = np.arange(size) + min(begin, len(sizes) - size)
        own = np.concatenate([rows_of[k] for k in piece.tolist()])
        rows = np.zeros(size * most, np.int64)
        rows[: len(own)] = own
        table = np.full((size, width), -1, np.int32)
        table[np.arange(width) < sizes[piece][:, None]] = np.arange(len(own))
        yield piece, (Batch(arrays.x[rows], arrays.y[rows]), table.reshape(size, -1, simulation.EVAL_BATCH))


@stored
def _make(
    task: Task, executor: Executor, local: LocalPart | None, wanted: tuple[str, ...]
) -> Callable[..., dict[str, jax.Array]]:
    """Returns a jitted function that counts each client's correct labels, int32 [P], under these models."""
    count_correct = evaluate.make_count_correct(task)

    def count(theta: Variables, own: Tree, pool: Batch, tables: jax.Array) -> dict[str, jax.Array]:
        counts = {}
        if BY_CLIENT in wanted:
            shared = (theta, pool)
            counts[BY_CLIENT] = executor.map(lambda both, rows: count_correct(both[0], both[1], rows), shared, tables)
        if PERSONAL in wanted:
            models = own if local is None else jax.vmap(local.within, (None, 0))(theta, own)
            pairs = (models, tables)
            counts[PERSONAL] = executor.map(lambda pool, pair: count_correct(pair[0], pool, pair[1]), pool, pairs)
        return counts

    return jax.jit(count, out_shardings=executor.placement)
