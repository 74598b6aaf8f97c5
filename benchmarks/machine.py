"""Describes the machine for results files, and measures its peak speed; helpers of all benchmarks.

python -m benchmarks.machine

Prints a JSON object with the processor, cores, memory, package versions, load, and the speed of float32 matrix
products. docs/performance.md reports speeds as fractions of it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"

PACKAGES = ("fedvg_jax", "jax", "jaxlib", "flax", "optax", "numpy", "torch")
SETTINGS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "XLA_FLAGS",
    "JAX_NUM_CPU_DEVICES",
    "JAX_PLATFORMS",
)
"""Environment variables that change timings."""

BUSY = 0.1
"""Share of the cores that other programs may use before a machine counts as busy."""

_SGEMM = """
import os, sys, time
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
os.sched_setaffinity(0, {int(sys.argv[1])})
import numpy as np
n = int(sys.argv[2])
a, b = (np.random.default_rng(i).random((n, n), np.float32) for i in range(2))
a @ b
print("ready", flush=True); sys.stdin.readline()
times = []
for _ in range(9):
    start = time.perf_counter(); a @ b; times.append(time.perf_counter() - start)
print(2e-9 * n**3 / sorted(times)[4], flush=True)
"""


def describe(command: Sequence[str] | None = None) -> dict[str, Any]:
    """Returns what results files record of the machine and the command, except the peaks.

    Waits a second to measure `others_before`, the share of all cores that other programs use.
    """
    others = other_load()
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "affinity": affinity(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := version_of(name))},
        "environment": {name: os.environ[name] for name in SETTINGS if name in os.environ},
        "others_before": others,
        "busy": others > BUSY,
        "commit": commit(),
        "command": " ".join(map(portable, command or ["python", *sys.argv])),
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def parser(doc: str | None, out: str = "") -> argparse.ArgumentParser:
    """Returns a parser that prints a module's docstring as help. It has `--out` if there is a default file `out`."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if out:
        made.add_argument("--out", type=Path, default=RESULTS / out, metavar="FILE.json")
    return made


def begin(module: str, argv: Sequence[str] | None) -> dict[str, Any]:
    """Returns results with the machine and the command: that of a module below `benchmarks` and its arguments."""
    return {
        "machine": describe(
            ["python", "-m", f"benchmarks.{module}", *(sys.argv[1:] if argv is None else argv)]
        )
    }


def finish(path: Path | None, results: dict[str, Any]) -> None:
    """Adds the load at the end to results of `begin`, and writes them."""
    results["machine"] = add_final_load(results["machine"])
    write(path, results)


_CALL = """
import importlib, inspect, json, sys
result = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(*json.loads(sys.argv[3]))
for part in result if inspect.isgenerator(result) else [result]:
    print(json.dumps(part), flush=True)
"""


def environment(**variables: str) -> dict[str, str]:
    """Returns the environment of a process that imports this checkout, with these variables."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path} | variables


class Outcome(NamedTuple):
    """What a process left that called a function."""

    results: list[dict[str, Any]]
    """What the function returned, or all that it has yielded."""
    errors: str
    """The text on standard error."""
    code: int | None
    """Its exit code; None where it was stopped by the time limit."""


def call(
    module: str,
    function: str,
    *args: Any,
    environment: Mapping[str, str] = {},
    limit: float | None = None,
):
    """Returns the `Outcome` of a function of a module that returns or yields dicts, in a new process.

    Arguments and results travel as JSON. After `limit` seconds the process is killed with those that it has started.
    """
    words = [sys.executable, "-c", _CALL, module, function, json.dumps(args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | environment
    process = subprocess.Popen(words, cwd=ROOT, env=environment, start_new_session=True, **pipes)
    try:
        output, errors = process.communicate(timeout=limit)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        code = None
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    lines = (line for line in output.splitlines() if line.startswith("{"))
    return Outcome([json.loads(line) for line in lines], errors, code)


def in_process(
    function: Callable[..., Any], *args: Any, environment: Mapping[str, str] = {}
) -> dict[str, Any]:
    """Returns what a function of a module returns for these arguments in a new process, see `call`.

    Raises:
        SystemExit: the process failed, with the last line of its standard error.
    """
    module = function.__module__
    module = sys.modules[module].__spec__.name if module == "__main__" else module  # pyright: ignore
    outcome = call(module, function.__qualname__, *args, environment=environment)
    sys.stderr.write(outcome.errors)
    if outcome.code:
        raise SystemExit(f"{module}.{function.__qualname__}{args}: {last_line(outcome.errors)}")
    return outcome.results[-1]


def last_line(errors: str) -> str:
    """Returns the last line of what a process wrote to standard error."""
    return (errors.strip().splitlines() or ["no error message"])[-1][:500]


def portable(argument: str) -> str:
    """Returns an argument of a command without this machine's folders.

    An absolute path becomes relative to the working directory, or only its name if it lies elsewhere.

    >>> portable("--repeats"), portable("/home/me/data"), portable(str(Path.cwd() / "results" / "a.json"))
    ('--repeats', '.../data', 'results/a.json')
    """
    path = Path(argument)
    if not path.is_absolute():
        return argument
    return (
        str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else f".../{path.name}"
    )


def add_final_load(machine: dict[str, Any]) -> dict[str, Any]:
    """Returns a description with the load at the end; busy if other programs used the cores before or after.

    Args:
        machine: of `describe`, at the start.
    """
    others = other_load()
    busy = machine["busy"] or others > BUSY
    return machine | {"others_after": others, "busy": busy}


def slug(machine: dict[str, Any]) -> str:
    """Returns the name of a machine's results file: its accelerator, or its processor with the number of cores."""
    name = machine.get("accelerator") or f"{machine['processor']} {machine['cores']} cores"
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", name.lower())).strip("-")


