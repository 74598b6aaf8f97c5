"""Client-level differential privacy of a run: what its weights cost, what it refuses, and epsilon after each round.

Neighbours are federations of N clients in which one client is another. Epsilon covers the global models of all rounds
together, for those who know neither the seed nor the cohorts.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedvg_jax.algorithms.base import no_probe, no_report
from fedvg_jax.core import checks, tree
from fedvg_jax.core.types import (
    Algorithm,
    ClientReturn,
    Cohort,
    Data,
    Hyper,
    Selection,
    ServerView,
    SimState,
    Task,
    Tree,
    UsageError,
    Weighting,
)
from fedvg_jax.engine import local_training
from fedvg_jax.host import extras, files
from fedvg_jax.runs.experiment import Cohorts, Privacy, Records
from fedvg_jax.runs.record import digests, history

COVERS = (
    "epsilon covers the global models; weights, scores, losses and accuracies in the records have no noise, and the"
    " seed reproduces the noise, which runs of one seed share"
)
UNKNOWN = (
    "no epsilon is recorded, because the first model may have been trained on the clients: it is initial=, or of a run"
    " without epsilon or on other rows; init FILE counts as public"
)


def check(
    options: Privacy,
    cohorts: Cohorts,
    algorithm: Algorithm,
    weighting: Weighting,
    selection: Selection | None,
    state: SimState,
    hyper: Hyper,
) -> None:
    """Raises UsageError where the server reads more of the clients than the aggregate with noise.

    Args:
        options: of the run.
        cohorts: of the run.
        algorithm, weighting: of the run.
        selection: None for uniform cohorts.
        state: before the first round, arrays or shapes.
        hyper: all hyperparameters.
    """
    params = state.variables.params

    def residual(weights: Tree, update: Tree, server: Tree, hyper: Hyper) -> dict[str, Tree]:
        cohort = Cohort(update, (), (), weights, (), cohorts.num_clients)
        return {"all": algorithm.residual(hyper, server, update, cohort)}

    instead = "use fedavg, fedavgm, fedprox, fedadam, fedyogi, fedadagrad, fedntd, feddecorr, fedlc or ditto"
    if weighting.describe:
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
    if isinstance(state.clients, local_training.ClientState) and jax.tree.leaves(
        (state.clients.weighting, state.weighting)
    ):
        raise UsageError(
            "dp does not account for a weighting with a state, which weighs by earlier rounds, too"
        )
    weights = jax.tree.map(
        lambda _: jax.ShapeDtypeStruct((cohorts.size,), tree.dtype(params)), params
    )
    read, _ = checks.dependencies(residual, weights, params, state.server, hyper)
    if any(jax.tree.leaves(read["all"][0])):
        raise UsageError(
            f"dp covers the aggregate, and the algorithm's residual reads the weights; {instead}"
        )
    if jax.tree.leaves(state.variables.stats) and not options.has_frozen_statistics:
        raise UsageError(
            "running statistics of BatchNorm would get no noise; use --norm-layers group or frozen, or a task without"
        )
    if selection is not None:
        raise UsageError("dp accounts for uniform cohorts; leave selection= out")


class Mechanism(NamedTuple):
    """The noise of a round, as it is counted."""

    noise: float
    """z"""
    clients: int
    """N"""
    cohort: int
    """K; N where the weights read rows of clients that are not sampled"""


class Account(NamedTuple):
    """What a run, and the runs that it starts from, cost in privacy."""

    delta: float
    mechanism: Mechanism
    earlier: tuple[tuple[Mechanism, int], ...] = ()
    """of the rounds that the first model is of, and their number"""

    def epsilon(self, rounds: int) -> float:
        """Returns epsilon after a number of rounds, by Renyi accounting.

        Raises:
            UsageError: dp-accounting is not installed.
        """
        accounting = extras.load("dp_accounting", "dp", "dp.clip")
        spent = [
            (count, _divergences(*mechanism))
            for mechanism, count in (*self.earlier, (self.mechanism, rounds))
        ]
        total = sum(count * divergences for count, (_, divergences) in spent)
        return float(accounting.rdp.compute_epsilon(spent[0][1][0], total, self.delta)[0])

    def as_json(self) -> str:
        """Returns the account of a manifest."""
        return json.dumps([self.earlier, self.mechanism])


def mechanism(cohorts: Cohorts, hyper: Hyper, *, reads_clients: bool) -> Mechanism:
    """Returns the mechanism of a run's rounds.

    Cohorts are uniform, without replacement. They hide a client that is not sampled, unless the weights read rows of
    all clients, as the default D_val has: then every round counts as a round of all clients.

    Args:
        cohorts: of the run.
        hyper: of the rounds.
        reads_clients: whether weights read rows of clients that are not sampled.
    """
    noise, size = float(hyper["dp.noise_multiplier"]), cohorts.size
    return Mechanism(noise, cohorts.num_clients, cohorts.num_clients if reads_clients else size)


def reads_rows(weighting: Weighting, task: Task, data: Data, hyper: Hyper) -> bool:
    """Returns whether the weights of a cohort depend on rows of the pool, by their trace for two clients.

    Args:
        weighting: of the run.
        task: the model and its loss.
        data: rows that a round reads; a single batch is traced.
        hyper: all hyperparameters.
    """

    def weights(pool: Tree, key: jax.Array, tables: Data, hyper: Hyper) -> dict[str, Tree]:
        rows, model = tables._replace(pool=pool), task.init(key)
        clients, ids = tree.repeat(model, 2), jax.numpy.arange(2, dtype=np.int32)
        described = tree.take(rows.described.weighting, ids)
        returned = ClientReturn(clients, ids, clients.params, ids, described)
        view = ServerView(model, clients, ids, rows, ids >= 0)
        measured = jax.lax.map(lambda one: weighting.signal(hyper, one, rows), returned)
        if weighting.state:
            server, client = weighting.state.init(hyper, model.params)
            recall = jax.vmap(weighting.state.recall, (None, 0, 0, None))
            measured, _ = recall(hyper, measured, tree.repeat(tree.arrays(client), 2), server)
        return {"weights": weighting.weigh(hyper, measured, view)}

    few = data._replace(pool=None, scoring=data.scoring[:1], val=data.val[:1])
    read, _ = checks.dependencies(weights, data.pool, jax.random.key(0), few, dict(hyper))
    return any(jax.tree.leaves(read["weights"][0]))


def earlier_rounds(records: Records, sources: Callable[[], Mapping[str, str]]) -> tuple | None:
    """Returns `Account.earlier` of a run; None where that is not known.

    Weights of a file count as public. A run with a checkpoint keeps the account that it started with: the run that it
    started from may have more rounds meanwhile.

    Args:
        records: where the run starts, and its folder.
        sources: () -> digests of the new run, see `provenance.sources`.
    """
    folder = records.folder if records.is_resumed else None
    begun = folder if folder and digests.newest_round(folder) else None
    started = files.read_object_if_any(begun / "manifest.json") if begun else {}
    if "privacy" in started:
        return _counted(*json.loads(started["privacy"])[0]) if started["privacy"] else None
    init = records.start
    if init is None or not digests.is_run(init):
        return ()
    run = digests.run_of(init)
    manifest, own_sources = files.read_object_if_any(run / "manifest.json"), sources()
    if not manifest.get("privacy") or any(
        manifest.get(name) != own_sources[name] for name in ("data", "partition")
    ):
        return None
    earlier, own = json.loads(manifest["privacy"])
    rounds = digests.about(init)["round"] if digests.is_checkpoint(init) else len(history.read(run))
    return _counted(*earlier, (own, rounds))


def origin(start: Path | None, account: Account | None) -> tuple[int, ...]:
    """Returns numbers that seed cohorts and noise beside the seed, so that they are independent of earlier runs.

    These are the numbers of rounds of the earlier runs that made the first model. For a file of weights, which a run
    may have written, they are its size and checksum; for a new model there are none.

    Args:
        start: run, checkpoint or file that the first model is read from.
        account: of the run; None without epsilon.
    """
    if account is None or start is None:
        return ()
    if account.earlier:
        return tuple(count for _, count in account.earlier)
    return tuple(digests.of_files(start.parent, [start.name])[start.name])


def _counted(*entries: tuple[Sequence, int]) -> tuple[tuple[Mechanism, int], ...]:
    """Returns mechanisms of a manifest, with their numbers of rounds."""
    return tuple((Mechanism(*mechanism), count) for mechanism, count in entries)


@functools.cache
def _divergences(noise: float, clients: int, cohort: int) -> tuple[Any, np.ndarray]:
    """Returns Renyi's orders and the divergences of one round: composing every round anew would take 0.7 s each."""
    accounting = extras.load("dp_accounting", "dp", "dp.clip")
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
