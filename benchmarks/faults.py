"""`python -m benchmarks.faults`: everything that can befall a run folder, done to one, and what is left counted.

    crash       kill -9 before, and in the middle of, every write, rename, fsync, open, mkdir and unlink of a checkpoint
    full disk   the same operations, none of which works from the nth on
    kill -9     real runs, killed at random instants and told to go on until they end; against a run left alone
    caches      random bytes of decoded data and partitions flipped, zeroed or cut; compiled programs cut
    damage      the same done to any file of a run folder

Survived: what is restored is, bit for bit, a state the run had, the newest that could be, or the refusal is one line.
Lost: anything else. The first two need a C compiler. Result of the last whole campaign: benchmarks/results/faults.json.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import importlib
import io
import itertools
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from fedvg_jax import checkpoint, config, files, history, provenance, resume
from fedvg_jax.types import SimState, UsageError, Variables

HERE = Path(__file__).parent
COUNT, KILL, TEAR, FULL = range(4)
RUN = "--clients 8 --alpha 5 --algorithm scaffold --weighting samples --local-epochs 1 --eval-every 10"
RUN += " --checkpoint-every 3 --resume auto"

Counts = Counter
"""of "survived", "lost", and of how it went"""


def main() -> int:
    """Exit code 0 where nothing was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60, help="runs killed")
    parser.add_argument("--trials", type=int, default=500, help="damaged folders, and damaged caches")
    parser.add_argument("--rounds", type=int, default=60, help="of the runs that are killed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "faults.json")
    options = parser.parse_args()
    if "LD_PRELOAD" not in os.environ and (disk := compile_disk()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"LD_PRELOAD": str(disk)})
    for name in ("fedvg_jax.loop", "fedvg_jax.display", "orbax.checkpoint", "sklearn.datasets", "tyro"):
        importlib.import_module(name)  # once, so that every fork is fast
    warnings.simplefilter("ignore")  # jax's of forks; its threads begin in the children
    rng, begun, found = random.Random(options.seed), time.monotonic(), {}
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        for name, campaign in {
            "crash": lambda folder: crashes(folder, (KILL, TEAR)),
            "full disk": lambda folder: crashes(folder, (FULL,)),
            "kill -9": lambda folder: kills(folder, options.kills, options.rounds, rng),
            "caches": lambda folder: caches(folder, options.trials, rng),
            "damage": lambda folder: damage(folder, options.trials, rng),  # the last: its threads bear no fork
        }.items():
            folder = Path(scratch, name.replace(" ", "-")).resolve()
            folder.mkdir()
            found[name] = campaign(folder)
            print(f"{name}: {dict(found[name])}", flush=True)
    show(found)
    report(options, found, time.monotonic() - begun)
    return int(any(counts["lost"] for counts in found.values()))


# --- one checkpoint, and a disk that fails at its nth operation


