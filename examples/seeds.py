"""Six seeds of a run on digits, each with its own partition, as one program: jax.vmap over states, schedules and rows.

Run it with: python examples/seeds.py
"""

import dataclasses

import jax
import jax.numpy as jnp

import fedvg_jax as fv

CONFIG = fv.Config(
    rounds=10, clients=10, alpha=0.5, batch_size=16, local_epochs=2, weighting="fedvg"
)


def main(num_seeds: int = 6):
    """Returns the test accuracy of every seed after the last round."""
    sims = [fv.simulation(dataclasses.replace(CONFIG, seed=s)) for s in range(num_seeds)]
    planned = [sim.schedule(r) for sim in sims for r in range(CONFIG.rounds)]
    # static loops: every client takes the steps of the longest one
    executor = fv.unrolled(fv.max_steps(planned))
    step = fv.make_round(
        sims[0].task, fv.algorithms.fedavg(), sims[0].weighting, executor, fv.sgd, CONFIG.clients
    )
    rounds = fv.stack_schedules(planned)
    schedules = jax.tree.map(
        lambda leaf: leaf.reshape(num_seeds, CONFIG.rounds, *leaf.shape[1:]), rounds
    )
    of_seeds = [(sim.state, sim.data, sim.hyper) for sim in sims]
    states, data, hyper = jax.tree.map(lambda *leaves: jnp.stack(leaves), *of_seeds)
    states, _ = jax.jit(jax.vmap(fv.over_rounds(step)))(states, schedules, data, hyper)
    models = [jax.tree.map(lambda leaf, s=s: leaf[s], states.variables) for s in range(num_seeds)]
    return [
        fv.evaluate(sim, model)["test_accuracy"] for sim, model in zip(sims, models, strict=True)
    ]


if __name__ == "__main__":
    print(" ".join(f"{accuracy:.1%}" for accuracy in main()))
