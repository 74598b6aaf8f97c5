"""Measures how a round's memory grows with its cohort, with and without cohort blocks (`--hold`).

    python -m benchmarks.speed.cohort_memory [--model resnet18] [--out benchmarks/results/cohort_memory.json]

Compiles a round of 10 or 100 clients on 32 x 32 images with FedVG's weights on one lane, without running it. Prints and
writes the bytes of the program's temporaries by XLA's `memory_analysis()`; data and state need memory in addition.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks import machine

RESULT = machine.RESULTS / "cohort_memory.json"
CLIENTS, IMAGES = 100, 4000
POINTS = ((10, 0), (100, 0), (10, 5), (100, 5), (100, 1))
"""(cohort, hold)"""


def measure(model: str, cohort: int, hold: int) -> dict[str, Any]:
    """Returns the bytes of temporaries of a compiled chunk of rounds, and the bytes of a model.

    Args:
        model: name.
        cohort: clients per round, of `CLIENTS`.
        hold: clients of a cohort block; 0: the whole cohort.
    """
    import numpy as np

    from fedvg_jax.config import Config
    from fedvg_jax.core import tree
    from fedvg_jax.engine import schedule as schedules
    from fedvg_jax.runs.assemble import simulation

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (IMAGES, 32, 32, 3), np.uint8)
    rows = np.split(np.arange(IMAGES), CLIENTS)
    config = Config(
        model=model, clients=CLIENTS, join_ratio=cohort / CLIENTS, hold=hold, local_epochs=1, rounds=1, lanes="1"
    )
    sim = simulation.simulation(config, data=(images, np.arange(IMAGES) % 10), partition=rows)
    plan = schedules.stack([sim.schedule(0)], simulation.MAX_ROUNDS)
    compiled = sim.chunk.lower(sim.state, np.int32(0), plan, sim.data, sim.hyper).compile()
    return {
        "cohort": cohort,
        "hold": hold,
        "bytes": compiled.memory_analysis().temp_size_in_bytes,
        "model_bytes": 4 * tree.size(sim.state.variables),
    }


def main(argv: list[str] | None = None) -> None:
    """Measures all points and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args(argv)
    description = machine.describe(["python", "-m", "benchmarks.speed.cohort_memory", *(argv or sys.argv[1:])])
    import jax

    points = []
    for cohort, hold in POINTS:
        point = measure(args.model, cohort, hold)
        points.append(point)
        mib, models = point["bytes"] / 2**20, point["bytes"] / point["model_bytes"]
        print(f"cohort {cohort}, hold {hold}: {mib:.0f} MiB, {models:.1f} models", flush=True)
    about = {"machine": machine.add_final_load(description), "backend": jax.default_backend(), "model": args.model}
    machine.write(args.out, about | {"clients": CLIENTS, "points": points})


if __name__ == "__main__":
    main()
