"""The rows of a run's pool: on the devices, or on the host.

From the host, each chunk's rows are copied to the devices while the chunk before it runs. D_val, which every round
scores on, stays on the devices. Evaluations copy their rows piece by piece. All shapes are fixed before the first
round, so nothing is compiled between chunks. `fit`, `take` and `shapes` give a chunk its rows wherever they are.

Every process computes the rows that the devices need for a chunk from the schedules alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

from fedvg_jax.config import Config, cohort_size
from fedvg_jax.core import reuse, tree
from fedvg_jax.core.types import Data, Executor, Plan, Schedule, Task, Tree, Variables
from fedvg_jax.data.partitions import client_rows
from fedvg_jax.data.partitions.client_rows import Partition
from fedvg_jax.engine import evaluate, executors, lane_plan
from fedvg_jax.host import hardware as hw, processes
from fedvg_jax.paper.fidelity import listed


def minibatch_devices(schedule: Schedule, lanes_together: int) -> np.ndarray:
    """Returns int64 [F'], the device of each minibatch that the schedule of one round uses, in the order of its table.

    A client trains on the device of its lanes. Its probe runs where the executor maps its position in the cohort.

    Args:
        schedule: of one round.
        lanes_together: lanes of one device.

    >>> from fedvg_jax.engine import schedule as schedules
    >>> one, two = np.zeros((1, 4), np.int32), np.zeros((2, 4), np.int32)
    >>> schedule = schedules.pack([7, 3], [one, two], [4, 8], num_lanes=2, capacity=3)
    >>> minibatch_devices(schedule, 1).tolist()
    [1, 0, 0]
    """
    num_clients, size = len(schedule.clients), lane_plan.block_size(schedule.plan)
    num_devices = schedule.plan.client.shape[-1] // lanes_together
    trained = client_devices(schedule.plan, lanes_together)[:num_clients]
    probed = np.arange(num_clients) % size // -(-size // num_devices)
    by_part = np.stack([trained, probed], 1).ravel()
    return np.repeat(by_part, np.stack([schedule.num_steps, schedule.probe_steps], 1).ravel())


def client_devices(plan: Plan, lanes_together: int) -> np.ndarray:
    """Returns int64 [K], the device of each client of a plan; 0 for clients without steps.

    Args:
        plan: of a cohort, or the stacked plans of its cohort blocks; then dummy clients are included.
        lanes_together: lanes of one device.
    """
    size = lane_plan.block_size(plan)
    is_load, client = (leaf.reshape(-1, *leaf.shape[-2:]) for leaf in (plan.reset, plan.client))
    block, segment, lane = np.nonzero(is_load)
    devices = np.zeros(len(is_load) * size, np.int64)
    devices[block * size + client[block, segment, lane]] = lane // lanes_together
    return devices


def rows_by_device(table: np.ndarray, devices: np.ndarray, num_devices: int) -> list[np.ndarray]:
    """Returns for each device the different rows of its minibatches, ascending.

    Args:
        table: int32 [F', B] minibatches, -1 for padding.
        devices: [F'] the device of each.
        num_devices: D.
    """
    unique = (np.unique(table[devices == d]) for d in range(num_devices))
    return [rows[np.searchsorted(rows, 0) :] for rows in unique]


def renumber(table: np.ndarray, devices: np.ndarray, rows: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the minibatches with positions in their device's `rows` in place of rows of the pool.

    Args:
        table: int32 [F', B] minibatches, -1 for padding.
        devices: [F'] the device of each.
        rows: of each device, ascending; they include all of its minibatches.

    >>> table, devices = np.array([[7, 3], [9, -1], [7, 9]]), np.array([0, 0, 1])
    >>> renumber(table, devices, rows_by_device(table, devices, 2)).tolist()
    [[1, 0], [2, -1], [0, 1]]
    """
    result = np.full(table.shape, -1, np.int32)
    for d, of_device in enumerate(rows):
        own = table[devices == d]
        result[devices == d] = np.where(own < 0, -1, np.searchsorted(of_device, own))
    return result


def num_fitting(rounds: Sequence[Schedule], lanes_together: int, capacity: int) -> int:
    """Returns how many of the rounds, from the first on, need at most `capacity` different rows on every device."""
    num_devices = rounds[0].plan.client.shape[-1] // lanes_together
    needed = [np.zeros(0, np.int32)] * num_devices
    for number, schedule in enumerate(rounds):
        devices = minibatch_devices(schedule, lanes_together)
        new = rows_by_device(schedule.rows[: len(devices)], devices, num_devices)
        needed = [np.union1d(*pair) for pair in zip(needed, new, strict=True)]
        if max(map(len, needed)) > capacity:
            return number
    return len(rounds)


CHUNK_BYTES = 2**28
"""Bytes of the rows of a chunk of several rounds; a single round may need more."""

PIECE_BYTES = 2**26
"""Bytes of a piece of an evaluation on one device."""


class HostRows(NamedTuple):
    """The rows of a pool that stays on the host."""

    pool: Tree
    """NumPy arrays or memory maps [T, ...]"""
    resident: Data
    """D_val, on the devices; its tables number its own pool"""
    capacity: int
    """C, rows of a chunk on each device"""
    piece: int
    """rows of a piece of an evaluation on each device; at least one minibatch is evaluated at a time"""
    executor: Executor

    @property
    def num_devices(self) -> int:
        """Returns D, devices that share a cohort."""
        return evaluate.count_devices(self.executor)


def is_chosen(config: Config, num_bytes: int) -> bool:
    """Returns whether a pool of so many bytes stays on the host."""
    return config.placement == "host" or (config.placement == "auto" and hw.auto_pool(num_bytes) == "host")


def resident_data(config: Config, data: Data) -> Data:
    """Returns the rows that every round may read and the tables of their numbers, NumPy arrays.

    Its shapes do not depend on the partition. The test rows are among them only where a record of each round needs
    them.

    Args:
        data: the whole pool and its tables, on the host.
    """
    reads_test = "client_accuracy" in listed(config.record)
    tables = {"scoring": data.scoring, "val": data.val} | ({"test": data.test} if reads_test else {})
    entries = np.concatenate([np.ravel(table) for table in tables.values()])
    rows = np.unique(entries[entries >= 0])
    num_rows = min(len(data.pool.y), sum(table.size for name, table in tables.items() if name != "val"))
    numbers = {name: renumber(table, np.zeros(len(table)), [rows]) for name, table in tables.items()}
    pool = _take(data.pool, rows, num_rows)
    return Data(pool, numbers["scoring"], numbers["val"], numbers.get("test"), base=data.base)


def make(config: Config, data: Data, parts: Partition, executor: Executor) -> HostRows:
    """Returns the rows of a run whose pool stays on the host, before `place` puts some on the devices.

    Args:
        config: the run's settings.
        data: the whole pool and its tables, NumPy arrays.
        parts: the partition.
        executor: of the run.
    """
    num_devices = evaluate.count_devices(executor)
    needed = int(np.sort(client_rows.sizes(parts.train))[-cohort_size(config) :].sum())  # of any round
    row_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(data.pool)) / len(data.pool.y)
    capacity = min(len(data.pool.y), round_up(max(needed, int(CHUNK_BYTES / row_bytes), 1)))
    tables = (data.val, data.test) if data.selection is None else (data.selection, data.test)
    most_evaluated = max(-(-table.size // num_devices) for table in tables)
    piece = max(1, min(int(PIECE_BYTES / row_bytes), most_evaluated))
    return HostRows(data.pool, resident_data(config, data), capacity, piece, executor)


def place(host: HostRows | None, data: Data, executor: Executor) -> tuple[HostRows | None, Data]:
    """Returns the rows with what the devices hold of them on the executor's devices, and the data of the run."""
    if host is None:
        return None, processes.place(data, executor.placement)
    host = host._replace(resident=processes.place(host.resident, executor.placement))
    return host, data._replace(base=host.resident.base)


def round_up(number: int) -> int:
    """Returns the number rounded up to four significant bits, so that other partitions have the same shapes.

    >>> [round_up(number) for number in (7, 17, 1000, 1025)]
    [7, 18, 1024, 1152]
    """
    unit = 1 << max(0, number.bit_length() - 4)
    return -(-number // unit) * unit


def _take(pool: Tree, rows: np.ndarray, num_rows: int | None = None) -> Tree:
    """Returns copies of rows of the pool in the dtypes that devices have, followed by zeros.

    Args:
        pool: leaves [T, ...].
        rows: int, of any shape.
        num_rows: length of the result, for one-dimensional `rows`; defaults to their number.
    """

    def taken(leaf: np.ndarray) -> np.ndarray:
        shape = rows.shape if num_rows is None else (num_rows,)
        result = np.zeros((*shape, *leaf.shape[1:]), jax.dtypes.canonicalize_dtype(leaf.dtype))
        own = result[: len(rows)]
        if result.dtype == leaf.dtype:
            np.take(leaf, rows, 0, out=own, mode="clip")  # the other modes fill a buffer first
        else:
            own[:] = leaf[rows]
        return result

    return jax.tree.map(taken, pool)


def fit(host: HostRows | None, planned: list[Schedule]) -> list[Schedule]:
    """Returns the first rounds whose rows fit the devices; one round always does."""
    if host is None or host.capacity >= len(host.pool.y):
        return planned
    return planned[: max(1, num_fitting(planned, host.executor.lanes_together, host.capacity))]


def take(host: HostRows | None, data: Data, planned: Sequence[Schedule], rounds: Schedule) -> tuple[Schedule, Data]:
    """Returns the schedules of a chunk and its data; from a pool on the host, it starts to copy the rows.

    With several processes, each reads the rows of its own devices' clients only.

    Args:
        host: the rows of the run; None where the devices hold all.
        data: of the run.
        planned: the rounds' schedules.
        rounds: the same, stacked.

    Returns:
        The stacked schedules with numbers of the copied rows, and the data of the chunk.
    """
    if host is None:
        return rounds, data
    devices = [minibatch_devices(schedule, host.executor.lanes_together) for schedule in planned]
    devices = np.concatenate(devices)
    used = rounds.rows[: len(devices)]
    rows = rows_by_device(used, devices, host.num_devices)
    table = rounds.rows.copy()
    table[: len(devices)] = renumber(used, devices, rows)
    training = _by_device(host, lambda d: _take(host.pool, rows[d], host.capacity))
    return rounds._replace(rows=table), host.resident._replace(training=training)


def shapes(host: HostRows | None, data: Data) -> Data:
    """Returns the data of a chunk as `take` does, with shapes for the rows that are copied."""
    if host is None:
        return data
    return host.resident._replace(training=_shapes(host.pool, host.num_devices * host.capacity, _sharding(host)))


def _shapes(pool: Tree, num_rows: int, sharding: NamedSharding | None = None) -> Tree:
    """Returns the shapes of rows of the pool on devices."""

    def shape(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return jax.ShapeDtypeStruct((num_rows, *leaf.shape[1:]), dtype, sharding=sharding)

    return jax.tree.map(shape, pool)


# --- evaluation -------------------------------------------------------------------------------------------------------
def compile_read(
    keep: reuse.Keep, host: HostRows, task: Task, variables: Variables, tables: Iterable[np.ndarray]
) -> Callable[[Variables, Tree, np.ndarray], Any]:
    """Returns a function like that of `evaluate.make_evaluate`, compiled once, for tables on the host.

    Args:
        keep: of a run's program.
        host: of the run; its pool is the one that is read.
        task: the model of the program.
        variables: of the shapes and placement of those to evaluate.
        tables: int [.., B] whose widths B are compiled for.
    """
    empty = _empty_totals(host, task, variables)

    def empty_piece(width: int) -> tuple[Tree, jax.Array]:
        return _piece(host, np.full((host.num_devices, _piece_length(host, width), width), -1, np.int32))

    pieces = {width: empty_piece(width) for width in sorted({np.shape(table)[1] for table in tables})}
    shapes = jax.tree.map(reuse.abstract, (variables, empty, pieces))
    key = "read", *reuse.key_of_shapes(shapes)
    total, compiled = keep(key, lambda: _compiled(task, host.executor, *shapes))

    def evaluate_pieces(variables: Variables, _: Tree, table: np.ndarray) -> Any:
        totals, before = empty, empty
        for rows in _pieces(host, np.asarray(table)):
            piece = _piece(host, rows)  # copied while the piece before it is measured
            jax.block_until_ready(before)  # two pieces at a time
            before, totals = totals, compiled[table.shape[1]](variables, totals, *piece)
        return total(totals)

    return evaluate_pieces


def _compiled(
    task: Task, executor: Executor, variables: Variables, empty: Tree, pieces: Mapping[int, Tree]
) -> tuple[Callable, dict[int, Callable[[Variables, Tree, Tree, Tree], Tree]]]:
    """Returns the programs of an evaluation: the sum over devices, and a piece by width."""
    add_piece = jax.jit(evaluate.make_add_piece(task, executor))
    total = jax.jit(tree.total, out_shardings=executor.placement).lower(empty).compile()
    return total, {width: add_piece.lower(variables, empty, *piece).compile() for width, piece in pieces.items()}


def _empty_totals(host: HostRows, task: Task, variables: Variables) -> Tree:
    """Returns zeros for the totals of every device, leaves [D, ...]."""
    row, mask = _shapes(host.pool, 1), jax.ShapeDtypeStruct((1,), bool)
    shapes = jax.eval_shape(task.measure, *variables, row, mask)
    return _by_device(host, lambda _: jax.tree.map(lambda s: np.zeros((1, *s.shape), s.dtype), shapes))


def _piece_length(host: HostRows, width: int) -> int:
    """Returns n, the minibatches of `width` rows that a device gets at a time."""
    return max(1, host.piece // width)


def _pieces(host: HostRows, table: np.ndarray) -> list[np.ndarray]:
    """Returns the minibatches of a table in pieces int32 [D, n, B], dealt to the devices in turn."""
    used, length = table[: int((table >= 0).any(1).sum())], _piece_length(host, table.shape[1])
    size = host.num_devices * length
    padded = np.full((max(1, -(-len(used) // size)) * size, table.shape[1]), -1, np.int32)
    padded[: len(used)] = used
    pieces = padded.reshape(-1, length, host.num_devices, table.shape[1])
    return list(pieces.swapaxes(1, 2))


def _piece(host: HostRows, rows: np.ndarray) -> tuple[Tree, jax.Array]:
    """Returns the minibatches of a piece and their masks on the devices; leaves [D, n, B, ...]."""
    batches = _by_device(host, lambda d: _take(host.pool, np.maximum(rows[d : d + 1], 0)))
    return batches, _by_device(host, lambda d: rows[d : d + 1] >= 0)


# --- placement --------------------------------------------------------------------------------------------------------
def _sharding(host: HostRows) -> NamedSharding | None:
    placement = host.executor.placement
    return NamedSharding(placement.mesh, P(executors.DEVICES)) if placement is not None else None


def _by_device(host: HostRows, part_of: Callable[[int], Tree]) -> Tree:
    """Returns arrays whose leading axis is shared by the devices.

    Args:
        part_of: number of a device -> its part, NumPy arrays of one shape for all devices. Called for the devices of
            this process only.
    """
    sharding = _sharding(host)
    if sharding is None:
        return jax.device_put(part_of(0))
    devices = sharding.mesh.devices
    assert devices is not None, "a mesh of devices, not of shapes"
    own = [d for d, device in enumerate(devices.flat) if device.process_index == jax.process_index()]

    def joined(*parts: np.ndarray) -> jax.Array:
        length, *rest = parts[0].shape

        def of_index(index: Any) -> np.ndarray:
            return parts[own.index((index[0].start or 0) // length)]

        return jax.make_array_from_callback((host.num_devices * length, *rest), sharding, of_index)

    return jax.tree.map(joined, *map(part_of, own))
