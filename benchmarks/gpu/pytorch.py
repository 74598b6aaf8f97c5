"""The section "torch" of `benchmarks.gpu`: whole rounds in PyTorch, with the clients, minibatches and D_val of ours.

A variant is a precision, a memory format and a way to launch: a CUDA graph for each size of a minibatch; the same with
full minibatches compiled by torch.compile; torch.compile(mode="reduce-overhead"); or eager, kernel by kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import machine
from benchmarks.speed import contest, torch_nets
from fedvg_jax.core.types import Batch
from fedvg_jax.runs.assemble import simulation

PASS_GROUPS = 32
"""Groups of D_val that are scored at once, each with separate statistics."""

AGREES = 1e-6
"""Largest relative difference of gradients in double precision, of sums of 1e5 terms with some cancellation."""


class Variant(NamedTuple):
    """A way to compute the round."""

    launch: str
    """graph, compiled (in a graph), reduce-overhead or eager"""
    precision: str
    """tensorfloat32, bfloat16 (autocast) or float64"""
    channels_last: bool = False

    @property
    def name(self) -> str:
        memory_format = "channels_last" if self.channels_last else "nchw"
        return f"{self.launch}, {self.precision}, {memory_format}"


VARIANTS = (
    Variant("graph", "tensorfloat32"),
    Variant("graph", "bfloat16", True),
    Variant("graph", "tensorfloat32", True),
    Variant("graph", "bfloat16"),
    Variant("compiled", "tensorfloat32"),
    Variant("compiled", "bfloat16", True),
    Variant("reduce-overhead", "bfloat16", True),
    Variant("eager", "tensorfloat32"),
)
"""In the order of measurement."""

MODES = {"compiled": "default", "reduce-overhead": "reduce-overhead"}
"""Launch -> mode of torch.compile for full minibatches."""


def measure(sim: simulation.Simulation, model: str, smoke: bool) -> Iterator[dict[str, Any]]:
    """Yields the seconds of whole rounds and of their phases by variant, after comparing the models.

    Args:
        sim: supplies the images, the initial model and a schedule.
        model: of `torch_nets.NETS`.
        smoke: whether to run eagerly on the CPU.

    Raises:
        ValueError: PyTorch's gradients differ from ours by more than rounding.
    """
    device = "cuda" if torch.cuda.is_available() and not smoke else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    results: dict[str, Any] = {"torch_device": device, "torch": torch.__version__, "ways": {}}
    results["difference of gradients"] = gap = difference(sim, model, device)
    if gap > AGREES:
        raise ValueError(f"PyTorch's gradients differ from ours by {gap:.1e}")
    yield results
    for variant in VARIANTS[-1:] if device == "cpu" else VARIANTS:
        try:
            contestant = Round(sim, model, variant, device)
            contestant.run()  # captures and compiles
            repeats = 1 if smoke or variant.launch == "eager" else 3
            times = [contestant.run() for _ in range(repeats)]
            spreads = machine.spread_by_part(times)
            seconds = {name: spread["median"] for name, spread in spreads.items()}
        except Exception as error:  # torch.compile needs a C compiler; the others still count
            seconds = {"error": f"{type(error).__name__}: {error}"[:300]}
        results["ways"][variant.name] = seconds
        yield results


def difference(sim: simulation.Simulation, model: str, device: str) -> float:
    """Returns the relative difference of PyTorch's gradients from ours in float64, of two groups and their statistics.

    PyTorch's gradient of both groups at once and the mean of its minibatches' are compared with ours.
    """
    contestant = Round(sim, model, Variant("eager", "float64"), device)
    rows = np.arange(64).reshape(2, 32)
    with jax.enable_x64(True):
        variables = jax.device_get(tuple(sim.state.variables))
        exact = jax.tree.map(lambda x: jnp.asarray(x, float), variables)
        batch = Batch(sim.arrays.x[rows.ravel()], sim.arrays.y[rows.ravel()])
        gradient = jax.jit(jax.grad(lambda *arguments: sim.task.loss(*arguments, True)[0]))
        grads = gradient(*exact, batch, np.ones((2, 32), bool))
    ours = contest.flatten_model("", jax.device_get(grads), {})
    theirs = contestant.gradient(contestant.on_device(rows), 2)
    halves = zip(*(contestant.gradient(contestant.on_device(r), 0) for r in rows), strict=True)
    gaps = []
    for name, grad, half in zip(contestant.params, theirs, halves, strict=True):
        expected = ours[f"/params/{name}"]
        for actual in (grad, sum(half) / 2):
            gap = torch_nets.from_torch(model, name, actual.cpu()) - expected
            gaps.append(np.linalg.norm(gap) / max(np.linalg.norm(expected), 1e-6))
    return float(max(gaps))


class Round:
    """A round on a device; parameters and statistics are updated in place, so that graphs can be replayed."""

    def __init__(self, sim: simulation.Simulation, model: str, variant: Variant, device: str):
        planned, config = sim.schedule(0), sim.config
        self.variant, self.device, self.lr, self.eps = variant, device, config.lr, config.fedvg.eps
        self.net, self.graphs = torch_nets.NETS[model], {}
        dtype = torch.float64 if variant.precision == "float64" else torch.float32
        arrays = contest.flatten_model("init", *jax.device_get(sim.state.variables))
        self.start = {
            name: torch_nets.to_torch(model, name.split("/", 1)[1], a).to(device, dtype)
            for name, a in contest.select_prefix(arrays, "init").items()
        }
        copies = {name: self.formatted(t.clone()) for name, t in self.start.items()}
        self.params, self.stats = (contest.select_prefix(copies, n) for n in ("params", "stats"))
        for parameter in self.params.values():
            parameter.requires_grad_()
        self.total = [torch.zeros_like(p) for p in self.params.values()]
        pixels = torch.tensor(np.asarray(sim.arrays.x)).to(device).to(dtype) / 255
        self.x = pixels if variant.channels_last else pixels.permute(0, 3, 1, 2).contiguous()
        self.y = torch.tensor(np.asarray(sim.arrays.y)).long().to(device)
        stops = planned.start + planned.num_steps
        self.clients = []
        for start, stop in zip(planned.start, stops, strict=True):
            self.clients.append([self.on_device(rows) for rows in planned.rows[start:stop]])
        scoring = np.asarray(sim.data.scoring)
        full = scoring[(scoring >= 0).all(1)]
        passes = [full[i : i + PASS_GROUPS] for i in range(0, len(full), PASS_GROUPS)]
        rest = [r[r >= 0][None] for r in scoring if 0 < (r >= 0).sum() < len(r)]
        self.passes = [(self.on_device(groups), len(groups)) for groups in (*passes, *rest)]
        self.fast_loss = self.loss
        if variant.launch in MODES:
            self.fast_loss = torch.compile(self.loss, mode=MODES[variant.launch], dynamic=False)
        self.full = {config.batch_size, *(rows.numel() for rows, _ in self.passes[:1])}

    def formatted(self, tensor: Tensor) -> Tensor:
        """Returns a kernel in the variant's memory format."""
        is_last = self.variant.channels_last and tensor.ndim == 4
        return tensor.contiguous(
            memory_format=torch.channels_last if is_last else torch.contiguous_format
        )

    def on_device(self, rows: np.ndarray) -> Tensor:
        """Returns row numbers on the device without padding; groups are in the order that `torch_nets.norm` needs."""
        is_interleaved = rows.ndim == 2 and len(rows) > 1 and not self.variant.channels_last
        ordered = (rows.T if is_interleaved else rows).ravel()
        return torch.tensor(ordered[ordered >= 0]).long().to(self.device)

    def loss(self, x: Tensor, y: Tensor, count: int) -> Tensor:
        """Returns the mean loss of the rows; of several groups with statistics of each."""
        groups = torch_nets.Groups(max(count, 1), not self.variant.channels_last)
        with torch.autocast(
            self.device, torch.bfloat16, enabled=self.variant.precision == "bfloat16"
        ):
            return F.cross_entropy(
                self.net(self.params, self.stats if count == 0 else None, x, groups), y
            )

    def gradient(self, rows: Tensor, count: int) -> tuple[Tensor, ...]:
        """Returns the gradient of the mean loss over rows. `count` is their number of groups, or 0 in training."""
        x = self.x[rows]
        x = x.permute(0, 3, 1, 2) if self.variant.channels_last else x
        # each other size would be tuned, too, for seconds
        torch.backends.cudnn.benchmark = len(rows) in self.full
        loss = self.fast_loss if len(rows) in self.full else self.loss
        return torch.autograd.grad(loss(x, self.y[rows], count), list(self.params.values()))

    def step(self, rows: Tensor) -> None:
        """Takes an SGD step."""
        grads = self.gradient(rows, 0)
        with torch.no_grad():
            torch._foreach_add_(list(self.params.values()), grads, alpha=-self.lr)

    def add_pass(self, rows: Tensor, count: int) -> None:
        """Adds the summed gradient of a pass over D_val."""
        torch._foreach_add_(self.total, self.gradient(rows, count), alpha=len(rows))

    def launch(self, f: Callable, rows: Tensor, *count: int) -> None:
        """Calls f, by replaying a CUDA graph where the variant has them; one for each number of rows."""
        if self.variant.launch not in ("graph", "compiled"):
            torch.compiler.cudagraph_mark_step_begin()
            return f(rows, *count)
        key = f.__name__, len(rows), count
        if key not in self.graphs:
            static, graph = rows.clone(), torch.cuda.CUDAGraph()
            kept = [t.detach().clone() for t in self.state]
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    f(static, *count)
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(graph):
                f(static, *count)
            self.restore(kept)
            self.graphs[key] = static, graph
        static, graph = self.graphs[key]
        static.copy_(rows)
        graph.replay()
        return None

    @property
    def state(self) -> list[Tensor]:
        """Tensors that a round changes in place."""
        return [*self.params.values(), *self.stats.values(), *self.total]

    @torch.no_grad()
    def restore(self, values: list[Tensor]) -> None:
        """Sets the first tensors of `state`."""
        for tensor, value in zip(self.state, values, strict=False):
            tensor.copy_(value)

    def run(self) -> dict[str, float]:
        """Computes the round; returns the seconds of the round and of each phase."""
        clock, models, norms = [self.now()], [], []
        start = list(self.start.values())
        for batches in self.clients:
            self.restore(start)
            for rows in batches:
                self.launch(self.step, rows)
            models.append([t.detach().clone() for t in self.state[: len(start)]])
        clock.append(self.now())
        count = sum(len(rows) for rows, _ in self.passes)
        for trained in models:
            self.restore([*trained, *(torch.zeros_like(t) for t in self.total)])
            for rows, groups in self.passes:
                self.launch(self.add_pass, rows, groups)
            norms.append(sum(g.abs().sum() for g in self.total) / count / len(self.total))
        clock.append(self.now())
        inverse = 1 / (torch.stack(norms) + self.eps)
        weights = inverse / inverse.sum()
        self.averaged = [
            torch.tensordot(weights.to(t[0].dtype), torch.stack(t), 1)
            for t in zip(*models, strict=True)
        ]
        self.weights = weights
        clock.append(self.now())
        train, score, aggregate = np.diff(clock).tolist()
        whole = clock[-1] - clock[0]
        return {"train": train, "score": score, "aggregate": aggregate, "round": whole}

    def now(self) -> float:
        """Returns the time when the device has finished its work."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()
