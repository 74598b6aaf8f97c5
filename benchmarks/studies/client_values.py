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

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.progress import track

import fedvg_jax as fv
from benchmarks import machine
from benchmarks.studies.paper.clients import rank_correlation
from fedvg_jax import commands
from fedvg_jax.core.types import Schedule, SimState, Tree
from fedvg_jax.engine.evaluate import make_evaluate
from fedvg_jax.runs.assemble import registry
from fedvg_jax.runs.assemble.simulation import load_data
from fedvg_jax.study import statistics

ALPHA = 0.05
LR = 0.2
"""Learning rate of the committed results, unless the options give one."""

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


class Measured(NamedTuple):
    """Results of one seed, by round."""

    useful: np.ndarray
    """[rounds] share of clients with a positive value"""
    correlations: dict[str, np.ndarray]
    """key of `MEASUREMENTS` -> [rounds]"""
    gains: dict[str, np.ndarray]
    """key of `WEIGHTS` -> [rounds, 2] loss and accuracy after one round minus those of uniform weights"""


Rounds = Callable[[SimState, Schedule, np.ndarray], tuple[SimState, Tree, tuple[np.ndarray, dict[str, np.ndarray]]]]
"""(state, schedule, weights [R, K]) -> (states, sums of `task.measure` on the test rows, (scores, details) [K])"""


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
    def rounds(state, schedule, weights):
        def round_under(weights):
            new, metrics = step(state, schedule, sim.data, {**sim.hyper, "given": weights})
            return new, evaluate(new.variables, sim.data.pool, sim.data.test), (metrics.scores, metrics.detail)

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


def measure(config: fv.Config, seed: int) -> Measured:
    """Runs uniform averaging from one seed; measures all clients and the other weights in every round."""
    sim = fv.simulation(replace(config, seed=seed, partition_seed=seed), data=_arrays(config))
    rounds, rng = rounds_under(sim), np.random.default_rng(seed)
    cohort = len(np.asarray(sim.schedule(0).clients))
    left_out = np.concatenate([np.ones((1, cohort)), 1 - np.eye(cohort)])
    useful, correlations, gains, state = [], [], [], sim.state
    for number in range(config.rounds):
        schedule = sim.schedule(number)
        states, sums, (scores, details) = rounds(state, schedule, left_out.astype(np.float32))
        base, *without = loss_and_accuracy(sim, sums)
        values = np.array(without)[:, 0] - base[0]
        measured = measurements(sim, schedule, scores, details)
        weights = np.stack(list(other_weights(measured, rng).values()))
        _, sums, _ = rounds(state, schedule, np.resize(weights, left_out.shape).astype(np.float32))
        useful.append((values > 0).mean())
        correlations.append([rank_correlation(values, measured[name]) for name in MEASUREMENTS])
        gains.append(loss_and_accuracy(sim, sums)[: len(weights)] - base)
        state = jax.tree.map(lambda leaf: leaf[0], states)
    by_measurement = np.array(correlations).T
    by_weights = np.array(gains).swapaxes(0, 1)
    return Measured(
        np.array(useful),
        dict(zip(MEASUREMENTS, by_measurement, strict=True)),
        dict(zip(WEIGHTS, by_weights, strict=True)),
    )


@functools.lru_cache(1)
def _arrays(config: fv.Config) -> Any:
    return load_data(config)


def interval(values: Sequence[float]) -> list[float]:
    """Returns the mean and the limits of the 95 % Student's t interval.

    >>> np.round(interval([1.0, 2.0, 3.0]), 3).tolist()  # t(0.975, 2 degrees of freedom) = 4.303; deviation 1
    [2.0, -0.484, 4.484]
    """
    ours = {(i, 0): value for i, value in enumerate(values)}
    compared = statistics.compare(ours, dict.fromkeys(ours, 0.0))
    return [compared.mean, *compared.t_interval]


def summary(measured: Sequence[Measured]) -> dict[str, Any]:
    """Returns [mean, low, high] over seeds of the means over rounds.

    The mean of a rank correlation ignores rounds in which the measurement is equal for all clients.
    """
    num_rounds = len(measured[0].useful)
    third = num_rounds // 3
    spans = dict(zip(SPANS, (slice(None), slice(third), slice(num_rounds - third, None)), strict=True))

    def over_seeds(values: Callable[[Measured], np.ndarray]) -> dict[str, list[float]]:
        return {
            span: interval([float(np.nanmean(values(seed)[rounds])) for seed in measured])
            for span, rounds in spans.items()
        }

    return {
        "useful": over_seeds(lambda seed: seed.useful),
        "correlations": {name: over_seeds(lambda seed, name=name: seed.correlations[name]) for name in MEASUREMENTS},
        "loss": {name: over_seeds(lambda seed, name=name: seed.gains[name][:, 0]) for name in WEIGHTS},
        "accuracy": {name: over_seeds(lambda seed, name=name: 100 * seed.gains[name][:, 1]) for name in WEIGHTS},
    }


class Command(NamedTuple):
    """The parsed command line of a benchmark over seeds."""

    config: fv.Config
    """with FedVG's weights"""
    seeds: int
    out: Path
    results: dict[str, Any]
    """see `machine.begin`"""


def parse_command(argv: Sequence[str] | None, name: str, description: str | None, seeds: int) -> Command:
    """Parses the command line of a benchmark over seeds, by its module's name, docstring and number of seeds."""
    parser = machine.parser(description, f"{name}.json")
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="-- OPTION ...", help="options of fedvg_jax.sim")
    args = parser.parse_args(argv)
    options = [word for word in args.options if word != "--"]
    config = replace(commands.parse([f"--alpha={ALPHA}", f"--lr={LR}", *options]), weighting="fedvg", devices="1")
    return Command(config, args.seeds, args.out, machine.begin(f"studies.{name}", argv))


def write_result(command: Command, num_seeds: int, summary: dict[str, Any]) -> dict[str, Any]:
    """Writes and returns the summary of `num_seeds` seeds, with the machine and the settings."""
    names = ("dataset", "model", "alpha", "rounds")
    settings = {name: getattr(command.config, name) for name in names} | {"seeds": num_seeds}
    machine.finish(command.out, results := command.results | {"settings": settings} | summary)
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """Measures all seeds and writes the results."""
    command = parse_command(argv, "client_values", __doc__, 10)
    config = replace(command.config, record=RECORD)
    measured = [measure(config, seed) for seed in track(range(command.seeds), console=Console(stderr=True))]
    result = write_result(command, command.seeds, summary(measured))
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
