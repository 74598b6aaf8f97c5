"""Saves one checkpoint after another, on a disk that fails at its nth operation."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks.faults.processes import run_forked
from fedvg_jax.runs.record import checkpoint

SOURCE = Path(__file__).with_name("faulty_disk.c")
COUNT, KILL, TEAR, FULL = range(4)


def is_loaded() -> bool:
    """Returns whether this process was started with the library of faulty_disk.c."""
    return "faulty_disk" in os.environ.get("LD_PRELOAD", "")


def compile_disk() -> Path | None:
    """Compiles faulty_disk.c and returns the shared library; None without a C compiler or outside Linux."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        return None
    built = Path(tempfile.mkdtemp(prefix="faulty-disk-")) / "faulty_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", built, SOURCE, "-ldl"], check=True)
    return built


def crashes(folder: Path, modes: tuple[int, ...], max_operations: int = 10_000) -> Counter:
    """Returns counts of processes that save round 2 after round 1, with `keep` 1: one per operation and mode."""
    counts = Counter()
    if not is_loaded():
        return Counter(skipped=1)
    disk = ctypes.CDLL(os.environ["LD_PRELOAD"])
    for mode in modes:
        for nth in range(1, max_operations + 1):
            run = folder / f"{mode}-{nth}"
            run.mkdir()
            code = run_forked(lambda run=run, mode=mode, nth=nth: save_twice(disk, run, mode, nth))
            counts[restore_after_crash(run, mode, code)] += 1
            counts["died" if code < 0 else "full" if code == 3 else "to the end"] += 1
            shutil.rmtree(run)
            if code == 0:  # there is no nth operation
                break
    return counts


def save_twice(disk, run: Path, mode: int, nth: int) -> int:
    """Saves rounds 1 and 2 on a disk that fails at the nth operation of round 2; returns 3 on an OSError, else 0."""
    checkpoint.save(run, 1, arrays(1), {}, keep=1)
    disk.arm(f"{run}/".encode(), mode, nth)
    try:
        checkpoint.save(run, 2, arrays(2), {}, keep=1)
    except OSError:
        return 3
    return 0


def restore_after_crash(run: Path, mode: int, code: int) -> str:
    """Restores the checkpoint in another process: round 2 after exit code 0, else round 1 or 2."""

    def restore() -> int:
        restored = checkpoint.restore(run, lambda leaves: arrays(0), lambda line: None)
        return 9 if restored is None else compare(restored, min_round=2 if code == 0 else 1)

    expected = {0, -signal.SIGKILL} | ({3} if mode == FULL else set())
    return "survived" if code in expected and run_forked(restore) == 0 else "lost"


def compare(restored, min_round: int) -> int:
    """Returns 0 if a restored checkpoint has the arrays of its round, and is not older than `min_round`; else 8."""
    state, _ = restored
    number = int(state["round"])
    same = all(np.array_equal(a, b) for a, b in zip(state.values(), arrays(number).values(), strict=True))
    return 0 if same and number >= min_round else 8


def arrays(number: int) -> dict[str, np.ndarray]:
    """Returns arrays of a round: a small one, a large one, and a scalar."""
    rng = np.random.default_rng(number)
    big = rng.normal(size=(64, 300)).astype(np.float32)
    return {"bias": rng.normal(size=3), "kernel": big, "round": np.array(number, np.int32)}
