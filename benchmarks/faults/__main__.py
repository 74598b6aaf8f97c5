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

from benchmarks.faults import damage, disk, kills
from fedvg_jax.runs import history, provenance

RESULTS = Path(__file__).parent.parent / "results"


def main() -> int:
    """Exit code 0 where nothing was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60, help="runs killed")
    parser.add_argument("--trials", type=int, default=500, help="damaged folders, and damaged caches")
    parser.add_argument("--rounds", type=int, default=60, help="of the runs that are killed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "faults.json")
    options = parser.parse_args()
    if not disk.is_loaded() and (library := disk.compile_disk()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"LD_PRELOAD": str(library)})
    for name in ("fedvg_jax.runs.loop", "fedvg_jax.views.display", "orbax.checkpoint", "sklearn.datasets", "tyro"):
        importlib.import_module(name)  # once, so that every fork is fast
    warnings.simplefilter("ignore")  # jax's of forks; its threads begin in the children
    rng, begun, found = random.Random(options.seed), time.monotonic(), {}
    code = provenance.code()  # as it is now
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        for name, campaign in {
            "crash": lambda folder: disk.crashes(folder, (disk.KILL, disk.TEAR)),
            "full disk": lambda folder: disk.crashes(folder, (disk.FULL,)),
            "kill -9": lambda folder: kills.kills(folder, options.kills, options.rounds, rng),
            "caches": lambda folder: damage.caches(folder, options.trials, rng),
            "damage": lambda folder: damage.damage(folder, options.trials, rng),  # the last: its threads bear no fork
        }.items():
            folder = Path(scratch, name.replace(" ", "-")).resolve()
            folder.mkdir()
            found[name] = campaign(folder)
            print(f"{name}: {dict(found[name])}", flush=True)
    show(found)
    report(options, found, code, time.monotonic() - begun)
    return int(any(counts["lost"] for counts in found.values()))


def show(found: dict[str, Counter]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("fault", "survived", "lost", "of which")
    for name, counts in found.items():
        others = (f"{value} {key}" for key, value in sorted(counts.items()) if key not in ("survived", "lost"))
        table.add_row(name, str(counts["survived"]), str(counts["lost"]), ", ".join(others))
    Console(file=sys.stdout if sys.stdout.isatty() else io.TextIOWrapper(sys.stdout.buffer), width=120).print(table)


def report(options: argparse.Namespace, found: dict[str, Counter], code: dict, seconds: float) -> None:
    """The result with all that is needed to repeat it."""
    result = {
        "command": f"python -m benchmarks.faults --kills {options.kills} --trials {options.trials}"
        f" --rounds {options.rounds} --seed {options.seed}",
        "seconds": round(seconds),
        "machine": {"system": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version()},
        **code,
        "found": {name: {"survived": 0, "lost": 0, **counts} for name, counts in found.items()},
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    history.write_json(options.out, result)


if __name__ == "__main__":
    sys.exit(main())
