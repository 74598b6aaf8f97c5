"""The process of a section of `benchmarks.gpu.sections`, with its environment and time limit."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from benchmarks import machine

GRAPHS = {"step": None, "step_off": "", "step_while": "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,WHILE"}
"""Section -> `hardware.Choices.launch_graphs` that it measures."""


def run_section(name: str, limit: float, args: argparse.Namespace, chosen: dict[str, Any]) -> dict[str, Any]:
    """Runs a section's process; returns the last result it printed, because each line extends the earlier ones.

    Args:
        name: of the section.
        limit: seconds.
        args: the command line.
        chosen: fields of `hardware.Choices`.
    """
    command = [sys.executable, "-m", "benchmarks.gpu.sections", name, "--seconds", f"{limit:.0f}"]
    command += ["--chosen", json.dumps(chosen), *["--cpu-smoke"] * args.cpu_smoke]
    environment = environment_of(args)
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


def environment_of(args: argparse.Namespace) -> dict[str, str]:
    """Returns the environment of a process that uses the GPU, or the CPU in a smoke test."""
    root = str(machine.ROOT)
    return {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(args.cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
        **({"JAX_PLATFORMS": "cpu"} if args.cpu_smoke else {}),
    }
