"""Scale on paper: the estimated time of a round for 1 to 1,024 devices and cohorts of 10 to 10,000 clients.

    python -m benchmarks.scale [--plan NAME ...] [--target NAME] [--network infiniband|ethernet] [--out FILE.json]
    python -m benchmarks.scale --measure --out FILE.json

Estimates use one device's figures: of plans in benchmarks/results/targets.json, or with --target of the digits'
federation compiled now (needs jax[cuda12] or libtpu). `scale_model` has the arithmetic and its assumptions. The first
bottleneck is the phase of a round that takes longest.

--measure runs 1, 2 and 4 CPU devices and processes of this machine instead, and compares the same arithmetic with them.
It takes about three minutes; leave the machine alone meanwhile. What is not asked for stays as the file has it.
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
from fedvg_jax import config as configs
from fedvg_jax.config import Config, io
from fedvg_jax.core import hardware, targets
from fedvg_jax.engine import schedule as schedules

ROOT = Path(__file__).parent.parent
PLANS = ROOT / "benchmarks" / "results" / "targets.json"
RESULT = ROOT / "benchmarks" / "results" / "scale.json"

DEVICES = (1, 8, 64, 256, 1024)
COHORTS = (10, 100, 1000, 10_000)
SHAPES = {"digits": ((8, 8, 1), 180), "cifar10": ((32, 32, 3), 6000)}
"""Data set -> shape of a row, and rows of D_val at the preset's ratio."""


def main(argv: list[str] | None = None) -> int:
    """Estimates or measures, prints, writes."""
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
    parser.add_argument("--plan", nargs="+", metavar="NAME", help="plans of one device; default: all of GPUs")
    parser.add_argument("--target", help="compile the digits' federation for this device instead, e.g. h100")
    parser.add_argument("--network", choices=("infiniband", "ethernet"), default="infiniband")
    parser.add_argument("--pool", choices=("device", "host"), default="device", help="where the pixels are")
    parser.add_argument("--devices", type=int, nargs="+", default=DEVICES)
    parser.add_argument("--cohorts", type=int, nargs="+", default=COHORTS)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    return parser.parse_args(argv)


def estimates(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the estimates of all plans that are asked for, and prints them."""
    known = machine.describe()
    planning = measure_planning()
    document: dict[str, Any] = {"what": "estimates, not measurements, except for planning", "machine": known}
    document |= {"planning": planning._asdict(), "network": args.network, "pool": args.pool, "plans": {}}
    for figures, config in [compiled(args.target)] if args.target else stored(args.plan):
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
    document["machine"] = machine.finished(known)
    return document


# --- figures of one device

PARTS = {"step": "step", "segment": "segment", "scoring_pass": "scoring pass", "rest": "rest of a round"}
"""Field of `Figures` -> part of a plan."""


def stored(names: list[str] | None) -> list[tuple[Figures, Config]]:
    """Returns the figures of plans in `PLANS`, by default of all for one GPU."""
    plans = json.loads(PLANS.read_text(encoding="utf-8"))["plans"]
    of_one = {n: p for n, p in plans.items() if p["plan"]["num_devices"] == 1 and "TPU" not in n}
    unknown = sorted(set(names or ()) - of_one.keys())
    if unknown:
        raise SystemExit(f"plan {unknown[0]!r} is not one of {', '.join(of_one)}")
    chosen = []
    for name in names or of_one:
        file = re.search(r"--config (\S+)", of_one[name]["command"])
        assert file, "every plan has a config"
        config = configs.apply(Config(), io.read_toml(ROOT / file[1]), file[1])
        chosen.append((figures_of(name, of_one[name]["plan"], config), config))
    return chosen


def compiled(target: str) -> tuple[Figures, Config]:
    """Returns the figures of the digits' federation, compiled for a target."""
    parsed = targets.parse_target(target)
    targets.prepare_environment(parsed)
    import fedvg_jax as fv
    from fedvg_jax.views import target_plan

    config = Config()
    plan = target_plan.to_json(fv.plan_for_target(config, target))
    return figures_of(f"digits on {parsed.model.kind}", plan, config), config


def figures_of(name: str, plan: dict[str, Any], config: Config) -> Figures:
    """Returns the figures of a plan for one device, as JSON values."""
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
    """Measures what planning a round costs: CPU seconds of one core, by client, by row and by byte of the plan."""
    rng = np.random.default_rng(0)

    def seconds(cohort: int, rows: int, lanes: int) -> float:
        of_clients = list(rng.permutation(cohort * rows).astype(np.int32).reshape(cohort, rows))
        settings = {"cohort_size": cohort, "local_epochs": (5, 5), "batch_size": 32, "num_lanes": lanes}
        capacity = 5 * cohort * -(-rows // 32)
        times = []
        for number in range(5):
            start = time.process_time()
            schedules.make(number, of_clients, seed=0, capacity=capacity, **settings)
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
    """Returns an estimate in a few words.

    >>> cell({"seconds": (0.001, 0.02), "efficiency": (0.5, 0.4), "bottleneck": "training"})
    '1 to 20 ms, 40 to 50 %, training'
    """
    low, high = point["seconds"]
    unit, factor = ("s", 1) if high >= 1 else ("ms", 1000)
    worst, best = sorted(100 * share for share in point["efficiency"])
    ends = " to ".join(f"{float(f'{seconds * factor:.2g}'):g}" for seconds in (low, high))
    return f"{ends} {unit}, {worst:.0f} to {best:.0f} %, {point['bottleneck']}"


def print_measured(measured: dict[str, Any]) -> None:
    """Prints the comparison with this machine."""
    for point in measured["points"]:
        print(
            f"  {point['processes']} processes of {point['devices'] // point['processes']} devices:"
            f" {1e3 * point['measured']:.2f} ms a round measured, {1e3 * point['estimated']:.2f} ms estimated"
        )


if __name__ == "__main__":
    sys.exit(main())
