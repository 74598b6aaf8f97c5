"""Times updates of a buffered server against synchronous rounds of the same trainings, pair by pair.

    python -m benchmarks.speed.buffered [--data-dir DIR] [--repeats 9] [--out FILE.json]

Both run the same clients on the same minibatches. The buffered ones start from the version of the model that each
client received, two times as many clients are in training as an update has, and the new model is kept in its slot.
Prints the ratio of the medians for every case.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedvg_jax as fv
from benchmarks import machine
from benchmarks.speed import cases
from fedvg_jax.config.options import cohort_size
from fedvg_jax.core import tree
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.runs.assemble import tables

NAMES, ROUNDS = ("mlp64", "lenet5"), 3
"""Cases, and the fewest rounds of one timing."""


def measure(name: str, data_dir: Path | None, repeats: int) -> dict[str, Any]:
    """Returns the seconds of an update and of a round, and their ratio."""
    case = cases.CASES[name]
    settings = dataclasses.replace(cases.config(case), rounds=max(case.rounds, ROUNDS))
    size = cohort_size(settings)
    late = {
        "clock": {"fixed": 1.0, "jitter": 0.5},
        "buffered": {"size": size, "concurrency": 2 * size},
    }
    parts = {"data": cases.arrays(case, data_dir), "task": cases.task(case)}
    sim = fv.simulation(dataclasses.replace(settings, **late), **parts)
    planned = [sim.schedule(number) for number in range(settings.rounds)]
    rounds = schedules.stack(planned, tables.MAX_ROUNDS)
    synchronous = rounds._replace(keys=None, received=None, stored=None, staleness=None)
    count = np.int32(len(planned))
    runs = {
        "buffered": (sim.state, rounds),
        "synchronous": (sim.state._replace(versions=()), synchronous),
    }

    def seconds(state, of_run) -> float:
        start = tree.copies(state)
        return machine.time_call(
            lambda: jax.block_until_ready(sim.chunk(start, count, of_run, sim.data, sim.hyper))
        )

    times: dict[str, list[float]] = {kind: [] for kind in runs}
    for _ in range(repeats + 1):  # the first compiles
        for kind, arguments in runs.items():
            times[kind].append(seconds(*arguments) / len(planned))
    medians = {kind: statistics.median(measured[1:]) for kind, measured in times.items()}
    ratio = medians["buffered"] / medians["synchronous"]
    slots = len(jax.tree.leaves(sim.state.versions)[0])
    return {
        **{kind: machine.spread(measured[1:]) for kind, measured in times.items()},
        "ratio": round(ratio, 4),
        "slots": slots,
    }


def main(argv: list[str] | None = None) -> int:
    """Measures the cases and writes them."""
    parser = machine.parser(__doc__)
    parser.add_argument("--data-dir", type=Path, metavar="DIR")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    args = parser.parse_args(argv)
    results = machine.begin("speed.buffered", argv)
    results["updates"] = {}
    for name in NAMES:
        results["updates"][name] = measure(name, args.data_dir, args.repeats)
        print(f"{name}: {results['updates'][name]['ratio']} x a synchronous round", flush=True)
    machine.finish(args.out, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
