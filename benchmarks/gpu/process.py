"""The process of a section of `benchmarks.gpu.sections`, with its environment and time limit."""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks import machine

GRAPHS = {
    "step": None,
    "step_off": "",
    "step_while": "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,WHILE",
}
"""Section -> `hardware.Choices.launch_graphs` that it measures."""


def run_section(
    name: str, limit: float, args: argparse.Namespace, chosen: dict[str, Any]
) -> dict[str, Any]:
    """Runs a section's process; returns its last result, because each extends the earlier ones.

    Args:
        name: of the section.
        limit: seconds.
        args: the command line.
        chosen: fields of `hardware.Choices`.
    """
    start, words = time.monotonic(), (name, limit, args.cpu_smoke, chosen)
    environment = environment_of(args)
    outcome = machine.call(
        "benchmarks.gpu.sections", "measure", *words, environment=environment, limit=limit
    )
    result = outcome.results[-1] if outcome.results else {}
    if outcome.code is None:
        result["stopped"] = f"after {limit:.0f} s"
    elif outcome.code:
        result["error"] = machine.last_line(outcome.errors)
    if not outcome.results:
        result["failed"] = result.get("error") or result.get("stopped") or "no result"
    return result | {"wall_seconds": round(time.monotonic() - start, 1)}


def environment_of(args: argparse.Namespace) -> dict[str, str]:
    """Returns the environment of a process that uses the GPU, or the CPU in a smoke test."""
    return machine.environment(
        JAX_COMPILATION_CACHE_DIR=str(args.cache_dir),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        XLA_PYTHON_CLIENT_PREALLOCATE="false",
        **({"JAX_PLATFORMS": "cpu"} if args.cpu_smoke else {}),
    )
