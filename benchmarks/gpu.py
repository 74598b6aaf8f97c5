"""What a GPU does with federated rounds, in one command of less than 8 minutes.

    python -m benchmarks.gpu [--minutes 8] [--sections NAME ...] [--cpu-smoke] [--out FILE.json]

Needs jax, flax, optax, chex and rich; PyTorch for the loop beside it. Every section is a process of its own with a time
box; what fails or runs out of time is recorded as such, and the results file is written after every section. Compiled
programs are kept in --cache-dir, so a second run of the command gets further. --cpu-smoke runs everything at tiny sizes
on the CPU, to see that it runs; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import machine

SECTIONS = {
    "peaks": 25,
    "loop": 15,
    "parts": 45,
    "run": 110,
    "score": 50,
    "lanes": 100,
    "torch": 30,
    "graphs": 60,
    "live": 40,
}
"""name -> seconds of its box, in the order of what one wants to know first; together under 8 minutes"""

GRAPHS = {
    "as XLA does by default": None,
    "no command buffers": "--xla_gpu_enable_command_buffer=",
    "with WHILE": "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,WHILE",
}
"""Ways to launch the kernels of a step -> flags"""


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 if no section had a result."""
    args = parse(argv)
    command = ["python", "-m", "benchmarks.gpu", *(sys.argv[1:] if argv is None else argv)]
    found: dict[str, Any] = {"machine": machine.describe(command), "smoke": args.cpu_smoke, "sections": {}}
    begun, share = time.monotonic(), args.minutes * 60 / sum(SECTIONS.values())
    for name in args.sections:
        left = args.minutes * 60 - (time.monotonic() - begun)
        box = min(SECTIONS[name] * share, left)
        found["sections"][name] = section(name, box, args) if box > 5 else {"failed": "no time was left"}
        found["machine"] |= found["sections"].get("peaks", {}).get("device", {})
        print(f"{name}: {json.dumps(found['sections'][name])[:2000]}", flush=True)
        machine.write(args.out, found)
    found["machine"] = machine.finished(found["machine"])
    machine.write(args.out, found)
    print(f"{time.monotonic() - begun:.0f} s; {args.out}")
    return 0 if any("failed" not in s for s in found["sections"].values()) else 1


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=7.5, help="of wall time in all")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--cpu-smoke", action="store_true")
    parser.add_argument("--cache-dir", type=Path, default=Path.home() / ".cache" / "fedvg_jax" / "xla")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), metavar="FILE.json")
    return parser.parse_args(argv)


def section(name: str, box: float, args: argparse.Namespace) -> dict[str, Any]:
    """Its results; of graphs, one process per way to launch."""
    if name != "graphs":
        return measured(name, box, args, os.environ.get("XLA_FLAGS", ""))
    return {way: measured(name, box / len(GRAPHS), args, _with(flags, args)) for way, flags in GRAPHS.items()}


def measured(name: str, box: float, args: argparse.Namespace, flags: str) -> dict[str, Any]:
    """The last result a section's process printed, which may print a fuller one at any time."""
    command = [sys.executable, "-m", "benchmarks.gpu_sections", name, "--seconds", f"{box:.0f}"]
    command += ["--cpu-smoke"] * args.cpu_smoke
    environment = os.environ | {
        "XLA_FLAGS": flags,
        "JAX_COMPILATION_CACHE_DIR": str(args.cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]),
    }
    environment |= {"JAX_PLATFORMS": "cpu"} if args.cpu_smoke else {}
    begun = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said, errors, stopped = *process.communicate(timeout=box), False
    except subprocess.TimeoutExpired:
        process.kill()
        said, errors, stopped = *process.communicate(), True
    printed = [line for line in said.splitlines() if line.startswith("{") and line.endswith("}")]
    result = json.loads(printed[-1]) if printed else {}
    if stopped:
        result["stopped"] = f"after {box:.0f} s"
    if process.returncode and not stopped:
        result["error"] = (errors.strip().splitlines() or ["it said nothing"])[-1][:500]
    if not printed:
        result["failed"] = result.get("error") or result.get("stopped") or "no result"
    return result | {"wall_seconds": round(time.monotonic() - begun, 1)}


def _with(flags: str | None, args: argparse.Namespace) -> str:
    """The environment's flags and these; a CPU knows nothing of them."""
    extra = "" if args.cpu_smoke else flags or ""
    return " ".join(filter(None, [os.environ.get("XLA_FLAGS", ""), extra]))


if __name__ == "__main__":
    sys.exit(main())
