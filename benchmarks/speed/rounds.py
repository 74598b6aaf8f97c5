"""Times federated rounds on the CPU, and the same rounds in PyTorch.

    python -m benchmarks.speed.rounds [--cases lenet5 cnn ...] [--repeats 5] [--data-dir DIR] [--out FILE]

A case of `cases` is computed by several contestants: this package ("ours"), two PyTorch loops (`peers`) and Flower's
simulation engine (`flower_peer`). Each contestant is a process with the same number of threads, the same minibatches
and the same initial model. First their models and weights are compared; a contestant that disagrees is not timed. Then
the contestants are timed in turns, without compilation.

Prints the seconds of our round and the others' multiples of it. Writes the seconds of rounds and phases to FILE.json,
where a case that is not run keeps its earlier result; a peak of the machine is the highest that was ever measured.
`--torch-python PATH` is a Python with torch, `--flower-python PATH` one with flwr[simulation] and torch, if this one
lacks them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.speed import cases, contest

PEERS = ("lean", "loader", "flower")
"""The contestants besides "ours"."""
FLOWER_CASES = ("mlp64", "pfl_cnn")
"""The cases that Flower is compared on."""


def main(argv: list[str] | None = None) -> int:
    """Runs the cases; exit code 1 if any contestant disagreed."""
    args = parse(argv)
    deadline = time.monotonic() + 60 * args.minutes
    results = machine.begin("speed.rounds", argv)
    earlier = {"cases": {}, "sgemm GF/s": {}} | machine.read(args.out)
    of_cores = earlier["sgemm GF/s"]
    peaks = {name: max(rate, of_cores.get(name, 0)) for name, rate in machine.sgemm().items()}
    results |= {"sgemm GF/s": peaks, "threads": args.threads, "cases": earlier["cases"]}
    disagreed = False
    for name in args.cases:
        if time.monotonic() > deadline:
            print(f"{name}: skipped, the time limit of --minutes is reached", flush=True)
            continue
        print(f"{name}: {cases.CASES[name].description}", flush=True)
        others_before = machine.other_load()
        case = measure(name, args) | {"command": results["machine"]["command"]}
        case |= {"others_before": others_before, "others_after": machine.other_load()}
        results["cases"][name] = case
        disagreed |= not all(map(contest.agrees, case["agreement"].values()))
        machine.finish(args.out, results)
    return int(disagreed)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = machine.parser(__doc__)
    parser.add_argument("--cases", nargs="+", choices=cases.CASES, default=list(cases.CASES))
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, default=list(PEERS), help="contestants besides ours"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="timings of every contestant, in turns"
    )
    parser.add_argument(
        "--rounds", type=int, help="rounds in one timing, instead of each case's own number"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="start no further case after this time"
    )
    parser.add_argument(
        "--threads", type=int, default=len(machine.affinity()), help="threads of each contestant"
    )
    parser.add_argument(
        "--data-dir", type=Path, help="folder with CIFAR-10; default: noise of the same shape"
    )
    parser.add_argument(
        "--torch-python", type=Path, default=Path(sys.executable), help="a Python with torch"
    )
    parser.add_argument(
        "--flower-python",
        type=Path,
        default=Path(sys.executable),
        help="a Python with flwr and torch",
    )
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    return parser.parse_args(argv)


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the results of one case: starts the contestants, compares their models, then times them in turns."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        running, skipped = start(name, folder, args, stack)
        with np.load(folder / "workload.npz") as file:
            initial = {key: file[key] for key in file.files if key.startswith("init/")}
        workload = json.loads((folder / "workload.json").read_text(encoding="utf-8"))
        agreement = compare(running, skipped, initial)
        times: dict[str, list[dict]] = {peer: [] for peer in running}
        for contestant in running.values():
            contestant.request("time")  # warm-up
        order = list(running)
        for _ in range(args.repeats):
            for peer in order:
                times[peer].append(running[peer].request("time"))
            order.reverse()
        about = {peer: contestant.about for peer, contestant in running.items()}
    seconds = {peer: machine.spread_by_part(timings) for peer, timings in times.items()}
    ours = seconds["ours"]["round"]["median"]
    ratios = {peer: round(s["round"]["median"] / ours, 3) for peer, s in seconds.items()}
    print(f"  ours {ours:.3g} s; multiples {ratios}; skipped {skipped}", flush=True)
    gradients = sum(workload["work"].values()) / workload["rounds"]
    return {
        "world": workload,
        "about": about,
        "seconds": seconds,
        "image_gradients_per_second": round(gradients / ours, 1),
        "ratio": {peer: ratio for peer, ratio in ratios.items() if peer != "ours"},
        "alpha": cases.CASES[name].settings.get("alpha"),
        "agreement": agreement,
        "skipped": skipped,
        "commit": machine.commit(),
    }


def compare(running: dict, skipped: dict, initial: Mapping) -> dict[str, dict[str, float]]:
    """Compares every contestant with ours, and moves those that fail or disagree from `running` to `skipped`.

    Returns:
        contestant -> its differences from ours, see `contest.differences`.
    """
    if len(running) == 1:
        return {}
    exact, ours = (running["ours"].arrays(request) for request in ("exact", "check"))
    agreement = {}
    for peer in [peer for peer in running if peer != "ours"]:
        try:
            theirs = running[peer].arrays("check")
            agreement[peer] = contest.differences(ours, theirs, exact, initial)
            if contest.agrees(agreement[peer]):
                continue
            skipped[peer] = "disagrees, so it is not timed"
        except RuntimeError as error:
            skipped[peer] = str(error)
        del running[peer]
    return agreement


def start(name: str, folder: Path, args: argparse.Namespace, stack: contextlib.ExitStack):
    """Starts the contestants of a case, ours first, which writes the workload into `folder`.

    Returns:
        contestant -> its running process; contestant -> why it does not run.
    """
    threads = str(args.threads)
    environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    of_jax = environment | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": threads}
    ours = [sys.executable, "-m", "benchmarks.speed.ours", "--folder", str(folder), "--case", name]
    if args.rounds:
        ours += ["--rounds", str(args.rounds)]
    if args.data_dir:
        ours += ["--data-dir", str(args.data_dir)]
    running = {"ours": contest.Contestant(folder, "ours", ours, of_jax, args.threads)}
    stack.callback(running["ours"].close)
    skipped = {}
    for peer in args.peers:
        python, module = args.torch_python, ["benchmarks.speed.peers", "--peer", peer]
        if peer == "flower":
            if name not in FLOWER_CASES:
                skipped[peer] = f"it is compared on {' and '.join(FLOWER_CASES)} only"
                continue
            python, module = args.flower_python, ["benchmarks.speed.flower_peer"]
        command = [str(python), "-m", *module, "--folder", str(folder), "--threads", threads]
        try:
            running[peer] = contest.Contestant(folder, peer, command, environment, args.threads)
            stack.callback(running[peer].close)
        except RuntimeError as error:
            skipped[peer] = str(error)
    return running, skipped


if __name__ == "__main__":
    sys.exit(main())
