"""The PyTorch contestants of `rounds`: the same rounds as ours, on the same minibatches.

    python -m benchmarks.speed.peers --folder DIR --peer {lean,loader} --threads N

lean    the fastest loop: tensors preloaded and scaled, functional gradients, one fused update, minibatches gathered
        in large pieces; the fastest of one process with N threads and a process per core, of two memory formats, of
        D_val by single minibatches and several per pass, and with or without torch.compile
loader  a loop as in most frameworks: a Dataset, a DataLoader, torch.optim, a model copied for every client

"loader" uses N threads or one, whichever is faster. `rounds` starts the contestants and sends them requests, see
`contest`; `ours` has written the workload to DIR.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import machine
from benchmarks.speed import contest, torch_nets, torch_pool
from benchmarks.speed.torch_nets import Tensors


class Workload(NamedTuple):
    """The workload that `ours` wrote, as tensors."""

    settings: dict[str, Any]
    x: Tensor
    """float32 [T, C, H, W] in 0..1"""
    y: Tensor
    params: Tensors
    stats: Tensors
    rounds: list[list[list[Tensor]]]
    """rows of the minibatches: round, client, minibatch"""
    scoring: list[Tensor]
    base: Tensors
    """frozen parameters, which need no gradient"""

    @property
    def net(self):
        """The network, as a function of the trained parameters."""
        net, base = torch_nets.NETS[self.settings["model"]], self.base
        return (lambda params, *args: net(base | params, *args)) if base else net


def read(folder: Path) -> Workload:
    """Returns the workload in `folder`."""
    settings = json.loads((folder / "workload.json").read_text(encoding="utf-8"))
    with np.load(folder / "workload.npz") as file:
        arrays = dict(file)

    def tensors(kind: str) -> Tensors:
        model = contest.select_prefix(arrays, kind)
        return {n: torch_nets.to_torch(settings["model"], n, array) for n, array in model.items()}

    def batches(table: np.ndarray) -> list[Tensor]:
        return [torch.tensor(row[row >= 0]).long() for row in table if (row >= 0).any()]

    def clients(r: int) -> list[list[Tensor]]:
        starts, steps, rows = (arrays[f"r{r}/{name}"] for name in ("start", "num_steps", "rows"))
        stops = zip(starts, starts + steps, strict=True)
        return [batches(rows[start:stop]) for start, stop in stops]

    return Workload(
        settings,
        x=torch.tensor(arrays["x"]).permute(0, 3, 1, 2).contiguous().float() / 255,
        y=torch.tensor(arrays["y"]).long(),
        params=tensors("init/params"),
        stats=tensors("init/stats"),
        rounds=[clients(r) for r in range(settings["rounds"])],
        scoring=batches(arrays["scoring"]),
        base=tensors("base/params"),
    )


class Variant(NamedTuple):
    """How the lean contestant computes a round."""

    threads: int
    processes: int = 1
    channels_last: bool = False
    width: int = 1
    """minibatches of D_val in one pass"""
    compiled: bool = False


class Pass(NamedTuple):
    """Images and labels of one pass over several minibatches of D_val."""

    x: Tensor
    y: Tensor
    groups: torch_nets.Groups


class Lean:
    """The fastest PyTorch loop: no DataLoader, no optimiser object, no avoidable copies."""

    pixels: Tensor | None = None
    """uint8 [T, C, H, W], for a contestant that scales image by image"""

    def __init__(self, workload: Workload):
        self.workload, self.variant, self.pool = workload, Variant(torch.get_num_threads()), None
        self.passes: list[Pass] = []
        self.set_up(self.variant)

    def choose(self, threads: int) -> dict[str, Any]:
        """Returns the fastest variant and the seconds of each on a sample of training and scoring.

        The sample has equal clients, so it does not show that processes wait for the longest client. Therefore the
        fastest variant with one process and the fastest with several are compared on a whole round.
        """
        seconds = {variant: self._seconds(variant, 1) for variant in self.variants(threads)}
        limit = CLOSE * min(seconds.values())
        for variant in [variant for variant, value in seconds.items() if value < limit]:
            seconds[variant] = self._seconds(variant, 3)
        compiled, about = min(seconds, key=seconds.__getitem__)._replace(compiled=True), {}
        try:
            seconds[compiled] = self._seconds(compiled, 3)
        except Exception as error:
            about["not compiled"] = str(error).splitlines()[0]
        rounds = {}
        for is_of_several in (False, True):
            group = [variant for variant in seconds if (variant.processes > 1) == is_of_several]
            if group:
                fastest = min(group, key=seconds.__getitem__)
                rounds[fastest] = self._seconds_of_round(fastest)
        best = min(rounds, key=rounds.__getitem__)
        self.set_up(best)
        measured = [v._asdict() | {"seconds": round(value, 4)} for v, value in seconds.items()]
        return best._asdict() | {"ways": measured} | about

    def variants(self, threads: int) -> list[Variant]:
        """Returns the variants to compare; a network with fewer than two convolutions has one memory format."""
        parameters = self.workload.params | self.workload.base
        is_convolutional = sum(p.ndim == 4 for p in parameters.values()) > 1
        processes = {Variant(threads), Variant(1), Variant(1, processes=threads)}
        formats = (False, True) if is_convolutional else (False,)
        widths = WIDTHS if self.workload.settings["scored"] else (1,)
        choices = itertools.product(sorted(processes), formats, widths)
        return [v._replace(channels_last=last, width=width) for v, last, width in choices]

    def set_up(self, variant: Variant) -> None:
        """Lays out the data for a variant, ends the last variant's processes, and starts this one's."""
        self.close()
        self.variant = variant
        torch.set_num_threads(variant.threads)
        groups = _group_minibatches(self.workload.scoring, variant.width)
        self.passes = [_make_pass(self.workload, group, variant) for group in groups]
        self.workload = _convert_layout(self.workload, variant.channels_last)
        self.compiled = _compile(self.workload) if variant.compiled else None
        if variant.processes > 1:
            self.pool = torch_pool.start(Lean, self.workload, variant)

    def close(self) -> None:
        """Ends the processes of this variant."""
        if self.pool:
            torch_pool.stop(self.pool)
        self.pool = None

    def _seconds(self, variant: Variant, repeats: int) -> float:
        """Returns the median seconds of a sample: the first minibatches of the largest clients and of D_val."""
        self.set_up(variant)
        count = max(self.variant.processes, self.variant.threads, 2)
        largest = sorted(self.workload.rounds[0], key=len)[-count:]
        clients = [batches[:SAMPLED] for batches in largest]
        start = (self.workload.params, self.workload.stats)
        sample = functools.partial(self.cohort, clients, start, SAMPLED * max(WIDTHS))
        return machine.median_seconds(sample, repeats)

    def _seconds_of_round(self, variant: Variant) -> float:
        """Returns the seconds of the first round."""
        self.set_up(variant)
        return machine.time_call(lambda: self.round(0, (self.workload.params, self.workload.stats)))

    def net(
        self, params: Tensors, stats: Tensors | None, x: Tensor, groups=torch_nets.ONE
    ) -> Tensor:
        """Returns logits. Only full minibatches use the compiled network, because each size is compiled separately."""
        size = self.workload.settings["batch_size"] * groups.count
        if self.compiled and len(x) == size:
            return self.compiled(params, stats, x, groups)
        return self.workload.net(params, stats, x, groups)

    def train(
        self, batches: list[Tensor], start: tuple[Tensors, Tensors] | None = None
    ) -> tuple[Tensors, Tensors]:
        """Trains one client; returns its parameters and running statistics.

        Args:
            batches: rows of its minibatches.
            start: parameters and running statistics; default: the initial model.
        """
        workload = self.workload
        params, stats = start or (workload.params, workload.stats)
        params = {name: p.clone().requires_grad_() for name, p in params.items()}
        stats, leaves = {name: s.clone() for name, s in stats.items()}, list(params.values())
        for x, y in _gather(workload, batches, self.variant.channels_last):
            grads = torch.autograd.grad(F.cross_entropy(self.net(params, stats, x), y), leaves)
            with torch.no_grad():
                torch._foreach_add_(leaves, grads, alpha=-workload.settings["lr"])
        return {name: p.detach() for name, p in params.items()}, stats

    def score(self, params: Tensors, max_batches: int | None = None) -> float:
        """Returns G_k: the mean over tensors of the L1 norm of the validation gradient.

        Args:
            params: of the client's model.
            max_batches: minibatches of D_val after which to stop; None: all.
        """
        params = {name: p.requires_grad_() for name, p in params.items()}
        leaves = list(params.values())
        total = [torch.zeros_like(p) for p in leaves]
        count = 0
        for x, y, groups in self.passes:
            loss = F.cross_entropy(self.net(params, None, x, groups), y, reduction="sum")
            torch._foreach_add_(total, torch.autograd.grad(loss, leaves))
            count += len(y)
            if max_batches and count >= max_batches * self.workload.settings["batch_size"]:
                break
        return sum(g.abs().sum() for g in total).item() / count / len(total)

    def train_and_score(
        self,
        batches: list[Tensor],
        start: tuple[Tensors, Tensors],
        max_batches: int | None = None,
    ) -> tuple[tuple[Tensors, Tensors], float]:
        """Returns a client's model after training, and its score, which is 1 if clients are not scored."""
        model, is_scored = self.train(batches, start), self.workload.settings["scored"]
        return model, self.score(model[0], max_batches) if is_scored else 1.0

    def cohort(
        self,
        clients: list[list[Tensor]],
        start: tuple[Tensors, Tensors],
        max_batches: int | None = None,
    ):
        """Trains and scores clients; returns their models, their scores and the CPU seconds of other processes."""
        if self.pool:
            return torch_pool.cohort(self.pool, clients, start, max_batches)
        results = [self.train_and_score(batches, start, max_batches) for batches in clients]
        models, scores = zip(*results, strict=True)
        return models, scores, 0.0

    def round(
        self, r: int, start: tuple[Tensors, Tensors]
    ) -> tuple[tuple[Tensors, Tensors], list[float], float]:
        """Computes round r; returns the global model, the weights and the CPU seconds of other processes."""
        models, scores, cpu_seconds = self.cohort(self.workload.rounds[r], start)
        weights, model = aggregate(models, scores, self.workload.settings["eps"])
        return model, weights, cpu_seconds

    def first_steps(self) -> list[tuple[Tensors, Tensors]]:
        """Returns every client of the first round after one local step."""
        return [self.train(batches[:1]) for batches in self.workload.rounds[0]]


