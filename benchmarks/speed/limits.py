"""Measures start-up, sweeps, idle lanes and errors of `--dry-run`, beside their targets.

    python -m benchmarks.speed.limits [--sections NAME ...] [--repeats 5] [--data-dir DIR] [--out FILE.json]

help          seconds of a `--help` process
start         seconds from the start of a process, whose programs are in the compilation cache, to the end of its first
              round and evaluation
sweep         seconds of the command of `SWEEP`, with its report; from an empty compilation cache and from a full one
lanes         seconds of a round's training, divided by the seconds of equally many steps without idle lanes, by number
              of lanes and alpha
plan          seconds and memory that `--dry-run` predicts, divided by those of the run; each in its own process with an
              empty cache

Prints each section and writes it to FILE.json, where the other sections stay unchanged. `plan` and `start` use CIFAR-10
from --data-dir, by default noise of its shape.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import machine
from fedvg_jax import config as configs
from fedvg_jax.config import Config

if TYPE_CHECKING:
    from fedvg_jax.core.types import Executor, Schedule
    from fedvg_jax.runs.assemble.simulation import Simulation

_FEW = {"clients": 20, "join_ratio": 0.1, "alpha": 1.0, "min_samples": 2, "local_epochs": 1, "eval_every": 1}
STARTS = {
    "digits": {"rounds": 1, "eval_every": 1},
    "resnet18": _FEW | {"dataset": "npz", "model": "resnet18", "rounds": 1},
}
"""Runs of one round, evaluation included."""

SWEEP = "--method fedavg fedprox scaffold fedvg fedavg+fedvg --alpha 0.05 0.5 --seed 0:3 --rounds 100"
"""A comparison of five methods at two alphas with three seeds, on the digits: 30 runs."""

PLANS = {
    "digits, MLP, FedProx": {"algorithm": "fedprox", "model": "mlp", "clients": 50, "alpha": 1.0, "rounds": 400},
    "digits, tiny CNN": {"rounds": 60},
    "CIFAR-10's shape, LeNet5": _FEW | {"dataset": "npz", "model": "lenet5", "rounds": 60, "local_epochs": 5},
    "CIFAR-10's shape, CNN, FedAvg": _FEW
    | {"dataset": "npz", "model": "cnn", "rounds": 12, "weighting": "samples", "alpha": 0.1},
    "CIFAR-10's shape, ResNet-18": _FEW | {"dataset": "npz", "model": "resnet18", "rounds": 6, "alpha": 0.3},
}
"""Runs on which `--dry-run` was not calibrated."""

SECTION_FIELDS = ("command", "commit", "date", "busy")
"""What a results file records of each section, because sections can come from different commands."""

IMAGES = 3000
ALPHAS, LANES = (0.05, 0.1, 1.0, 10.0, 100.0), (1, 2, 3)


def main(argv: list[str] | None = None) -> int:
    """Measures, prints and writes section by section."""
    args = parse(argv)
    if args.child:
        return run_child(*args.child)
    results = machine.begin("speed.limits", argv)
    if args.out and args.out.is_file():
        results = json.loads(args.out.read_text(encoding="utf-8")) | results
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        np.savez(folder / "images.npz", **images(args.data_dir))
        for name in args.sections:
            results[name] = SECTIONS[name](folder, args.repeats)
            print(f"{name}: {json.dumps(results[name])}", flush=True)
            results["machine"] = machine.add_final_load(results["machine"])
            section = {key: results["machine"][key] for key in SECTION_FIELDS}
            results["taken"] = results.get("taken", {}) | {name: section}
            if args.out:
                machine.write(args.out, results)
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = machine.parser(__doc__)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data-dir", type=Path, help="folder with CIFAR-10")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def images(data_dir: Path | None) -> dict[str, np.ndarray]:
    """Returns the first images of CIFAR-10, or noise of their shape without `data_dir`."""
    if data_dir:
        from fedvg_jax import data

        cifar10 = data.load("cifar10", data_dir, configs.default_cache_dir() / "data")
        return {"x": cifar10.x[:IMAGES], "y": cifar10.y[:IMAGES]}
    rng = np.random.default_rng(0)
    return {"x": rng.integers(0, 256, (IMAGES, 32, 32, 3), np.uint8), "y": np.arange(IMAGES) % 10}


def make_config(settings: dict[str, Any], folder: Path) -> Config:
    """Returns a config with these settings, whose cache and data are in `folder`."""
    paths = {"cache_dir": folder / "cache"} | ({"data_dir": folder / "images.npz"} if "dataset" in settings else {})
    return dataclasses.replace(configs.apply(Config(), settings, "limits"), **paths)


def time_help(folder: Path, repeats: int) -> dict[str, float]:
    """Returns the seconds of `--help`, without the first process, which writes the bytecode."""
    command = [sys.executable, "-m", "fedvg_jax.sim", "--help"]
    run = functools.partial(subprocess.run, command, check=True, capture_output=True, env=bytecode_environment())
    return machine.spread([machine.time_call(run) for _ in range(1 + repeats)][1:])


def time_starts(folder: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Returns the seconds until each run of `STARTS` has finished; the first one fills the cache and is not counted."""
    results = {}
    for name in STARTS:
        seconds = [seconds_to_first_line(child_command(folder, "run", name)) for _ in range(1 + repeats)]
        results[name] = machine.spread(seconds[1:])
    return results


