"""Experiments per hour of a sweep: points one after another, side by side in one program, and in two processes.

    python -m benchmarks.experiments [--nets mlp tinycnn lenet5 resnet18] [--out benchmarks/results/experiments.json]

An experiment has 100 rounds of FedVG at alpha 0.05; its time is extrapolated from fewer rounds. Compiling is reported
apart. Every way has processes of its own, and the ways take turns. Points differ in seed and partition.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine

RESULT = Path(__file__).parent / "results" / "experiments.json"
ROUNDS = 100
"""Rounds of an experiment."""


class Net(NamedTuple):
    """What is trained, and how many rounds of how many points are timed."""

    rounds: int
    points: int
    images: int = 0
    """random ones of 32 x 32 x 3 in ten classes; 0 for the digits"""


NETS = {"mlp": Net(40, 8), "tinycnn": Net(20, 8), "lenet5": Net(3, 4, 12_000), "resnet18": Net(2, 2, 3_000)}


class Way(NamedTuple):
    """How the points are computed."""

    processes: int = 1
    side_by_side: bool = False
    has_lanes: bool = False
    """whether each point has a lane; otherwise one lane trains the clients of all"""


WAYS = {
    "one after another": Way(),
    "side by side, one lane": Way(side_by_side=True),
    "side by side, a lane per point": Way(side_by_side=True, has_lanes=True),
    "two processes, one after another": Way(processes=2),
    "two processes, side by side, one lane": Way(processes=2, side_by_side=True),
}


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULT, metavar="FILE.json")
    parser.add_argument("--child", nargs=3, metavar=("NET", "WAY", "SHARE"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        print(json.dumps(compute(args.child[0], WAYS[args.child[1]], int(args.child[2]))))
        return 0
    about = machine.describe(["python", "-m", "benchmarks.experiments", *(sys.argv[1:] if argv is None else argv)])
    tables: dict[str, Any] = {}
    for name in args.nets:
        repeats = [{way: measure(name, way) for way in WAYS} for _ in range(args.repeats)]
        tables[name] = {way: summarise(name, [repeat[way] for repeat in repeats]) for way in WAYS}
        base = tables[name]["one after another"]["experiments_per_hour"]
        for way, row in tables[name].items():
            rate = row["experiments_per_hour"]
            print(
                f"{name}, {way}: {rate:.1f} experiments an hour ({rate / base:.2f} x), compiling {row['compile_s']} s"
            )
        machine.write(args.out, {"machine": machine.finished(about), "rounds": ROUNDS, "nets": tables})
    return 0


def summarise(name: str, repeats: list[dict[str, float]]) -> dict[str, Any]:
    """Returns the median and range of the experiments per hour, and the median seconds of compiling."""
    net = NETS[name]
    rates = [3600 * net.points * net.rounds / ROUNDS / repeat["seconds"] for repeat in repeats]
    return {
        "experiments_per_hour": round(statistics.median(rates), 2),
        "range": [round(min(rates), 2), round(max(rates), 2)],
        "compile_s": round(statistics.median(repeat["compile_seconds"] for repeat in repeats), 1),
        "points": net.points,
        "rounds": net.rounds,
    }


def measure(name: str, way: str) -> dict[str, float]:
    """Returns the seconds of the slowest process."""
    children, num_processes = [], WAYS[way].processes
    for share in range(num_processes):
        words = [sys.executable, "-m", "benchmarks.experiments", "--child", name, way, str(share)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        children.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True))
    texts = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        raise SystemExit(f"{name}, {way}: a process failed")
    results = [json.loads(text.splitlines()[-1]) for text in texts]
    return {key: max(result[key] for result in results) for key in results[0]}


def compute(name: str, way: Way, share: int) -> dict[str, float]:
    """Computes one process's points; returns the seconds of their rounds, and of compiling.

    Args:
        name: of the net.
        way: how.
        share: number of the process; each of several has an equal part of the cores.
    """
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[share :: way.processes] or cores)
    import numpy as np

    import fedvg_jax

    net = NETS[name]
    config = fedvg_jax.Config(model=name, weighting="fedvg", alpha=0.05, rounds=net.rounds, eval_every=net.rounds)
    data = None
    if net.images:
        rng = np.random.default_rng(0)
        data = rng.integers(0, 256, (net.images, 32, 32, 3), np.uint8), np.arange(net.images) % 10
        config = dataclasses.replace(config, local_epochs="2", clients=20, join_ratio=0.2, lr=0.01)
    config = dataclasses.replace(config, lanes=str(net.points)) if way.has_lanes else config
    seeds = list(range(share, net.points, way.processes))
    vectorize = len(seeds) if way.side_by_side else "off"
    axes: dict[Any, Any] = {("seed", "partition_seed"): [(seed, seed) for seed in seeds]}
    results = [each.result for each in fedvg_jax.run_sweep(config, axes, data=data, vectorize=vectorize)]
    summaries = [result.summary for result in results if isinstance(result, fedvg_jax.History)]
    assert len(summaries) == len(seeds), results
    return {
        "seconds": sum(summary["run_seconds"] for summary in summaries),
        "compile_seconds": sum(summary["compile_seconds"] for summary in summaries),
    }


if __name__ == "__main__":
    sys.exit(main())
