"""Measures rounds in which a whole model, adapters, or head and norms are trained: time, memory and bytes sent.

    python -m benchmarks.speed.adapters [--models NAME ...] [--cohorts K ...]
    python -m benchmarks.speed.adapters --models vit_b16 --out benchmarks/results/adapters_vit_b16.json

ViT-S/16 at 224 pixels and EfficientNet-Lite0 at 64 with random weights; cohorts of 4 and 16 clients, each with one step
on a minibatch of 8 rows, FedVG's weights on 8 rows of D_val. ViT-B/16 with adapters has a cohort of 64 and minibatches
of 1 row. Each case compiles and runs in a new process, with a device for every core, as the command line has;
the package chooses how many it uses. `seconds` is the shortest round after the first. As many rounds
as fit into a minute are timed, up to nine. `temporaries` is what XLA plans for a chunk of rounds on each device
(`memory_analysis`); data, state and frozen tensors come in addition. `peak_bytes` is the most that the first device
held, where it says so. Writes benchmarks/results/adapters.json.
"""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.speed import cases as workloads

NETWORKS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""Network -> its sizes, cohorts and trained parts, explained in the file."""
ROUNDS, SECONDS = 10, 60
"""Rounds of a case at most, and seconds after which no further one begins."""


def cases(models: Sequence[str], cohorts: Sequence[int] | None = None) -> list[tuple]:
    """Returns (model, cohort, part) of these models, and of these cohorts if any are given."""
    return [
        (model, cohort, part)
        for model in models
        for cohort in NETWORKS[model]["cohorts"]
        for part in NETWORKS[model]["parts"]
        if cohorts is None or cohort in cohorts
    ]


def measure(model: str, cohort: int, part: str) -> dict[str, Any]:
    """Returns what a case costs."""
    import jax
    import numpy as np

    import fedvg_jax as fv
    from fedvg_jax.core.tree import num_bytes

    network, rng = NETWORKS[model], np.random.default_rng(0)
    size, rows = network["size"], network["rows"]
    parts = np.split(np.arange((cohort + 2) * rows), [cohort * rows, (cohort + 1) * rows])
    partition = workloads.equal_clients(cohort, *parts)
    images = rng.integers(0, 256, ((cohort + 2) * rows, size, size, 3), np.uint8)
    config = fv.Config(
        model=model,
        clients=cohort,
        join_ratio=1.0,
        normalise="half",
        weighting="fedvg",
        rounds=ROUNDS,
        local_epochs=1,
        batch_size=rows,
        lr=0.001,
        **network["parts"][part],
    )
    sim = fv.simulation(config, data=(images, np.arange(len(images)) % 10), partition=partition)
    compiled, plan = workloads.compile_rounds(sim, [sim.schedule(0)])
    state, seconds = sim.state, []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        state, _ = jax.block_until_ready(compiled(state, np.int32(1), plan, sim.data, sim.hyper))
        seconds.append(time.perf_counter() - start)
        if sum(seconds) > SECONDS:
            break
    return {
        "model": model,
        "cohort": cohort,
        "part": part,
        "seconds": min(seconds[1:] or seconds),
        "temporaries": compiled.memory_analysis().temp_size_in_bytes,
        "trained_bytes": num_bytes(state.variables),
        "frozen_bytes": num_bytes(sim.base),
        "bytes_up": sim.traffic.up,
        "peak_bytes": (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use"),
    }


def main(argv: list[str] | None = None) -> int:
    """Measures the cases that the command line chooses, by default all, and writes the results."""
    parser = machine.parser(__doc__, "adapters.json")
    parser.add_argument(
        "--models", nargs="+", choices=NETWORKS, default=["vit_s16", "efficientnet_lite0"]
    )
    parser.add_argument("--cohorts", nargs="+", type=int, choices=(4, 16, 64), help="default: all")
    options = parser.parse_args(argv)
    results, points = machine.begin("speed.adapters", argv), []
    environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(len(machine.affinity()))}
    for case in cases(options.models, options.cohorts):
        points.append(machine.in_process(measure, *case, environment=environment))
        print(points[-1], flush=True)
    machine.finish(options.out, results | {"networks": NETWORKS, "points": points})
    return 0


if __name__ == "__main__":
    sys.exit(main())
