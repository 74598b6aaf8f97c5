"""The other contestants: the same round in PyTorch. Started by `benchmarks.rounds`.

    python -m benchmarks.peers --folder DIR --peer {lean,loader,vmap} --threads N

lean    tensors preloaded and scaled, the functional gradient, one fused update; the faster memory format
loader  as the field's frameworks do it: a Dataset, a DataLoader, torch.optim, a model copied for every client
vmap    torch.func.vmap over the whole cohort, where clients are equal and there is no BatchNorm

Each with N threads or with one, whichever is faster.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import contest, machine, torch_nets
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


class Lean:
    """No DataLoader, no optimiser object, nothing copied that need not be."""

    formats = True
    """whether it looks for the faster memory format"""

    def __init__(self, world: World):
        self.world = world

    def choose(self, threads: int) -> dict[str, Any]:
        """The fastest of all threads or one, and of two memory formats where there are convolutions."""
        formats = {"contiguous": torch.contiguous_format}
        if self.formats and any(p.ndim == 4 for p in self.world.params.values()):
            formats["channels_last"] = torch.channels_last
        batches = max(self.world.rounds[0], key=len)[:4]
        found = {}
        for way in itertools.product(sorted({threads, 1}), formats):
            torch.set_num_threads(way[0])
            self._lay_out(formats[way[1]])
            found[way] = machine.median_seconds(lambda: self.steps_of(batches), 3)
        best = min(found, key=found.get)
        torch.set_num_threads(best[0])
        self._lay_out(formats[best[1]])
        return {"threads": best[0], "memory_format": best[1]}

    def steps_of(self, batches: list[Tensor]) -> None:
        """What the ways to work are compared on."""
        self.train(batches)

    def _lay_out(self, memory_format) -> None:
        params = {n: p.to(memory_format=memory_format) if p.ndim == 4 else p for n, p in self.world.params.items()}
        self.world = self.world._replace(x=self.world.x.to(memory_format=memory_format), params=params)

    def train(self, batches: list[Tensor], start: tuple[Tensors, Tensors] | None = None) -> tuple[Tensors, Tensors]:
        """One client's local training."""
        world = self.world
        params, stats = start or (world.params, world.stats)
        params = {name: p.clone().requires_grad_() for name, p in params.items()}
        stats, leaves = {name: s.clone() for name, s in stats.items()}, list(params.values())
        for rows in batches:
            loss = F.cross_entropy(world.net(params, stats, world.x[rows]), world.y[rows])
            grads = torch.autograd.grad(loss, leaves)
            with torch.no_grad():
                torch._foreach_add_(leaves, grads, alpha=-world.known["lr"])
        return {name: p.detach() for name, p in params.items()}, stats

    def score(self, params: Tensors) -> float:
        """G_k: the mean over tensors of the L1 norm of the validation gradient."""
        world = self.world
        params = {name: p.requires_grad_() for name, p in params.items()}
        leaves = list(params.values())
        total = [torch.zeros_like(p) for p in leaves]
        for rows in world.scoring:
            loss = F.cross_entropy(world.net(params, None, world.x[rows]), world.y[rows], reduction="sum")
            torch._foreach_add_(total, torch.autograd.grad(loss, leaves))
        count = sum(map(len, world.scoring))
        return sum(g.abs().sum() for g in total).item() / count / len(total)

    def round(self, r: int, start: tuple[Tensors, Tensors]) -> tuple[Any, list[float], dict[str, float]]:
        """One round -> the global model, the weights, the seconds of the parts."""
        clock = [time.perf_counter()]
        clients = [self.train(batches, start) for batches in self.world.rounds[r]]
        clock.append(time.perf_counter())
        scores = [self.score(params) for params, _ in clients] if self.world.known["scored"] else [1.0] * len(clients)
        clock.append(time.perf_counter())
        weights, model = aggregate(clients, scores, self.world.known["eps"])
        clock.append(time.perf_counter())
        return model, weights, dict(zip(("train", "score", "aggregate"), np.diff(clock).tolist(), strict=True))

    def steps(self) -> list[tuple[Tensors, Tensors]]:
        """Every client of the first round after one minibatch."""
        return [self.train(batches[:1]) for batches in self.world.rounds[0]]


class Loader(Lean):
    """A Dataset of images that are scaled one by one, and torch.optim."""

    formats = False

    def __init__(self, world: World):
        self.pixels = (world.x * 255).round().to(torch.uint8)
        self.world = world

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

    def score(self, params):
        params = {name: torch.nn.Parameter(p) for name, p in params.items()}
        count = sum(map(len, self.world.scoring))
        for x, y in self.batches(self.world.scoring):
            (F.cross_entropy(self.world.net(params, None, x), y, reduction="sum") / count).backward()
        return sum(p.grad.abs().sum().item() for p in params.values()) / len(params)


class Vmap(Lean):
    """All clients at once; they must have as many minibatches of one size, and no BatchNorm."""

    def __init__(self, world: World):
        sizes = {len(rows) for clients in world.rounds for batches in clients for rows in batches}
        if world.stats or world.known["scored"] or len(sizes) > 1 or not world.known["equal"]:
            raise SystemExit("vmap needs equal clients without BatchNorm or scoring groups")
        self.world = world

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
        return (model, {}), [1 / count] * count, {"train": seconds[0], "score": 0.0, "aggregate": seconds[1]}

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
    reference = copy.copy(peer)
    reference.world = double(peer.world)
    clients = [stepped for stepped, _ in reference.steps()]
    found = {f"step/params/{n}": np.stack([torch_nets.from_torch(name, n, c[n]) for c in clients]) for n in params}
    for kind, who in (("round", peer), ("exact", reference)):
        (after, _), weights, _ = who.round(0, (who.world.params, who.world.stats))
        found |= {f"{kind}/params/{n}": torch_nets.from_torch(name, n, t) for n, t in after.items()}
        found.setdefault("weights", np.array(weights))
    return found


def timing(peer: Lean) -> dict[str, float]:
    """Seconds of a round, and of its parts, in the mean over all rounds."""
    model, parts = (peer.world.params, peer.world.stats), []
    begun = time.perf_counter()
    for r in range(len(peer.world.rounds)):
        model, _, seconds = peer.round(r, model)
        parts.append(seconds)
    whole = (time.perf_counter() - begun) / len(parts)
    return {"round": whole} | {name: sum(p[name] for p in parts) / len(parts) for name in parts[0]}


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
    return 0


if __name__ == "__main__":
    sys.exit(main())
