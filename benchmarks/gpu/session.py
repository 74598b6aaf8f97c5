"""Times ResNet-18's federated rounds on a GPU beside the strongest PyTorch, or runs the paper's condition as a study.

    python -m benchmarks.gpu [--minutes 9] [--sections NAME ...] [--cpu-smoke] [--out FILE.json]
    python -m benchmarks.gpu study [--minutes 9] [--data-dir DIR] [--cpu-smoke] --out DIR

The section `torch` needs PyTorch. Each section of `benchmarks.gpu.sections` runs in its own process with a time limit.
FILE.json gains a session, and its earlier sessions stay. Sections are written one by one, with the error of a section
that failed or ran out of time. The sections `round_chosen` and `run` take the fastest choices that `score` and
`step` have measured on the same card. Compiled programs stay in --cache-dir, so that a second run of the command gets
further.
--cpu-smoke tests the command with tiny sizes on the CPU; its numbers are meaningless. The study is
`benchmarks.gpu.study`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.gpu import process, study

SECTIONS = {
    "peaks": 15,
    "score": 100,
    "step": 80,
    "step_off": 80,
    "step_while": 80,
    "torch": 90,
    "round": 40,
    "round_chosen": 40,
    "run": 60,
    "models": 60,
    "adapters": 120,
}
"""Section -> its share of the time, the most important first; what one leaves goes to the next."""

STEPS = (115, 410)
"""Local steps of the largest client and of all in the round that is timed."""


def main(argv: list[str] | None = None) -> int:
    """Runs the sections, or the study; exit code 1 without any result."""
    args = parse(argv)
    if args.command == "study":
        return study.run(args)
    command = ["python", "-m", "benchmarks.gpu", *(sys.argv[1:] if argv is None else argv)]
    file = {"sessions": []} | machine.read(args.out)
    run: dict[str, Any] = {
        "machine": machine.describe(command),
        "smoke": args.cpu_smoke,
        "sections": {},
    }
    file |= {"command": run["machine"]["command"], "sessions": [*file["sessions"], run]}
    start, total = time.monotonic(), sum(SECTIONS[name] for name in args.sections)
    for i, name in enumerate(args.sections):
        later = sum(SECTIONS[following] for following in args.sections[i + 1 :])
        limit = args.minutes * 60 * (1 - later / total) - (time.monotonic() - start)
        result: dict[str, Any] = {"failed": "no time was left"}
        if limit > 5:
            chosen = choose(file["sessions"], run["machine"].get("accelerator"))
            result = process.run_section(name, limit, args, chosen)
        run["machine"] |= result.pop("device", {})
        run["sections"][name] = result
        print(f"{name}: {json.dumps(result)[:2000]}", flush=True)
        machine.write(args.out, file)
    run["machine"] = machine.add_final_load(run["machine"])
    machine.write(args.out, file)
    print(f"{time.monotonic() - start:.0f} s; {args.out}")
    return 0 if any("failed" not in s for s in run["sections"].values()) else 1


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = machine.parser(__doc__)
    parser.add_argument("command", nargs="?", choices=("sections", "study"), default="sections")
    parser.add_argument("--minutes", type=float, default=9.0, help="wall time of the whole command")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--cpu-smoke", action="store_true")
    parser.add_argument(
        "--cache-dir", type=Path, default=Path.home() / ".cache" / "fedvg_jax" / "xla"
    )
    parser.add_argument("--data-dir", type=Path, help="folder with CIFAR-10, for the study")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), metavar="FILE.json")
    return parser.parse_args(argv)


def choose(sessions: Sequence[dict[str, Any]], accelerator: str | None) -> dict[str, Any]:
    """Returns the fields of `hardware.Choices` that were fastest on this card, as far as they were measured.

    With L lanes a round takes max(largest client's steps, all steps / L) steps of L clients.

    >>> steps = {"milliseconds": {"4 lanes, gemm": 0.3, "10 lanes, lax": 0.1}}
    >>> choose([{"machine": {}, "sections": {"step": steps}}], None)
    {'max_lanes': 10, 'small_image_conv': 'lax', 'launch_graphs': None}
    """
    steps: dict[tuple[str | None, int, str], float] = {}
    rates: dict[tuple[str, int], float] = {}
    on_this_card = [s for s in sessions if s["machine"].get("accelerator") == accelerator]
    for sections in (session["sections"] for session in on_this_card):
        for name, graphs in process.GRAPHS.items():
            for way, milliseconds in sections.get(name, {}).get("milliseconds", {}).items():
                lanes, conv = way.split(" lanes, ")
                if isinstance(milliseconds, float):
                    num_steps = max(STEPS[0], STEPS[1] / int(lanes))
                    steps[graphs, int(lanes), conv] = num_steps * int(lanes) * milliseconds
        for conv, of_conv in sections.get("score", {}).get("rows per second", {}).items():
            for rows, rate in of_conv["default"].items():
                if isinstance(rate, float):
                    rates[conv, int(rows)] = rate
    chosen: dict[str, Any] = {}
    if steps:
        graphs, lanes, conv = min(steps, key=lambda way: steps[way])
        chosen |= {"max_lanes": lanes, "small_image_conv": conv, "launch_graphs": graphs}
    if rates:
        conv, rows = max(rates, key=lambda way: rates[way])
        chosen |= {
            "scoring_conv": conv,
            "rows_per_scoring_pass": rows,
            "values_per_scoring_pass": rows * 3072,
        }
    return chosen
