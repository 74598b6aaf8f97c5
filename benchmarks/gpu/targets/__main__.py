"""Plans a run for hardware that this machine does not have: kernels and memory of its compiled programs.

    python -m benchmarks.gpu.targets [--choices JSON] --target TARGET [flags of fedvg_jax.sim]

TARGET is h100, h200, a100, l40s, tpu-v5e or tpu-v6e, with :DEVICES or :HOSTSxDEVICES for more than one device.
--choices replaces fields of `hardware.Choices`. Prints the plan as JSON. Needs jax[cuda12], or libtpu for TPUs.
Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from benchmarks import machine
from benchmarks.gpu.targets import devices
from fedvg_jax import commands
from fedvg_jax.host import hardware


def main(argv: list[str] | None = None) -> int:
    """Prints the plan of a run; exit code 2 after a user error."""
    parser = machine.parser(__doc__)
    parser.add_argument("--choices", type=json.loads, default={})
    parser.add_argument("--target", nargs=argparse.REMAINDER, required=True, metavar="TARGET FLAG")
    args = parser.parse_args(argv)
    return commands.guarded(lambda: print_plan(args.target, args.choices))


def print_plan(words: list[str], choices: dict) -> int:
    """Prints the plan of a run on the first word's target, with the other words as flags."""
    target, config = devices.parse_target(words[0]), commands.parse(words[1:])
    devices.require_compiler(target)
    os.environ.update(devices.ENVIRONMENT)  # before jax is imported
    hardware.ACCELERATOR = hardware.ACCELERATOR._replace(**choices)
    from benchmarks.gpu.targets import plan, programs

    sim = programs.simulate_for(config, programs.machine_of(target))
    print(json.dumps(plan.make_plan(sim, target, programs.compile_for(sim, target.hardware)), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
