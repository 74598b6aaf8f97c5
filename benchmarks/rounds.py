"""Whole rounds on the CPU, beside PyTorch doing the same work in the same run.

    python -m benchmarks.rounds [--cases lenet5 cnn ...] [--repeats 5] [--images N] [--data-dir DIR] [--out FILE.json]

Every contestant is a process of its own with the same number of threads, works on the same minibatches from the same
initial model, and must end with the same models before any time is reported; then they take turns. Compile time is
apart. `--pfl-python PATH` is a Python that has pfl and torch, where this one has not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import cases, contest, machine

PARTS = ("round", "cpu", "train", "score", "aggregate")
"""Wall seconds and CPU seconds of a round, then wall seconds of its parts."""
LOOPS = ("lean", "loader", "vmap", "pfl")


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 if any contestant disagreed."""
    args = parse(argv)
    deadline = time.monotonic() + 60 * args.minutes
    found = {"machine": machine.describe(["python", "-m", "benchmarks.rounds", *(argv or sys.argv[1:])])}
    known = earlier(args.out)
    peaks = {name: max(rate, known["sgemm GF/s"].get(name, 0)) for name, rate in machine.sgemm().items()}
    found |= {"sgemm GF/s": peaks, "threads": args.threads, "cases": known["cases"]}
    for name in args.cases:
        if time.monotonic() > deadline:
            print(f"{name}: left out, no time", flush=True)
            continue
        print(f"{name}: {cases.CASES[name].says}", flush=True)
        others = machine.others_share()
        case = contend(name, args)
        found["cases"][name] = case | {
            "others_before": others,
            "others_after": machine.others_share(),
            "command": found["machine"]["command"],
        }
        print(told(case), flush=True)
        found["machine"] = machine.finished(found["machine"])
        if args.out:
            machine.write(args.out, found)
    return 0 if all(agreed(case) for name, case in found["cases"].items() if name in args.cases) else 1


