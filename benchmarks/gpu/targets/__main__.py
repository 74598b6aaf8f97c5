"""Plans shipped configs for hardware that this machine does not have: kernels, bytes and memory.

    python -m benchmarks.gpu.targets [--data-dir DIR] [--only NAME ...]
    python -m benchmarks.gpu.targets [--choices JSON] --target TARGET [flags of fedvg_jax.sim]

The first form plans `CASES`, each in a fresh process, and writes benchmarks/results/targets.json, where other cases
keep their earlier plans. The second prints the plan of one run. TARGET is h100, h200, a100, l40s, tpu-v5e or tpu-v6e,
with :DEVICES or :HOSTSxDEVICES for more than one device. Needs jax[cuda12], or libtpu for TPUs. Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine

ROOT = Path(__file__).parents[3]
RESULT = ROOT / "benchmarks" / "results" / "targets.json"


class Case(NamedTuple):
    """A config to plan, and its target."""

    target: str
    flags: str = ""
    needs_data: bool = False
    choices: Mapping[str, Any] = {}
    """fields of `hardware.Choices` in place of the accelerator's"""


_RESNET = "--config configs/cifar10_resnet18.toml"

CASES = {
    "digits on an H100": Case("h100", "--config configs/digits.toml"),
    "digits on 2 hosts of 4 H200": Case("h200:2x4", "--config configs/digits.toml"),
    "digits on a TPU v5e": Case("tpu-v5e", "--config configs/digits.toml"),
    "CIFAR-10, LeNet5 on an H100": Case("h100", "--config configs/cifar10_lenet5.toml", True),
    "CIFAR-10, ResNet-18 on an H100": Case("h100", _RESNET, True),
    "CIFAR-10, ResNet-18 on an H100, scored by XLA's convolution": Case("h100", _RESNET, True, {"scoring_conv": "lax"}),
    "CIFAR-10, ResNet-18 on an H100, 10 lanes": Case("h100", f"{_RESNET} --lanes 10", True),
    "CIFAR-10, ResNet-18 on an H100, bfloat16": Case("h100", f"{_RESNET} --precision bfloat16", True),
    "CIFAR-10, ResNet-18 on an H100, bfloat16, scored by XLA's convolution": Case(
        "h100", f"{_RESNET} --precision bfloat16", True, {"scoring_conv": "lax"}
    ),
    "CIFAR-10, ResNet-18 on an H100, scored by XLA's convolution in one pass": Case(
        "h100",
        _RESNET,
        True,
        {"scoring_conv": "lax", "rows_per_scoring_pass": {"": 6016}, "values_per_scoring_pass": 6016 * 3072},
    ),
}


def plan(case: Case, data_dir: Path | None) -> dict:
    """Returns the command and the plan of a case."""
    words = ["--choices", json.dumps(case.choices)] * bool(case.choices)
    words += ["--target", case.target, *case.flags.split()]
    command = f"python -m benchmarks.gpu.targets {shlex.join(words)}" + " --data-dir DIR" * case.needs_data
    flags = ["--data-dir", str(data_dir)] if case.needs_data else []
    process = [sys.executable, "-m", "benchmarks.gpu.targets", *words, *flags]
    completed = subprocess.run(process, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return {"command": command, "plan": json.loads(completed.stdout)}


def print_plan(text: str, flags: list[str], choices: Mapping[str, Any]) -> None:
    """Prints the plan of one run as JSON."""
    from benchmarks.gpu.targets import devices
    from fedvg_jax import commands
    from fedvg_jax.host import hardware

    config = commands.parse(flags)
    hardware.ACCELERATOR = hardware.ACCELERATOR._replace(**choices)
    devices.prepare_environment(devices.parse_target(text))  # before jax is imported
    from benchmarks.gpu.targets import plan

    print(json.dumps(plan.to_json(plan.plan_for_target(config, text)), indent=1))


def main() -> None:
    """Plans one run, or the cases whose results it writes."""
    parser = machine.parser(__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--choices", type=json.loads, default={})
    parser.add_argument(
        "--target", nargs=argparse.REMAINDER, help="hardware, then flags of fedvg_jax.sim: plan one run"
    )
    args = parser.parse_args()
    if args.target:
        return print_plan(args.target[0], args.target[1:], args.choices)
    results = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else {"plans": {}}
    results["command"] = "python -m benchmarks.gpu.targets --data-dir DIR"
    results |= {"what": "read from compiled programs", "jax": metadata.version("jax")}
    for name in args.only:
        if CASES[name].needs_data and args.data_dir is None:
            print(f"{name}: needs --data-dir")
            continue
        results["plans"][name] = plan(CASES[name], args.data_dir)
        print(name, json.dumps(results["plans"][name]["plan"]["parts"]), flush=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
