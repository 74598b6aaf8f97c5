"""Measures how the time of a round grows with clients, cohort, local epochs, validation set and parameters.

    python -m benchmarks.speed.costs [--only NAME ...] [--repeats 5] [--out FILE.json] [--picture FILE.png]

Varies one setting at a time of a reference run: a small network on synthetic 8 x 8 images. `planning` is the host's
work for a round, up to a cohort of 1,000 of 1,000,000 clients with 12 rows each. Prints milliseconds and writes them to
FILE.json, where axes that are not measured keep their earlier results. --picture plots them and needs matplotlib.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import machine
from benchmarks.speed import cases


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


AXES: dict[str, tuple[int, ...]] = {
    "clients": (100, 300, 1000, 3000, 10_000),
    "cohort": (1, 3, 10, 30, 100),
    "epochs": (1, 2, 4, 8, 16),
    "validation": (32, 128, 512, 2048, 8192),
    "width": (16, 64, 128, 256, 512),
}
TITLES = {"clients": "clients", "cohort": "cohort", "epochs": "local epochs", "validation": "validation images",
          "width": "parameters"}  # fmt: skip

POPULATIONS = (
    (10_000, 1000),
    (100_000, 1000),
    (1_000_000, 10),
    (1_000_000, 100),
    (1_000_000, 1000),
)
"""(clients, cohort) of the rounds that are planned."""


def main(argv: list[str] | None = None) -> int:
    """Measures the axes, writes the results and plots them."""
    parser = machine.parser(__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=(*AXES, "planning"), default=(*AXES, "planning")
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    parser.add_argument("--picture", type=Path, metavar="FILE.png")
    args = parser.parse_args(argv)
    began = machine.begin("speed.costs", argv)["machine"]
    results = {"machine": began, "axes": {}} | machine.read(args.out)
    for axis in (axis for axis in AXES if axis in args.only):
        points = [measure(axis, value, args.repeats) | {axis: value} for value in AXES[axis]]
        exponent = growth("parameters" if axis == "width" else axis, points)
        results["axes"][axis] = {"points": points, "growth": exponent}
        show(TITLES[axis], points)
    if "planning" in args.only:
        points = [plan(*population, args.repeats) for population in POPULATIONS]
        results["planning"] = {"machine": began, "points": points}
        show("planning", points)
    if {*AXES} & {*args.only}:
        results |= {"machine": machine.add_final_load(began), "reference": Round()._asdict()}
    machine.write(args.out, results)
    if args.picture:
        plot(results, args.picture)
    return 0


def show(title: str, points: list[dict[str, Any]]) -> None:
    """Prints the milliseconds of an axis."""
    print(f"{title}:", *(f"{1e3 * p['seconds']['median']:.2f}" for p in points), "ms", flush=True)


def plan(clients: int, cohort: int, repeats: int) -> dict[str, Any]:
    """Returns CPU seconds and bytes of planning a round of a cohort."""
    from fedvg_jax.data.partitions import client_rows
    from fedvg_jax.engine import schedule

    rows = client_rows.from_sizes(np.arange(12 * clients, dtype=np.int32), np.full(clients, 12))
    settings = {"cohort_size": cohort, "local_epochs": (5, 5), "batch_size": 10, "num_lanes": 1}
    capacity = schedule.capacity(12 * clients, cohort, 5, 10, 12)
    times = []
    for number in range(repeats + 1):
        start = time.process_time()
        planned = schedule.padded(schedule.make(number, rows, seed=0, **settings), capacity)
        times.append(time.process_time() - start)
    sizes = {
        "partition_bytes": rows.rows.nbytes + rows.begin.nbytes,
        "plan_bytes": planned.rows.nbytes,
    }
    return {"clients": clients, "cohort": cohort, "seconds": machine.spread(times[1:])} | sizes


def measure(axis: str, value: int, repeats: int) -> dict[str, Any]:
    """Returns the seconds of a round without compiling, its image gradients (training and scoring), its parameters."""
    import fedvg_jax as fv
    from fedvg_jax.core import tree
    from fedvg_jax.models import plain, task as tasks

    sizes = Round()._replace(**{axis: value})
    rng, num_train = np.random.default_rng(0), sizes.clients * sizes.rows
    size = num_train + sizes.validation + 64
    data = rng.integers(0, 256, (size, 8, 8, 1), np.uint8), rng.integers(0, 10, size)
    parts = np.split(np.arange(size), [num_train, num_train + sizes.validation])
    partition = cases.equal_clients(sizes.clients, *parts)
    config = fv.Config(
        clients=sizes.clients,
        join_ratio=sizes.cohort / sizes.clients,
        local_epochs=sizes.epochs,
        weighting="fedvg",
        devices="1",
        lr=0.01,
        rounds=repeats + 1,
        eval_every=repeats + 1,
    )
    task = tasks.classification(plain.MLP(10, (sizes.width, sizes.width)), 10, (8, 8, 1))
    history = fv.run(config, data=data, partition=partition, task=task)
    return {
        "seconds": machine.spread([record["seconds"] for record in history.records[1:]]),
        "image_gradients": sizes.cohort * (sizes.epochs * sizes.rows + sizes.validation),
        "parameters": tree.size(history.variables.params),
    }


def growth(key: str, points: list[dict[str, Any]]) -> float:
    """Returns the exponent of time against a size between the last two points: 1 if time is proportional."""
    (a, p), (b, q) = ((point[key], point["seconds"]["median"]) for point in points[-2:])
    return round(math.log(q / p) / math.log(b / a), 3)


def plot(results: dict[str, Any], picture: Path) -> None:
    """Plots time against each axis on logarithmic scales, with a line of proportional growth."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured = results["axes"]
    pyplot.rcParams.update({"font.size": 9})
    figure, panels = pyplot.subplots(2, 3, figsize=(8, 5.2), sharey=True, layout="constrained")
    for panel in panels.flat[len(measured) :]:
        panel.axis("off")
    for panel, (axis, of_axis) in zip(panels.flat, measured.items(), strict=False):
        key = "parameters" if axis == "width" else axis
        x = np.array([point[key] for point in of_axis["points"]], float)
        seconds = [point["seconds"] for point in of_axis["points"]]
        bands = [(each["median"], each["min"], each["max"]) for each in seconds]
        y, low, high = 1e3 * np.transpose(bands)
        panel.fill_between(x, low, high, alpha=0.25, linewidth=0)
        panel.plot(x, y, "o-", markersize=4, label="median, with range")
        panel.plot(x, y[-1] * x / x[-1], ":", color="0.5", label="proportional")
        panel.set(xscale="log", yscale="log", xlabel=TITLES[axis])
        panel.xaxis.set_major_formatter("{x:,.0f}")
        panel.yaxis.set_major_formatter("{x:,.0f}")
        panel.grid(alpha=0.3)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    panels[-1, -1].legend(handles, labels, loc="center", frameon=False)
    figure.supylabel("milliseconds a round", fontsize=9)
    machine_name = f"{results['machine']['processor']}, {results['machine']['cores']} cores"
    figure.suptitle(machine_name, fontsize=9)
    figure.savefig(picture, dpi=160)


if __name__ == "__main__":
    sys.exit(main())
