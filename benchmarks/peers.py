"""The other contestants: the same round in PyTorch. Started by `benchmarks.rounds`.

    python -m benchmarks.peers --folder DIR --peer {lean,loader,vmap} --threads N

lean    tensors preloaded and scaled, the functional gradient, one fused update, minibatches gathered together; the
        fastest of one process on N threads and a process on each core, of two memory formats, of D_val batch by batch
        and several batches in one pass, and of torch.compile
loader  as the field's frameworks do it: a Dataset, a DataLoader, torch.optim, a model copied for every client
vmap    torch.func.vmap over the whole cohort, where clients are equal and there is no BatchNorm

The last two have N threads or one, whichever is faster.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import contest, machine, torch_nets, torch_pool
from benchmarks.torch_nets import Tensors


class World(NamedTuple):
    """What `benchmarks.ours` wrote, in torch."""

    known: dict[str, Any]
    x: Tensor
    """float32 [T, C, H, W] in 0..1"""
    y: Tensor
    params: Tensors
    stats: Tensors
    rounds: list[list[list[Tensor]]]
    """rows of the minibatches: round, client, minibatch"""
    scoring: list[Tensor]

    @property
    def net(self):
        return torch_nets.NETS[self.known["model"]]


def read(folder: Path) -> World:
    """The world in `folder`."""
    known = json.loads((folder / "world.json").read_text(encoding="utf-8"))
    with np.load(folder / "world.npz") as file:
        arrays = {name: file[name] for name in file.files}
    x = torch.tensor(arrays["x"]).permute(0, 3, 1, 2).contiguous().float() / 255

    def tensors(kind: str) -> Tensors:
        found = contest.below(arrays, f"init/{kind}")
        return {name: torch_nets.to_torch(known["model"], name, array) for name, array in found.items()}

    def batches(table: np.ndarray) -> list[Tensor]:
        return [torch.tensor(row[row >= 0]).long() for row in table if (row >= 0).any()]

    def clients(r: int) -> list[list[Tensor]]:
        starts, steps, rows = (arrays[f"r{r}/{name}"] for name in ("start", "num_steps", "rows"))
        return [batches(rows[begin : begin + count]) for begin, count in zip(starts, steps, strict=True)]

    rounds = [clients(r) for r in range(known["rounds"])]
    y = torch.tensor(arrays["y"]).long()
    return World(known, x, y, tensors("params"), tensors("stats"), rounds, batches(arrays["scoring"]))


class Way(NamedTuple):
    """How the lean contestant works."""

    threads: int
    processes: int = 1
    channels_last: bool = False
    width: int = 1
    """minibatches of D_val in one pass"""
    compiled: bool = False


class Passes(NamedTuple):
    """D_val, gathered once: the rows of each pass, and the minibatches that they are."""

    x: Tensor
    y: Tensor
    groups: torch_nets.Groups


class Lean:
    """No DataLoader, no optimiser object, nothing copied that need not be."""

    pixels: Tensor | None = None
    """uint8 [T, C, H, W], for a contestant that scales them one by one"""

    def __init__(self, world: World):
        self.world, self.way, self.pool = world, Way(torch.get_num_threads()), None
        self.passes: list[Passes] = []
        self.work_as(self.way)

    def choose(self, threads: int) -> dict[str, Any]:
        """Returns the fastest way and the seconds of each on a sample of training and scoring.

        The sample has equal clients, which hides that a process may wait for another one's client. So the fastest way
        with one process and the fastest with several then each take a whole round.
        """
        seconds = {way: self._seconds(way, 1) for way in self.ways(threads)}
        close = [way for way in seconds if seconds[way] < CLOSE * min(seconds.values())]
        seconds |= {way: self._seconds(way, 3) for way in close}
        best = min(seconds, key=lambda way: seconds[way])
        compiled, why = best._replace(compiled=True), None
        try:
            seconds[compiled] = self._seconds(compiled, 3)
        except Exception as error:
            why = str(error).splitlines()[0]
        finalists = [
            min(group, key=lambda way: seconds[way])
            for group in ([way for way in seconds if (way.processes > 1) == several] for several in (False, True))
            if group
        ]
        rounds = {way: self._seconds_of_round(way) for way in finalists}
        best = min(rounds, key=lambda way: rounds[way])
        self.work_as(best)
        found = [way._asdict() | {"seconds": round(took, 4)} for way, took in seconds.items()]
        return best._asdict() | {"ways": found} | ({"not compiled": why} if why else {})

    def ways(self, threads: int) -> list[Way]:
        """Returns the ways that differ for this network; without convolutions, or with one, in one memory format."""
        is_convolutional = sum(p.ndim == 4 for p in self.world.params.values()) > 1
        processes = {Way(threads), Way(1), Way(1, processes=threads)}
        formats = (False, True) if is_convolutional else (False,)
        widths = WIDTHS if self.world.known["scored"] else (1,)
        return [
            way._replace(channels_last=last, width=width)
            for way, last, width in itertools.product(sorted(processes), formats, widths)
        ]

    def work_as(self, way: Way) -> None:
        """Lays out the data for a way of working, and starts or ends the processes that it needs."""
        self.close()
        self.way = way
        torch.set_num_threads(way.threads)
        self.passes = [_pass(self.world, rows, way) for rows in _joined(self.world.scoring, way.width)]
        self.world = _laid_out(self.world, way.channels_last)
        self.compiled = _compiled(self.world) if way.compiled else None
        if way.processes > 1:
            self.pool = torch_pool.start(self.world, way)

    def close(self) -> None:
        """Ends the processes."""
        if self.pool:
            torch_pool.stop(self.pool)
        self.pool = None

    def _seconds(self, way: Way, repeats: int) -> float:
        """Median seconds of a sample: the first minibatches of the largest clients, and of D_val, most of the work."""
        self.work_as(way)
        count = max(self.way.processes, self.way.threads, 2)
        clients = [batches[:SAMPLED] for batches in sorted(self.world.rounds[0], key=len)[-count:]]
        start = (self.world.params, self.world.stats)
        return machine.median_seconds(lambda: self.cohort(clients, start, SAMPLED * max(WIDTHS)), repeats)

    def _seconds_of_round(self, way: Way) -> float:
        """Seconds of the first round."""
        self.work_as(way)
        return machine.timed(lambda: self.round(0, (self.world.params, self.world.stats)))

    def net(self, params: Tensors, stats: Tensors | None, x: Tensor, groups=torch_nets.ONE) -> Tensor:
        """The network; compiled for the sizes that come often, since every other size would be compiled anew."""
        size = self.world.known["batch_size"] * groups.count
        if self.compiled and len(x) == size:
            return self.compiled(params, stats, x, groups)
        return self.world.net(params, stats, x, groups)

    def train(self, batches: list[Tensor], start: tuple[Tensors, Tensors] | None = None) -> tuple[Tensors, Tensors]:
        """One client's local training."""
        world = self.world
        params, stats = start or (world.params, world.stats)
        params = {name: p.clone().requires_grad_() for name, p in params.items()}
        stats, leaves = {name: s.clone() for name, s in stats.items()}, list(params.values())
        for x, y in _gathered(world, batches, self.way.channels_last):
            grads = torch.autograd.grad(F.cross_entropy(self.net(params, stats, x), y), leaves)
            with torch.no_grad():
                torch._foreach_add_(leaves, grads, alpha=-world.known["lr"])
        return {name: p.detach() for name, p in params.items()}, stats

    def score(self, params: Tensors, most: int | None = None) -> float:
        """G_k: the mean over tensors of the L1 norm of the validation gradient."""
        params = {name: p.requires_grad_() for name, p in params.items()}
        leaves = list(params.values())
        total = [torch.zeros_like(p) for p in leaves]
        count = 0
        for x, y, groups in self.passes:
            loss = F.cross_entropy(self.net(params, None, x, groups), y, reduction="sum")
            torch._foreach_add_(total, torch.autograd.grad(loss, leaves))
            count += len(y)
            if most and count >= most * self.world.known["batch_size"]:
                break
        return sum(g.abs().sum() for g in total).item() / count / len(total)

    def cohort(self, clients: list[list[Tensor]], start: tuple[Tensors, Tensors], most: int | None = None):
        """Trains and scores clients -> models, scores, seconds of the two, CPU seconds of other processes."""
        if self.pool:
            return torch_pool.cohort(self.pool, clients, start, most)
        clock = [time.perf_counter()]
        models = [self.train(batches, start) for batches in clients]
        clock.append(time.perf_counter())
        scores = [self.score(params, most) if self.world.known["scored"] else 1.0 for params, _ in models]
        clock.append(time.perf_counter())
        return models, scores, dict(zip(("train", "score"), np.diff(clock).tolist(), strict=True)), 0.0

    def round(self, r: int, start: tuple[Tensors, Tensors]) -> tuple[Any, list[float], dict[str, float]]:
        """One round -> the global model, the weights, the seconds of the parts."""
        models, scores, parts, cpu = self.cohort(self.world.rounds[r], start)
        begun = time.perf_counter()
        weights, model = aggregate(models, scores, self.world.known["eps"])
        return model, weights, parts | {"aggregate": time.perf_counter() - begun, "cpu": cpu}

    def steps(self) -> list[tuple[Tensors, Tensors]]:
        """Every client of the first round after one minibatch."""
        return [self.train(batches[:1]) for batches in self.world.rounds[0]]


