"""Client-level differential privacy of a run: what its weights cost, what it refuses, and epsilon after each round.

Neighbours are federations of N clients in which one client is another. Epsilon covers the global models of all rounds
together, for those who know neither the seed nor the cohorts.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from fedvg_jax.algorithms.base import no_probe, no_report
from fedvg_jax.config import Config, cohort_size
from fedvg_jax.config.methods import WEIGHTINGS, WeightingFacts
from fedvg_jax.config.options import choice
from fedvg_jax.config.weighting_grammar import rule_names
from fedvg_jax.core import dependence, tree
from fedvg_jax.core.types import Algorithm, Cohort, Hyper, Selection, SimState, Tree, UsageError
from fedvg_jax.engine import privacy
from fedvg_jax.host import extras

COVERS = (
    "epsilon covers the global models; weights, scores, losses and accuracies in the records have no noise, and the"
    " seed reproduces the noise"
)


def sensitivity(config: Config, algorithm: Algorithm, *, is_own: bool) -> privacy.Sensitivity | None:
    """Returns how much one client can change the aggregate; None without privacy.

    Args:
        algorithm: its `native_weighting` is the weighting "native".
        is_own: whether the caller passed a weighting.
    """
    if config.dp.clip == 0:
        return None
    if not is_own and _weighting(config, algorithm) == "uniform":
        return privacy.fixed
    is_of_norms = any(facts.is_of_norms for facts in _facts(config, algorithm))
    is_tensorwise = is_own or (is_of_norms and config.fedvg.granularity != "modelwise")
    return privacy.tensorwise if is_tensorwise else privacy.modelwise


def check(config: Config, algorithm: Algorithm, state: SimState, hyper: Hyper, selection: Selection | None) -> None:
    """Raises UsageError where the server reads more of the clients than the aggregate with noise.

    Args:
        state: before the first round, arrays or shapes.
        selection: of the caller; None for uniform cohorts.
    """
    if config.dp.clip == 0:
        return
    params = state.variables.params

    def residual(weights: Tree, update: Tree, server: Tree, hyper: Hyper) -> dict[str, Tree]:
        cohort = Cohort(update, (), (), weights, (), config.clients)
        return {"all": algorithm.residual(hyper, server, update, cohort)}

    instead = "use fedavg, fedavgm, fedprox, fedadam, fedyogi, fedadagrad, fedntd, feddecorr or ditto"
    if algorithm.report is not no_report or algorithm.probe is not no_probe:
        raise UsageError(f"dp covers the aggregate, and the algorithm has messages or memories of clients; {instead}")
    if algorithm.send and jax.tree.leaves(jax.eval_shape(algorithm.send.init, hyper, params)):
        raise UsageError("dp does not account for what clients keep, as errors of send topk; use qsgd or none")
    weights = jax.tree.map(lambda _: jax.ShapeDtypeStruct((cohort_size(config),), tree.dtype(params)), params)
    read, _ = dependence.reads(residual, weights, params, state.server, hyper)
    if any(jax.tree.leaves(read["all"][0])):
        raise UsageError(f"dp covers the aggregate, and the algorithm's residual reads the weights; {instead}")
    if jax.tree.leaves(state.variables.stats) and config.norm_layers != "frozen":
        raise UsageError(
            "running statistics of BatchNorm would get no noise; use --norm-layers group or frozen, or a task without"
        )
    if selection is not None:
        raise UsageError("dp accounts for uniform cohorts; leave selection= out")


def epsilon_after(config: Config, algorithm: Algorithm, hyper: Hyper, *, is_own: bool) -> Callable[[int], float] | None:
    """Returns number of rounds -> epsilon at `dp.delta`, by Renyi accounting; None without privacy.

    Cohorts are uniform, without replacement. They hide a client that is not sampled unless the weights read D_val and
    D_val has rows of all clients: then every round counts as one of all clients.

    Args:
        algorithm, is_own: as of `sensitivity`.
        hyper: of the rounds.

    Raises:
        UsageError: dp-accounting is not installed.
    """
    if config.dp.clip == 0:
        return None
    accounting = extras.load("dp_accounting", "dp", "dp.clip")
    event, size = accounting.GaussianDpEvent(float(hyper["dp_noise"])), cohort_size(config)
    events = [event]  # also a bound for sampled cohorts, and where there is little noise the smaller one
    reads_d_val = is_own or any(facts.takes_task for facts in _facts(config, algorithm))
    if size < config.clients and not (reads_d_val and choice(config, "validation.source")[0] == "clients"):
        events.append(accounting.SampledWithoutReplacementDpEvent(config.clients, size, event))
    one_round = []
    for event in events:
        accountant = accounting.rdp.RdpAccountant(neighboring_relation=accounting.NeighboringRelation.REPLACE_ONE)
        one_round.append(accountant.compose(event)._rdp)  # composing every round anew would take 0.7 s each
    orders, epsilons = accountant._orders, np.minimum.reduce(one_round)
    return lambda rounds: float(accounting.rdp.compute_epsilon(orders, rounds * epsilons, config.dp.delta)[0])


def _facts(config: Config, algorithm: Algorithm) -> list[WeightingFacts]:
    """Returns the facts of every weighting that a run's is made of."""
    return [WEIGHTINGS[name] for name in rule_names(_weighting(config, algorithm))]


def _weighting(config: Config, algorithm: Algorithm) -> str:
    """Returns the weighting, of "native" that of the algorithm."""
    return config.weighting.replace("native", str(algorithm.native_weighting))
