"""What is no race: starting up, planning a round, the lanes, and how well a dry run foretells.

    python -m benchmarks.limits [--sections NAME ...] [--repeats 5] [--data-dir DIR] [--out FILE.json]

help          seconds of a whole process
start         seconds from the start of a process whose programs are in the cache to the end of its first round and
              evaluation
schedule      milliseconds to plan a round of 100,000 clients with 12 rows each
lanes         seconds of a round's training / (the longest lane there must be x seconds of a step), for every alpha
plan          what `--dry-run` foretells / what the run takes, in processes of their own with empty caches

With a folder holding CIFAR-10 `plan` and `start` use it, without it noise in its shape.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from fedvg_jax import config as configs
from fedvg_jax.config import Config

_FEW = {"clients": 20, "join_ratio": 0.1, "alpha": 1.0, "min_samples": 2, "local_epochs": 1, "eval_every": 1}
STARTS = {
    "digits": {"rounds": 1, "eval_every": 1},
    "resnet18": _FEW | {"dataset": "npz", "model": "resnet18", "rounds": 1},
}
"""Runs of one round, evaluation included."""

PLANS = {
    "digits, MLP, FedProx": {"algorithm": "fedprox", "model": "mlp", "clients": 50, "alpha": 1.0, "rounds": 400},
    "digits, tiny CNN": {"rounds": 60},
    "CIFAR-10's shape, LeNet5": _FEW | {"dataset": "npz", "model": "lenet5", "rounds": 60, "local_epochs": 5},
    "CIFAR-10's shape, CNN, FedAvg": _FEW
    | {"dataset": "npz", "model": "cnn", "rounds": 12, "weighting": "samples", "alpha": 0.1},
    "CIFAR-10's shape, ResNet-18": _FEW | {"dataset": "npz", "model": "resnet18", "rounds": 6, "alpha": 0.3},
}
"""Runs that nothing was calibrated on."""

TAKEN = ("command", "commit", "date", "busy")
"""What a results file says of each of its sections, which need not be of one command."""

IMAGES = 3000
ALPHAS, LANES = (0.05, 0.1, 1.0, 10.0, 100.0), (1, 2, 3)


def main(argv: list[str] | None = None) -> int:
    """Measures, prints and writes section by section."""
    args = parse(argv)
    command = ["python", "-m", "benchmarks.limits", *(sys.argv[1:] if argv is None else argv)]
    found: dict[str, Any] = {"machine": machine.describe(command)}
    if args.out and args.out.is_file():
        found = json.loads(args.out.read_text(encoding="utf-8")) | found
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        np.savez(folder / "images.npz", **images(args.data_dir))
        for name in args.sections:
            found[name] = SECTIONS[name](folder, args.repeats)
            print(f"{name}: {json.dumps(found[name])}", flush=True)
            found["machine"] = machine.finished(found["machine"])
            found["taken"] = found.get("taken", {}) | {name: {key: found["machine"][key] for key in TAKEN}}
            if args.out:
                machine.write(args.out, found)
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data-dir", type=Path, help="folder holding CIFAR-10")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    return parser.parse_args(argv)


def images(data_dir: Path | None) -> dict[str, np.ndarray]:
    """The first images of CIFAR-10, or noise."""
    if data_dir:
        from fedvg_jax import data

        whole = data.load("cifar10", data_dir, configs.default_cache_dir() / "data")
        return {"x": whole.x[:IMAGES], "y": whole.y[:IMAGES]}
    rng = np.random.default_rng(0)
    return {"x": rng.integers(0, 256, (IMAGES, 32, 32, 3), np.uint8), "y": np.arange(IMAGES) % 10}


def configured(settings: dict[str, Any], folder: Path) -> Config:
    """Its config; programs and data are kept in the folder."""
    places = {"cache_dir": folder / "cache"} | ({"data_dir": folder / "images.npz"} if "dataset" in settings else {})
    return dataclasses.replace(configs.apply(Config(), settings, "limits"), **places)


def starting_help(folder: Path, repeats: int) -> dict[str, float]:
    """`--help`, without the first, which writes the bytecode."""
    command = [sys.executable, "-m", "fedvg_jax.sim", "--help"]
    once = functools.partial(subprocess.run, command, check=True, capture_output=True, env=with_bytecode())
    return machine.spread([machine.timed(once) for _ in range(1 + repeats)][1:])


def starting(folder: Path, repeats: int) -> dict[str, dict[str, float]]:
    """To the line in which the run tells what it took; the first of each fills the cache and does not count."""
    found = {}
    for name in STARTS:
        seconds = [until_told(child(folder, "run", name)) for _ in range(1 + repeats)]
        found[name] = machine.spread(seconds[1:])
    return found


def with_bytecode() -> dict[str, str]:
    """The environment of a process that keeps the bytecode of modules, as an installed package has it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def until_told(command: Sequence[str]) -> float:
    """Seconds from the start of a process to its first line."""
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=with_bytecode()) as process:
        told, seconds = process.stdout.readline(), time.perf_counter() - begun
    if process.returncode or not told:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}, for the reason above")
    return seconds


