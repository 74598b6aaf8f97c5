"""Worker processes of the lean contestant of `peers`: each trains and scores clients with one thread.

Images, the global model and the clients' models are in shared memory, so that only minibatch rows and scores are sent
between processes. The largest clients are trained first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.pool import Pool
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.speed.torch_nets import Tensors


class WorkerPool(NamedTuple):
    """Worker processes and the memory that they share with the process that started them."""

    processes: Pool
    start: tuple[Tensors, Tensors]
    """the model that every client starts from"""
    ends: list[tuple[Tensors, Tensors]]
    """the clients' models after training, by position in the cohort"""


def start(make: Callable[[Any], Any], workload: Any, variant: Any) -> WorkerPool:
    """Starts the processes and waits until each is ready.

    Args:
        make: the contestant of a workload, `peers.Lean`.
        workload, variant: of `peers`.
    """
    context = torch.multiprocessing.get_context("spawn")
    workload = workload._replace(x=workload.x.share_memory_(), y=workload.y.share_memory_())
    size = max(map(len, workload.rounds))
    models = [_copy(workload) for _ in range(size + 1)]
    barrier = context.Barrier(variant.processes + 1)
    processes = context.Pool(
        variant.processes, _init_worker, (make, workload, variant, models[0], models[1:], barrier)
    )
    barrier.wait(300)
    return WorkerPool(processes, models[0], models[1:])


def stop(pool: WorkerPool) -> None:
    """Ends the processes."""
    pool.processes.terminate()
    pool.processes.join()


def cohort(
    pool: WorkerPool,
    clients: list[list[Tensor]],
    start: tuple[Tensors, Tensors],
    max_batches: int | None,
):
    """Trains and scores clients, see `peers.Lean.cohort`."""
    _copy_into(pool.start, start)
    order = sorted(range(len(clients)), key=lambda k: -len(clients[k]))
    scores, cpu_seconds = [0.0] * len(clients), 0.0
    jobs = []
    for k in order:
        batches = [rows.numpy() for rows in clients[k]]
        jobs.append((k, batches, max_batches))
    for k, score, seconds in pool.processes.imap_unordered(_train_and_score, jobs):
        scores[k] = score
        cpu_seconds += seconds
    return pool.ends[: len(clients)], scores, cpu_seconds


_STATE: dict[str, Any] = {}
"""In a worker process: its contestant and the shared models."""


def _init_worker(make, workload, variant, start, ends, barrier) -> None:
    torch.set_num_threads(1)
    peer = make(workload)
    peer.set_up(variant._replace(processes=1, threads=1))
    _STATE.update(peer=peer, start=start, ends=ends)
    barrier.wait(300)


def _train_and_score(job: tuple[int, list, int | None]) -> tuple[int, float, float]:
    position, batches, max_batches = job
    cpu_start, rows = time.process_time(), [torch.from_numpy(rows) for rows in batches]
    model, score = _STATE["peer"].train_and_score(rows, _STATE["start"], max_batches)
    _copy_into(_STATE["ends"][position], model)
    return position, score, time.process_time() - cpu_start


@torch.no_grad()
def _copy_into(target: tuple[Tensors, Tensors], source: tuple[Tensors, Tensors]) -> None:
    """Copies parameters and running statistics into shared memory."""
    for targets, sources in zip(target, source, strict=True):
        for name, tensor in targets.items():
            tensor.copy_(sources[name])


def _copy(workload: Any) -> tuple[Tensors, Tensors]:
    """Returns a copy of the initial model in shared memory, in the same memory format."""

    def shared(tensors: Tensors) -> Tensors:
        return {name: tensor.clone().share_memory_() for name, tensor in tensors.items()}

    return shared(workload.params), shared(workload.stats)
