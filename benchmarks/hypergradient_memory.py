"""Memory of a hypergradient through k rounds, with and without rematerialisation, as XLA plans it.

    python benchmarks/hypergradient_memory.py [--out benchmarks/results/hypergradient_memory.json]

Nothing is run: `memory_analysis()` of the compiled program gives the bytes of its temporaries. The world is the digits
demonstration: an MLP of 55,210 parameters, 10 clients a round, 5 local epochs, FedVG's weights.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

RESULT = Path(__file__).parent / "results" / "hypergradient_memory.json"
EPOCHS = 5


def measure(sim, planned, executor, *, remat: bool = True, mode: str = "reverse") -> int:
    """Bytes of temporaries of the slope of the last model's loss on D_val with respect to lr and eps."""
    import jax

    from fedvg_jax.core import tree
    from fedvg_jax.engine import differentiable, federated_round, local_training
    from fedvg_jax.runs import simulation

    algorithm = simulation.ALGORITHMS["fedavg"](sim.config)
    rule = simulation.make_weighting(sim.config, sim.task, algorithm)
    step = federated_round.make_round(sim.task, algorithm, rule, executor, local_training.sgd, sim.config.clients)
    rounds = differentiable.over_rounds(step, remat=remat)

    def hypergradient(hyper, state, schedules, data):
        def objective(hyper):
            model = rounds(state, schedules, data, hyper)[0].variables
            return sim.task.loss(*model, *tree.gather(data.pool, data.val.reshape(-1)), False)[0]

        return differentiable.hypergradient(objective, hyper, ["lr", "eps"], mode=mode)

    lowered = jax.jit(hypergradient).lower(sim.hyper, sim.state, differentiable.stack(planned), sim.data)
    return lowered.compile().memory_analysis().temp_size_in_bytes


def by_variant(sim, planned, most: int) -> dict[str, int]:
    """Every way of differentiating the same rounds."""
    from fedvg_jax.engine import differentiable, executors

    kept = differentiable.unrolled(most, remat=False)
    by_epoch = differentiable.unrolled(most, epochs=EPOCHS)
    return {
        "everything kept": measure(sim, planned, kept, remat=False),
        "epochs rematerialised": measure(sim, planned, by_epoch, remat=False),
        "epochs and rounds rematerialised": measure(sim, planned, by_epoch),
        "forward mode, fast executor": measure(sim, planned, executors.lanes(1), mode="forward"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 2, 4, 8])
    args = parser.parse_args()
    import jax

    from fedvg_jax.config import Config
    from fedvg_jax.engine import differentiable
    from fedvg_jax.runs import simulation

    sim = simulation.simulation(Config(local_epochs=EPOCHS))
    everything = [sim.schedule(r) for r in range(max(args.rounds))]
    most, found = differentiable.most_steps(everything), {}
    for count in args.rounds:
        for name, size in by_variant(sim, everything[:count], most).items():
            found.setdefault(name, {})[count] = size
            print(f"{count} rounds, {name}: {size / 2**20:.1f} MiB", flush=True)
    result = {
        "unit": "bytes of temporaries, memory_analysis().temp_size_in_bytes",
        "jax": jax.__version__,
        "backend": jax.default_backend(),
        "parameters": 55210,
        "cohort": 10,
        "most_steps": most,
        "bytes": found,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
