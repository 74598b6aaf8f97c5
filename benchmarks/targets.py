"""Plans shipped configs for hardware that this machine does not have: kernels, bytes, memory and estimated seconds.

    python -m benchmarks.targets [--data-dir DIR] [--only NAME ...]

Needs jax[cuda12], and libtpu for TPUs. Each case is the plan of `python -m fedvg_jax.sim FLAGS --dry-run --target
TARGET`, computed in a fresh process. Writes benchmarks/results/targets.json, where other cases keep their earlier
plans. Seconds are estimates from compiled programs, not measurements.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "benchmarks" / "results" / "targets.json"


class Case(NamedTuple):
    """A config to plan, and its target."""

    target: str
    flags: str = ""
    needs_data: bool = False


CASES = {
    "digits on an H100": Case("h100", "--config configs/digits.toml"),
    "digits on 2 hosts of 4 H200": Case("h200:2x4", "--config configs/digits.toml"),
    "digits on a TPU v5e": Case("tpu-v5e", "--config configs/digits.toml"),
    "CIFAR-10, LeNet5 on an H100": Case("h100", "--config configs/cifar10_lenet5.toml", True),
    "CIFAR-10, ResNet-18 on an H100": Case("h100", "--config configs/cifar10_resnet18.toml", True),
}

PLAN = """
import json, sys
from fedvg_jax import sim
from fedvg_jax.core import targets
config = sim.parse(sys.argv[1:])
targets.prepare_environment(targets.parse_target(config.target))
import fedvg_jax as fv
from fedvg_jax.views import target_plan
print(json.dumps(target_plan.to_json(fv.plan_for_target(config, config.target))))
"""


def plan(case: Case, data_dir: Path | None) -> dict:
    """Returns the command and the plan of a case."""
    flags = [*case.flags.split(), "--dry-run", "--target", case.target]
    command = f"python -m fedvg_jax.sim {' '.join(flags)}" + " --data-dir DIR" * case.needs_data
    words = [*flags, *(["--data-dir", str(data_dir)] if case.needs_data else [])]
    process = [sys.executable, "-c", PLAN, *words]
    completed = subprocess.run(process, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return {"command": command, "plan": json.loads(completed.stdout.splitlines()[-1])}


def main() -> None:
    """Plans the cases and writes the results file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    results = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else {"plans": {}}
    results |= {"what": "estimates from compiled programs, not measurements", "jax": jax.__version__}
    for name in args.only:
        if CASES[name].needs_data and args.data_dir is None:
            print(f"{name}: needs --data-dir")
            continue
        results["plans"][name] = plan(CASES[name], args.data_dir)
        print(name, json.dumps(results["plans"][name]["plan"]["parts"]), flush=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
