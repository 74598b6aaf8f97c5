"""Measures whether FedVG's lower accuracy comes from the constant or from the changing part of clients' weights.

    python -m benchmarks.studies.lasting_weights [--seeds 20] [--out FILE.json] [-- --rounds 100]

The weight of client k in round t is the product of a lasting and a changing part,

    log s_k(t) = a(t) + m_k + d_k(t),

fitted by least squares to a run under FedVG's weights; a(t) normalises the weights of a round. Every seed then trains
under each part alone: exp(m_k), and FedVG's weight of the round divided by exp(m_k). Two controls have the same spread
without the information: exp(m) permuted over the clients once, and FedVG's weights permuted within the cohort in every
round. Prints and writes final accuracies with 95 % Student's t intervals of their paired differences.

Every seed draws its own partition, and all runs of a seed share the partition, the cohorts and the minibatches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import fedvg_jax as fv
from benchmarks.studies import seeds
from benchmarks.studies.paper.clients import rank_correlation
from benchmarks.studies.seeds import interval
from fedvg_jax.core.types import Hyper, ServerView, Tree, Variables, Weighting
from fedvg_jax.engine.evaluate import make_evaluate
from fedvg_jax.runs.assemble import registry

WEIGHTS = {
    "fedvg": "FedVG",
    "lasting": "lasting part alone, exp(m)",
    "changing": "changing part alone, FedVG / exp(m)",
    "dealt": "lasting part, permuted over clients once",
    "permuted": "FedVG, permuted over the cohort every round",
    "samples": "FedAvg",
    "uniform": "uniform",
}
"""Key of the results -> weights of the runs."""

BASELINES = ("uniform", "fedvg")


class Arm(NamedTuple):
    """The weights of a run: s_k is proportional to factor_k w_k^power, where w are FedVG's weights of the round."""

    factors: np.ndarray
    """[N], > 0"""
    power: float
    """0 or 1"""
    is_permuted: bool = False
    """whether FedVG's weights are permuted within the cohort"""


class Run(NamedTuple):
    """The results of a run."""

    accuracy: np.ndarray
    """test accuracy at the evaluations"""
    clients: np.ndarray
    """int [rounds, K] ids"""
    weights: np.ndarray
    """[rounds, K]"""


class Program(NamedTuple):
    """The jitted functions of all runs."""

    step: Callable
    """see `federated_round.make_round`"""
    permuted: Callable
    """the same, with FedVG's weights permuted within the cohort"""
    evaluate: Callable
    """see `make_evaluate`"""


class Parts(NamedTuple):
    """The lasting part of log weights."""

    lasting: np.ndarray
    """[N] m_k with mean 0; 0 for a client that never took part"""
    explained: float
    """share of the variance within rounds that m explains"""


def scale_weighting(rule: Weighting) -> Weighting:
    """Returns a weighting proportional to `hyper["factors"]` [K] times weights of `rule` to the `hyper["power"]`."""

    def weigh(hyper: Hyper, measured: Tree, view: ServerView) -> Variables:
        weights = jax.tree.leaves(rule.weigh(hyper, measured, view))[0]
        raw = hyper["factors"] * jax.numpy.where(hyper["power"] > 0, weights, 1)
        return fv.weightings.broadcast_weights(fv.weightings.shares(raw, view.present), view)

    return rule._replace(weigh=weigh, terms=())


def make_program(sim: fv.Simulation) -> Program:
    """Returns the jitted functions of a run, which all seeds share."""
    parts = (sim.executor, sim.optimiser, sim.config.clients)
    options = registry.round_options(sim.config, sim.task)
    rules = [scale_weighting(rule) for rule in (sim.weighting, fv.weightings.permuted(sim.weighting))]
    steps = [jax.jit(fv.make_round(sim.task, sim.algorithm, rule, *parts, **options)) for rule in rules]
    return Program(steps[0], steps[1], jax.jit(make_evaluate(sim.task)))


def train(sim: fv.Simulation, program: Program, arm: Arm) -> Run:
    """Trains under the weights of an arm, from the simulation's initial state."""
    state, step = sim.state, program.permuted if arm.is_permuted else program.step
    accuracy, clients, weights = [], [], []
    for number in range(sim.config.rounds):
        schedule = sim.schedule(number)
        cohort = np.asarray(schedule.clients)
        own = {"factors": np.float32(arm.factors[cohort]), "power": np.float32(arm.power)}
        state, metrics = step(state, schedule, sim.data, {**sim.hyper, **own})
        clients.append(cohort)
        weights.append(metrics.weights)
        if (number + 1) % sim.config.eval_every == 0 or number + 1 == sim.config.rounds:
            sums = jax.device_get(program.evaluate(state.variables, sim.data.pool, sim.data.test))
            accuracy.append(sim.task.metrics(sums)["accuracy"])
    return Run(np.array(accuracy), np.stack(clients), np.stack(jax.device_get(weights)))


