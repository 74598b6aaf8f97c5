"""Measures federated rounds of ResNet-18 on a GPU, and PyTorch's steps on the same GPU, in less than 9 minutes.

    python -m benchmarks.gpu [--minutes 8.7] [--sections NAME ...] [--cpu-smoke] [--out FILE.json]

The section `torch` needs PyTorch. Each section of `benchmarks.gpu_sections` runs in its own process with a time limit.
FILE.json is written after every section, with the error of a section that failed or ran out of time. Compiled programs
stay in --cache-dir, so that a second run of the command gets further. --cpu-smoke tests the command with tiny sizes on
the CPU; its numbers are meaningless.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import machine

SECTIONS = {
    "peaks": 20,
    "agree": 45,
    "loop": 12,
    "run": 120,
    "parts": 50,
    "score": 45,
    "torch": 25,
    "lanes": 100,
    "models": 50,
    "graphs": 55,
}
"""name -> seconds of a section, the most important first; what one leaves goes to the next"""

GRAPHS = {
    "as XLA does by default": None,
    "no command buffers": "--xla_gpu_enable_command_buffer=",
    "with WHILE": "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,WHILE",
}
"""Ways to launch the kernels of a step -> XLA flags."""


def main(argv: list[str] | None = None) -> int:
    """Runs the sections; exit code 1 if none had a result."""
    args = parse(argv)
    command = ["python", "-m", "benchmarks.gpu", *(sys.argv[1:] if argv is None else argv)]
    results: dict[str, Any] = {"machine": machine.describe(command), "smoke": args.cpu_smoke, "sections": {}}
    start, total = time.monotonic(), sum(SECTIONS[name] for name in args.sections)
    for i, name in enumerate(args.sections):
        later = sum(SECTIONS[following] for following in args.sections[i + 1 :])
        limit = args.minutes * 60 * (1 - later / total) - (time.monotonic() - start)
        results["sections"][name] = run_section(name, limit, args) if limit > 5 else {"failed": "no time was left"}
        results["machine"] |= results["sections"].get("peaks", {}).get("device", {})
        print(f"{name}: {json.dumps(results['sections'][name])[:2000]}", flush=True)
        machine.write(args.out, results)
    results["machine"] = machine.add_final_load(results["machine"])
    machine.write(args.out, results)
    print(f"{time.monotonic() - start:.0f} s; {args.out}")
    return 0 if any("failed" not in s for s in results["sections"].values()) else 1


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.7, help="wall time of the whole command")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--cpu-smoke", action="store_true")
    parser.add_argument("--cache-dir", type=Path, default=Path.home() / ".cache" / "fedvg_jax" / "xla")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), metavar="FILE.json")
    return parser.parse_args(argv)


def run_section(name: str, limit: float, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the results of a section; "graphs" runs one process for each of `GRAPHS`.

    Args:
        name: of the section.
        limit: seconds.
        args: the command line.
    """
    if name != "graphs":
        return run_process(name, limit, args, os.environ.get("XLA_FLAGS", ""))
    share = limit / len(GRAPHS)
    ways = {way: run_process(name, share, args, _add_flags(flags, args)) for way, flags in GRAPHS.items()}
    return ways | ({"failed": "every way did"} if all("failed" in result for result in ways.values()) else {})


def run_process(name: str, limit: float, args: argparse.Namespace, flags: str) -> dict[str, Any]:
    """Runs a section's process; returns the last result it printed, because each line extends the earlier ones."""
    command = [sys.executable, "-m", "benchmarks.gpu_sections", name, "--seconds", f"{limit:.0f}"]
    command += ["--cpu-smoke"] * args.cpu_smoke
    environment = os.environ | {
        "XLA_FLAGS": flags,
        "JAX_COMPILATION_CACHE_DIR": str(args.cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]),
    }
    environment |= {"JAX_PLATFORMS": "cpu"} if args.cpu_smoke else {}
    start = time.monotonic()
    process = subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        output, errors, stopped = *process.communicate(timeout=limit), False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
        output, errors, stopped = *process.communicate(), True
    printed = [line for line in output.splitlines() if line.startswith("{") and line.endswith("}")]
    result = json.loads(printed[-1]) if printed else {}
    if stopped:
        result["stopped"] = f"after {limit:.0f} s"
    if process.returncode and not stopped:
        result["error"] = (errors.strip().splitlines() or ["no error message"])[-1][:500]
    if not printed:
        result["failed"] = result.get("error") or result.get("stopped") or "no result"
    return result | {"wall_seconds": round(time.monotonic() - start, 1)}


def _add_flags(flags: str | None, args: argparse.Namespace) -> str:
    """Returns XLA_FLAGS with these GPU flags added, except on a CPU."""
    extra = "" if args.cpu_smoke else flags or ""
    return " ".join(filter(None, [os.environ.get("XLA_FLAGS", ""), extra]))


if __name__ == "__main__":
    sys.exit(main())