def compile_disk() -> Path | None:
    """The shared library of faulty_disk.c, where there is a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        return None
    built = Path(tempfile.mkdtemp(prefix="faulty-disk-")) / "faulty_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", built, HERE / "faulty_disk.c", "-ldl"], check=True)
    return built


def crashes(folder: Path, modes: tuple[int, ...], most: int = 10_000) -> Counts:
    """Round 2 is saved over round 1, and `keep` is 1; a process for every operation and mode."""
    counts = Counts()
    if "LD_PRELOAD" not in os.environ:
        return Counts(skipped=1)
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


def forked(work: Callable[[], int]) -> int:
    """The exit code of `work` in a process of its own, or minus the signal it died of."""
    return waited(start(work))


def start(work: Callable[[], int]) -> int:
    """The number of a process that does `work` and nothing else."""
    child = os.fork()
    if not child:
        code = 7
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            code = work()
        finally:
            os._exit(code)
    return child


def waited(child: int, seconds: float = float("inf"), begins: Callable[[], bool] = lambda: True) -> int:
    """The exit code of a process, killed so many seconds after something begins."""
    begun = None
    while begun is None or time.monotonic() - begun < seconds:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if begun is None and begins():
            begun = time.monotonic()
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# --- real runs, killed


def kills(folder: Path, count: int, rounds: int, rng: random.Random, workers: int = 4) -> Counts:
    """Chains of processes in one folder, each killed at a random instant, until one ends: one in five at any instant
    of its life, the others while rounds are on."""
    cache, alone, warm = (folder / name for name in ("cache", "alone", "warm"))
    assert simulated(alone, cache, rounds) == 0, "the run that is left alone does not end"
    begun = time.monotonic()
    assert simulated(warm, cache, rounds) == 0
    life, known = time.monotonic() - begun, outcome(alone, rounds)
    working = json.loads((warm / "summary.json").read_text())["run_seconds"]
    counts = Counts(survived=int(outcome(warm, rounds) == known))  # the same bits in any process
    counts["lost"] = 1 - counts["survived"]

    def chains(own: Path, rng: random.Random) -> int:
        own.mkdir()
        found = chain(own, cache, rounds, rng, -(-count // workers), (life, working), known)
        (own / "found.json").write_text(json.dumps(found))
        return 0

    owns = [folder / f"worker-{i}" for i in range(workers)]
    seeds = [rng.random() for _ in owns]
    started = [start(lambda own=o, seed=s: chains(own, random.Random(seed))) for o, s in zip(owns, seeds, strict=True)]
    for child, own in zip(started, owns, strict=True):
        assert waited(child) == 0, f"{own} failed"
        counts += Counts(json.loads((own / "found.json").read_text()))
    return counts


def chain(
    folder: Path, cache: Path, rounds: int, rng: random.Random, count: int, seconds: tuple[float, float], known: tuple
) -> Counts:
    """As many chains as it takes to kill `count` processes; every kill counts as survived where its chain ends well.

    Args:
        seconds: of a process's life, and of the rounds in it.
    """
    counts, (life, working) = Counts(), seconds
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
        if code == -signal.SIGKILL:  # enough of them: this one may end
            code = simulated(out, cache, rounds)
        right = code == 0 and outcome(out, rounds) == known
        counts.update({"survived" if right else "lost": max(killed, 1)})
        if counts["killed"] >= count:
            return counts


def size(out: Path) -> int:
    """Bytes of the history so far."""
    return (out / "history.jsonl").stat().st_size if (out / "history.jsonl").exists() else 0


def simulated(out: Path, cache: Path, rounds: int, seconds: float = float("inf"), begins=lambda: True) -> int:
    """The exit code of the command line in a process of its own, killed after so many seconds."""
    from fedvg_jax import sim

    args = [*RUN.split(), "--rounds", str(rounds), "--cache-dir", str(cache), "--out", str(out)]
    return waited(start(lambda: sim.main(args)), seconds, begins)


def where(out: Path, anytime: bool) -> str:
    if anytime:
        return "killed at any instant"
    return "killed in its rounds, a checkpoint there" if checkpoint.newest(out) else "killed in its rounds, none yet"


def outcome(out: Path, rounds: int) -> tuple:
    """History but for times; CRC-32 of all leaves of the last state and of the best model."""
    records = [{k: v for k, v in r.items() if k != "seconds"} for r in history.read(out)]
    seal = json.loads((out / "checkpoints" / checkpoint.name(rounds) / checkpoint.SEAL).read_text())
    return records, seal["leaves"], seal["best"]


# --- damage to a folder


def damage(folder: Path, trials: int, rng: random.Random) -> Counts:
    """A folder of six rounds and their checkpoints; in every trial one to three of its files are damaged."""
    import jax.numpy as jnp

    counts, state = Counts(), SimState(jnp.int32(0), Variables({"w": jnp.zeros(300)}, {}), {"m": jnp.zeros(3)}, ())
    run = folder / "run"
    settings = config.Config(out=run, rounds=9, checkpoint_every=1, keep=3)
    truth = record(settings, state)
    for trial in range(trials):
        copy = folder / f"trial-{trial}"
        shutil.copytree(run, copy)
        victims = sorted(path for path in copy.rglob("*") if path.is_file() and path.name != files.LOCK)
        kinds = {spoil(rng.choice(victims), rng) for _ in range(rng.randint(1, 3))}
        went, how = judged_damage(copy, state, truth)
        counts.update([went, how, *kinds])
        shutil.rmtree(copy)
    return counts


@contextlib.contextmanager
def opened(settings: config.Config, state: SimState, told: list[str]) -> Iterator:
    from fedvg_jax import recording

    with recording.opened(settings, state, [], lambda: {"data": "d", "partition": "p"}, told.append) as recorder:
        yield recorder


def record(settings: config.Config, state: SimState) -> list[tuple[SimState, dict]]:
    """Six rounds, as the loop would have them written; the state and the record of each."""
    import jax

    truth = []
    with opened(settings, state, []) as recorder:
        for number in range(1, 7):
            state = jax.tree.map(lambda x, n=number: x + n, state)._replace(round=state.round + 1)
            truth.append((state, {"round": number, "val_accuracy": 1 / number}))
            recorder.add([truth[-1][1]])
            recorder.checkpoint(state, truth[-1][1], (0.0, float(number)))
            recorder.settle()
    return truth


def judged_damage(run: Path, template: SimState, truth: list) -> tuple[str, str]:
    import jax

    told: list[str] = []
    try:
        settings = resume.resolve(dataclasses.replace(resume.stored(run), out=run, resume=str(run)))
        with opened(settings, template, told) as recorder:
            start = recorder.start
    except UsageError as error:
        return ("survived" if "\n" not in str(error) else "lost"), "refused in one line"
    except Exception as error:
        return "lost", f"{type(error).__name__}: {error}"
    done = len(start.records)
    known = truth[done - 1][0] if done else template
    same = all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (start.state, known)), strict=True))
    same = same and start.records == [line for _, line in truth[:done]] and all("\n" not in line for line in told)
    silent = done < len(truth) and not told
    return ("survived" if same and not silent else "lost"), f"went on from round {done}"


def spoil(path: Path, rng: random.Random) -> str:
    """Damages a file at a random offset; returns how."""
    if not path.exists():
        return "gone"
    good = path.read_bytes()
    at, kind = rng.randrange(len(good) + 1), rng.choice(["bit flipped", "byte changed", "block zeroed", "cut", "gone"])
    bad = bytearray(good)
    if kind == "gone":
        path.unlink()
        return kind
    if kind == "cut":
        bad = bad[:at]
    elif at < len(bad):
        bad[at] = {"bit flipped": bad[at] ^ 1 << rng.randrange(8), "byte changed": rng.randrange(256)}.get(kind, 0)
        if kind == "block zeroed":
            bad[at : at + 512] = bytes(len(bad[at : at + 512]))
    path.write_bytes(bad)
    return kind


# --- damage to the caches


def caches(folder: Path, trials: int, rng: random.Random) -> Counts:
    """Decoded data and a partition, damaged and asked for again; then compiled programs, by a run."""
    from fedvg_jax.data import cache, partition
    from fedvg_jax.data.arrays import Arrays

    counts, source = Counts(), folder / "source"
    source.write_bytes(b"raw")
    y = np.arange(400, dtype=np.int32) % 4
    made = Arrays("set", np.random.default_rng(0).integers(0, 256, (400, 4, 4, 1), np.uint8), y, tuple("abcd"), 400)

    def ask():
        got = cache.cached("reader", [source], lambda: made, folder / "entries")
        parts = partition.make(y, num_clients=5, alpha=1.0, cache_dir=folder / "entries")
        return [got.x, got.y, *itertools.chain(*parts)]

    known = [x.copy() for x in ask()]
    for _ in range(trials):
        victims = sorted(path for path in (folder / "entries").rglob("*") if path.is_file())
        counts[spoil(rng.choice(victims), rng)] += 1
        try:
            right = all(np.array_equal(a, b) for a, b in zip(ask(), known, strict=True))
        except Exception as error:
            right = counts.update([f"{type(error).__name__}: {error}"])
        counts["survived" if right else "lost"] += 1
    return counts + programs(folder, min(10, trials), rng)


def programs(folder: Path, trials: int, rng: random.Random) -> Counts:
    """Compiled programs of a run cut short, as a kill while jax writes them leaves them."""
    counts, cache = Counts(), folder / "cache"
    assert simulated(folder / "alone", cache, 3) == 0
    for trial in range(trials):
        for path in rng.sample(sorted((cache / "xla").glob("*-cache")), 3):
            path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])
        out = folder / f"run-{trial}"
        ended = simulated(out, cache, 3) == 0 and outcome(out, 3) == outcome(folder / "alone", 3)
        counts["survived" if ended else "lost"] += 1
        counts["programs cut"] += 3
    return counts


# --- the result


def show(found: dict[str, Counts]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("fault", "survived", "lost", "of which")
    for name, counts in found.items():
        others = (f"{value} {key}" for key, value in sorted(counts.items()) if key not in ("survived", "lost"))
        table.add_row(name, str(counts["survived"]), str(counts["lost"]), ", ".join(others))
    Console(file=sys.stdout if sys.stdout.isatty() else io.TextIOWrapper(sys.stdout.buffer), width=120).print(table)


def report(options: argparse.Namespace, found: dict[str, Counts], seconds: float) -> None:
    """The result with all that is needed to repeat it."""
    result = {
        "command": f"python -m benchmarks.faults --kills {options.kills} --trials {options.trials}"
        f" --rounds {options.rounds} --seed {options.seed}",
        "seconds": round(seconds),
        "machine": {"system": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version()},
        **provenance.code(),
        "found": {name: {"survived": 0, "lost": 0, **counts} for name, counts in found.items()},
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    history.write_json(options.out, result)


if __name__ == "__main__":
    sys.exit(main())
