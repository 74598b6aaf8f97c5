"""Estimates the time of a round on 1 to 1,024 devices, for cohorts of 10 to 10,000 clients; needs no such devices.

    python -m benchmarks.scale [--plan NAME ...] [--target NAME] [--network infiniband|ethernet] [--out FILE.json]
    python -m benchmarks.scale --measure --out FILE.json

Estimates start from one device's figures: from plans in benchmarks/results/targets.json, or with --target from the
digits' federation, compiled now (needs jax[cuda12] or libtpu). `benchmarks.scale_model` has the model and its
assumptions. Prints seconds, efficiency and the bottleneck: the longest phase of a round.

--measure runs 1, 2 and 4 CPU devices and processes on this machine instead, and compares them with the same model. It
takes about three minutes on an otherwise idle machine. The other part of FILE.json stays unchanged.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine, scale_cpu, scale_model
from benchmarks.scale_model import Figures, Kernels
from benchmarks.targets import devices as targets
from fedvg_jax import config as configs
from fedvg_jax.config import Config, io
from fedvg_jax.core import hardware
from fedvg_jax.engine import schedule as schedules

ROOT = Path(__file__).parent.parent
PLANS = ROOT / "benchmarks" / "results" / "targets.json"
RESULT = ROOT / "benchmarks" / "results" / "scale.json"

DEVICES = (1, 8, 64, 256, 1024)
COHORTS = (10, 100, 1000, 10_000)
SHAPES = {"digits": ((8, 8, 1), 180), "cifar10": ((32, 32, 3), 6000)}
"""Data set -> shape of an image, and rows of D_val at the preset's ratio."""


def main(argv: list[str] | None = None) -> int:
    """Prints and writes estimates or measurements."""
    args = parse(argv)
    document = json.loads(args.out.read_text(encoding="utf-8")) if args.out and args.out.exists() else {}
    if args.measure:
        document["measured"] = scale_cpu.measure()
        print_measured(document["measured"])
    else:
        document |= estimates(args)
    if args.out:
        machine.write(args.out, document)
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", nargs="+", metavar="NAME", help="plans for one device; default: all GPU plans")
    parser.add_argument("--target", help="compile the digits' federation for this device instead, e.g. h100")
    parser.add_argument("--network", choices=("infiniband", "ethernet"), default="infiniband")
    parser.add_argument("--pool", choices=("device", "host"), default="device", help="where images are stored")
    parser.add_argument("--devices", type=int, nargs="+", default=DEVICES)
    parser.add_argument("--cohorts", type=int, nargs="+", default=COHORTS)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    return parser.parse_args(argv)


def estimates(args: argparse.Namespace) -> dict[str, Any]:
    """Prints and returns the estimates of the plans on the command line."""
    description = machine.describe()
    planning = measure_planning()
    document: dict[str, Any] = {"what": "estimates, not measurements, except for planning", "machine": description}
    document |= {"planning": planning._asdict(), "network": args.network, "pool": args.pool, "plans": {}}
    for figures, config in [compile_figures(args.target)] if args.target else read_figures(args.plan):
        settings = {"alpha": config.alpha, "epochs": config.local_epochs, "batch_size": config.batch_size}
        points = []
        for cohort in args.cohorts:
            group = scale_model.federation(cohort, **settings, validation=SHAPES[config.dataset][1])
            points += [scale_model.estimate(figures, group, devices, planning, args.network, pool=args.pool)
                       for devices in args.devices]  # fmt: skip
        print_points(figures, points)
        document["plans"][figures.name] = {
            "figures": figures._asdict() | {part: getattr(figures, part)._asdict() for part in PARTS},
            "settings": settings | {"validation": SHAPES[config.dataset][1]},
            "assumptions": scale_model.describe(figures, args.network, args.pool),
            "points": [point._asdict() for point in points],
        }
    document["machine"] = machine.add_final_load(description)
    return document


# --- figures of one device

PARTS = {"step": "step", "segment": "segment", "scoring_pass": "scoring pass", "rest": "rest of a round"}
"""Field of `Figures` -> part of a plan."""


def read_figures(names: list[str] | None) -> list[tuple[Figures, Config]]:
    """Returns the figures of plans in `PLANS`, by default of all for one GPU."""
    plans = json.loads(PLANS.read_text(encoding="utf-8"))["plans"]
    single_gpu = {n: p for n, p in plans.items() if p["plan"]["num_devices"] == 1 and "TPU" not in n}
    unknown = sorted(set(names or ()) - single_gpu.keys())
    if unknown:
        raise SystemExit(f"plan {unknown[0]!r} is not one of {', '.join(single_gpu)}")
    figures = []
    for name in names or single_gpu:
        file = re.search(r"--config (\S+)", single_gpu[name]["command"])
        assert file, "every plan has a config"
        config = configs.apply(Config(), io.read_toml(ROOT / file[1]), file[1])
        figures.append((figures_of(name, single_gpu[name]["plan"], config), config))
    return figures


