"""Measures experiments per hour of a sweep: points in one process, or in two.

    python -m benchmarks.speed.experiments [--nets mlp tinycnn lenet5 resnet18] [--out FILE.json]

An experiment is 100 rounds of FedVG at alpha 0.05; its time is extrapolated from fewer rounds. The points of a sweep
differ in seed and partition. Each mode runs in its own processes, and the modes are timed in turns. Prints the rate of
each mode and its ratio to the sequential one, writes them to --out; compilation is reported separately.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
from typing import Any, NamedTuple

from benchmarks import machine

ROUNDS = 100
"""Rounds of an experiment."""


class Net(NamedTuple):
    """The data of a network, and the number of rounds and points to time."""

    rounds: int
    points: int
    images: int = 0
    """random images of 32 x 32 x 3 in ten classes; 0 for the digits"""


NETS = {"mlp": Net(40, 8), "tinycnn": Net(20, 8), "lenet5": Net(3, 4, 12_000), "resnet18": Net(2, 2, 3_000)}


MODES = {"one after another": 1, "two processes, one after another": 2}
"""How the points of a sweep are computed -> processes."""


def main(argv: list[str] | None = None) -> int:
    """Measures all modes and writes the results."""
    parser = machine.parser(__doc__, "experiments.json")
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", nargs=3, metavar=("NET", "WAY", "SHARE"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        print(json.dumps(compute(args.child[0], MODES[args.child[1]], int(args.child[2]))))
        return 0
    results = machine.begin("speed.experiments", argv)
    tables: dict[str, Any] = {}
    for name in args.nets:
        repeats = [{mode: measure(name, mode) for mode in MODES} for _ in range(args.repeats)]
        tables[name] = {mode: summarise(name, [repeat[mode] for repeat in repeats]) for mode in MODES}
        base = tables[name]["one after another"]["experiments_per_hour"]
        for mode, row in tables[name].items():
            rate = row["experiments_per_hour"]
            print(
                f"{name}, {mode}: {rate:.1f} experiments an hour ({rate / base:.2f} x), compiling {row['compile_s']} s"
            )
        machine.finish(args.out, results | {"rounds": ROUNDS, "nets": tables})
    return 0


def summarise(name: str, repeats: list[dict[str, float]]) -> dict[str, Any]:
    """Returns the median and range of the experiments per hour, and the median seconds of compilation."""
    net = NETS[name]
    rates = [3600 * net.points * net.rounds / ROUNDS / repeat["seconds"] for repeat in repeats]
    return {
        "experiments_per_hour": round(statistics.median(rates), 2),
        "range": [round(min(rates), 2), round(max(rates), 2)],
        "compile_s": round(statistics.median(repeat["compile_seconds"] for repeat in repeats), 1),
        "points": net.points,
        "rounds": net.rounds,
    }


def measure(name: str, mode: str) -> dict[str, float]:
    """Runs a mode's processes at the same time; returns the seconds of the slowest one."""
    children, num_processes = [], MODES[mode]
    for share in range(num_processes):
        words = [sys.executable, "-m", "benchmarks.speed.experiments", "--child", name, mode, str(share)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        children.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True))
    texts = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        raise SystemExit(f"{name}, {mode}: a process failed")
    results = [json.loads(text.splitlines()[-1]) for text in texts]
    return {key: max(result[key] for result in results) for key in results[0]}


def compute(name: str, num_processes: int, share: int) -> dict[str, float]:
    """Computes one process's points; returns the seconds of their rounds and of compilation.

    Args:
        name: of the network.
        num_processes: that share the points.
        share: index of the process, which determines its points and its cores.
    """
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[share::num_processes] or cores)
    import numpy as np

    import fedvg_jax

    net = NETS[name]
    config = fedvg_jax.Config(model=name, weighting="fedvg", alpha=0.05, rounds=net.rounds, eval_every=net.rounds)
    data = None
    if net.images:
        rng = np.random.default_rng(0)
        data = rng.integers(0, 256, (net.images, 32, 32, 3), np.uint8), np.arange(net.images) % 10
        config = dataclasses.replace(config, local_epochs="2", clients=20, join_ratio=0.2, lr=0.01)
    seeds = list(range(share, net.points, num_processes))
    axes: dict[Any, Any] = {("seed", "partition_seed"): [(seed, seed) for seed in seeds]}
    results = [each.result for each in fedvg_jax.run_sweep(config, axes, data=data)]
    summaries = [result.summary for result in results if isinstance(result, fedvg_jax.History)]
    assert len(summaries) == len(seeds), results
    return {
        "seconds": sum(summary["run_seconds"] for summary in summaries),
        "compile_seconds": sum(summary["compile_seconds"] for summary in summaries),
    }


if __name__ == "__main__":
    sys.exit(main())
