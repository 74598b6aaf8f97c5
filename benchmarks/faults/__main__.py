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

import importlib
import os
import random
import sys
import tempfile
import warnings
from pathlib import Path

from benchmarks import machine
from benchmarks.faults import damage, disk, kills


def main(argv: list[str] | None = None) -> int:
    """Returns exit code 0 if nothing was lost."""
    parser = machine.parser(__doc__, "faults.json")
    parser.add_argument("--kills", type=int, default=60, help="runs killed")
    parser.add_argument("--trials", type=int, default=500, help="damaged folders, and damaged caches")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of the killed runs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)  # the campaign damages the programs of its own cache folder
    if not disk.is_loaded() and (library := disk.compile_disk()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"LD_PRELOAD": str(library)})
    results = machine.begin("faults", argv)  # before the campaign, because files may change meanwhile
    for name in ("fedvg_jax.runs.loop", "fedvg_jax.views.display", "orbax.checkpoint"):
        importlib.import_module(name)  # so that forks start fast
    warnings.simplefilter("ignore")  # jax warns of forks; its threads start in the children only
    rng, counts = random.Random(options.seed), {}
    campaigns = {
        "crash": lambda folder: disk.crashes(folder, (disk.KILL, disk.TEAR)),
        "full disk": lambda folder: disk.crashes(folder, (disk.FULL,)),
        "kill -9": lambda folder: kills.kills(folder, options.kills, options.rounds, rng),
        "caches": lambda folder: damage.caches(folder, options.trials, rng),
        # last, because it starts threads, and forking with threads is unsafe
        "damage": lambda folder: damage.damage(folder, options.trials, rng),
    }
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        for name, campaign in campaigns.items():
            folder = Path(scratch, name.replace(" ", "-")).resolve()
            folder.mkdir()
            counts[name] = {"survived": 0, "lost": 0, **campaign(folder)}
            print(f"{name}: {counts[name]}", flush=True)
    machine.finish(options.out, results | {"found": counts})
    return int(any(counter["lost"] for counter in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