def processor() -> str:
    """Returns the name of the processor."""
    match = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return match[1].strip() if match else platform.machine()


def affinity() -> list[int]:
    """Returns the cores this process may run on."""
    return sorted(os.sched_getaffinity(0))


def version_of(name: str) -> str | None:
    """Returns the version of a package; None if it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def other_load(seconds: float = 1.0) -> float:
    """Returns the share of all cores that other programs use, measured while this process sleeps."""
    busy_before, total_before = _ticks()
    time.sleep(seconds)
    busy, total = _ticks()
    return round((busy - busy_before) / max(total - total_before, 1), 3)


def _ticks() -> tuple[int, int]:
    """Returns (busy, all) clock ticks since boot, summed over cores."""
    first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    ticks = [int(x) for x in first.split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def commit() -> str:
    """Returns the commit of the working tree, followed by + if it has uncommitted changes."""

    def git(*args: str) -> str:
        folder = Path(__file__).parent
        return subprocess.run(
            ["git", *args], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + (
            "+" if git("status", "--porcelain", "-uno") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def sgemm(size: int = 1536) -> dict[str, float]:
    """Returns GF/s of float32 matrix products, the median of nine: on one core, and of a pinned process per core."""
    return {
        "one core": round(_sgemm(affinity()[:1], size), 1),
        "all cores": round(_sgemm(affinity(), size), 1),
    }


def _sgemm(cores: Sequence[int], size: int) -> float:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen([sys.executable, "-c", _SGEMM, str(core), str(size)], **pipes)
        for core in cores
    ]
    for process in started:
        process.stdout.readline()
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    return sum(float(process.communicate()[0]) for process in started)


def accelerator_peaks(size: int = 8192, repeats: int = 20) -> dict[str, float]:
    """Returns TF/s of a matrix product on the default device, by precision."""
    import jax
    import jax.numpy as jnp

    def rate(dtype, precision: str) -> float:
        a = jax.random.normal(jax.random.key(0), (size, size), dtype)
        product = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision))
        return (
            2e-12 * size**3 / median_seconds(lambda: jax.block_until_ready(product(a, a)), repeats)
        )

    return {
        "float32": round(rate(jnp.float32, "highest"), 2),
        "tensorfloat32": round(rate(jnp.float32, "tensorfloat32"), 2),
        "bfloat16": round(rate(jnp.bfloat16, "default"), 2),
    }


def median_seconds(f: Callable[[], Any], repeats: int) -> float:
    """Returns the median of `seconds`."""
    return seconds(f, repeats)["median"]


def seconds(f: Callable[[], Any], repeats: int) -> dict[str, Any]:
    """Returns the seconds of `repeats` calls after a warm-up call, as `spread`; `f` waits for its result."""
    f()
    return spread([time_call(f) for _ in range(repeats)])


def time_call(f: Callable[[], Any]) -> float:
    """Returns the seconds of one call."""
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def spread(seconds: Sequence[float]) -> dict[str, Any]:
    """Returns the median and the range.

    >>> spread([3.0, 1.0, 2.0])
    {'median': 2.0, 'min': 1.0, 'max': 3.0, 'repeats': 3}
    """
    median = statistics.median(seconds)
    return {"median": median, "min": min(seconds), "max": max(seconds), "repeats": len(seconds)}


def spread_by_part(timings: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Returns the median and the range of the seconds of every part, from the seconds of each repeat by part."""
    spreads = {}
    for part in timings[0]:
        spreads[part] = spread([seconds[part] for seconds in timings])
    return spreads


def read(path: Path | None) -> dict[str, Any]:
    """Returns the contents of a results file; {} if there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {}


def write(path: Path | None, results: dict[str, Any]) -> None:
    """Writes results as JSON, atomically, if there is a path."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


if __name__ == "__main__":
    print(json.dumps(describe() | {"sgemm GF/s": sgemm()}, indent=1))