WIDTHS = (1, 4, 8)
"""Minibatches of D_val in one pass that the lean contestant tries."""

CLOSE = 1.5
"""Times the fastest way's first measurement up to which a way is measured again."""

SAMPLED = 3
"""Minibatches of each client in the sample that ways are chosen on; scoring has 8 times as many."""

GATHERED = 64
"""Minibatches that are gathered together."""


def _joined(scoring: list[Tensor], width: int) -> list[list[Tensor]]:
    """Minibatches of one size in groups of `width`; what is left over, and a ragged one, alone."""
    size = max(map(len, scoring), default=0)
    full = [rows for rows in scoring if len(rows) == size]
    cut = len(full) - len(full) % width
    groups = [full[i : i + width] for i in range(0, cut, width)]
    return groups + [[rows] for rows in [*full[cut:], *(rows for rows in scoring if len(rows) != size)]]


def _pass(world: World, parts: list[Tensor], way: Way) -> Passes:
    """The images of several minibatches in the order that BatchNorm wants them in."""
    is_interleaved = len(parts) > 1 and not way.channels_last
    rows = torch.stack(parts, 1).flatten() if is_interleaved else torch.cat(parts)
    x = _format(world.x[rows], way.channels_last)
    return Passes(x, world.y[rows], torch_nets.Groups(len(parts), is_interleaved))


