"""Measures how the time of a round grows with clients, cohort, local epochs, validation set and parameters.

    python -m benchmarks.speed.costs [--only NAME ...] [--repeats 5] [--out FILE.json] [--picture FILE.png]

Varies one setting at a time of a reference round: a small network on synthetic 8 x 8 images. Programs are compiled
before they are timed. `planning` is the host's work for a round, up to a
cohort of 1,000 of 1,000,000 clients with 12 rows each. Prints milliseconds and writes them to FILE.json, where axes
that are not measured keep their earlier results. --picture plots them and needs matplotlib.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import machine
from fedvg_jax import config as configs
from fedvg_jax.config import Config
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions.split import Partition


class Round(NamedTuple):
    """The sizes that determine a round's cost; all clients have equally many rows."""

    clients: int = 100
    cohort: int = 10
    epochs: int = 4
    validation: int = 512
    width: int = 128
    """units of each of the two hidden layers"""
    rows: int = 64
    """training rows of every client"""


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


SECTIONS = (*AXES, "planning")

POPULATIONS = ((10_000, 1000), (100_000, 1000), (1_000_000, 10), (1_000_000, 100), (1_000_000, 1000))
"""(clients, cohort) of the rounds that are planned."""


def main(argv: list[str] | None = None) -> int:
    """Measures the axes, writes the results and plots them."""
    parser = machine.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--points", type=int, default=5, help="number of points on each axis")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    parser.add_argument("--picture", type=Path, metavar="FILE.png")
    args = parser.parse_args(argv)
    description = machine.describe(["python", "-m", "benchmarks.speed.costs", *(argv or sys.argv[1:])])
    results: dict[str, Any] = {"reference": REFERENCE._asdict(), "axes": {}}
    if args.out and args.out.exists():
        results |= json.loads(args.out.read_text(encoding="utf-8"))
    for axis in (axis for axis in AXES if axis in args.only):
        results["axes"][axis] = measure_axis(axis, args.points, args.repeats)
    planned = measure_planning(POPULATIONS[: args.points], args.repeats) if "planning" in args.only else None
    description = machine.add_final_load(description)
    if planned:
        about = {name: description[name] for name in ("command", "commit", "date", "busy")}
        results["planning"] = {"machine": about, "points": planned}
    if set(AXES) & set(args.only) or "machine" not in results:
        results["machine"] = description
    if args.out:
        machine.write(args.out, results)
    if args.picture:
        plot(results, args.picture)
    return 0


def measure_axis(axis: str, num_points: int, repeats: int) -> dict[str, Any]:
    """Returns the seconds of a round for every value of an axis, and prints them."""
    values = AXES[axis][:num_points]
    points = [measure(REFERENCE._replace(**{axis: value}), repeats) for value in values]
    for value, point in zip(values, points, strict=True):
        point[axis] = value
    print(f"{TITLES[axis]}:", *(f"{1e3 * p['seconds']['median']:.2f}" for p in points), "ms", flush=True)
    return {"points": points, "growth": growth([p["parameters" if axis == "width" else axis] for p in points], points)}


def measure_planning(populations: Sequence[tuple[int, int]], repeats: int) -> list[dict[str, Any]]:
    """Returns CPU seconds and bytes of planning a round.

    Args:
        populations: (clients of the federation, clients of the cohort).
        repeats: timings of each.
    """
    from fedvg_jax.data.partitions import client_rows
    from fedvg_jax.engine import schedule

    points = []
    for clients, cohort in populations:
        rows = client_rows.from_sizes(np.arange(12 * clients, dtype=np.int32), np.full(clients, 12))
        settings = {"cohort_size": cohort, "local_epochs": (5, 5), "batch_size": 10, "num_lanes": 1}
        settings |= {"capacity": schedule.capacity(12 * clients, cohort, 5, 10, 12)}
        times = []
        for number in range(repeats + 1):
            start = time.process_time()
            planned = schedule.make(number, rows, seed=0, **settings)
            times.append(time.process_time() - start)
        size = rows.rows.nbytes + rows.begin.nbytes
        points.append({
            "clients": clients, "cohort": cohort, "seconds": machine.spread(times[1:]), "partition_bytes": size,
            "plan_bytes": planned.rows.nbytes,
        })  # fmt: skip
    print("planning:", *(f"{1e3 * p['seconds']['median']:.2f}" for p in points), "ms", flush=True)
    return points


