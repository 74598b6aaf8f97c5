"""Kills real runs at random instants, resumes them until they end, and compares them with an undisturbed run."""

from __future__ import annotations

import itertools
import json
import random
import signal
import time
from collections import Counter
from pathlib import Path

from benchmarks.faults.processes import start, waited
from fedvg_jax.runs import checkpoint, history, seals

RUN = "--clients 8 --alpha 5 --algorithm scaffold --weighting samples --local-epochs 1 --eval-every 10"
RUN += " --checkpoint-every 3 --resume auto"


def kills(folder: Path, count: int, rounds: int, rng: random.Random, workers: int = 4) -> Counter:
    """Returns counts of kills. A chain of processes works on one folder; each is killed at a random instant until one
    ends: one in five at any instant of its life, the others during the rounds."""
    cache, undisturbed, warm = (folder / name for name in ("cache", "undisturbed", "warm"))
    assert simulated(undisturbed, cache, rounds) == 0, "the undisturbed run fails"
    start_time = time.monotonic()
    assert simulated(warm, cache, rounds) == 0
    life, expected = time.monotonic() - start_time, outcome(undisturbed, rounds)
    working = json.loads((warm / "summary.json").read_text())["run_seconds"]
    counts = Counter(survived=int(outcome(warm, rounds) == expected))  # equal in every process
    counts["lost"] = 1 - counts["survived"]

    def chains(own: Path, rng: random.Random) -> int:
        own.mkdir()
        chain_counts = chain(own, cache, rounds, rng, -(-count // workers), (life, working), expected)
        (own / "counts.json").write_text(json.dumps(chain_counts))
        return 0

    owns = [folder / f"worker-{i}" for i in range(workers)]
    seeds = [rng.random() for _ in owns]
    started = [start(lambda own=o, seed=s: chains(own, random.Random(seed))) for o, s in zip(owns, seeds, strict=True)]
    for child, own in zip(started, owns, strict=True):
        assert waited(child) == 0, f"{own} failed"
        counts += Counter(json.loads((own / "counts.json").read_text()))
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
    """Returns the counts of as many chains as it takes to kill `count` processes.

    Every kill counts as survived if its chain ends with the expected outcome.

    Args:
        seconds: of a process's life, and of its rounds.
        expected: outcome of the undisturbed run.
    """
    counts, (life, working) = Counter(), seconds
    for number in itertools.count():
        out, killed, code = folder / f"chain-{number}", 0, -signal.SIGKILL
        while code == -signal.SIGKILL and counts["killed"] < count:
            sizes, anytime = size(out), rng.random() < 0.2
            delay = rng.uniform(0.1, 1) * life if anytime else rng.uniform(0, 0.5) * working
            begins = (lambda: True) if anytime else lambda out=out, sizes=sizes: size(out) not in (0, sizes)
            code = simulated(out, cache, rounds, delay, begins)
            if code == -signal.SIGKILL:
                killed += 1
                counts.update(["killed", where(out, anytime)])
        if code == -signal.SIGKILL:  # enough kills: this run may end
            code = simulated(out, cache, rounds)
        is_right = code == 0 and outcome(out, rounds) == expected
        counts.update({"survived" if is_right else "lost": max(killed, 1)})
        if counts["killed"] >= count:
            return counts


def size(out: Path) -> int:
    """Returns the bytes of the history so far."""
    return (out / "history.jsonl").stat().st_size if (out / "history.jsonl").exists() else 0


def simulated(out: Path, cache: Path, rounds: int, seconds: float = float("inf"), begins=lambda: True) -> int:
    """Returns the exit code of the command line in a separate process, killed `seconds` after `begins` is true."""
    from fedvg_jax import sim

    args = [*RUN.split(), "--rounds", str(rounds), "--cache-dir", str(cache), "--out", str(out)]
    return waited(start(lambda: sim.main(args)), seconds, begins)


def where(out: Path, anytime: bool) -> str:
    """Returns words for the instant of a kill."""
    if anytime:
        return "killed at any instant"
    return "killed in its rounds, after a checkpoint" if seals.newest_round(out) else "killed in its rounds, before any"


def outcome(out: Path, rounds: int) -> tuple:
    """Returns the history without times, and the CRC-32 of all leaves of the final state and the best model."""
    records = [{k: v for k, v in r.items() if k != "seconds"} for r in history.read(out)]
    seal = json.loads((out / "checkpoints" / checkpoint.folder_name(rounds) / checkpoint.SEAL).read_text())
    return records, seal["leaves"], seal["best"]