def _format(x: Tensor, channels_last: bool) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def _laid_out(world: World, channels_last: bool) -> World:
    """Images and kernels in a memory format."""
    params = {n: _format(p, channels_last) if p.ndim == 4 else p for n, p in world.params.items()}
    return world._replace(x=_format(world.x, channels_last), params=params)


def _gathered(world: World, batches: list[Tensor], channels_last: bool):
    """The images and labels of minibatches, many of which are gathered at a time."""
    for i in range(0, len(batches), GATHERED):
        parts = batches[i : i + GATHERED]
        rows, sizes = torch.cat(parts), [len(part) for part in parts]
        yield from zip(_format(world.x[rows], channels_last).split(sizes), world.y[rows].split(sizes), strict=True)


def _compiled(world: World):
    """The network by torch.compile, for the few sizes that come often."""
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(world.net, dynamic=False)


class Loader(Lean):
    """A Dataset of images that are scaled one by one, and torch.optim."""

    def __init__(self, world: World):
        self.pixels = (world.x * 255).round().to(torch.uint8)
        super().__init__(world)

    def choose(self, threads):
        seconds = {}
        for way in sorted({Way(threads), Way(1)}):
            self.work_as(way)
            batches = max(self.world.rounds[0], key=len)[:4]
            seconds[way] = machine.median_seconds(lambda batches=batches: self.steps_of(batches), 3)
        self.work_as(min(seconds, key=lambda way: seconds[way]))
        return {"threads": self.way.threads}

    def steps_of(self, batches: list[Tensor]) -> None:
        """What the numbers of threads are compared on."""
        self.train(batches)

    def batches(self, rows: list[Tensor]):
        """A DataLoader of these minibatches."""
        pixels, labels, dtype = self.pixels, self.world.y, self.world.x.dtype

        class Images(torch.utils.data.Dataset):
            def __len__(self):
                return len(labels)

            def __getitem__(self, row):
                return pixels[row].to(dtype) / 255, labels[row]

        return torch.utils.data.DataLoader(Images(), batch_sampler=[r.tolist() for r in rows])

    def train(self, batches, start=None):
        params, stats = copy.deepcopy(start or (self.world.params, self.world.stats))
        params = {name: torch.nn.Parameter(p) for name, p in params.items()}
        optimiser = torch.optim.SGD(params.values(), lr=self.world.known["lr"])
        for x, y in self.batches(batches):
            loss = F.cross_entropy(self.world.net(params, stats, x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return {name: p.detach() for name, p in params.items()}, stats

    def score(self, params, most=None):
        params = {name: torch.nn.Parameter(p) for name, p in params.items()}
        count = sum(map(len, self.world.scoring))
        for x, y in self.batches(self.world.scoring):
            (F.cross_entropy(self.world.net(params, None, x), y, reduction="sum") / count).backward()
        return sum(p.grad.abs().sum().item() for p in params.values()) / len(params)


class Vmap(Loader):
    """All clients at once; they must have as many minibatches of one size, and no BatchNorm."""

    def __init__(self, world: World):
        sizes = {len(rows) for clients in world.rounds for batches in clients for rows in batches}
        if world.stats or world.known["scored"] or len(sizes) > 1 or not world.known["equal"]:
            raise SystemExit("vmap needs equal clients without BatchNorm or scoring groups")
        Lean.__init__(self, world)

        def loss(params, x, y):
            return F.cross_entropy(world.net(params, None, x), y)

        self.gradients = torch.func.vmap(torch.func.grad(loss))

    def steps_of(self, batches):
        self.together([b[:1] for b in self.world.rounds[0]], self.world.params)

    def together(self, batches: list[list[Tensor]], start: Tensors) -> Tensors:
        """Stacked clients after their local training."""
        params = {name: p.expand(len(batches), *p.shape).clone() for name, p in start.items()}
        for rows in zip(*batches, strict=True):
            stacked = torch.stack(rows)
            grads = self.gradients(params, self.world.x[stacked], self.world.y[stacked])
            torch._foreach_add_(list(params.values()), list(grads.values()), alpha=-self.world.known["lr"])
        return params

    def round(self, r, start):
        clock = [time.perf_counter()]
        params = self.together(self.world.rounds[r], start[0])
        clock.append(time.perf_counter())
        model = {name: p.mean(0) for name, p in params.items()}
        clock.append(time.perf_counter())
        count = len(self.world.rounds[r])
        seconds = np.diff(clock).tolist()
        parts = {"train": seconds[0], "score": 0.0, "aggregate": seconds[1], "cpu": 0.0}
        return (model, {}), [1 / count] * count, parts

    def steps(self):
        first = self.together([batches[:1] for batches in self.world.rounds[0]], self.world.params)
        return [({name: p[k] for name, p in first.items()}, {}) for k in range(len(self.world.rounds[0]))]


@torch.no_grad()
def aggregate(clients: list[tuple[Tensors, Tensors]], scores: list[float], eps: float):
    """Weights 1 / (G + eps) that sum to 1, and the weighted mean of parameters and running statistics."""
    inverse = [1 / (g + eps) for g in scores]
    weights = [x / sum(inverse) for x in inverse]

    def mean(parts: list[Tensors]) -> Tensors:
        return {name: sum(w * part[name] for w, part in zip(weights, parts, strict=True)) for name in parts[0]}

    return weights, tuple(mean([client[i] for client in clients]) for i in range(2))


def double(world: World) -> World:
    """In float64."""

    def doubled(tensors: Tensors) -> Tensors:
        return {name: tensor.double() for name, tensor in tensors.items()}

    pixels = (world.x.double() * 255).round() / 255
    return world._replace(x=pixels, params=doubled(world.params), stats=doubled(world.stats))


def check(peer: Lean) -> dict[str, np.ndarray]:
    """As `benchmarks.ours.Ours.check`, and the round in float64."""
    name, params = peer.world.known["model"], peer.world.params
    reference = type(peer)(double(peer.world))
    if peer.pixels is not None:
        reference.pixels = peer.pixels
    else:
        reference.work_as(peer.way._replace(processes=1, compiled=False))
    clients = [stepped for stepped, _ in reference.steps()]
    found = {f"step/params/{n}": np.stack([torch_nets.from_torch(name, n, c[n]) for c in clients]) for n in params}
    for kind, who in (("round", peer), ("exact", reference)):
        with shortened(who):
            (after, _), weights, _ = who.round(0, (who.world.params, who.world.stats))
        found |= {f"{kind}/params/{n}": torch_nets.from_torch(name, n, t) for n, t in after.items()}
        found.setdefault("weights", np.array(weights))
    return found


@contextlib.contextmanager
def shortened(peer: Lean) -> Iterator[None]:
    """Gives each client of the contestant's first round as many local steps as the case checks."""
    whole = peer.world
    first = [batches[: whole.known["checked_steps"]] for batches in whole.rounds[0]]
    peer.world = whole._replace(rounds=[first, *whole.rounds[1:]])
    try:
        yield
    finally:
        peer.world = whole


def timing(peer: Lean) -> dict[str, float]:
    """Seconds of a round, and of its parts, in the mean over all rounds."""
    model, parts = (peer.world.params, peer.world.stats), []
    begun, worked = time.perf_counter(), time.process_time()
    for r in range(len(peer.world.rounds)):
        model, _, seconds = peer.round(r, model)
        parts.append(seconds)
    whole, worked = time.perf_counter() - begun, time.process_time() - worked
    means = {name: sum(p[name] for p in parts) / len(parts) for name in parts[0]}
    return means | {"round": whole / len(parts), "cpu": worked / len(parts) + means["cpu"]}


PEERS = {"lean": Lean, "loader": Loader, "vmap": Vmap}


def main(argv: list[str] | None = None) -> int:
    """Reads the world, then answers requests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--peer", choices=PEERS, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args(argv)
    peer = PEERS[args.peer](read(args.folder))
    about = peer.choose(args.threads) | {"torch": torch.__version__}
    contest.serve(args.folder, args.peer, {"check": lambda: check(peer)}, lambda: timing(peer), about)
    peer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
