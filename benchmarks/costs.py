"""How the time of a round grows with clients, cohort, local epochs, validation set and parameters.

    python -m benchmarks.costs [--repeats 5] [--out FILE.json] [--picture FILE.png]

One setting moves at a time, from one reference round of a small network on synthetic 8 x 8 images; every program is
compiled before it is timed. The picture needs matplotlib.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import machine
from fedvg_jax import config as configs
from fedvg_jax.config import Config
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions.split import Partition


class Round(NamedTuple):
    """What a round costs by; all clients are equal."""

    clients: int = 100
    cohort: int = 10
    epochs: int = 4
    validation: int = 512
    width: int = 128
    """of the two hidden layers"""
    rows: int = 64
    """of every client"""


REFERENCE = Round()
AXES: dict[str, tuple[int, ...]] = {
    "clients": (100, 300, 1000, 3000, 10_000),
    "cohort": (1, 3, 10, 30, 100),
    "epochs": (1, 2, 4, 8, 16),
    "validation": (32, 128, 512, 2048, 8192),
    "width": (16, 64, 128, 256, 512),
}
TITLES = {"clients": "clients", "cohort": "cohort", "epochs": "local epochs", "validation": "validation images",
          "width": "parameters"}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Measures, writes, draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--points", type=int, default=5, help="on each axis")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    parser.add_argument("--picture", type=Path, metavar="FILE.png")
    args = parser.parse_args(argv)
    found: dict[str, Any] = {"machine": machine.describe(["python", "-m", "benchmarks.costs", *(argv or sys.argv[1:])])}
    found |= {"reference": REFERENCE._asdict(), "axes": {}}
    for axis, values in AXES.items():
        points = [measure(REFERENCE._replace(**{axis: value}), args.repeats) for value in values[: args.points]]
        for value, point in zip(values, points, strict=False):
            point[axis] = value
        shape = growth([p["parameters" if axis == "width" else axis] for p in points], points)
        found["axes"][axis] = {"points": points, "growth": shape}
        print(f"{TITLES[axis]}:", *(f"{1e3 * p['seconds']['median']:.2f}" for p in points), "ms", flush=True)
    found["machine"] = machine.finished(found["machine"])
    if args.out:
        machine.write(args.out, found)
    if args.picture:
        draw(found, args.picture)
    return 0


def measure(costs: Round, repeats: int) -> dict[str, Any]:
    """Seconds of a round; how many image-gradients it is."""
    import jax

    from fedvg_jax.core import tree
    from fedvg_jax.engine import schedule
    from fedvg_jax.models import mlp
    from fedvg_jax.models import task as tasks
    from fedvg_jax.runs import simulation

    arrays, partition = world(costs)
    settings = {"clients": costs.clients, "join_ratio": costs.cohort / costs.clients, "local_epochs": costs.epochs}
    config = configs.apply(Config(), settings | {"lr": 0.01, "val_ratio": 0.01, "test_ratio": 0.01}, "costs")
    task = tasks.classification(mlp.MLP(10, (costs.width, costs.width)), 10, (8, 8, 1))
    sim = simulation.simulation(config, data=arrays, partition=partition, task=task)
    planned = schedule.stack([sim.schedule(0)], simulation.MAX_ROUNDS)
    run = sim.chunk.lower(sim.state, np.int32(0), planned, sim.data, sim.hyper).compile()

    def once() -> float:
        state = jax.block_until_ready(jax.tree.map(jax.numpy.copy, sim.state))
        call = lambda: jax.block_until_ready(run(state, np.int32(1), planned, sim.data, sim.hyper))  # noqa: E731
        return machine.timed(call)

    once()
    times = [once() for _ in range(repeats)]
    work = costs.cohort * (costs.epochs * costs.rows + costs.validation)
    parameters = tree.size(sim.state.variables.params)
    return {"seconds": machine.spread(times), "image_gradients": work, "parameters": parameters}


def world(costs: Round) -> tuple[Arrays, Partition]:
    """Noise; equal clients, then the validation set, then 64 rows to test on."""
    rng = np.random.default_rng(0)
    held, test = costs.clients * costs.rows, 64
    size = held + costs.validation + test
    x, y = rng.integers(0, 256, (size, 8, 8, 1), np.uint8), rng.integers(0, 10, size).astype(np.int32)
    rows = np.arange(size, dtype=np.int32)
    nothing = [rows[:0]] * (costs.clients - 1)
    val, tests = rows[held : held + costs.validation], rows[held + costs.validation :]
    parts = Partition(np.split(rows[:held], costs.clients), [val, *nothing], [tests, *nothing])
    return Arrays("noise", x, y, tuple(map(str, range(10))), size), parts


def growth(values: list[int], points: list[dict[str, Any]]) -> float | None:
    """Exponent between the last two points: 1 where time is proportional."""
    if len(values) < 2:
        return None
    (a, b), (p, q) = values[-2:], (point["seconds"]["median"] for point in points[-2:])
    return round(math.log(q / p) / math.log(b / a), 3)


def draw(found: dict[str, Any], picture: Path) -> None:
    """Time against each, both logarithmic, with the line of proportional growth through the last point."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found["axes"]), figsize=(3.1 * len(found["axes"]), 3.2), sharey=True)
    for ax, (axis, measured) in zip(np.atleast_1d(axes), found["axes"].items(), strict=True):
        points = measured["points"]
        x = np.array([p["parameters" if axis == "width" else axis] for p in points], float)
        y, low, high = (np.array([1e3 * p["seconds"][k] for p in points]) for k in ("median", "min", "max"))
        ax.fill_between(x, low, high, alpha=0.25, linewidth=0)
        ax.plot(x, y, "o-", markersize=4, label="median, with range")
        ax.plot(x, y[-1] * x / x[-1], ":", color="0.5", label="proportional")
        ax.set(xscale="log", yscale="log", xlabel=TITLES[axis])
        ax.grid(alpha=0.3)
    axes = np.atleast_1d(axes)
    axes[0].set_ylabel("milliseconds a round")
    axes[0].legend(fontsize=8, frameon=False)
    bottom = min(1e3 * p["seconds"]["min"] for m in found["axes"].values() for p in m["points"])
    axes[0].set_ylim(bottom=0.6 * bottom)
    figure.suptitle(f"{found['machine']['processor']}, {found['machine']['cores']} cores", fontsize=9)
    figure.tight_layout()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
