"""`python -m benchmarks.gpu study`: the paper's cell as sweeps that continue where they stopped.

Each of `STAGES` is a sweep folder of its own under --out, in the protocol's order. With --adapters FILE.npz START, its
images and initial weights, the study of adapters is the last one, or without --data-dir the only one. The study stops
by itself before its time limit, and writes DIR.tar.xz: histories and summaries of finished runs, without checkpoints.
Where DIR.tar.xz lies beside a missing DIR, it is unpacked first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

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

SMOKE = [
    "--dataset",
    "digits",
    "--model",
    "mlp",
    "--rounds",
    "2",
    "--clients",
    "10",
    "--join-ratio",
    "0.3",
]
SMOKE += ["--min-samples-rule", "top_up", "--local-epochs", "1", "--seed", "0"]
"""Options of a sweep that shows on a CPU that a stage works."""

LEFT_OUT = ("checkpoint", "best", "final", ".claim", "report")
"""Beginnings of names that the archive leaves out."""

RESERVE = 30
"""Seconds for a stopped sweep to end its chunk of rounds, and for the archive."""


def run(args: argparse.Namespace) -> int:
    """Runs the stages until all are finished or the time is over; exit code 1 if some sweep failed."""
    deadline, archive = (
        time.monotonic() + 60 * args.minutes,
        args.out.with_name(f"{args.out.name}.tar.xz"),
    )
    if archive.exists() and not args.out.exists():
        with tarfile.open(archive) as file:
            file.extractall(args.out.parent, filter="data")
    args.out.mkdir(parents=True, exist_ok=True)
    stages = {}
    if args.data_dir or not args.adapters:
        data = () if args.cpu_smoke else ("--data-dir", str(assemble(args.data_dir)))
        stages |= {
            name: (*words, *data)
            for name, words in list(STAGES.items())[:: 3 if args.cpu_smoke else 1]
        }
    if args.adapters:
        stages["adapters"] = (
            *ADAPTERS,
            "--data-dir",
            str(args.adapters[0]),
            "--init",
            str(args.adapters[1]),
        )
    note_machine(args)
    code = 0
    for name, words in stages.items():
        left = deadline - RESERVE - time.monotonic()
        if left < (1 if args.cpu_smoke else 20):
            break
        command = [sys.executable, "-m", "fedvg_jax.sweep", *words, "--out", str(args.out / name)]
        command += ["--jobs", "1", "--cache-dir", str(args.cache_dir), *SMOKE * args.cpu_smoke]
        process = subprocess.Popen(command, env=sections.environment_of(args))
        try:
            code = max(code, process.wait(left))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # stops after this chunk of rounds
            try:
                process.wait(RESERVE / 2)
            except subprocess.TimeoutExpired:
                process.kill()
        pack(args.out, archive)
    finished = len(list(args.out.glob("*/trials/*/summary.json")))
    print(f"{finished} runs; {archive}, {archive.stat().st_size / 2**20:.1f} MiB")
    return int(code != 0)


def assemble(data_dir: Path | None) -> Path:
    """Returns the file cifar10.npz of a folder, joined from its pieces part-* where it is missing."""
    if data_dir is None:
        raise SystemExit("study needs --data-dir DIR with cifar10.npz, or its pieces part-*")
    path, pieces = data_dir / "cifar10.npz", sorted(data_dir.glob("part-*"))
    if not path.exists():
        if not pieces:
            raise SystemExit(
                f"{data_dir} has neither cifar10.npz nor pieces part-*; split -b 50m cifar10.npz part-"
            )
        with (data_dir / "cifar10.tmp").open("wb") as file:
            for piece in pieces:
                file.write(piece.read_bytes())
        os.replace(data_dir / "cifar10.tmp", path)
    return path


def note_machine(args: argparse.Namespace) -> None:
    """Adds this machine, its commit, versions and peaks to machines.json of the study."""
    path = args.out / "machines.json"
    machines = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    peaks = sections.run_section("peaks", 60, args, {})
    command = ["python", "-m", "benchmarks.gpu", *sys.argv[1:]]
    path.write_text(
        json.dumps([*machines, machine.describe(command) | peaks], indent=1), encoding="utf-8"
    )


def pack(folder: Path, archive: Path) -> None:
    """Writes the archive of a study: all files but those of unfinished runs and of models."""

    def kept(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        path = folder.parent / info.name
        is_unfinished = path.parent.name == "trials" and not (path / "summary.json").exists()
        return None if is_unfinished or path.name.startswith(LEFT_OUT) else info

    draft = archive.with_suffix(".tmp")
    with tarfile.open(
        draft, "w:xz", preset=9
    ) as file:  # of runs with one partition, only the first takes space
        file.add(folder, folder.name, filter=kept)
    shutil.move(draft, archive)