def time_sweeps(folder: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Returns the seconds of `SWEEP`, from an empty compilation cache and from the one that this sweep has filled."""
    seconds: dict[str, list[float]] = {"empty": [], "full": []}
    for repeat in range(repeats):
        cache = folder / f"sweep-cache-{repeat}"
        for state, times in seconds.items():
            out = folder / f"sweep-{repeat}-{state}"
            command = [sys.executable, "-m", "fedvg_jax.sweep", *SWEEP.split(), "--out", str(out)]
            run = functools.partial(last_line, [*command, "--cache-dir", str(cache)])
            times.append(machine.time_call(run))
    return {state: machine.spread(times) for state, times in seconds.items()}


def bytecode_environment() -> dict[str, str]:
    """Returns an environment in which Python writes bytecode, because an installed package has bytecode too."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def seconds_to_first_line(command: Sequence[str]) -> float:
    """Returns the seconds from the start of a process to its first line of output."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=bytecode_environment()) as process:
        line, seconds = process.stdout.readline(), time.perf_counter() - start
    if process.returncode or not line:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}, see the error above")
    return seconds


def time_lanes(folder: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Returns how much longer training takes than equally many steps without idle lanes, by lanes and alpha.

    Means over five rounds. Every lane without gaps has max(steps of the longest client, all steps / lanes) steps.
    """
    from fedvg_jax.engine import executors
    from fedvg_jax.runs.assemble import population, simulation

    settings = {"model": "mlp", "clients": 20, "join_ratio": 0.5, "min_samples": 2, "local_epochs": 5, "batch_size": 16}
    results: dict[str, dict[str, float]] = {}
    for count in LANES:
        config = make_config(settings | {"lanes": str(count), "devices": "1"}, folder)
        sim, executor = simulation.simulation(config), executors.lanes(count)
        seconds = training_timer(sim, executor)
        results[str(count)] = {}
        for alpha in ALPHAS:
            parts = population.make_partition(dataclasses.replace(config, alpha=alpha), sim.arrays)
            schedules = map(
                simulation.make_schedule(config, sim.arrays, parts, sim._replace(executor=executor)), range(5)
            )
            ratios = [_ratio_of_medians(seconds, s, _without_idle_lanes(s, count), repeats) for s in schedules]
            results[str(count)][str(alpha)] = round(float(np.mean(ratios)), 3)
    return results


def training_timer(sim: Simulation, executor: Executor) -> Callable[[Schedule], float]:
    """Returns a function from a schedule to the seconds of its local training, compiled once."""
    import jax

    from fedvg_jax.engine import local_training
    from fedvg_jax.runs.assemble import registry

    optimiser = registry.make_optimiser(sim.config)
    algorithm = registry.make_algorithm(sim.config)

    @jax.jit
    def train(state, planned, data, hyper):
        client = functools.partial(local_training.make_client, sim.task, algorithm, optimiser)
        return executor.train(client, (state, data, hyper), planned).params

    def seconds(planned: Schedule) -> float:
        return machine.time_call(lambda: jax.block_until_ready(train(sim.state, planned, sim.data, sim.hyper)))

    return seconds


def _without_idle_lanes(planned: Schedule, count: int) -> Schedule:
    """Returns a schedule with one client per lane and equally many steps: as many as the longest lane needs."""
    from fedvg_jax.engine import lane_plan

    steps = max(planned.num_steps.max(), -(-planned.num_steps.sum() // count))
    num_steps = np.where(np.arange(len(planned.num_steps)) < count, steps, 0).astype(np.int32)
    start = np.zeros_like(planned.start)  # all clients have the same rows
    return planned._replace(num_steps=num_steps, start=start, plan=lane_plan.plan_lanes(num_steps, count))


def _ratio_of_medians(seconds: Callable, first, second, repeats: int) -> float:
    """Returns the ratio of the median seconds of two schedules, timed in turns after a warm-up."""
    turns = [(seconds(first), seconds(second)) for _ in range(repeats + 1)][1:]
    return float(np.divide(*np.median(turns, axis=0)))


def compare_predictions(folder: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Returns predicted and measured seconds and memory of the runs of `PLANS`, and predicted / measured."""
    results = {}
    for name in PLANS:
        predicted, measured = (json.loads(last_line(child_command(folder, mode, name))) for mode in ("predict", "run"))
        results[name] = {
            "predicted seconds": predicted["seconds"],
            "seconds": measured["seconds"],
            "predicted GiB": predicted["gib"],
            "GiB": measured["gib"],
            "time": round(predicted["seconds"] / measured["seconds"], 3),
            "memory": round(predicted["gib"] / measured["gib"], 3),
        }
        print(f"  {name}: {results[name]}", flush=True)
    return results


def child_command(folder: Path, mode: str, name: str) -> list[str]:
    """Returns the command that predicts or runs one configuration, see `run_child`."""
    return [sys.executable, "-m", "benchmarks.speed.limits", "--child", str(folder), mode, name]


def run_child(folder: str, mode: str, name: str) -> int:
    """Prints JSON with the seconds of a whole run, without compilation, and the process's memory.

    Args:
        folder: scratch folder with the data and the caches.
        mode: "predict" or "run".
        name: key of `STARTS` or `PLANS`.
    """
    from fedvg_jax import commands

    config = make_config((STARTS | PLANS)[name], Path(folder))
    # each mode has its own cache, so that both compile the same programs: compilation counts as memory of both
    config = dataclasses.replace(config, cache_dir=Path(folder) / f"cache-{mode}")
    commands.start_jax(config)
    from fedvg_jax.runs import loop
    from fedvg_jax.runs.assemble import simulation
    from fedvg_jax.views import dry_run

    sim = simulation.simulation(config)
    if mode == "predict":
        plan = dry_run.predict(sim)
        result = {"seconds": round(plan.seconds, 3), "gib": round(plan.memory_bytes / 2**30, 3)}
    else:
        history = loop.run_simulation(sim)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        result = {"seconds": history.summary["run_seconds"], "gib": round(peak / 2**30, 3)}
    print(json.dumps(result), flush=True)
    return 0


def last_line(command: Sequence[str]) -> str:
    """Runs a command; returns the last line of its output.

    Raises:
        SystemExit: the command failed; with the last line of its standard error.
    """
    completed = subprocess.run(command, check=False, capture_output=True, text=True)
    if completed.returncode:
        errors = completed.stderr.strip().splitlines() or ["no error message; perhaps the process ran out of memory"]
        raise SystemExit(f"{' '.join(command)}: exit code {completed.returncode}: {errors[-1]}")
    return completed.stdout.splitlines()[-1]


SECTIONS: dict[str, Callable[[Path, int], Any]] = {
    "help": time_help,
    "start": time_starts,
    "sweep": time_sweeps,
    "lanes": time_lanes,
    "plan": compare_predictions,
}

if __name__ == "__main__":
    sys.exit(main())
