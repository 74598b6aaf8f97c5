"""Measures start-up and sweeps, beside their targets.

    python -m benchmarks.speed.limits [--sections NAME ...] [--repeats 5] [--data-dir DIR] [--out FILE.json]

help          seconds of a `--help` process
start         seconds of a process that computes and evaluates one round, with its programs in the compilation cache
sweep         seconds of the command of `SWEEP`, with its report; from an empty compilation cache and from a full one

Prints each section and writes it to FILE.json, where the other sections stay unchanged. `start` uses CIFAR-10 from
--data-dir, by default noise of its shape.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.speed import cases

STARTS = {
    "digits": "",
    "resnet18": "--dataset npz --data-dir images.npz --model resnet18 --clients 20 --join-ratio 0.1 --alpha 1"
    " --min-samples 2 --local-epochs 1",
}
"""Runs of one round, evaluation included."""

SWEEP = (
    "--method fedavg fedprox scaffold fedvg fedavg+fedvg --alpha 0.05 0.5 --seed 0:3 --rounds 100"
)
"""A comparison of five methods at two alphas with three seeds, on the digits: 30 runs."""

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
    results = machine.read(args.out) | machine.begin("speed.limits", argv)
    with tempfile.TemporaryDirectory() as folder:
        images = cases.arrays(cases.CASES["lenet5"]._replace(images=IMAGES), args.data_dir)
        np.savez(f"{folder}/images.npz", x=images.x, y=images.y)
        for name in args.sections:
            results[name] = SECTIONS[name](functools.partial(command, folder), args.repeats)
            print(f"{name}: {json.dumps(results[name])}", flush=True)
            results["machine"] = machine.add_final_load(results["machine"])
            section = {key: results["machine"][key] for key in SECTION_FIELDS}
            results["taken"] = results.get("taken", {}) | {name: section}
            machine.write(args.out, results)
    return 0


def command(folder: str, name: str, *words: str) -> None:
    """Runs a command of the package in a folder without showing its output."""
    subprocess.run(
        [sys.executable, "-m", f"fedvg_jax.{name}", *words],
        cwd=folder,
        env=machine.environment(),
        check=True,
        stdout=subprocess.DEVNULL,
    )


Command = Callable[..., None]
"""`command` in a folder."""


def time_help(run: Command, repeats: int) -> dict[str, float]:
    """Returns the seconds of `--help`, after a first process that writes bytecode."""
    return machine.seconds(functools.partial(run, "sim", "--help"), repeats)


def time_starts(run: Command, repeats: int) -> dict[str, dict[str, float]]:
    """Returns the seconds of each run of `STARTS`, after a first one that fills the compilation cache."""
    words = ("--rounds", "1", "--cache-dir", "cache")
    starts = {name: (*flags.split(), *words) for name, flags in STARTS.items()}
    return {
        name: machine.seconds(functools.partial(run, "sim", *flags), repeats)
        for name, flags in starts.items()
    }


def time_sweeps(run: Command, repeats: int) -> dict[str, dict[str, float]]:
    """Returns the seconds of `SWEEP`, from an empty compilation cache and from the one that this sweep has filled."""
    seconds: dict[str, list[float]] = {"empty": [], "full": []}
    for repeat in range(repeats):
        for state, times in seconds.items():
            paths = ("--out", f"sweep-{repeat}-{state}", "--cache-dir", f"sweep-cache-{repeat}")
            times.append(machine.time_call(functools.partial(run, "sweep", *SWEEP.split(), *paths)))
    return {state: machine.spread(times) for state, times in seconds.items()}


SECTIONS: dict[str, Callable[[Command, int], Any]] = {
    "help": time_help,
    "start": time_starts,
    "sweep": time_sweeps,
}

if __name__ == "__main__":
    sys.exit(main())
