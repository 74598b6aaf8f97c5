"""Whether FedVG's deficit comes from what its weights of a client have in common over rounds, or from their changes.

    python -m benchmarks.lasting_weights [--seeds 20] [--out FILE.json] [-- --rounds 100]

The weight of client k in round t is the product of a lasting and of a changing part,

    log s_k(t) = a(t) + m_k + d_k(t),

fitted by least squares to a run under FedVG's weights; a(t) normalises the weights of a round. Every seed then trains
under one part without the other: exp(m_k) alone, and FedVG's own weight of the round divided by exp(m_k). Controls have
the same spread without the information: exp(m) dealt to other clients, once for the whole run, and FedVG's weights
dealt to other clients of the cohort in every round.

The partition is drawn from every seed, and all runs of a seed share it, the cohorts and the minibatches. Intervals are
of Student's t, 95 %, on paired differences.
"""

from __future__ import annotations

import argparse
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
from benchmarks.client_values import rank_correlation
from benchmarks.demo import interval
from fedvg_jax import sim as simulator
from fedvg_jax.core.types import Hyper, Returns, Tree, Variables, Weighting
from fedvg_jax.engine.evaluate import make_evaluate
from fedvg_jax.runs import programs, registry
from fedvg_jax.runs.simulation import load_data

RESULT = Path(__file__).parent / "results" / "lasting_weights.json"
ALPHA = 0.05

WEIGHTS = {
    "fedvg": "FedVG",
    "lasting": "lasting part alone, exp(m)",
    "changing": "changing part alone, FedVG / exp(m)",
    "dealt": "lasting part, dealt to other clients once",
    "permuted": "FedVG, dealt to other clients every round",
    "samples": "FedAvg",
    "uniform": "uniform",
}
"""Key of the results -> the weights of the runs."""

BASELINES = ("uniform", "fedvg")


class Arm(NamedTuple):
    """The weights of a run: s_k is proportional to factor_k w_k^power, with FedVG's weights w of the round."""

    factors: np.ndarray
    """[N], > 0"""
    power: float
    """0 or 1"""
    is_permuted: bool = False
    """whether FedVG's weights go to other clients of the cohort"""


class Trained(NamedTuple):
    """A run."""

    accuracy: np.ndarray
    """of the test rows, at the evaluations"""
    clients: np.ndarray
    """int [rounds, K]"""
    weights: np.ndarray
    """[rounds, K]"""


class Compiled(NamedTuple):
    """The jitted functions of all runs."""

    step: Callable
    """see `federated_round.make_round`"""
    permuted: Callable
    """the same, with FedVG's weights dealt to other clients"""
    evaluate: Callable
    """see `make_evaluate`"""


class Parts(NamedTuple):
    """The parts of the logarithms of weights."""

    lasting: np.ndarray
    """[N] m_k with mean 0; 0 for a client that never took part"""
    explained: float
    """share of the variance within rounds that m explains"""


def scaled(rule: Weighting) -> Weighting:
    """Returns weights proportional to `hyper["factors"]` [K] times those of `rule` to the power `hyper["power"]`."""

    def weigh(hyper: Hyper, measured: Tree, returns: Returns) -> Variables:
        weights = jax.tree.leaves(rule.weigh(hyper, measured, returns))[0]
        raw = hyper["factors"] * jax.numpy.where(hyper["power"] > 0, weights, 1)
        return fv.weightings.broadcast_weights(fv.weightings.shares(raw, returns.present), returns)

    return rule._replace(weigh=weigh, terms=())


def compiled(sim: fv.Simulation) -> Compiled:
    """Returns the programs of a run; they serve every seed."""
    assert sim.weighting and sim.algorithm and sim.executor and sim.optimiser
    parts = (sim.executor, sim.optimiser, registry.make_live(sim.config, sim.task))
    rules = (sim.weighting, fv.weightings.permuted(sim.weighting))
    steps = [jax.jit(programs.make_round(sim.config, sim.task, sim.algorithm, scaled(r), *parts)) for r in rules]
    return Compiled(steps[0], steps[1], jax.jit(make_evaluate(sim.task)))


def train(sim: fv.Simulation, program: Compiled, arm: Arm) -> Trained:
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
    return Trained(np.array(accuracy), np.stack(clients), np.stack(jax.device_get(weights)))


