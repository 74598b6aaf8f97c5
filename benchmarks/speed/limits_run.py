"""Predicts or runs one configuration of `limits`, which starts it in a process of its own.

python -m benchmarks.speed.limits_run FOLDER {predict,run} NAME
"""

from __future__ import annotations

import dataclasses
import json
import resource
import sys
from pathlib import Path

from benchmarks.speed import limits
from fedvg_jax.commands import start_jax


def main(folder: Path, mode: str, name: str) -> None:
    """Prints JSON with the seconds of the whole run, without compilation, and the process's memory.

    Args:
        folder: scratch folder with the data and the caches.
        mode: "predict" or "run".
        name: key of `limits.STARTS` or `limits.PLANS`.
    """
    config = limits.make_config((limits.STARTS | limits.PLANS)[name], folder)
    # each mode has its own cache, so that both compile the same programs: compilation counts as memory of both
    config = dataclasses.replace(config, cache_dir=folder / f"cache-{mode}")
    start_jax(config)
    from fedvg_jax.runs import loop
    from fedvg_jax.runs.assemble import simulation
    from fedvg_jax.views import dry_run

    sim = simulation.simulation(config)
    if mode == "predict":
        plan = dry_run.predict(sim)
        result = {"seconds": round(plan.seconds, 3), "gib": round(plan.memory_bytes / 2**30, 3)}
    else:
        history = loop.run_simulation(sim)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        result = {"seconds": history.summary["run_seconds"], "gib": round(peak / 2**30, 3)}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
