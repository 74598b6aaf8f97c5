"""Kills real runs at random times, resumes them until they end, and compares them with an undisturbed run."""

from __future__ import annotations

import itertools
import json
import random
import signal
import time
from collections import Counter
from pathlib import Path

from benchmarks.faults.processes import start, wait_or_kill
from fedvg_jax.runs.record import digests, history

RUN = "--clients 8 --alpha 5 --algorithm scaffold --weighting samples --local-epochs 1 --eval-every 10"
RUN += " --checkpoint-every 3 --resume auto"


def kills(folder: Path, count: int, rounds: int, rng: random.Random, workers: int = 4) -> Counter:
    """Returns counts of kills.

    A chain is a run that is killed and resumed until it ends. One kill in five is at any time of the process's life,
    the others during its rounds.

    Args:
        folder: scratch folder.
        count: processes to kill.
        rounds: of a run.
        rng: source of the times.
        workers: chains at the same time.
    """
    cache, undisturbed, warm = (folder / name for name in ("cache", "undisturbed", "warm"))
    assert simulate(undisturbed, cache, rounds) == 0, "the undisturbed run failed"
    start_time = time.monotonic()
    assert simulate(warm, cache, rounds) == 0
    lifetime, expected = time.monotonic() - start_time, outcome(undisturbed, rounds)
    run_seconds = json.loads((warm / "summary.json").read_text())["run_seconds"]
    counts = Counter(survived=int(outcome(warm, rounds) == expected))  # equal in every process
    counts["lost"] = 1 - counts["survived"]

    def run_chains(worker: Path, rng: random.Random) -> int:
        worker.mkdir()
        chain_counts = chain(worker, cache, rounds, rng, -(-count // workers), (lifetime, run_seconds), expected)
        (worker / "counts.json").write_text(json.dumps(chain_counts))
        return 0

    children = {}
    for number in range(workers):
        worker, seed = folder / f"worker-{number}", rng.random()
        children[worker] = start(lambda worker=worker, seed=seed: run_chains(worker, random.Random(seed)))
    for worker, child in children.items():
        assert wait_or_kill(child) == 0, f"{worker} failed"
        counts += Counter(json.loads((worker / "counts.json").read_text()))
    return counts


def chain(
    folder: Path,
    cache: Path,
    rounds: int,
    rng: random.Random,
    count: int,
    seconds: tuple[float, float],
    expected: tuple,
) -> Counter:
    """Returns the counts of chains with `count` kills in total.

    Every kill counts as survived if its chain ends with the expected outcome.

    Args:
        folder: for run folders.
        cache: cache folder.
        rounds: of a run.
        rng: source of the times.
        count: processes to kill.
        seconds: lifetime of an undisturbed process, and the part of it in its rounds.
        expected: outcome of the undisturbed run.
    """
    counts, (lifetime, run_seconds) = Counter(), seconds
    for number in itertools.count():
        out, killed, code = folder / f"chain-{number}", 0, -signal.SIGKILL
        while code == -signal.SIGKILL and counts["killed"] < count:
            size, anytime = history_bytes(out), rng.random() < 0.2
            delay = rng.uniform(0.1, 1) * lifetime if anytime else rng.uniform(0, 0.5) * run_seconds
            begins = (lambda: True) if anytime else lambda out=out, size=size: history_bytes(out) not in (0, size)
            code = simulate(out, cache, rounds, delay, begins)
            if code == -signal.SIGKILL:
                killed += 1
                counts.update(["killed", describe_kill(out, anytime)])
        if code == -signal.SIGKILL:  # the last chain ends without a further kill
            code = simulate(out, cache, rounds)
        is_right = code == 0 and outcome(out, rounds) == expected
        counts.update({"survived" if is_right else "lost": max(killed, 1)})
        if counts["killed"] >= count:
            return counts


def history_bytes(out: Path) -> int:
    """Returns the size of a run's history, 0 without one."""
    return (out / "history.jsonl").stat().st_size if (out / "history.jsonl").exists() else 0


def simulate(out: Path, cache: Path, rounds: int, seconds: float = float("inf"), begins=lambda: True) -> int:
    """Runs the simulator in a forked process, killed `seconds` after `begins` is true; returns its exit code."""
    from fedvg_jax import sim

    args = [*RUN.split(), "--rounds", str(rounds), "--cache-dir", str(cache), "--out", str(out)]
    return wait_or_kill(start(lambda: sim.main(args)), seconds, begins)


def describe_kill(out: Path, anytime: bool) -> str:
    """Returns a description of the time of a kill."""
    if anytime:
        return "killed at any instant"
    return (
        "killed in its rounds, after a checkpoint" if digests.newest_round(out) else "killed in its rounds, before any"
    )


def outcome(out: Path, rounds: int) -> tuple:
    """Returns the history without seconds, and the CRC-32 of all leaves of the final state and the best model."""
    records = [{k: v for k, v in r.items() if k != "seconds"} for r in history.read(out)]
    leaves = digests.read(digests.checkpoint_folder(out, rounds)).leaves
    return records, {name: digest for name, digest in leaves.items() if name != "seconds"}
