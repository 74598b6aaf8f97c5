"""A process on each core for the lean contestant: clients are trained and scored in processes of one thread.

Images, the global model and the clients' models lie in shared memory, so that nothing but a client's number and score
passes between the processes. The largest clients come first.
"""

from __future__ import annotations

import time
from multiprocessing.pool import Pool
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from benchmarks.peers import Way, World
    from benchmarks.torch_nets import Tensors


class Shared(NamedTuple):
    """Processes, and the memory that they share with the one that started them."""

    processes: Pool
    count: int
    """number of processes"""
    start: tuple[Tensors, Tensors]
    """the model that every client starts from"""
    ends: list[tuple[Tensors, Tensors]]
    """the clients' models, by their place in the cohort"""


def start(world: World, way: Way) -> Shared:
    """Starts the processes and waits until each can work."""
    context = torch.multiprocessing.get_context("spawn")
    world = world._replace(x=world.x.share_memory_(), y=world.y.share_memory_())
    size = max(map(len, world.rounds))
    models = [_copy(world) for _ in range(size + 1)]
    barrier = context.Barrier(way.processes + 1)
    processes = context.Pool(way.processes, _begin, (world, way, models[0], models[1:], barrier))
    barrier.wait(300)
    return Shared(processes, way.processes, models[0], models[1:])


def stop(pool: Shared) -> None:
    """Ends the processes."""
    pool.processes.terminate()
    pool.processes.join()


def cohort(pool: Shared, clients: list[list[Tensor]], start: tuple[Tensors, Tensors], most: int | None):
    """Trains and scores clients, as `peers.Lean.cohort`. The seconds of the parts are means over the processes."""
    with torch.no_grad():
        for mine, given in zip(pool.start, start, strict=True):
            for name, tensor in mine.items():
                tensor.copy_(given[name])
    order = sorted(range(len(clients)), key=lambda k: -len(clients[k]))
    scores = [0.0] * len(clients)
    parts, worked = {"train": 0.0, "score": 0.0}, 0.0
    jobs = [(k, [rows.numpy() for rows in clients[k]], most) for k in order]
    for k, score, seconds, cpu in pool.processes.imap_unordered(_client, jobs):
        scores[k] = score
        worked += cpu
        parts = {name: parts[name] + seconds[name] / pool.count for name in parts}
    return pool.ends[: len(clients)], scores, parts, worked


_STATE: dict[str, Any] = {}
"""A process's own contestant, and the shared models."""


def _begin(world: World, way: Way, start, ends, barrier) -> None:
    from benchmarks import peers

    torch.set_num_threads(1)
    peer = peers.Lean(world)
    peer.work_as(way._replace(processes=1, threads=1))
    _STATE.update(peer=peer, start=start, ends=ends)
    barrier.wait(300)


def _client(job: tuple[int, list, int | None]) -> tuple[int, float, dict[str, float], float]:
    place, batches, most = job
    peer, clock, worked = _STATE["peer"], [time.perf_counter()], time.process_time()
    model = peer.train([torch.from_numpy(rows) for rows in batches], _STATE["start"])
    clock.append(time.perf_counter())
    score = peer.score(model[0], most) if peer.world.known["scored"] else 1.0
    clock.append(time.perf_counter())
    with torch.no_grad():
        for mine, found in zip(_STATE["ends"][place], model, strict=True):
            for name, tensor in mine.items():
                tensor.copy_(found[name])
    seconds = {"train": clock[1] - clock[0], "score": clock[2] - clock[1]}
    return place, score, seconds, time.process_time() - worked


def _copy(world: World) -> tuple[Tensors, Tensors]:
    """A model in shared memory, in the memory format of the world's."""
    params, stats = (
        {name: t.clone().share_memory_() for name, t in part.items()} for part in (world.params, world.stats)
    )
    return params, stats
