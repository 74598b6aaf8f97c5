"""Injects faults into run folders and caches, and counts which of them are survived.

    python -m benchmarks.faults [--kills 60] [--trials 500] [--rounds 60] [--out FILE.json]

    crash       kill -9 before, and in the middle of, every write, rename, fsync, open, mkdir and unlink of a checkpoint
    full disk   the same operations, failing from the nth one on
    kill -9     real runs, killed at random times and resumed until they end; compared with an undisturbed run
    caches      random bytes of decoded data and partitions flipped, zeroed or truncated; compiled programs truncated
    damage      the same damage to any file of a run folder

A fault is survived if the restored state equals the newest intact state of the run bit for bit, or the run is refused
with one line; otherwise it counts as lost. The first two need a C compiler. Prints the counts and writes them to
benchmarks/results/faults.json; exit code 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import platform
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

from benchmarks import machine
from benchmarks.faults import damage, disk, kills
from fedvg_jax.runs.record import folder as run_folder
from fedvg_jax.runs.record import provenance


def main() -> int:
    """Returns exit code 0 if nothing was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60, help="runs killed")
    parser.add_argument("--trials", type=int, default=500, help="damaged folders, and damaged caches")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of the killed runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "faults.json")
    options = parser.parse_args()
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)  # the campaign damages the programs of its own cache folder
    if not disk.is_loaded() and (library := disk.compile_disk()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"LD_PRELOAD": str(library)})
    for name in ("fedvg_jax.runs.loop", "fedvg_jax.views.display", "orbax.checkpoint"):
        importlib.import_module(name)  # so that forks start fast
    warnings.simplefilter("ignore")  # jax warns of forks; its threads start in the children only
    rng, start, counts = random.Random(options.seed), time.monotonic(), {}
    code = provenance.code()  # before the campaign, because files may change meanwhile
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        for name, campaign in {
            "crash": lambda folder: disk.crashes(folder, (disk.KILL, disk.TEAR)),
            "full disk": lambda folder: disk.crashes(folder, (disk.FULL,)),
            "kill -9": lambda folder: kills.kills(folder, options.kills, options.rounds, rng),
            "caches": lambda folder: damage.caches(folder, options.trials, rng),
            # last, because it starts threads, and forking with threads is unsafe
            "damage": lambda folder: damage.damage(folder, options.trials, rng),
        }.items():
            folder = Path(scratch, name.replace(" ", "-")).resolve()
            folder.mkdir()
            counts[name] = campaign(folder)
            print(f"{name}: {dict(counts[name])}", flush=True)
    print_table(counts)
    write_report(options, counts, code, time.monotonic() - start)
    return int(any(counter["lost"] for counter in counts.values()))


def print_table(counts: dict[str, Counter]) -> None:
    """Prints the counts, one row per fault."""
    from rich.console import Console
    from rich.table import Table

    table = Table("fault", "survived", "lost", "of which")
    for name, counter in counts.items():
        others = (f"{value} {key}" for key, value in sorted(counter.items()) if key not in ("survived", "lost"))
        table.add_row(name, str(counter["survived"]), str(counter["lost"]), ", ".join(others))
    Console(file=sys.stdout if sys.stdout.isatty() else io.TextIOWrapper(sys.stdout.buffer), width=120).print(table)


def write_report(options: argparse.Namespace, counts: dict[str, Counter], code: dict, seconds: float) -> None:
    """Writes the counts with the command, the code's version and the machine."""
    result = {
        "command": f"python -m benchmarks.faults --kills {options.kills} --trials {options.trials}"
        f" --rounds {options.rounds} --seed {options.seed}",
        "seconds": round(seconds),
        "machine": {
            "processor": machine.processor(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
        },
        "date": time.strftime("%Y-%m-%d"),
        **code,
        "found": {name: {"survived": 0, "lost": 0, **counter} for name, counter in counts.items()},
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    run_folder.write_json(options.out, result)


if __name__ == "__main__":
    sys.exit(main())
