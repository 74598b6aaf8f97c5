"""Measures the memory of a hypergradient through k rounds, with and without rematerialisation.

    python benchmarks/speed/hypergradient_memory.py [--out benchmarks/results/hypergradient_memory.json]

Compiles the hypergradient of the digits demonstration without running it: an MLP of 55,210 parameters, 10 clients a
round, 5 local epochs, FedVG's weights. Prints and writes the bytes of the program's temporaries by XLA's
`memory_analysis()`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks import machine

RESULT = machine.RESULTS / "hypergradient_memory.json"
EPOCHS = 5


def measure(sim, planned, executor, *, remat: bool = True, mode: str = "reverse") -> int:
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

    algorithm = registry.ALGORITHMS["fedavg"](sim.config)
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
        "everything kept": measure(sim, planned, all_kept, remat=False),
        "epochs rematerialised": measure(sim, planned, by_epoch, remat=False),
        "epochs and rounds rematerialised": measure(sim, planned, by_epoch),
        "forward mode, fast executor": measure(sim, planned, executors.lanes(1), mode="forward"),
    }


def main() -> None:
    """Measures all numbers of rounds and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 2, 4, 8], help="numbers of rounds")
    args = parser.parse_args()
    import jax

    from fedvg_jax.config import Config
    from fedvg_jax.engine import differentiable
    from fedvg_jax.runs.assemble import simulation

    sim = simulation.simulation(Config(local_epochs=EPOCHS))
    schedules = [sim.schedule(r) for r in range(max(args.rounds))]
    max_steps, sizes = differentiable.max_steps(schedules), {}
    for count in args.rounds:
        for name, size in measure_variants(sim, schedules[:count], max_steps).items():
            sizes.setdefault(name, {})[count] = size
            print(f"{count} rounds, {name}: {size / 2**20:.1f} MiB", flush=True)
    result = {
        "command": "python -m benchmarks.speed.hypergradient_memory",
        "unit": "bytes of temporaries, memory_analysis().temp_size_in_bytes",
        "jax": jax.__version__,
        "backend": jax.default_backend(),
        "parameters": 55210,
        "cohort": 10,
        "most_steps": max_steps,
        "bytes": sizes,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
