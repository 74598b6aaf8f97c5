"""Measures the value of each client to a round, and its rank correlation with measurements of the client.

    python -m benchmarks.studies.client_values [--seeds 10] [--out FILE.json] [-- --rounds 100]

The value of client k in a round is the increase of the loss if it is left out of the average,

    v_k = L(mean over j != k of theta_j) - L(mean over all j of theta_j),   L: loss on the pooled test rows,

at the global models of uniform averaging. A weighting helps a round if its weights increase with v_k. Prints and writes
the rank correlation of v_k with each of `MEASUREMENTS`, and the loss and accuracy after one round under each of
`WEIGHTS` from the same global model. All are means over rounds, with 95 % Student's t intervals over seeds; every seed
draws its own partition.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import fedvg_jax as fv
from benchmarks.studies import seeds
from benchmarks.studies.paper.clients import rank_correlation
from fedvg_jax.core.types import Data, Schedule, SimState, Tree
from fedvg_jax.engine.evaluate import make_evaluate
from fedvg_jax.runs.assemble import registry

RECORD = "client_accuracy,client_val_loss,client_drift"

MEASUREMENTS = {
    "fedvg": "FedVG's weight, 1 / G_k",
    "val_loss": "1 / validation loss of the client's model",
    "accuracy": "test accuracy of the client's model",
    "samples": "training rows",
    "classes": "classes with training rows",
    "lead": "share of its rows in classes that it has most rows of",
    "drift": "L2 norm of the update",
}
"""Key of the results -> measurement that is compared with the value of a client."""

WEIGHTS = {
    "fedvg": "FedVG",
    "permuted": "FedVG's weights, permuted",
    "inverse": "inverse of FedVG's weights",
    "samples": "FedAvg",
}
"""Key of the results -> weights that are compared with uniform weights."""

SPANS = ("all rounds", "first third", "last third")


Measured = dict[tuple[str, str], np.ndarray]
"""Results of one seed: (part of the results, key of `MEASUREMENTS` or `WEIGHTS`) -> [rounds].

`useful` is the share of clients with a positive value; `loss` and `accuracy` are those after one round minus those of
uniform weights."""

Rounds = Callable[[SimState, Schedule, np.ndarray, Data], tuple[SimState, Tree, tuple[np.ndarray, dict]]]
"""(state, schedule, weights [R, K], data) -> (states, sums of `task.measure` on the test rows, ([K] scores, ...))"""


def rounds_under(sim: fv.Simulation) -> Rounds:
    """Returns a jitted function that computes one round under each of R lists of weights.

    The clients are trained and scored once, because `vmap` batches only what depends on the weights: the aggregation
    and the evaluation.
    """
    rule, evaluate = sim.weighting, make_evaluate(sim.task)
    options = registry.round_options(sim.config, sim.task)
    parts = (sim.task, sim.algorithm, fv.weightings.given(rule), sim.executor, sim.optimiser)
    step = fv.make_round(*parts, sim.config.clients, **options)

    @jax.jit
    def rounds(state, schedule, weights, data):
        def round_under(weights):
            new, metrics = step(state, schedule, data, {**sim.hyper, "given": weights})
            return new, evaluate(new.variables, data.pool, data.test), (metrics.scores, metrics.detail)

        return jax.vmap(round_under, out_axes=(0, 0, None))(weights)

    return rounds


def lead(counts: np.ndarray) -> np.ndarray:
    """Returns the share of each client's rows in classes of which no other client of the cohort has more rows, [K].

    Args:
        counts: int [K, C] training rows by client and class.

    >>> lead(np.array([[4, 0], [1, 3], [0, 2]])).tolist()
    [1.0, 0.75, 0.0]
    """
    return np.where(counts == counts.max(0), counts, 0).sum(1) / np.maximum(counts.sum(1), 1)


def measurements(
    sim: fv.Simulation, schedule: Schedule, scores: np.ndarray, details: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the measurements of a round's clients, [K] each, by key of `MEASUREMENTS`.

    Args:
        sim: the simulation.
        schedule: of the round.
        scores: [K] FedVG's scores G_k.
        details: recorded measurements, see `RECORD`.
    """
    labels = sim.arrays.y
    rows = [sim.partition.train[k] for k in np.asarray(schedule.clients)]
    counts = np.stack([np.bincount(labels[r], minlength=labels.max() + 1) for r in rows])
    return {
        "fedvg": 1 / np.asarray(scores),
        "val_loss": 1 / np.asarray(details["client_val_loss"]),
        "accuracy": np.asarray(details["client_accuracy"]),
        "samples": counts.sum(1),
        "classes": (counts > 0).sum(1),
        "lead": lead(counts),
        "drift": np.asarray(details["client_drift"]),
    }


