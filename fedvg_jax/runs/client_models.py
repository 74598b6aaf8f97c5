"""Accuracy of each client's own model on its own test rows: its personal model, or the global one with its own tensors.

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
from fedvg_jax.runs.evaluation_records import PERSONAL
from fedvg_jax.runs.memory import num_bytes
from fedvg_jax.runs.record.history import Record
from fedvg_jax.runs.registry import make_local

PIECE_BYTES = 2**26
"""Bytes of the models and rows of the clients that are evaluated at a time; one client may take more."""


def entries(sim: simulation.Simulation, state: SimState, store: client_memories.Store | None) -> Record:
    """Returns the entries of `record` personal_accuracy. All processes must call it.

    Args:
        sim: of the run.
        state: after a round.
        store: of the clients' memories; None where the devices hold them.
    """
    if PERSONAL not in recorded_names(sim.config):
        return {}
    count = _make(sim.task, sim.executor, make_local(sim.config))
    sizes = client_rows.sizes(sim.partition.test)
    correct = np.zeros(len(sizes), np.int64)
    for clients, inputs in _pieces(sim):
        own = client_memories.own_parts(sim.memories, store, state, clients)
        correct[clients] = jax.device_get(count(state.variables, own, *processes.place(inputs, sim.executor.placement)))
    labels_per_row = np.prod(sim.arrays.y.shape[1:], dtype=int)
    return evaluation_records.by_client(PERSONAL, correct / labels_per_row, sizes)


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
def _make(task: Task, executor: Executor, local: LocalPart | None) -> Callable[..., jax.Array]:
    """Returns a jitted function that counts each client's correct labels, int32 [P], under its own model."""
    measure = evaluate.make_evaluate(task, is_detailed=True)

    def count(theta: Variables, own: Tree, pool: Batch, tables: jax.Array) -> jax.Array:
        models = own if local is None else jax.vmap(local.within, (None, 0))(theta, own)
        return executor.map(lambda pool, entry: measure(entry[0], pool, entry[1]).correct.sum(), pool, (models, tables))

    return jax.jit(count, out_shardings=executor.placement)