def compile_figures(target: str) -> tuple[Figures, Config]:
    """Returns the figures of the digits' federation, compiled for a target."""
    parsed = targets.parse_target(target)
    targets.prepare_environment(parsed)
    from benchmarks.targets import plan as target_plan

    config = Config()
    plan = target_plan.to_json(target_plan.plan_for_target(config, target))
    return figures_of(f"digits on {parsed.model.kind}", plan, config), config


def figures_of(name: str, plan: dict[str, Any], config: Config) -> Figures:
    """Returns the figures of a plan for one device.

    Args:
        name: of the plan.
        plan: as in `PLANS`.
        config: that was planned.
    """
    model = targets.parse_target(plan["target"]).model
    shape = SHAPES[config.dataset][0]
    gpu = hardware.Hardware(model.platform, model.kind, 1, 0, model.memory_bytes)
    groups = hardware.groups_per_scoring_pass(config.batch_size, config.model, gpu, int(np.prod(shape)))
    parts = {
        field: Kernels((plan["parts"][part]["seconds"][0], plan["parts"][part]["seconds"][1]),
                       plan["parts"][part]["kernels"])
        for field, part in PARTS.items()
    }  # fmt: skip
    return Figures(
        name=name,
        source="estimated from a compiled program",
        device=plan["device"],
        lanes=plan["lanes"],
        rows_per_pass=groups * config.batch_size,
        parameters=num_values(config, shape),
        memory_bytes=model.memory_bytes,
        row_bytes=int(np.prod(shape)),
        **parts,
    )


def num_values(config: Config, shape: tuple[int, ...]) -> int:
    """Returns the values of the config's model: parameters and running statistics."""
    import jax

    from fedvg_jax.core import tree
    from fedvg_jax.runs.registry import named_task

    task = named_task(config, shape, 10)
    return tree.size(jax.eval_shape(task.init, jax.random.key(0)))


def measure_planning() -> scale_model.Planning:
    """Measures the CPU seconds of planning a round: per client, per row and per byte of the plan."""
    rng = np.random.default_rng(0)

    def seconds(cohort: int, rows: int, lanes: int) -> float:
        client_rows = list(rng.permutation(cohort * rows).astype(np.int32).reshape(cohort, rows))
        settings = {"cohort_size": cohort, "local_epochs": (5, 5), "batch_size": 32, "num_lanes": lanes}
        capacity = 5 * cohort * -(-rows // 32)
        times = []
        for number in range(5):
            start = time.process_time()
            schedules.make(number, client_rows, seed=0, capacity=capacity, **settings)
            times.append(time.process_time() - start)
        return min(times)

    few, many, wide = seconds(500, 32, 1), seconds(500, 320, 1), seconds(500, 32, 512)
    row = max(0.0, (many - few) / (5 * 500 * (320 - 32)))
    client = max(0.0, few / 500 - 5 * 32 * row)
    byte = max(0.0, (wide - few) / (scale_model.PLAN_ENTRY * (500 + 512) * 512))
    return scale_model.Planning(client, row, byte)


# --- tables


def print_points(figures: Figures, points: list[scale_model.Estimate]) -> None:
    """Prints one plan's estimates."""
    print(f"{figures.name}: estimated seconds of a round, efficiency, first bottleneck")
    for cohort in dict.fromkeys(point.cohort for point in points):
        for point in (point for point in points if point.cohort == cohort):
            print(f"  {cohort:>6,} clients, {point.devices:>5,} devices: {cell(point._asdict())}", flush=True)


def cell(point: dict[str, Any]) -> str:
    """Returns an estimate as text: seconds, efficiency and bottleneck.

    >>> cell({"seconds": (0.001, 0.02), "efficiency": (0.5, 0.4), "bottleneck": "training"})
    '1 to 20 ms, 40 to 50 %, training'
    """
    low, high = point["seconds"]
    unit, factor = ("s", 1) if high >= 1 else ("ms", 1000)
    worst, best = sorted(100 * share for share in point["efficiency"])
    ends = " to ".join(f"{float(f'{seconds * factor:.2g}'):g}" for seconds in (low, high))
    return f"{ends} {unit}, {worst:.0f} to {best:.0f} %, {point['bottleneck']}"


def print_measured(measured: dict[str, Any]) -> None:
    """Prints measured and estimated milliseconds of a round on this machine."""
    for point in measured["points"]:
        print(
            f"  {point['processes']} processes of {point['devices'] // point['processes']} devices:"
            f" {1e3 * point['measured']:.2f} ms a round measured, {1e3 * point['estimated']:.2f} ms estimated"
        )


if __name__ == "__main__":
    sys.exit(main())