def other_weights(measured: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns unnormalised weights of a round, [K] each, by key of `WEIGHTS`."""
    fedvg = measured["fedvg"]
    return {
        "fedvg": fedvg,
        "permuted": rng.permutation(fedvg),
        "inverse": 1 / fedvg,
        "samples": measured["samples"],
    }


def loss_and_accuracy(sim: fv.Simulation, sums: Tree) -> np.ndarray:
    """Returns loss and accuracy on the test rows, [R, 2], from the sums of `task.measure` of R models."""
    leaves, structure = jax.tree.flatten(jax.device_get(sums))
    metrics = [sim.task.metrics(structure.unflatten(parts)) for parts in zip(*leaves, strict=True)]
    return np.array([[m["loss"], m["accuracy"]] for m in metrics])


def measure(sim: fv.Simulation, rounds: Rounds, seed: int) -> Measured:
    """Runs uniform averaging from one seed; measures all clients and the other weights in every round."""
    rng, state, measured = np.random.default_rng(seed), sim.state, []
    cohort = len(np.asarray(sim.schedule(0).clients))
    left_out = np.concatenate([np.ones((1, cohort)), 1 - np.eye(cohort)])
    for number in range(sim.config.rounds):
        schedule = sim.schedule(number)
        states, sums, (scores, details) = rounds(state, schedule, left_out.astype(np.float32), sim.data)
        base, *without = loss_and_accuracy(sim, sums)
        values = np.array(without)[:, 0] - base[0]
        of_clients = measurements(sim, schedule, scores, details)
        weights = np.stack(list(other_weights(of_clients, rng).values()))
        _, sums, _ = rounds(state, schedule, np.resize(weights, left_out.shape).astype(np.float32), sim.data)
        gains = dict(zip(WEIGHTS, loss_and_accuracy(sim, sums)[: len(weights)] - base, strict=True))
        of_round = {("useful", ""): (values > 0).mean()}
        of_round |= {("correlations", name): rank_correlation(values, of_clients[name]) for name in MEASUREMENTS}
        of_round |= {("loss", name): gain[0] for name, gain in gains.items()}
        of_round |= {("accuracy", name): 100 * gain[1] for name, gain in gains.items()}
        measured.append(of_round)
        state = jax.tree.map(lambda leaf: leaf[0], states)
    return {key: np.array([of_round[key] for of_round in measured]) for key in measured[0]}


def summary(measured: Sequence[Measured]) -> dict[str, Any]:
    """Returns [mean, low, high] over seeds of the means over rounds, by part, key and span of rounds.

    The mean of a rank correlation ignores rounds in which the measurement is equal for all clients.
    """
    num_rounds = len(measured[0]["useful", ""])
    third = num_rounds // 3
    spans = dict(zip(SPANS, (slice(None), slice(third), slice(num_rounds - third, None)), strict=True))
    results: dict[str, Any] = {}
    for part, name in measured[0]:
        values = {
            span: seeds.interval([float(np.nanmean(seed[part, name][rounds])) for seed in measured])
            for span, rounds in spans.items()
        }
        results |= {part: results.get(part, {}) | ({name: values} if name else values)}
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """Measures all seeds and writes the results."""
    return seeds.run(argv, "client_values", __doc__, 10, rounds_under, measure, summary, RECORD)


if __name__ == "__main__":
    sys.exit(main())