def earlier(file: Path | None) -> dict[str, Any]:
    """What a results file holds already: cases measured now replace theirs, and a peak is the highest ever seen."""
    if file and file.is_file():
        return json.loads(file.read_text(encoding="utf-8"))
    return {"cases": {}, "sgemm GF/s": {}}


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=cases.CASES, default=list(cases.CASES))
    parser.add_argument("--peers", nargs="*", choices=LOOPS, default=list(LOOPS))
    parser.add_argument("--repeats", type=int, default=5, help="of every contestant, in turns")
    parser.add_argument("--images", type=int, help="size of the pool, in place of each case's own")
    parser.add_argument("--rounds", type=int, help="rounds in one timing, in place of each case's own")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no further case is started")
    parser.add_argument("--threads", type=int, default=len(machine.affinity()))
    parser.add_argument("--data-dir", type=Path, help="folder holding CIFAR-10; noise in its shape without")
    parser.add_argument("--torch-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--pfl-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    return parser.parse_args(argv)


def contend(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """One case: everyone starts, agrees, and then takes turns."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        running, skipped = start(name, folder, args, stack)
        with np.load(folder / "world.npz") as file:
            before = {key: file[key] for key in file.files if key.startswith("init/")}
        known = (folder / "world.json").read_text(encoding="utf-8")
        agreement = agree(folder, running, skipped, before)
        times: dict[str, list[dict]] = {who: [] for who in running}
        for contestant in running.values():
            contestant.ask("time")  # not counted
        for turn in range(args.repeats):
            order = list(running) if turn % 2 == 0 else list(running)[::-1]
            for who in order:
                times[who].append(running[who].ask("time"))
        about = {who: contestant.about for who, contestant in running.items()}
    return result(name, known, about, times, agreement, skipped)


def agree(folder: Path, running: dict, skipped: dict, before: Mapping) -> dict[str, dict[str, float]]:
    """How far everyone is from us; who fails or is too far off is moved from `running` to `skipped`."""
    if len(running) == 1:
        return {}
    exact, ours = (asked(folder, running, "ours", what) for what in ("exact", "check"))
    found = {}
    for who in [who for who in running if who != "ours"]:
        try:
            found[who] = contest.disagreement(ours, asked(folder, running, who, "check"), exact, before)
            if contest.agrees(found[who], sends_single=who == "pfl"):
                continue
            skipped[who] = "disagrees, so it is not timed"
        except RuntimeError as error:
            skipped[who] = str(error)
        del running[who]
    return found


def asked(folder: Path, running: Mapping, who: str, what: str) -> dict[str, np.ndarray]:
    """What a contestant leaves in a file."""
    running[who].ask(what)
    with np.load(folder / f"{who}.{what}.npz") as file:
        return dict(file)


def start(name: str, folder: Path, args: argparse.Namespace, stack: contextlib.ExitStack):
    """The contestants that run, ours first, and why the others do not."""
    environment = {"OMP_NUM_THREADS": str(args.threads), "MKL_NUM_THREADS": str(args.threads)}
    command = [sys.executable, "-m", "benchmarks.ours", "--folder", str(folder), "--case", name]
    for option in ("images", "rounds", "data_dir"):
        if (value := getattr(args, option)) is not None:
            command += [f"--{option.replace('_', '-')}", str(value)]
    mine = environment | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(args.threads)}
    running = {"ours": contest.Contestant(command, mine, folder / "ours.log")}
    stack.callback(running["ours"].close)
    skipped = {}
    for who in args.peers:
        python = args.pfl_python if who == "pfl" else args.torch_python
        if reason := missing(who, name, python):
            skipped[who] = reason
            continue
        module = ["benchmarks.pfl_peer"] if who == "pfl" else ["benchmarks.peers", "--peer", who]
        command = [str(python), "-m", *module, "--folder", str(folder), "--threads", str(args.threads)]
        try:
            running[who] = contest.Contestant(command, environment, folder / f"{who}.log")
            stack.callback(running[who].close)
        except RuntimeError as error:
            skipped[who] = str(error)
    return running, skipped


def missing(who: str, case: str, python: Path) -> str | None:
    """Why a contestant cannot run."""
    if who == "pfl" and case != "pfl_cnn":
        return "its simulator is compared on its own set-up only"
    for package in ("torch", "pfl") if who == "pfl" else ("torch",):
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
        if subprocess.run([python, "-c", code], check=False).returncode:
            return f"{package} is not installed for {python.name}"
    return None


def result(name, known: str, about, times: Mapping[str, list[dict]], agreement, skipped) -> dict[str, Any]:
    """Medians with range, and what follows from them."""
    world = json.loads(known)
    medians = {who: {part: machine.spread([t[part] for t in ts if part in t]) for part in PARTS if part in ts[0]}
               for who, ts in times.items()}  # fmt: skip
    gradients = sum(world["work"].values()) / world["rounds"]
    ours = medians["ours"]["round"]["median"]
    return {
        "world": world,
        "about": about,
        "seconds": medians,
        "memory_gib": {who: max(t["memory_gib"] for t in ts) for who, ts in times.items()},
        "image_gradients_per_second": round(gradients / ours, 1),
        "ratio": {who: round(m["round"]["median"] / ours, 3) for who, m in medians.items() if who != "ours"},
        "alpha": alpha(name),
        "agreement": agreement,
        "skipped": skipped,
        "measured": time.strftime("%Y-%m-%d %H:%M:%S"),
        "commit": machine.commit(),
        "load": machine.load(),
    }


def alpha(name: str) -> float | None:
    """The case's Dirichlet concentration; None where its clients are equal."""
    return cases.CASES[name].settings.get("alpha")


def agreed(case: Mapping[str, Any]) -> bool:
    """Whether every contestant ended with the same models."""
    return all(contest.agrees(found, sends_single=who == "pfl") for who, found in case["agreement"].items())


def told(case: Mapping[str, Any]) -> str:
    """A case in a few lines."""
    lines = []
    for who, parts in case["seconds"].items():
        spread = parts["round"]
        detail = ", ".join(f"{part} {parts[part]['median']:.3g}" for part in PARTS[1:] if part in parts)
        ratio = f" {case['ratio'][who]:.2f} x ours" if who in case["ratio"] else ""
        lines.append(
            f"  {who:7}{spread['median']:9.4g} s a round ({spread['min']:.4g} to {spread['max']:.4g}){ratio}; {detail}"
        )
    lines += [f"  {who:7}{why}" for who, why in case["skipped"].items()]
    lines += [
        f"  {who:7}in float64 {found['exact']:.1e} of a round's step from ours;"
        f" float32 moves it {found['their rounding']:.1e}, ours {found['our rounding']:.1e}"
        for who, found in case["agreement"].items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
