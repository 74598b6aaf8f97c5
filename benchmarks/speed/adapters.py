"""Measures rounds in which a whole model, adapters, or head and norms are trained: time, memory and bytes sent.

    python -m benchmarks.speed.adapters [--models NAME ...] [--cohorts K ...]
    python -m benchmarks.speed.adapters --models vit_b16 --out benchmarks/results/adapters_vit_b16.json

ViT-S/16 at 224 pixels and EfficientNet-Lite0 at 64 with random weights; cohorts of 4 and 16 clients, each with one step
on a minibatch of 8 rows, FedVG's weights on 8 rows of D_val. ViT-B/16 with adapters has a cohort of 64 and minibatches
of 1 row. Each case compiles and runs in a process of its own, with a device for every core, as the command line has;
the package chooses how many it uses. `seconds` is the shortest round after the first. As many rounds
as fit into a minute are timed, up to nine. `temporaries` is what XLA plans for a chunk of rounds on each device
(`memory_analysis`); data, state and frozen tensors come in addition. `peak_bytes` is the most that the first device
held, where it says so. Writes benchmarks/results/adapters.json.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks import machine

SIZES = {"vit_s16": 224, "efficientnet_lite0": 64, "vit_b16": 224, "tinycnn": 8}
COHORTS = {"vit_s16": (4, 16), "efficientnet_lite0": (4, 16), "vit_b16": (64,), "tinycnn": (4,)}
ROWS = {"vit_s16": 8, "efficientnet_lite0": 8, "vit_b16": 1, "tinycnn": 8}
ROUNDS, SECONDS = 10, 60
"""Rounds of a case at most, and seconds after which no further one begins."""
PARTS = {
    "vit_s16": {
        "full": {},
        "LoRA 8": {"lora": 8},
        "head and norms": {"train": "^classifier/|norm"},
    },
    "efficientnet_lite0": {
        "full": {},
        "LoRA 8": {"lora": 8},
        "head and norms": {"train": "^classifier/|/bn"},
    },
    "vit_b16": {"LoRA 8": {"lora": 8}},
    "tinycnn": {"head": {"train": "^classifier/"}},
}


def measure(model: str, cohort: int, part: str) -> dict[str, Any]:
    """Returns what a case costs."""
    import jax
    import numpy as np

    import fedvg_jax as fv
    from fedvg_jax.core.tree import num_bytes
    from fedvg_jax.engine import schedule as schedules
    from fedvg_jax.runs.assemble import tables

    rng, size, rows = np.random.default_rng(0), SIZES[model], ROWS[model]
    train, rest = np.split(np.arange((cohort + 2) * rows), [cohort * rows])
    val, test = (
        np.split(half, [len(half)] + [len(half)] * (cohort - 2)) for half in np.split(rest, 2)
    )
    partition = (np.split(train, cohort), val, test)
    images = rng.integers(0, 256, ((cohort + 2) * rows, size, size, 3), np.uint8)
    settings = {
        "rounds": ROUNDS,
        "join_ratio": 1.0,
        "local_epochs": 1,
        "batch_size": rows,
        "lr": 0.001,
    }
    config = fv.Config(
        model=model,
        clients=cohort,
        normalise="half",
        weighting="fedvg",
        **settings,
        **PARTS[model][part],
    )
    sim = fv.simulation(config, data=(images, np.arange(len(images)) % 10), partition=partition)
    plans = [schedules.stack([sim.schedule(r)], tables.MAX_ROUNDS) for r in range(config.rounds)]
    compiled = sim.chunk.lower(sim.state, np.int32(1), plans[0], sim.data, sim.hyper).compile()
    state, seconds = sim.state, []
    for plan in plans:
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
    cohorts = sorted({cohort for of_model in COHORTS.values() for cohort in of_model})
    parser.add_argument(
        "--models", nargs="+", choices=list(PARTS), default=["vit_s16", "efficientnet_lite0"]
    )
    parser.add_argument("--cohorts", nargs="+", type=int, choices=cohorts, default=cohorts)
    options = parser.parse_args(argv)
    results, points = machine.begin("speed.adapters", argv), []
    environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(len(machine.affinity()))}
    cases = [
        (model, cohort)
        for model in options.models
        for cohort in COHORTS[model]
        if cohort in options.cohorts
    ]
    for model, cohort in cases:
        for part in PARTS[model]:
            case = machine.in_process(measure, model, cohort, part, environment=environment)
            points.append(case)
            print(case, flush=True)
    machine.finish(options.out, results | {"rows": ROWS, "sizes": SIZES, "points": points})
    return 0


if __name__ == "__main__":
    sys.exit(main())