def planning(folder: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds by cohort."""
    from fedvg_jax.engine import schedule

    rows = list(np.arange(1_200_000, dtype=np.int32).reshape(-1, 12))

    def once(number: int, cohort: int) -> float:
        capacity = schedule.capacity(1_200_000, cohort, 5, 12)
        settings = {"seed": 0, "cohort_size": cohort, "local_epochs": (5, 5), "batch_size": 12, "num_lanes": 1}
        return 1e3 * machine.timed(lambda: schedule.make(number, rows, capacity=capacity, **settings))

    return {str(k): machine.spread([once(r, k) for r in range(repeats)]) for k in (10, 100, 1000)}


def lanes(folder: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Mean over rounds of seconds / seconds of that many steps without a gap, by lanes and alpha: max(longest client,
    all steps / lanes) of them on every lane."""
    import jax

    from fedvg_jax.engine import executors, local_training
    from fedvg_jax.runs import simulation

    settings = {"model": "mlp", "clients": 20, "join_ratio": 0.5, "min_samples": 2, "local_epochs": 5, "batch_size": 16}
    found: dict[str, dict[str, float]] = {}
    for count in LANES:
        config = configured(settings | {"lanes": str(count), "devices": "1"}, folder)
        sim = simulation.simulation(config)
        executor, optimiser = executors.lanes(count), simulation.make_optimiser(config)
        algorithm = simulation.ALGORITHMS[config.algorithm](config)

        def train(state, planned, data, hyper, executor=executor, sim=sim, algorithm=algorithm, optimiser=optimiser):
            def client(shared, planned):
                return local_training.make_client(sim.task, algorithm, optimiser, shared[0], planned, shared[1], hyper)

            return executor.train(client, (state, data), planned).params

        run = jax.jit(train)

        def seconds(planned, run=run, sim=sim) -> float:
            return machine.timed(lambda: jax.block_until_ready(run(sim.state, planned, sim.data, sim.hyper)))

        found[str(count)] = {}
        for alpha in ALPHAS:
            parts = simulation.make_partition(dataclasses.replace(config, alpha=alpha), sim.arrays)
            of_round = simulation.make_schedule(config, sim.arrays, parts, executor)
            ratios = [_alternated(seconds, s, _gapless(s, count), repeats) for s in map(of_round, range(5))]
            found[str(count)][str(alpha)] = round(float(np.mean(ratios)), 3)
    return found


def _gapless(planned, count: int):
    """As few equal clients as there are lanes, with as many steps as the longest lane must have."""
    from fedvg_jax.engine import lane_plan

    steps = max(planned.num_steps.max(), -(-planned.num_steps.sum() // count))
    each = np.where(np.arange(len(planned.num_steps)) < count, steps, 0).astype(np.int32)
    start = np.zeros_like(planned.start)  # the same rows for all
    return planned._replace(num_steps=each, start=start, plan=lane_plan.plan_lanes(each, count))


def _alternated(seconds: Callable, first, second, repeats: int) -> float:
    """Ratio of the medians of two schedules' seconds."""
    turns = [(seconds(first), seconds(second)) for _ in range(repeats + 1)][1:]
    return float(np.divide(*np.median(turns, axis=0)))


def foretelling(folder: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Foretold / found, of the seconds of a round and of the memory; each in processes of their own, one after the
    other."""
    found = {}
    for name in PLANS:
        told, was = (json.loads(last_line(child(folder, what, name))) for what in ("foretell", "run"))
        found[name] = {
            "foretold seconds": told["seconds"], "seconds": was["seconds"],
            "foretold GiB": told["gib"], "GiB": was["gib"],
            "time": round(told["seconds"] / was["seconds"], 3), "memory": round(told["gib"] / was["gib"], 3),
        }  # fmt: skip
        print(f"  {name}: {found[name]}", flush=True)
    return found


def child(folder: Path, what: str, name: str) -> list[str]:
    """The command of one run."""
    return [sys.executable, "-m", "benchmarks.limits_run", str(folder), what, name]


def last_line(command: Sequence[str]) -> str:
    """What a process says in the end; or what it complained of, and no more."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing; was there memory enough?"]
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}: {said[-1]}")
    return done.stdout.splitlines()[-1]


SECTIONS: dict[str, Callable[[Path, int], Any]] = {
    "help": starting_help,
    "start": starting,
    "schedule": planning,
    "lanes": lanes,
    "plan": foretelling,
}

if __name__ == "__main__":
    sys.exit(main())
