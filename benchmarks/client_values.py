"""What a client is worth to a round, and which measurements of the client say so.

    python -m benchmarks.client_values [--seeds 10] [--out FILE.json] [-- --rounds 100]

The value of client k in a round is the loss that the new global model has without it:

    v_k = L(mean over j != k of theta_j) - L(mean over all j of theta_j),   L: loss on the pooled test rows,

at the global models of uniform averaging. A weighting serves a round if its weights rise with v_k. The results hold the
rank correlation of v_k with measurements of the client, and the loss and the accuracy after one round of other weights
from the same global model. All are means over rounds; intervals are of Student's t, 95 %, over seeds, and the partition
is drawn from every seed.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import fedvg_jax as fv
from benchmarks import machine
from benchmarks.demo import interval
from fedvg_jax import sim as simulator
from fedvg_jax.core.types import Schedule, SimState, Tree
from fedvg_jax.engine.evaluate import make_evaluate
from fedvg_jax.runs import programs, registry
from fedvg_jax.runs.simulation import load_data

RESULT = Path(__file__).parent / "results" / "client_values.json"
ALPHA = 0.05
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
"""Key of the results -> what is compared with the value of a client."""

WEIGHTS = {
    "fedvg": "FedVG",
    "permuted": "FedVG's weights, permuted",
    "inverse": "inverse of FedVG's weights",
    "samples": "FedAvg",
}
"""Key of the results -> weights whose round is compared with that of uniform weights."""

SPANS = ("all rounds", "first third", "last third")


class Measured(NamedTuple):
    """Results of one seed, by round."""

    useful: np.ndarray
    """[rounds] share of the clients with a value above 0"""
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
    assert rule and sim.algorithm and sim.executor and sim.optimiser
    given, live = fv.weightings.given(rule), registry.make_live(sim.config, sim.task)
    step = programs.make_round(sim.config, sim.task, sim.algorithm, given, sim.executor, sim.optimiser, live)

    @jax.jit
    def rounds(state, schedule, weights):
        def round_under(weights):
            new, metrics = step(state, schedule, sim.data, {**sim.hyper, "given": weights})
            return new, evaluate(new.variables, sim.data.pool, sim.data.test), (metrics.scores, metrics.detail)

        return jax.vmap(round_under, out_axes=(0, 0, None))(weights)

    return rounds


def lead(counts: np.ndarray) -> np.ndarray:
    """Returns the share of each client's rows in classes of which no other client of the cohort has more, [K].

    Args:
        counts: int [K, C] training rows by client and class.

    >>> lead(np.array([[4, 0], [1, 3], [0, 2]])).tolist()
    [1.0, 0.75, 0.0]
    """
    return np.where(counts == counts.max(0), counts, 0).sum(1) / np.maximum(counts.sum(1), 1)


def measurements(
    sim: fv.Simulation, schedule: Schedule, scores: np.ndarray, details: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the measurements of a round's clients, [K] each, by key of `MEASUREMENTS`."""
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


