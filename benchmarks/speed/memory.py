"""Measures the memory of a round by its cohort, and of a hypergradient by its rounds, as XLA plans them.

    python -m benchmarks.speed.memory [cohort] [hypergradient]

cohort          a round of 10 or 100 clients on 32 x 32 images with FedVG's weights on one lane, with and without cohort
                blocks (`--hold`)
hypergradient   the hypergradient of the digits demonstration through k rounds, with and without rematerialisation: an
                MLP of 55,210 parameters, 10 clients a round, 5 local epochs, FedVG's weights

Compiles the programs without running them. Prints and writes the bytes of their temporaries by `memory_analysis()`;
data and state need memory in addition. Writes benchmarks/results/NAME_memory.json.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks import machine

CLIENTS, IMAGES = 100, 4000
POINTS = ((10, 0), (100, 0), (10, 5), (100, 5), (100, 1))
"""(cohort, hold)"""


def measure_cohort(model: str, cohort: int, hold: int) -> dict[str, Any]:
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


EPOCHS, ROUNDS = 5, (1, 2, 4, 8)


def measure_hypergradient(sim, planned, executor, *, remat: bool = True, mode: str = "reverse") -> int:
    """Returns the bytes of temporaries of a hypergradient: of the last model's loss on D_val by lr and eps.

    Args:
        sim: the simulation.
        planned: schedules of the rounds.
        executor: that trains the clients.
        remat: whether rounds are rematerialised.
        mode: "reverse" or "forward".
    """
    import jax

    from fedvg_jax.core import tree
    from fedvg_jax.engine import differentiable, federated_round, local_training
    from fedvg_jax.runs.assemble import registry

    algorithm = registry.make_algorithm(sim.config)
    rule = registry.make_weighting(sim.config, sim.task, algorithm)
    step = federated_round.make_round(sim.task, algorithm, rule, executor, local_training.sgd, sim.config.clients)
    rounds = differentiable.over_rounds(step, remat=remat)

    def hypergradient(hyper, state, schedules, data):
        def objective(hyper):
            model = rounds(state, schedules, data, hyper)[0].variables
            return sim.task.loss(*model, *tree.gather(data.pool, data.val.reshape(-1)), False)[0]

        return differentiable.hypergradient(objective, hyper, ["lr", "eps"], mode=mode)

    lowered = jax.jit(hypergradient).lower(sim.hyper, sim.state, differentiable.stack_schedules(planned), sim.data)
    return lowered.compile().memory_analysis().temp_size_in_bytes


def measure_variants(sim, planned, max_steps: int) -> dict[str, int]:
    """Returns the bytes of every way to differentiate the same rounds.

    Args:
        sim: the simulation.
        planned: schedules of the rounds.
        max_steps: local steps of the longest client, to which clients are unrolled.
    """
    from fedvg_jax.engine import differentiable, executors

    all_kept = differentiable.unrolled(max_steps, remat=False)
    by_epoch = differentiable.unrolled(max_steps, epochs=EPOCHS)
    return {
        "everything kept": measure_hypergradient(sim, planned, all_kept, remat=False),
        "epochs rematerialised": measure_hypergradient(sim, planned, by_epoch, remat=False),
        "epochs and rounds rematerialised": measure_hypergradient(sim, planned, by_epoch),
        "forward mode, fast executor": measure_hypergradient(sim, planned, executors.lanes(1), mode="forward"),
    }


def cohorts() -> dict[str, Any]:
    """Returns the memory of all `POINTS`."""
    points = []
    for cohort, hold in POINTS:
        points.append(point := measure_cohort("resnet18", cohort, hold))
        mib, models = point["bytes"] / 2**20, point["bytes"] / point["model_bytes"]
        print(f"cohort {cohort}, hold {hold}: {mib:.0f} MiB, {models:.1f} models", flush=True)
    return {"model": "resnet18", "clients": CLIENTS, "points": points}


def hypergradients() -> dict[str, Any]:
    """Returns the memory of hypergradients through all numbers of rounds."""
    from fedvg_jax.config import Config
    from fedvg_jax.engine import differentiable
    from fedvg_jax.runs.assemble import simulation

    sim = simulation.simulation(Config(local_epochs=EPOCHS))
    schedules = [sim.schedule(r) for r in range(max(ROUNDS))]
    max_steps, sizes = differentiable.max_steps(schedules), {}
    for count in ROUNDS:
        for name, size in measure_variants(sim, schedules[:count], max_steps).items():
            sizes.setdefault(name, {})[count] = size
            print(f"{count} rounds, {name}: {size / 2**20:.1f} MiB", flush=True)
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
