"""Measures start-up, sweeps and errors of `--dry-run`, beside their targets.

    python -m benchmarks.speed.limits [--sections NAME ...] [--repeats 5] [--data-dir DIR] [--out FILE.json]

help          seconds of a `--help` process
start         seconds of a process that computes and evaluates one round, with its programs in the compilation cache
sweep         seconds of the command of `SWEEP`, with its report; from an empty compilation cache and from a full one
plan          seconds and memory that `--dry-run` predicts, divided by what the run takes; each in its own process with
              an empty cache

Prints each section and writes it to FILE.json, where the other sections stay unchanged. `plan` and `start` use CIFAR-10
from --data-dir, by default noise of its shape.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.speed import cases
from fedvg_jax import resolve

_FEW = "--dataset npz --clients 20 --join-ratio 0.1 --alpha 1 --min-samples 2 --local-epochs 1 --eval-every 1"
STARTS = {"digits": "--rounds 1", "resnet18": f"{_FEW} --model resnet18 --rounds 1"}
"""Runs of one round, evaluation included."""

SWEEP = (
    "--method fedavg fedprox scaffold fedvg fedavg+fedvg --alpha 0.05 0.5 --seed 0:3 --rounds 100"
)
"""A comparison of five methods at two alphas with three seeds, on the digits: 30 runs."""

PLANS = {
    "digits, MLP, FedProx": "--algorithm fedprox --model mlp --clients 50 --alpha 1 --rounds 400",
    "digits, tiny CNN": "--rounds 60",
    "CIFAR-10's shape, LeNet5": f"{_FEW} --model lenet5 --rounds 60 --local-epochs 5",
    "CIFAR-10's shape, CNN, FedAvg": f"{_FEW} --model cnn --rounds 12 --weighting samples --alpha 0.1",
    "CIFAR-10's shape, ResNet-18": f"{_FEW} --model resnet18 --rounds 6 --alpha 0.3",
}
"""Runs on which `--dry-run` was not calibrated."""

SECTION_FIELDS = ("command", "commit", "date", "busy")
"""What a results file records of each section, because sections can come from different commands."""

IMAGES = 3000


def main(argv: list[str] | None = None) -> int:
    """Measures, prints and writes section by section."""
    parser = machine.parser(__doc__)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data-dir", type=Path, help="folder with CIFAR-10")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    args = parser.parse_args(argv)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # because an installed package has bytecode too
    results = machine.begin("speed.limits", argv)
    if args.out and args.out.is_file():
        results = json.loads(args.out.read_text(encoding="utf-8")) | results
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        images = cases.arrays(cases.CASES["lenet5"]._replace(images=IMAGES), args.data_dir)
        np.savez(folder / "images.npz", x=images.x, y=images.y)
        for name in args.sections:
            results[name] = SECTIONS[name](folder, args.repeats)
            print(f"{name}: {json.dumps(results[name])}", flush=True)
            results["machine"] = machine.add_final_load(results["machine"])
            section = {key: results["machine"][key] for key in SECTION_FIELDS}
            results["taken"] = results.get("taken", {}) | {name: section}
            machine.write(args.out, results)
    return 0


def time_help(folder: Path, repeats: int) -> dict[str, float]:
    """Returns the seconds of `--help`, after a first process that writes bytecode."""
    return machine.seconds(lambda: command("sim", "--help"), repeats)


def time_starts(folder: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Returns the seconds of each run of `STARTS`, after a first one that fills the compilation cache."""
    starts = {name: words_of(flags, folder, "start") for name, flags in STARTS.items()}
    return {
        name: machine.seconds(lambda words=words: machine.in_process(run, words), repeats)
        for name, words in starts.items()
    }


def time_sweeps(folder: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Returns the seconds of `SWEEP`, from an empty compilation cache and from the one that this sweep has filled."""
    seconds: dict[str, list[float]] = {"empty": [], "full": []}
    for repeat in range(repeats):
        for state, times in seconds.items():
            paths = (
                "--out",
                f"{folder}/sweep-{repeat}-{state}",
                "--cache-dir",
                f"{folder}/sweep-cache-{repeat}",
            )
            times.append(
                machine.time_call(lambda paths=paths: command("sweep", *SWEEP.split(), *paths))
            )
    return {state: machine.spread(times) for state, times in seconds.items()}


def command(name: str, *words: str) -> None:
    """Runs a command of the package without showing its output."""
    subprocess.run(
        [sys.executable, "-m", f"fedvg_jax.{name}", *words], check=True, stdout=subprocess.DEVNULL
    )


def compare_predictions(folder: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Returns predicted and measured seconds and memory of the runs of `PLANS`, and predicted / measured."""
    results = {}
    for name, flags in PLANS.items():
        # each has its own cache, so that both compile the same programs: compilation counts as memory of both
        predicted, measured = (
            machine.in_process(f, words_of(flags, folder, f.__name__)) for f in (predict, run)
        )
        results[name] = {f"predicted {key}": value for key, value in predicted.items()} | measured
        results[name] |= {
            short: round(predicted[key] / measured[key], 3)
            for short, key in (("time", "seconds"), ("memory", "GiB"))
        }
        print(f"  {name}: {results[name]}", flush=True)
    return results


def words_of(flags: str, folder: Path, cache: str) -> list[str]:
    """Returns flags with the folders of a run."""
    paths = ["--cache-dir", f"{folder}/cache-{cache}"]
    return [*flags.split(), *paths, *["--data-dir", f"{folder}/images.npz"] * ("npz" in flags)]


def predict(words: list[str]) -> dict[str, float]:
    """Returns the seconds, without compilation, and the memory that `--dry-run` predicts."""
    from fedvg_jax.views import display

    plan = display.predict(_simulation(words))
    return {"seconds": round(plan.seconds, 3), "GiB": round(plan.memory_bytes / 2**30, 3)}


def run(words: list[str]) -> dict[str, float]:
    """Returns the seconds of a run, without compilation, and the memory of its process."""
    from fedvg_jax.runs import loop

    history = loop.run_simulation(_simulation(words))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": history.summary["run_seconds"], "GiB": round(peak / 2**30, 3)}


def _simulation(words: list[str]) -> Any:
    from fedvg_jax import commands

    config = commands.parse(words)
    commands.start_jax()

    return resolve.experiment.simulation(config)


SECTIONS: dict[str, Callable[[Path, int], Any]] = {
    "help": time_help,
    "start": time_starts,
    "sweep": time_sweeps,
    "plan": compare_predictions,
}

if __name__ == "__main__":
    sys.exit(main())