def parts_of(clients: np.ndarray, weights: np.ndarray, num_clients: int) -> Parts:
    """Returns the parts of log s_k(t) = a(t) + m_k + d_k(t), by least squares; weights of 0 are left out.

    Args:
        clients: int [rounds, K] ids.
        weights: [rounds, K].
        num_clients: N.

    >>> lasting = parts_of(np.array([[0, 1], [1, 2]]), np.array([[0.2, 0.8], [0.8, 0.2]]), 3).lasting
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

    def within(values: np.ndarray) -> np.ndarray:
        """Returns values [n, ...] minus their mean in their round, which removes a(t)."""
        sums = np.zeros((len(clients), *values.shape[1:]))
        np.add.at(sums, rounds, values)
        counts = np.maximum(np.bincount(rounds, minlength=len(clients)), 1)
        return values - (sums / counts.reshape(-1, *[1] * (values.ndim - 1)))[rounds]

    design, target = within(np.eye(num_clients)[ids]), within(logs)
    lasting = np.linalg.lstsq(design, target, rcond=None)[0]  # of all solutions the shortest
    took_part = np.isin(np.arange(num_clients), ids)
    residual = target - design @ lasting
    explained = 1 - (residual @ residual) / max(target @ target, 1e-30)
    return Parts(np.where(took_part, lasting - lasting[took_part].mean(), 0), float(explained))


def arms_of(lasting: np.ndarray, sizes: np.ndarray, stream: np.random.Generator) -> dict[str, Arm]:
    """Returns the arms of a seed that follow its run under FedVG's weights, by key of `WEIGHTS`.

    Args:
        lasting: [N] m_k.
        sizes: int [N] training rows.
        stream: deals the lasting part to other clients.
    """
    ones = np.ones(len(lasting))
    return {
        "lasting": Arm(np.exp(lasting), 0),
        "changing": Arm(np.exp(-lasting), 1),
        "dealt": Arm(np.exp(stream.permutation(lasting)), 0),
        "permuted": Arm(ones, 1, is_permuted=True),
        "samples": Arm(np.maximum(sizes, 1e-6), 0),
        "uniform": Arm(ones, 0),
    }


def measure(sim: fv.Simulation, program: Compiled, seed: int) -> dict[str, dict[str, Any]]:
    """Trains under all weights from one seed.

    Returns:
        Key of `WEIGHTS` -> `accuracy` in percent at the evaluations; `spread`, the standard deviation over clients of
        the lasting part of the run's own weights; `explained`, see `Parts`; and for FedVG the rank correlation of the
        lasting part with the clients' training rows and number of classes.
    """
    num_clients = sim.config.clients
    labels = [sim.arrays.y[rows] for rows in sim.partition.train]
    sizes = np.array([len(own) for own in labels])
    first = train(sim, program, Arm(np.ones(num_clients), 1))
    parts = parts_of(first.clients, first.weights, num_clients)
    arms = arms_of(parts.lasting, sizes, np.random.default_rng(seed))
    runs = {"fedvg": first} | {name: train(sim, program, arm) for name, arm in arms.items()}
    measured = {name: _described(run, parts_of(run.clients, run.weights, num_clients)) for name, run in runs.items()}
    measured["fedvg"]["correlations"] = {
        "samples": rank_correlation(parts.lasting, sizes),
        "classes": rank_correlation(parts.lasting, np.array([len(np.unique(own)) for own in labels])),
    }
    return measured


def _described(run: Trained, parts: Parts) -> dict[str, Any]:
    return {
        "accuracy": [round(100 * value, 3) for value in run.accuracy.tolist()],
        "spread": round(float(parts.lasting.std()), 4),
        "explained": round(parts.explained, 4),
    }


def summary(measured: Sequence[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Returns final accuracies, paired differences and descriptions of the weights, as [mean, low, high] over seeds."""
    finals = {name: np.array([seed[name]["accuracy"][-1] for seed in measured]) for name in WEIGHTS}
    correlations = {
        name: list(interval([seed["fedvg"]["correlations"][name] for seed in measured]))
        for name in ("samples", "classes")
    }
    return {
        "accuracy": {name: list(interval(values.tolist())) for name, values in finals.items()},
        "differences": {
            base: {name: list(interval((values - finals[base]).tolist())) for name, values in finals.items()}
            for base in BASELINES
        },
        "spread": {name: list(interval([seed[name]["spread"] for seed in measured])) for name in WEIGHTS},
        "explained": list(interval([seed["fedvg"]["explained"] for seed in measured])),
        "correlations": correlations,
        "runs": {name: [seed[name]["accuracy"] for seed in measured] for name in WEIGHTS},
    }


def rows(result: dict[str, Any]) -> list[list[str]]:
    """Returns the rows of the table: weights, final accuracy, differences, and the spread of the lasting part."""

    def difference(name: str, base: str) -> str:
        mean, low, high = result["differences"][base][name]
        return "" if name == base else f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"

    return [
        [
            title,
            f"{result['accuracy'][name][0]:.2f}",
            *(difference(name, base) for base in BASELINES),
            f"{result['spread'][name][0]:.2f}",
        ]
        for name, title in WEIGHTS.items()
    ]


HEADER = ("weights", "test accuracy, %", "minus uniform, points", "minus FedVG, points", "lasting spread")


def _settings(config: fv.Config, num_seeds: int) -> dict[str, Any]:
    names = ("dataset", "model", "alpha", "rounds")
    return {name: getattr(config, name) for name in names} | {"seeds": num_seeds}


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULT, metavar="FILE.json")
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="-- OPTION ...", help="of fedvg_jax.sim")
    args = parser.parse_args(argv)
    options = [word for word in args.options if word != "--"]
    config = replace(simulator.parse([f"--alpha={ALPHA}", *options]), weighting="fedvg", devices=1)
    command = f"python -m benchmarks.lasting_weights --seeds={args.seeds}" + " --" * bool(options)
    described = machine.describe([command, *options])
    arrays = load_data(config)
    measured, program, result = [], None, {}
    for seed in track(range(args.seeds), console=Console(stderr=True)):
        sim = fv.simulation(replace(config, seed=seed, partition_seed=seed), data=arrays)
        program = program or compiled(sim)
        measured.append(measure(sim, program, seed))
        result = {"machine": machine.finished(described), "settings": _settings(config, seed + 1)} | summary(measured)
        machine.write(args.out, result)  # of the seeds so far, so that a run that is ended early has them
    table = Table(*HEADER, title="final round")
    for row in rows(result):
        table.add_row(*row)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
