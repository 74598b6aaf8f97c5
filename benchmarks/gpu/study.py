"""`python -m benchmarks.gpu study`: the paper's cell as sweeps that continue where they stopped.

Each of `STAGES` is a sweep folder of its own under --out, in the protocol's order. With --adapters FILE.npz START, its
images and initial weights, the study of adapters is the last one, or without --data-dir the only one. The study stops
by itself before its time limit.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time

from benchmarks import machine
from benchmarks.gpu import process as sections

SWEEPS = machine.ROOT / "configs" / "sweeps"

STAGES = {
    f"{methods}_alpha_{alpha}": (
        "--config",
        str(SWEEPS / f"paper_cell_{methods}.toml"),
        "--alpha",
        alpha,
    )
    for methods in ("controls", "algorithms")
    for alpha in ("0.05", "0.1", "10")
}
"""Folder of a sweep -> its command line."""

ADAPTERS = ("--config", str(SWEEPS / "adapters.toml"))
"""Command line of the study of adapters, the last stage."""

SMOKE = (
    "--dataset digits --model mlp --rounds 2 --clients 10 --join-ratio 0.3"
    " --min-samples-rule top_up --local-epochs 1 --seed 0"
)
"""Options of a sweep that shows on a CPU that a stage works."""

RESERVE = 30
"""Seconds for a stopped sweep to end its chunk of rounds."""


def run(args: argparse.Namespace) -> int:
    """Runs the stages until all are finished or the time is over; exit code 1 if some sweep failed."""
    deadline = time.monotonic() + 60 * args.minutes
    args.out.mkdir(parents=True, exist_ok=True)
    stages = {}
    if args.data_dir or not args.adapters:
        if args.cpu_smoke:
            data, step = (), 3
        elif args.data_dir:
            data, step = ("--data-dir", str(args.data_dir)), 1
        else:
            raise SystemExit("study needs --data-dir DIR with CIFAR-10")
        stages = {name: (*words, *data) for name, words in list(STAGES.items())[::step]}
    if args.adapters:
        images, start = map(str, args.adapters)
        stages["adapters"] = (*ADAPTERS, "--data-dir", images, "--init", start)
    note_machine(args)
    code = 0
    for name, words in stages.items():
        left = deadline - RESERVE - time.monotonic()
        if left < (1 if args.cpu_smoke else 20):
            break
        command = [sys.executable, "-m", "fedvg_jax.sweep", *words, "--out", str(args.out / name)]
        command += [
            "--jobs",
            "1",
            "--cache-dir",
            str(args.cache_dir),
            *(SMOKE.split() if args.cpu_smoke else ()),
        ]
        process = subprocess.Popen(command, env=sections.environment_of(args))
        try:
            code = max(code, process.wait(left))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # stops after this chunk of rounds
            try:
                process.wait(RESERVE / 2)
            except subprocess.TimeoutExpired:
                process.kill()
    finished = len(list(args.out.glob("*/trials/*/summary.json")))
    print(f"{finished} runs in {args.out}")
    return int(code != 0)


def note_machine(args: argparse.Namespace) -> None:
    """Adds this machine, its commit, versions and peaks to machines.json of the study."""
    path = args.out / "machines.json"
    machines = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    peaks = sections.run_section("peaks", 60, args, {})
    command = ["python", "-m", "benchmarks.gpu", *sys.argv[1:]]
    path.write_text(
        json.dumps([*machines, machine.describe(command) | peaks], indent=1), encoding="utf-8"
    )