WIDTHS = (1, 4, 8)
"""Minibatches of D_val per pass that the lean contestant tries."""

CLOSE = 1.5
"""A variant is measured again if its first measurement is below this multiple of the fastest one's."""

SAMPLED = 3
"""Minibatches of each client in the sample that variants are compared on; scoring has 8 times as many."""

GATHERED = 64
"""Minibatches that are gathered at once."""


def _group_minibatches(scoring: list[Tensor], width: int) -> list[list[Tensor]]:
    """Returns full minibatches in groups of `width`; remaining and smaller ones in groups of one."""
    size = max(map(len, scoring), default=0)
    full = [rows for rows in scoring if len(rows) == size]
    smaller = [rows for rows in scoring if len(rows) != size]
    num_grouped = len(full) - len(full) % width
    groups = [full[i : i + width] for i in range(0, num_grouped, width)]
    return groups + [[rows] for rows in (*full[num_grouped:], *smaller)]


def _make_pass(workload: Workload, group: list[Tensor], variant: Variant) -> Pass:
    """Returns the images of several minibatches in the order that `torch_nets.norm` needs."""
    is_interleaved = len(group) > 1 and not variant.channels_last
    rows = torch.stack(group, 1).flatten() if is_interleaved else torch.cat(group)
    x = _format(workload.x[rows], variant.channels_last)
    return Pass(x, workload.y[rows], torch_nets.Groups(len(group), is_interleaved))