def other_weights(measured: dict[str, np.ndarray], stream: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns weights of a round, [K] each, by key of `WEIGHTS`; they need not sum to 1."""
    fedvg = measured["fedvg"]
    return {
        "fedvg": fedvg,
        "permuted": stream.permutation(fedvg),
        "inverse": 1 / fedvg,
        "samples": measured["samples"],
    }


def judged(sim: fv.Simulation, sums: Tree) -> np.ndarray:
    """Returns loss and accuracy on the test rows, [R, 2], from the sums of R models."""
    leaves, structure = jax.tree.flatten(jax.device_get(sums))
    metrics = [sim.task.metrics(structure.unflatten(parts)) for parts in zip(*leaves, strict=True)]
    return np.array([[m["loss"], m["accuracy"]] for m in metrics])


def measure(config: fv.Config, seed: int) -> Measured:
    """Runs uniform averaging from one seed, and measures all clients and the other weights in every round."""
    sim = fv.simulation(replace(config, seed=seed, partition_seed=seed), data=_arrays(config))
    rounds, stream = rounds_under(sim), np.random.default_rng(seed)
    cohort = len(np.asarray(sim.schedule(0).clients))
    left_out = np.concatenate([np.ones((1, cohort)), 1 - np.eye(cohort)])
    useful, correlations, gains, state = [], [], [], sim.state
    for number in range(config.rounds):
        schedule = sim.schedule(number)
        states, sums, (scores, details) = rounds(state, schedule, left_out.astype(np.float32))
        base, *without = judged(sim, sums)
        values = np.array(without)[:, 0] - base[0]
        measured = measurements(sim, schedule, scores, details)
        weights = np.stack(list(other_weights(measured, stream).values()))
        _, sums, _ = rounds(state, schedule, np.resize(weights, left_out.shape).astype(np.float32))
        useful.append((values > 0).mean())
        correlations.append([rank_correlation(values, measured[name]) for name in MEASUREMENTS])
        gains.append(judged(sim, sums)[: len(weights)] - base)
        state = jax.tree.map(lambda leaf: leaf[0], states)
    by_measurement = np.array(correlations).T
    by_weights = np.array(gains).swapaxes(0, 1)
    return Measured(
        np.array(useful),
        dict(zip(MEASUREMENTS, by_measurement, strict=True)),
        dict(zip(WEIGHTS, by_weights, strict=True)),
    )


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Returns Spearman's coefficient; nan where all numbers of a list are equal."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    from scipy import stats  # half a second, which an import of the module need not take

    return float(np.corrcoef(stats.rankdata(first), stats.rankdata(second))[0, 1])


@functools.lru_cache(1)
def _arrays(config: fv.Config) -> Any:
    return load_data(config)


def summary(measured: Sequence[Measured]) -> dict[str, Any]:
    """Returns [mean, low, high] over seeds of the means over rounds.

    A rank correlation with a measurement that is equal for all clients of a round is not defined; the mean leaves that
    round out.
    """
    num_rounds = len(measured[0].useful)
    third = num_rounds // 3
    spans = dict(zip(SPANS, (slice(None), slice(third), slice(num_rounds - third, None)), strict=True))

    def over_seeds(values: Callable[[Measured], np.ndarray]) -> dict[str, list[float]]:
        return {
            span: list(interval([float(np.nanmean(values(seed)[rounds])) for seed in measured]))
            for span, rounds in spans.items()
        }

    return {
        "useful": over_seeds(lambda seed: seed.useful),
        "correlations": {name: over_seeds(lambda seed, name=name: seed.correlations[name]) for name in MEASUREMENTS},
        "loss": {name: over_seeds(lambda seed, name=name: seed.gains[name][:, 0]) for name in WEIGHTS},
        "accuracy": {name: over_seeds(lambda seed, name=name: 100 * seed.gains[name][:, 1]) for name in WEIGHTS},
    }


def tables(result: dict[str, Any]) -> list[Table]:
    """The results as tables for the terminal."""
    values = Table("measurement", *SPANS, title="rank correlation with the value of a client")
    for name, title in MEASUREMENTS.items():
        values.add_row(title, *(shown(result["correlations"][name][span]) for span in SPANS))
    rounds = Table("weights", *SPANS, title="accuracy after one round minus that of uniform weights, points")
    for name, title in WEIGHTS.items():
        rounds.add_row(title, *(shown(result["accuracy"][name][span]) for span in SPANS))
    return [values, rounds]


def shown(values: Sequence[float]) -> str:
    """Returns a mean with its interval as text.

    >>> shown([0.25, 0.1, 0.4])
    '+0.25 (+0.10 to +0.40)'
    """
    mean, low, high = values
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=RESULT, metavar="FILE.json")
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="-- OPTION ...", help="of fedvg_jax.sim")
    args = parser.parse_args(argv)
    options = [word for word in args.options if word != "--"]
    config = simulator.parse([f"--alpha={ALPHA}", *options])
    config = replace(config, weighting="fedvg", record=RECORD, devices=1)
    described = machine.describe(
        ["python", "-m", "benchmarks.client_values", f"--seeds={args.seeds}", *(["--", *options] if options else [])]
    )
    measured = [measure(config, seed) for seed in track(range(args.seeds), console=Console(stderr=True))]
    settings = {"dataset": config.dataset, "model": config.model, "alpha": config.alpha}
    settings |= {"rounds": config.rounds, "seeds": args.seeds}
    result = {"machine": machine.finished(described), "settings": settings} | summary(measured)
    machine.write(args.out, result)
    for table in tables(result):
        Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