def measure(sizes: Round, repeats: int) -> dict[str, Any]:
    """Returns the seconds of a round, its image gradients (rows of training and scoring) and its parameters."""
    import jax

    from fedvg_jax.core import tree
    from fedvg_jax.engine import schedule
    from fedvg_jax.models import mlp
    from fedvg_jax.models import task as tasks
    from fedvg_jax.runs.assemble import simulation

    arrays, partition = make_data(sizes)
    settings = {"clients": sizes.clients, "join_ratio": sizes.cohort / sizes.clients, "local_epochs": sizes.epochs}
    config = configs.apply(Config(), settings | {"devices": "1", "lr": 0.01}, "costs")
    task = tasks.classification(mlp.MLP(10, (sizes.width, sizes.width)), 10, (8, 8, 1))
    sim = simulation.simulation(config, data=arrays, partition=partition, task=task)
    planned = schedule.stack([sim.schedule(0)], simulation.MAX_ROUNDS)
    run = sim.chunk.lower(sim.state, np.int32(0), planned, sim.data, sim.hyper).compile()

    def time_round() -> float:
        state = jax.block_until_ready(jax.tree.map(jax.numpy.copy, sim.state))
        return machine.time_call(lambda: jax.block_until_ready(run(state, np.int32(1), planned, sim.data, sim.hyper)))

    time_round()  # warm-up
    times = [time_round() for _ in range(repeats)]
    work = sizes.cohort * (sizes.epochs * sizes.rows + sizes.validation)
    parameters = tree.size(sim.state.variables.params)
    return {"seconds": machine.spread(times), "image_gradients": work, "parameters": parameters}


def make_data(sizes: Round) -> tuple[Arrays, Partition]:
    """Returns noise images and a partition: equal clients, then the validation rows, then 64 test rows."""
    rng = np.random.default_rng(0)
    num_train, num_test = sizes.clients * sizes.rows, 64
    size = num_train + sizes.validation + num_test
    x, y = rng.integers(0, 256, (size, 8, 8, 1), np.uint8), rng.integers(0, 10, size).astype(np.int32)
    rows = np.arange(size, dtype=np.int32)
    empty = [rows[:0]] * (sizes.clients - 1)
    val, test = rows[num_train : num_train + sizes.validation], rows[num_train + sizes.validation :]
    parts = Partition(np.split(rows[:num_train], sizes.clients), [val, *empty], [test, *empty])
    return Arrays("noise", x, y, tuple(map(str, range(10))), size), parts


def growth(values: list[int], points: list[dict[str, Any]]) -> float | None:
    """Returns the exponent of time against a size between the last two points: 1 if time is proportional."""
    if len(values) < 2:
        return None
    (a, b), (p, q) = values[-2:], (point["seconds"]["median"] for point in points[-2:])
    return round(math.log(q / p) / math.log(b / a), 3)


def plot(results: dict[str, Any], picture: Path) -> None:
    """Plots time against each axis on logarithmic scales, with a line of proportional growth."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured = results["axes"]
    panels = {TITLES[axis]: ("parameters" if axis == "width" else axis, measured[axis]["points"]) for axis in AXES
              if axis in measured}  # fmt: skip
    figure, axes = pyplot.subplots(1, len(panels), figsize=(3.1 * len(panels), 3.2), sharey=True)
    for ax, (title, (key, points)) in zip(np.atleast_1d(axes), panels.items(), strict=True):
        x = np.array([p[key] for p in points], float)
        y, low, high = (np.array([1e3 * p["seconds"][k] for p in points]) for k in ("median", "min", "max"))
        ax.fill_between(x, low, high, alpha=0.25, linewidth=0)
        ax.plot(x, y, "o-", markersize=4, label="median, with range")
        ax.plot(x, y[-1] * x / x[-1], ":", color="0.5", label="proportional")
        ax.set(xscale="log", yscale="log", xlabel=title)
        ax.grid(alpha=0.3)
    axes = np.atleast_1d(axes)
    axes[0].set_ylabel("milliseconds a round")
    axes[0].legend(fontsize=8, frameon=False)
    bottom = min(1e3 * p["seconds"]["min"] for _, points in panels.values() for p in points)
    axes[0].set_ylim(bottom=0.6 * bottom)
    figure.suptitle(f"{results['machine']['processor']}, {results['machine']['cores']} cores", fontsize=9)
    figure.tight_layout()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
