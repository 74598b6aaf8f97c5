"""What a results file says of the machine it was measured on, and the peaks that speeds are fractions of.

python -m benchmarks.machine
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PACKAGES = ("fedvg_jax", "jax", "jaxlib", "flax", "optax", "numpy", "torch", "pfl")
SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS")
"""Environment variables that change a timing."""

BUSY = 0.1
"""Share of the cores that others may use before a machine counts as busy."""

_SGEMM = """
import os, sys, time
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
if hasattr(os, "sched_setaffinity"): os.sched_setaffinity(0, {int(sys.argv[1])})
import numpy as np
n = int(sys.argv[2])
a, b = (np.random.default_rng(i).random((n, n), np.float32) for i in range(2))
a @ b
print("ready", flush=True); sys.stdin.readline()
times = []
for _ in range(9):
    begun = time.perf_counter(); a @ b; times.append(time.perf_counter() - begun)
print(2e-9 * n**3 / sorted(times)[4], flush=True)
"""


def describe(command: Sequence[str] | None = None) -> dict[str, Any]:
    """Everything but the peaks; `others` is what else ran in the second before."""
    others = others_share()
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "affinity": affinity(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := version_of(name))},
        "environment": {name: os.environ[name] for name in SETTINGS if name in os.environ},
        "load_before": load(),
        "others_before": others,
        "busy": others is not None and others > BUSY,
        "commit": commit(),
        "command": " ".join(map(portable, command or ["python", *sys.argv])),
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def portable(argument: str) -> str:
    """A word of a command without this machine's folders: an absolute path is relative to here, or only its name.

    >>> portable("--repeats"), portable("/home/me/data"), portable(str(Path.cwd() / "results" / "a.json"))
    ('--repeats', '.../data', 'results/a.json')
    """
    path = Path(argument)
    if not path.is_absolute():
        return argument
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else f".../{path.name}"


def finished(machine: dict[str, Any]) -> dict[str, Any]:
    """`describe()` with the load at the end; busy if others used the cores before or after."""
    others = others_share()
    busy = machine["busy"] or (others is not None and others > BUSY)
    return machine | {"load_after": load(), "others_after": others, "busy": busy}


def slug(machine: dict[str, Any]) -> str:
    """A name for the results file of a machine: its accelerator, or its processor with the number of cores."""
    name = machine.get("accelerator") or f"{machine['processor']} {machine['cores']} cores"
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", name.lower())).strip("-")


def processor() -> str:
    """As the kernel names it."""
    with contextlib.suppress(OSError):
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def affinity() -> list[int]:
    """Cores this process may run on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def version_of(name: str) -> str | None:
    """Of an installed package."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def load() -> list[float] | None:
    """Mean load of 1, 5 and 15 minutes; our own work included."""
    return [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else None


def others_share(seconds: float = 1.0) -> float | None:
    """Share of all cores in use while we sleep: what others do. None where the kernel does not say."""
    before = _ticks()
    if before is None:
        return None
    time.sleep(seconds)
    busy, total = (b - a for a, b in zip(before, _ticks(), strict=True))
    return round(busy / max(total, 1), 3)


def _ticks() -> tuple[int, int] | None:
    """(not idle, all) since boot, summed over cores."""
    try:
        first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    except OSError:
        return None
    ticks = [int(x) for x in first.split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def commit() -> str:
    """Of the working tree, with a + where it has changes."""

    def git(*args: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(["git", *args], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def sgemm(size: int = 1536) -> dict[str, float]:
    """GF/s of float32 matrix products, the median of nine: on one core, and with a pinned process on every core."""
    return {"one core": round(_sgemm(affinity()[:1], size), 1), "all cores": round(_sgemm(affinity(), size), 1)}


def _sgemm(cores: Sequence[int], size: int) -> float:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([sys.executable, "-c", _SGEMM, str(core), str(size)], **pipes) for core in cores]
    for process in started:
        process.stdout.readline()
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    return sum(float(process.communicate()[0]) for process in started)


def accelerator_peaks(size: int = 8192, repeats: int = 20) -> dict[str, float]:
    """TF/s of one matrix product on the default device, by precision."""
    import jax
    import jax.numpy as jnp

    def rate(dtype, precision: str) -> float:
        a = jax.random.normal(jax.random.key(0), (size, size), dtype)
        product = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision))
        return 2e-12 * size**3 / median_seconds(lambda: jax.block_until_ready(product(a, a)), repeats)

    return {
        "float32": round(rate(jnp.float32, "highest"), 2),
        "tensorfloat32": round(rate(jnp.float32, "tensorfloat32"), 2),
        "bfloat16": round(rate(jnp.bfloat16, "default"), 2),
    }


def median_seconds(f: Callable[[], Any], repeats: int) -> float:
    """Of `repeats` calls after one that is not counted; `f` waits for its own result."""
    f()
    return spread([timed(f) for _ in range(repeats)])["median"]


def timed(f: Callable[[], Any]) -> float:
    """Seconds of one call."""
    begun = time.perf_counter()
    f()
    return time.perf_counter() - begun


def spread(seconds: Sequence[float]) -> dict[str, Any]:
    """Median with range.

    >>> spread([3.0, 1.0, 2.0])
    {'median': 2.0, 'min': 1.0, 'max': 3.0, 'repeats': 3}
    """
    ordered = sorted(seconds)
    half = len(ordered) // 2
    median = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    return {"median": median, "min": ordered[0], "max": ordered[-1], "repeats": len(ordered)}


def write(path: Path, results: dict[str, Any]) -> None:
    """Results as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


if __name__ == "__main__":
    print(json.dumps(describe() | {"sgemm GF/s": sgemm()}, indent=1))
