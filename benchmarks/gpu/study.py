"""`python -m benchmarks.gpu study`: the paper's condition as sweeps that continue where they stopped.

Each of `STAGES` is a sweep in its own folder under --out, in the protocol's order. The study stops by itself before its
time limit.
"""

from __future__ import annotations

import argparse
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

SMOKE = (
    "--dataset digits --model mlp --rounds 2 --clients 10 --join-ratio 0.3"
    " --min-samples-rule top_up --local-epochs 1 --seed 0"
)
"""Options of a sweep that shows on a CPU that a stage works."""

RESERVE = 30
"""Seconds for a stopped sweep to end its chunk of rounds."""


def run(args: argparse.Namespace) -> int:
    """Runs the stages until all are finished or the time is over; exit code 1 if some sweep failed."""
    if not (args.cpu_smoke or args.data_dir):
        raise SystemExit("study needs --data-dir DIR with CIFAR-10")
    deadline = time.monotonic() + 60 * args.minutes
    options = SMOKE.split() if args.cpu_smoke else ["--data-dir", str(args.data_dir)]
    options += ["--jobs", "1", "--cache-dir", str(args.cache_dir)]
    args.out.mkdir(parents=True, exist_ok=True)
    note_machine(args)
    code = 0
    for name, words in STAGES.items():
        left = deadline - RESERVE - time.monotonic()
        if left < (1 if args.cpu_smoke else 20):
            break
        out = ["--out", str(args.out / name)]
        command = [sys.executable, "-m", "fedvg_jax.sweep", *words, *options, *out]
        code = max(code, run_stage(command, left, args))
    finished = len(list(args.out.glob("*/trials/*/summary.json")))
    print(f"{finished} runs in {args.out}")
    return int(code != 0)


def run_stage(command: list[str], limit: float, args: argparse.Namespace) -> int:
    """Runs a sweep for at most `limit` seconds; returns its exit code, 0 where the time was over."""
    process = subprocess.Popen(command, env=sections.environment_of(args))
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # stops after this chunk of rounds
        try:
            process.wait(RESERVE / 2)
        except subprocess.TimeoutExpired:
            process.kill()
    return 0


def note_machine(args: argparse.Namespace) -> None:
    """Adds this machine, its commit, versions and peaks to machines.json of the study."""
    path = args.out / "machines.json"
    machines = machine.read(path).get("machines", [])
    peaks = sections.run_section("peaks", 60, args, {})
    command = ["python", "-m", "benchmarks.gpu", *sys.argv[1:]]
    machine.write(path, {"machines": [*machines, machine.describe(command) | peaks]})
