"""Measures the memory of a round by its cohort, and of a hypergradient by its rounds, as XLA plans them.

    python -m benchmarks.speed.memory [cohort] [hypergradient]

cohort          a round of 10 or 100 clients on 32 x 32 images with FedVG's weights on one lane, with and without cohort
                blocks (`--client-chunk`)
hypergradient   the hypergradient of the digits demonstration through k rounds, with and without rematerialisation: an
                MLP of 55,210 parameters, 10 clients a round, 5 local epochs, FedVG's weights

Compiles the programs without running them. Writes the bytes of their temporaries by `memory_analysis()`;
data and state need memory in addition. Writes benchmarks/results/NAME_memory.json.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks import machine
from benchmarks.speed import cases

CLIENTS, IMAGES = 100, 4000
POINTS = ((10, 0), (100, 0), (10, 5), (100, 5), (100, 1))
"""(cohort, client chunk), where 0 holds the whole cohort."""

EPOCHS, ROUNDS = 5, (1, 2, 4, 8)


def cohorts(model: str = "resnet18") -> dict[str, Any]:
    """Returns the bytes of temporaries of a compiled chunk of rounds for all `POINTS`, and the bytes of a model."""
    import numpy as np

    import fedvg_jax as fv
    from fedvg_jax.core import tree

    images = np.random.default_rng(0).integers(0, 256, (IMAGES, 32, 32, 3), np.uint8)
    rows, points = np.split(np.arange(IMAGES), CLIENTS), []
    for cohort, client_chunk in POINTS:
        config = fv.Config(
            model=model,
            clients=CLIENTS,
            join_ratio=cohort / CLIENTS,
            client_chunk=client_chunk,
            lanes="1",
            weighting="fedvg",
            local_epochs=1,
            rounds=1,
        )
        sim = fv.simulation(config, data=(images, np.arange(IMAGES) % 10), partition=rows)
        compiled, _ = cases.compile_rounds(sim, [sim.schedule(0)])
        point = {"cohort": cohort, "client_chunk": client_chunk}
        point["bytes"] = compiled.memory_analysis().temp_size_in_bytes
        points.append(point | {"model_bytes": 4 * tree.size(sim.state.variables)})
    return {"model": model, "clients": CLIENTS, "points": points}


def hypergradients() -> dict[str, Any]:
    """Returns the bytes of temporaries of hypergradients: of the last model's loss on D_val by lr and eps."""
    import jax

    import fedvg_jax as fv
    from fedvg_jax.core import tree
    from fedvg_jax.engine import differentiable, executors

    sim = fv.simulation(fv.Config(weighting="fedvg", local_epochs=EPOCHS, partition_seed=42))
    schedules = [sim.schedule(r) for r in range(max(ROUNDS))]
    max_steps, sizes = fv.max_steps(schedules), {}
    kept, by_epoch = fv.unrolled(max_steps, remat=False), fv.unrolled(max_steps, epochs=EPOCHS)
    variants = {
        "everything kept": (kept, False, "reverse"),
        "epochs rematerialised": (by_epoch, False, "reverse"),
        "epochs and rounds rematerialised": (by_epoch, True, "reverse"),
        "forward mode, fast executor": (executors.lanes(1), True, "forward"),
    }
    for name, (executor, remat, mode) in variants.items():
        step = fv.make_round(
            sim.task, sim.algorithm, sim.weighting, executor, fv.sgd, sim.config.clients
        )
        rounds = fv.over_rounds(step, remat=remat)

        def hypergradient(hyper, state, schedules, data, rounds=rounds, mode=mode):
            def objective(hyper):
                model = rounds(state, schedules, data, hyper)[0].variables
                batch = tree.gather(data.pool, data.val.reshape(-1))
                return sim.task.loss(*model, *batch, False)[0]

            return differentiable.hypergradient(objective, hyper, ["lr", "fedvg.eps"], mode=mode)

        for count in ROUNDS:
            stacked = fv.stack_schedules(schedules[:count])
            lowered = jax.jit(hypergradient).lower(sim.hyper, sim.state, stacked, sim.data)
            size = lowered.compile().memory_analysis().temp_size_in_bytes
            sizes.setdefault(name, {})[count] = size
    return {"parameters": 55210, "cohort": 10, "most_steps": max_steps, "bytes": sizes}


PARTS = {"cohort": cohorts, "hypergradient": hypergradients}


def main(argv: list[str] | None = None) -> int:
    """Measures the parts that the command line names, by default all, and writes the results."""
    parser = machine.parser(__doc__)
    parser.add_argument("parts", nargs="*", metavar="NAME", default=list(PARTS))
    for name in parser.parse_args(argv).parts:
        results = machine.begin("speed.memory", [name])
        machine.finish(machine.RESULTS / f"{name}_memory.json", results | PARTS[name]())
    return 0


if __name__ == "__main__":
    sys.exit(main())
