"""The section "torch" of `benchmarks.gpu`: a local step and a scoring group of ResNet-18 in eager PyTorch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch
import torch.nn.functional as F

from benchmarks import contest, machine, torch_nets
from fedvg_jax.runs import simulation


def measure(sim: simulation.Simulation, model: str, smoke: bool) -> dict[str, Any]:
    """Returns the milliseconds of a step and of a scoring group, and the seconds of a round, by variant.

    A variant is a precision and a memory format. The seconds of a round are calculated, not measured: those of its
    steps and of its scoring groups, one client at a time.

    Args:
        sim: supplies the images, the initial model and a schedule.
        model: of `torch_nets.NETS`.
        smoke: whether to run few steps on the CPU.
    """
    device = "cuda" if torch.cuda.is_available() and not smoke else "cpu"
    planned, steps = sim.schedule(0), 3 if smoke else 50
    arrays = contest.flatten_model("init", *jax.device_get(sim.state.variables))
    rows = torch.tensor(planned.rows[planned.rows.min(1) >= 0][:steps]).long().to(device)
    groups = len(planned.clients) * int((np.asarray(sim.data.scoring) >= 0).any(1).sum())
    results: dict[str, Any] = {"device": device, "torch": torch.__version__, "ways": {}}
    for precision in ("tensorfloat32", "bfloat16"):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        for name, memory_format in (("nchw", torch.contiguous_format), ("channels_last", torch.channels_last)):
            loops = _Loops(model, arrays, np.asarray(sim.arrays.x), np.asarray(sim.arrays.y), memory_format, device)
            loops.autocast = precision == "bfloat16"
            step = machine.median_seconds(lambda loops=loops: loops.train(rows, device), 3) / len(rows)
            group = machine.median_seconds(lambda loops=loops: loops.score(rows, device), 3) / len(rows)
            results["ways"][f"{precision}, {name}"] = {
                "milliseconds a step": 1e3 * step,
                "milliseconds a group": 1e3 * group,
                "seconds a round": step * int(planned.num_steps.sum()) + group * groups,
            }
    return results


class _Loops:
    """A model and images on the device, with loops of training and of scoring."""

    def __init__(self, model: str, arrays, x: np.ndarray, y: np.ndarray, memory_format, device: str):
        self.net, self.autocast = torch_nets.NETS[model], False

        def tensors(kind: str):
            selected = contest.select_prefix(arrays, f"init/{kind}")
            return {name: torch_nets.to_torch(model, name, a).to(device) for name, a in selected.items()}

        params, self.stats = tensors("params"), tensors("stats")
        self.params = {
            name: (p.to(memory_format=memory_format) if p.ndim == 4 else p).requires_grad_()
            for name, p in params.items()
        }
        images = torch.tensor(x).permute(0, 3, 1, 2).to(device).float() / 255
        self.x, self.y = images.contiguous(memory_format=memory_format), torch.tensor(y).long().to(device)

    def gradient(self, rows, stats, device: str):
        """Returns the gradient of a minibatch."""
        with torch.autocast(device, torch.bfloat16, enabled=self.autocast):
            loss = F.cross_entropy(self.net(self.params, stats, self.x[rows]), self.y[rows])
        return torch.autograd.grad(loss, list(self.params.values()))

    def train(self, rows, device: str) -> None:
        """Takes an SGD step for each minibatch."""
        for minibatch in rows:
            grads = self.gradient(minibatch, self.stats, device)
            with torch.no_grad():
                torch._foreach_add_(list(self.params.values()), grads, alpha=-0.01)
        self._wait(device)

    def score(self, rows, device: str) -> None:
        """Sums the gradients of the minibatches."""
        total = [torch.zeros_like(p) for p in self.params.values()]
        for minibatch in rows:
            torch._foreach_add_(total, self.gradient(minibatch, None, device))
        self._wait(device)

    def _wait(self, device: str) -> None:
        if device == "cuda":
            torch.cuda.synchronize()
