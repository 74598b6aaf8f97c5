"""One run of `benchmarks.limits`, foretold or taken: python -m benchmarks.limits_run FOLDER {foretell,run} NAME."""

from __future__ import annotations

import dataclasses
import json
import resource
import sys
from pathlib import Path

from benchmarks import limits
from fedvg_jax.sim import start_jax


def main(folder: Path, what: str, name: str) -> None:
    """Prints seconds of the whole run, without compiling, and the process's memory."""
    config = limits.configured((limits.STARTS | limits.PLANS)[name], folder)
    # a run that is foretold compiles what it runs, as the dry run does: memory is that of both
    config = dataclasses.replace(config, cache_dir=folder / f"cache-{what}")
    start_jax(config)
    from fedvg_jax.runs import loop, simulation
    from fedvg_jax.views import dry_run

    sim = simulation.simulation(config)
    if what == "foretell":
        plan = dry_run.predict(sim)
        found = {"seconds": round(plan.seconds, 3), "gib": round(plan.memory_bytes / 2**30, 3)}
    else:
        finished = loop.run_simulation(sim)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        found = {"seconds": finished.summary["run_seconds"], "gib": round(peak / 2**30, 3)}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
