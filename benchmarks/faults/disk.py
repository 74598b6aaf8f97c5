"""One checkpoint over another, on a disk that fails at its nth operation."""

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

from benchmarks.faults.processes import forked
from fedvg_jax.runs import checkpoint

SOURCE = Path(__file__).with_name("faulty_disk.c")
COUNT, KILL, TEAR, FULL = range(4)


def is_loaded() -> bool:
    """Whether this process began with the library of faulty_disk.c."""
    return "faulty_disk" in os.environ.get("LD_PRELOAD", "")


def compile_disk() -> Path | None:
    """The shared library of faulty_disk.c, where there is a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        return None
    built = Path(tempfile.mkdtemp(prefix="faulty-disk-")) / "faulty_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", built, SOURCE, "-ldl"], check=True)
    return built


def crashes(folder: Path, modes: tuple[int, ...], most: int = 10_000) -> Counter:
    """Round 2 is saved over round 1, and `keep` is 1; a process for every operation and mode."""
    counts = Counter()
    if not is_loaded():
        return Counter(skipped=1)
    disk = ctypes.CDLL(os.environ["LD_PRELOAD"])
    for mode in modes:
        for nth in range(1, most + 1):
            run = folder / f"{mode}-{nth}"
            run.mkdir()
            checked = forked(lambda run=run, mode=mode, nth=nth: save_twice(disk, run, mode, nth))
            counts[judged_crash(run, mode, checked)] += 1
            counts["died" if checked < 0 else "full" if checked == 3 else "to the end"] += 1
            shutil.rmtree(run)
            if checked == 0:  # there is no nth operation
                break
    return counts


def save_twice(disk, run: Path, mode: int, nth: int) -> int:
    checkpoint.save(run, 1, arrays(1), {}, keep=1)
    disk.arm(f"{run}/".encode(), mode, nth)
    try:
        checkpoint.save(run, 2, arrays(2), {}, keep=1)
    except OSError:
        return 3
    return 0


def judged_crash(run: Path, mode: int, code: int) -> str:
    """Exit code 0 promises round 2; anything else round 1 or 2. Judged by a process of its own."""

    def judge() -> int:
        found = checkpoint.restore(run, lambda about: arrays(0), lambda about: "", lambda line: None)
        return 9 if found is None else about_right(found, least=2 if code == 0 else 1)

    expected = {0, -signal.SIGKILL} | ({3} if mode == FULL else set())
    return "survived" if code in expected and forked(judge) == 0 else "lost"


def about_right(found, least: int) -> int:
    state, about = found
    number = about["round"]
    same = all(np.array_equal(a, b) for a, b in zip(state.values(), arrays(number).values(), strict=True))
    return 0 if same and number >= least else 8


def arrays(number: int) -> dict[str, np.ndarray]:
    """Of a round; small, large, and of one entry."""
    rng = np.random.default_rng(number)
    big = rng.normal(size=(64, 300)).astype(np.float32)
    return {"bias": rng.normal(size=3), "kernel": big, "round": np.array(number, np.int32)}
