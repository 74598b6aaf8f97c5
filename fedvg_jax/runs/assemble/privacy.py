"""Client-level differential privacy of a run: what its weights cost, what it refuses, and epsilon after each round.

Neighbours are federations of N clients in which one client is another. Epsilon covers the global models of all rounds
together, for those who know neither the seed nor the cohorts.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from fedvg_jax.algorithms.base import no_probe, no_report
from fedvg_jax.core import checks, tree
from fedvg_jax.core.types import Cohort, Hyper, SimState, Tree, UsageError
from fedvg_jax.host import extras
from fedvg_jax.runs.assemble.programs import Program
from fedvg_jax.runs.experiment import Cohorts, Experiment, Privacy

COVERS = (
    "epsilon covers the global models; weights, scores, losses and accuracies in the records have no noise, and the"
    " seed reproduces the noise, which runs of one seed share"
)
UNKNOWN = (
    "no epsilon is recorded, because the first model may have been trained on the clients: it is initial=, or of a run;"
    " init FILE counts as public"
)

load_accounting = functools.partial(extras.load, "dp_accounting", "dp", "dp.clip")


def check(experiment: Experiment, program: Program, state: SimState, hyper: Hyper) -> None:
    """Raises UsageError where the server reads more of the clients than the aggregate with noise.

    Args:
        experiment, program: of a run with differential privacy.
        state: before the first round, arrays or shapes.
        hyper: all hyperparameters.
    """
    assert experiment.privacy is not None, "others need no check"
    algorithm, cohorts, params = program.algorithm, experiment.cohorts, state.variables.params

    def residual(weights: Tree, update: Tree, server: Tree, hyper: Hyper) -> dict[str, Tree]:
        cohort = Cohort(update, (), (), weights, (), cohorts.num_clients)
        return {"all": algorithm.residual(hyper, server, update, cohort)}

    instead = "use fedavg, fedavgm, fedprox, fedadam, fedyogi, fedadagrad, fedntd, feddecorr, fedlc or ditto"
    if program.weighting.describe:
        raise UsageError(
            "dp does not account for what clients send of their rows before the first round; use a weighting without"
            " describe, such as uniform or fedvg"
        )
    if algorithm.report is not no_report or algorithm.probe is not no_probe:
        raise UsageError(
            f"dp covers the aggregate, and the algorithm has messages or client states; {instead}"
        )
    if algorithm.send and jax.tree.leaves(jax.eval_shape(algorithm.send.init, hyper, params)):
        raise UsageError(
            "dp does not account for what clients keep, as errors of send topk; use qsgd or none"
        )
    weights = jax.tree.map(
        lambda _: jax.ShapeDtypeStruct((cohorts.size,), tree.dtype(params)), params
    )
    read, _ = checks.dependencies(residual, weights, params, state.server, hyper)
    if any(jax.tree.leaves(read["all"][0])):
        raise UsageError(
            f"dp covers the aggregate, and the algorithm's residual reads the weights; {instead}"
        )
    if jax.tree.leaves(state.variables.stats) and experiment.privacy.moves_stats:
        raise UsageError(
            "running statistics of BatchNorm would get no noise; use --norm-layers group or frozen, or a task without"
        )
    if experiment.method.selection is not None:
        raise UsageError("dp accounts for uniform cohorts; leave selection= out")


class Account(NamedTuple):
    """What a run costs in privacy."""

    delta: float
    noise: float
    """z"""
    num_clients: int
    """N"""
    cohort_size: int
    """K; N where the weights read rows of clients that are not sampled"""

    def epsilon(self, rounds: int) -> float:
        """Returns epsilon after a number of rounds, by Renyi accounting.

        Raises:
            UsageError: dp-accounting is not installed.
        """
        accounting = load_accounting()
        orders, divergences = _divergences(self.noise, self.num_clients, self.cohort_size)
        return float(accounting.rdp.compute_epsilon(orders, rounds * divergences, self.delta)[0])


def make_account(private: Privacy, cohorts: Cohorts, hyper: Hyper) -> Account:
    """Returns what the rounds of a run cost.

    Cohorts are uniform, without replacement. They hide a client that is not sampled, unless the weights read rows of
    all clients, as the default D_val has: then every round counts as a round of all clients.

    Args:
        private, cohorts: of the run.
        hyper: of the rounds.

    Raises:
        UsageError: dp-accounting is not installed.
    """
    load_accounting()  # before anything is computed
    num_clients = cohorts.num_clients
    size = num_clients if private.reads_all_clients else cohorts.size
    return Account(private.delta, float(hyper["dp.noise_multiplier"]), num_clients, size)


@functools.cache
def _divergences(noise: float, clients: int, cohort: int) -> tuple[Any, np.ndarray]:
    """Returns Renyi's orders and the divergences of one round: composing every round anew would take 0.7 s each."""
    accounting = load_accounting()
    event = accounting.GaussianDpEvent(noise)
    # also a bound for sampled cohorts, and where there is little noise the smaller one
    events = [event]
    if cohort < clients:
        events.append(accounting.SampledWithoutReplacementDpEvent(clients, cohort, event))
    one_round = []
    for event in events:
        accountant = accounting.rdp.RdpAccountant(
            neighboring_relation=accounting.NeighboringRelation.REPLACE_ONE
        )
        one_round.append(accountant.compose(event)._rdp)
    return accountant._orders, np.minimum.reduce(one_round)