def _format(x: Tensor, channels_last: bool) -> Tensor:
    return x.contiguous(
        memory_format=torch.channels_last if channels_last else torch.contiguous_format
    )


def _convert_layout(workload: Workload, channels_last: bool) -> Workload:
    """Returns the workload with images and kernels in a memory format."""

    def convert(tensors: Tensors) -> Tensors:
        return {n: _format(p, channels_last) if p.ndim == 4 else p for n, p in tensors.items()}

    return workload._replace(
        x=_format(workload.x, channels_last),
        params=convert(workload.params),
        base=convert(workload.base),
    )


def _gather(workload: Workload, batches: list[Tensor], channels_last: bool):
    """Yields the images and labels of minibatches, which are gathered `GATHERED` at a time."""
    for i in range(0, len(batches), GATHERED):
        group = batches[i : i + GATHERED]
        rows, sizes = torch.cat(group), [len(batch) for batch in group]
        images = _format(workload.x[rows], channels_last).split(sizes)
        yield from zip(images, workload.y[rows].split(sizes), strict=True)


def _compile(workload: Workload):
    """Returns the network compiled by torch.compile; each size of a minibatch is compiled separately."""
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(workload.net, dynamic=False)


class Loader(Lean):
    """A loop with a Dataset that scales image by image, a DataLoader and torch.optim."""

    def __init__(self, workload: Workload):
        self.pixels = (workload.x * 255).round().to(torch.uint8)
        super().__init__(workload)

    def choose(self, threads):
        variants = sorted({Variant(threads), Variant(1)})
        self.set_up(min(variants, key=lambda variant: self._seconds(variant, 3)))
        return {"threads": self.variant.threads}

    def batches(self, rows: list[Tensor]):
        """Returns a DataLoader of minibatches with these rows."""
        pixels, labels, dtype = self.pixels, self.workload.y, self.workload.x.dtype

        class Images(torch.utils.data.Dataset):
            def __len__(self):
                return len(labels)

            def __getitem__(self, row):
                return pixels[row].to(dtype) / 255, labels[row]

        return torch.utils.data.DataLoader(Images(), batch_sampler=[r.tolist() for r in rows])

    def train(self, batches, start=None):
        params, stats = copy.deepcopy(start or (self.workload.params, self.workload.stats))
        params = {name: torch.nn.Parameter(p) for name, p in params.items()}
        optimiser = torch.optim.SGD(params.values(), lr=self.workload.settings["lr"])
        for x, y in self.batches(batches):
            loss = F.cross_entropy(self.workload.net(params, stats, x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return {name: p.detach() for name, p in params.items()}, stats

    def score(self, params, max_batches=None):
        params = {name: torch.nn.Parameter(p) for name, p in params.items()}
        count = sum(map(len, self.workload.scoring))
        for x, y in self.batches(self.workload.scoring):
            loss = F.cross_entropy(self.workload.net(params, None, x), y, reduction="sum") / count
            loss.backward()
        return sum(p.grad.abs().sum().item() for p in params.values()) / len(params)


@torch.no_grad()
def aggregate(clients: Sequence[tuple[Tensors, Tensors]], scores: Sequence[float], eps: float):
    """Returns normalised weights 1 / (G_k + eps), and the weighted mean of parameters and of running statistics."""
    inverse = [1 / (g + eps) for g in scores]
    weights = [x / sum(inverse) for x in inverse]

    def mean(parts: Sequence[Tensors]) -> Tensors:
        means = {}
        for name in parts[0]:
            means[name] = sum(w * part[name] for w, part in zip(weights, parts, strict=True))
        return means

    params, stats = zip(*clients, strict=True)
    return weights, (mean(params), mean(stats))


def to_float64(workload: Workload) -> Workload:
    """Returns the workload in float64."""

    def convert(tensors: Tensors) -> Tensors:
        return {name: tensor.double() for name, tensor in tensors.items()}

    pixels = (workload.x.double() * 255).round() / 255
    model = {name: convert(getattr(workload, name)) for name in ("params", "stats", "base")}
    return workload._replace(x=pixels, **model)


def check(peer: Lean) -> dict[str, np.ndarray]:
    """Returns the arrays of `ours.Ours.check`, and the round in float64."""
    name = peer.workload.settings["model"]
    reference = type(peer)(to_float64(peer.workload))
    if peer.pixels is not None:
        reference.pixels = peer.pixels
    else:
        reference.set_up(peer.variant._replace(processes=1, compiled=False))
    clients = reference.first_steps()
    steps = [torch_nets.as_arrays(name, "step", params) for params, _ in clients]
    arrays = torch_nets.stacked(steps)
    for kind, computed_by in (("round", peer), ("exact", reference)):
        whole = computed_by.workload
        computed_by.workload = first_steps_only(whole)
        (model, _), weights, _ = computed_by.round(0, (whole.params, whole.stats))
        computed_by.workload = whole
        arrays |= torch_nets.as_arrays(name, kind, model)
        arrays.setdefault("weights", np.array(weights))
    return arrays


def first_steps_only(workload: Workload) -> Workload:
    """Returns a workload with only the local steps of the first round that the case checks."""
    steps = workload.settings["checked_steps"]
    return workload._replace(rounds=[[batches[:steps] for batches in workload.rounds[0]]])


def time_rounds(peer: Lean) -> dict[str, float]:
    """Computes all rounds; returns the mean seconds of a round and its CPU seconds in all processes."""
    model, count = (peer.workload.params, peer.workload.stats), len(peer.workload.rounds)
    start, cpu_seconds = time.perf_counter(), -time.process_time()
    for r in range(count):
        model, _, of_others = peer.round(r, model)
        cpu_seconds += of_others
    wall_seconds = time.perf_counter() - start
    return {"round": wall_seconds / count, "cpu": (cpu_seconds + time.process_time()) / count}


PEERS = {"lean": Lean, "loader": Loader}


def main(argv: list[str] | None = None) -> int:
    """Reads the workload, then answers requests."""
    parser = contest.parser(__doc__)
    parser.add_argument("--peer", choices=PEERS, required=True)
    args = parser.parse_args(argv)
    peer = PEERS[args.peer](read(args.folder))
    about = peer.choose(args.threads) | {"torch": torch.__version__}
    contest.serve(
        args.folder, args.peer, {"check": lambda: check(peer)}, lambda: time_rounds(peer), about
    )
    peer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