def fit_parts(clients: np.ndarray, weights: np.ndarray, num_clients: int) -> Parts:
    """Fits log s_k(t) = a(t) + m_k + d_k(t) by least squares; weights of 0 are ignored.

    Args:
        clients: int [rounds, K] ids.
        weights: [rounds, K].
        num_clients: N.

    >>> lasting = fit_parts(np.array([[0, 1], [1, 2]]), np.array([[0.2, 0.8], [0.8, 0.2]]), 3).lasting
    >>> np.round(np.exp(lasting - lasting[0]), 6).tolist()
    [1.0, 4.0, 1.0]
    """
    rounds = np.repeat(np.arange(len(clients)), clients.shape[1])
    is_used = weights.reshape(-1) > 0
    ids, logs, rounds = (
        clients.reshape(-1)[is_used],
        np.log(weights.reshape(-1)[is_used].astype(float)),
        rounds[is_used],
    )

    def centre_by_round(values: np.ndarray) -> np.ndarray:
        """Returns values [n, ...] minus the mean of their round, which removes a(t)."""
        sums = np.zeros((len(clients), *values.shape[1:]))
        np.add.at(sums, rounds, values)
        counts = np.maximum(np.bincount(rounds, minlength=len(clients)), 1)
        return values - (sums / counts.reshape(-1, *[1] * (values.ndim - 1)))[rounds]

    design, target = centre_by_round(np.eye(num_clients)[ids]), centre_by_round(logs)
    lasting = np.linalg.lstsq(design, target, rcond=None)[0]  # the solution of least norm
    participated = np.isin(np.arange(num_clients), ids)
    residual = target - design @ lasting
    explained = 1 - (residual @ residual) / max(target @ target, 1e-30)
    return Parts(np.where(participated, lasting - lasting[participated].mean(), 0), float(explained))


def make_arms(lasting: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> dict[str, Arm]:
    """Returns the arms of a seed, except FedVG's own, by key of `WEIGHTS`.

    Args:
        lasting: [N] m_k.
        sizes: int [N] training rows.
        rng: permutes the lasting part over the clients.
    """
    ones = np.ones(len(lasting))
    return {
        "lasting": Arm(np.exp(lasting), 0),
        "changing": Arm(np.exp(-lasting), 1),
        "dealt": Arm(np.exp(rng.permutation(lasting)), 0),
        "permuted": Arm(ones, 1, is_permuted=True),
        "samples": Arm(np.maximum(sizes, 1e-6), 0),
        "uniform": Arm(ones, 0),
    }


def measure(sim: fv.Simulation, program: Program, seed: int) -> dict[str, dict[str, Any]]:
    """Trains under all weights of `WEIGHTS` from one seed.

    Returns:
        Key of `WEIGHTS` -> `accuracy` in percent at the evaluations; `spread`, the standard deviation over clients of
        the lasting part of the run's weights; `explained`, see `Parts`; for FedVG also `correlations`, the rank
        correlations of the lasting part with the clients' training rows and number of classes.
    """
    num_clients = sim.config.clients
    labels = [sim.arrays.y[rows] for rows in sim.partition.train]
    sizes = np.array([len(client_labels) for client_labels in labels])
    classes = np.array([len(np.unique(client_labels)) for client_labels in labels])
    fedvg = train(sim, program, Arm(np.ones(num_clients), 1))
    parts = fit_parts(fedvg.clients, fedvg.weights, num_clients)
    arms = make_arms(parts.lasting, sizes, np.random.default_rng(seed))
    runs = {"fedvg": fedvg} | {name: train(sim, program, arm) for name, arm in arms.items()}
    measured = {name: _summarise_run(run, num_clients) for name, run in runs.items()}
    measured["fedvg"]["correlations"] = {
        "samples": rank_correlation(parts.lasting, sizes),
        "classes": rank_correlation(parts.lasting, classes),
    }
    return measured


def _summarise_run(run: Run, num_clients: int) -> dict[str, Any]:
    parts = fit_parts(run.clients, run.weights, num_clients)
    return {
        "accuracy": [round(100 * value, 3) for value in run.accuracy.tolist()],
        "spread": round(float(parts.lasting.std()), 4),
        "explained": round(parts.explained, 4),
    }


def summary(measured: Sequence[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Returns final accuracies, paired differences and statistics of the weights, as [mean, low, high] over seeds."""
    finals = {name: np.array([seed[name]["accuracy"][-1] for seed in measured]) for name in WEIGHTS}
    correlations = {
        name: interval([seed["fedvg"]["correlations"][name] for seed in measured]) for name in ("samples", "classes")
    }
    return {
        "accuracy": {name: interval(values.tolist()) for name, values in finals.items()},
        "differences": {
            base: {name: interval((values - finals[base]).tolist()) for name, values in finals.items()}
            for base in BASELINES
        },
        "spread": {name: interval([seed[name]["spread"] for seed in measured]) for name in WEIGHTS},
        "explained": interval([seed["fedvg"]["explained"] for seed in measured]),
        "correlations": correlations,
        "runs": {name: [seed[name]["accuracy"] for seed in measured] for name in WEIGHTS},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Trains all seeds and writes the results after each."""
    return seeds.run(argv, "lasting_weights", __doc__, 20, make_program, measure, summary)


if __name__ == "__main__":
    sys.exit(main())
