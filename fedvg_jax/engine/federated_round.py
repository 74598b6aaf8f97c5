"""One federated round, and a chunk of rounds, as pure functions of arrays.

    theta <- theta_g - sum_k s_k (theta_g - theta_k) + R

with the global model theta_g, the clients' trained models theta_k, the aggregation weights s_k and the algorithm's
residual R. `make_round` composes the phases below, in their order in this file: `process_block` trains, scores, weighs
and aggregates the clients of a cohort block, then updates their memories; `server_step` adds R. A cohort is one cohort
block unless its schedule has several (see `cohort_blocks`). No phase depends on a particular algorithm, weighting,
model or data set.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding

from fedvg_jax.algorithms.base import no_report
from fedvg_jax.core import packing as packings
from fedvg_jax.core import tree
from fedvg_jax.core.gradient_support import FULL_SUPPORT
from fedvg_jax.core.hardware import Hardware, choices
from fedvg_jax.core.scopes import ROUNDS
from fedvg_jax.core.types import (
    Algorithm,
    Augment,
    Client,
    Cohort,
    Data,
    Executor,
    GradientSupport,
    Hyper,
    Loop,
    Metrics,
    Probe,
    Report,
    Returns,
    RoundStep,
    Schedule,
    SimState,
    Task,
    Term,
    Tree,
    Variables,
    Weighting,
)
from fedvg_jax.engine import attacks, cohort_blocks, cohort_memories, local_training, robust, server_tuning
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.engine.cohort_blocks import ClientTable, RunningCohort
from fedvg_jax.weightings import basic, streaming

Chunk = Callable[[SimState, Array, Schedule, Data, Hyper], tuple[SimState, Metrics]]
"""(state, number of rounds [], schedules stacked [R], data, hyper) -> (state, metrics [R, K])"""


def init_state(
    task: Task,
    algorithm: Algorithm,
    num_clients: int,
    key: Array,
    hyper: Hyper,
    stats_too: bool = False,
    kept: local_training.Optimiser | None = None,
    variables: Variables | None = None,
    num_rows: int | None = None,
) -> SimState:
    """Returns the state before the first round.

    Args:
        task: gives the initial variables.
        algorithm: gives the memories of server and clients.
        num_clients: N.
        key: for `task.init`.
        hyper: name -> value.
        stats_too: as in `make_round`.
        kept: the clients' optimiser, if its memory is kept between rounds.
        variables: initial variables in place of `task.init(key)`.
        num_rows: M, rows for the memories of the clients that schedules name by `memory_rows`; None for a row for each
            of the N clients, by number.
    """
    first_round = jax.device_put(np.int32(0))
    variables = Variables(*(jax.jit(task.init)(key) if variables is None else tree.arrays(variables)))
    hyper = tree.arrays(dict(hyper), tree.wide_dtype(variables))
    memories = algorithm.init(hyper, variables if stats_too else variables.params)
    server, client = tree.arrays(memories, tree.dtype(variables))
    optimiser = kept(hyper, first_round).init(variables.params) if kept else ()
    clients, optimisers = (tree.repeat(memory, num_rows or num_clients) for memory in (client, optimiser))
    owners = jnp.full(num_rows, -1, jnp.int32) if num_rows else ()
    return SimState(first_round, variables, server, clients, optimisers, owners)


init = init_state
"""An alias of `init_state`."""


class RoundParts(NamedTuple):
    """The static parts of a round: the arguments of `make_round`."""

    task: Task
    algorithm: Algorithm
    weighting: Weighting
    executor: Executor
    optimiser: local_training.Optimiser
    num_clients: int
    aggregate: robust.Rule
    disturb: attacks.Disturb
    refine: server_tuning.Refine
    augment: Augment | None
    support: GradientSupport
    stats_too: bool
    weigh_untrained: bool
    hardware: Hardware | None

    @property
    def loop(self) -> Loop:
        """The loop over the minibatches of a probe and the steps of a displacement."""
        return self.executor.loop or local_training.counted

    def algorithm_part(self, memory: Tree) -> Tree:
        """Returns what the algorithm acts on, of a tree that holds variables."""
        return memory if self.stats_too else tree.params_of(memory)


class RoundInputs(NamedTuple):
    """The arrays of one round."""

    state: SimState
    schedule: Schedule
    data: Data
    hyper: Hyper
    attack_key: Array
    rule_key: Array
    is_in_order: bool = False
    """whether the memories are those of this cohort block, row k of its position k"""


def make_round(
    task: Task,
    algorithm: Algorithm,
    weighting: Weighting,
    executor: Executor,
    optimiser: local_training.Optimiser,
    num_clients: int,
    *,
    aggregate: robust.Rule = robust.mean,
    disturb: attacks.Disturb = attacks.none,
    refine: server_tuning.Refine = server_tuning.none,
    augment: Augment | None = None,
    support: GradientSupport = FULL_SUPPORT,
    stats_too: bool = False,
    weigh_untrained: bool = False,
    hardware: Hardware | None = None,
) -> RoundStep:
    """Returns round_step(state, schedule, data, hyper) -> (state, metrics), pure and jittable.

    A client is absent if it drops out, takes no local step, or has anything non-finite: model, loss, signal or weight.
    An absent client counts as if it had returned theta_g with weight 0, and keeps its memory. A client takes no local
    step if it has no training row, or a single one where single rows are skipped. A round in which all clients are
    absent changes neither the model nor any memory; only `refine` still acts on the model.

    A schedule made with a `block_size` needs a weighting with `terms`, and the weighted mean as `aggregate`.

    Args:
        task: the model and its loss.
        algorithm: the federated algorithm.
        weighting: the rule of the aggregation weights.
        executor: how the clients are run.
        optimiser: the clients' optimiser. Where the algorithm has a `report`, such as Scaffold's, it has to take a
            scalar as its parameters too, because its displacement under a constant gradient is measured on one.
        num_clients: N.
        aggregate: the weighted mean, or a robust rule. A rule replaces the mean of models, not of messages.
        disturb: replaces what corrupt clients return.
        refine: changes the new global model at the end of the round.
        augment: changes minibatches before a client trains on them; probes and scores use the unchanged rows.
        support: the entries of the parameters that clients carry, e.g. the task's. Outside it a parameter keeps its
            value in theta_g, so neither algorithm nor optimiser may change a parameter without a gradient.
        stats_too: whether the algorithm acts on running statistics too, as the published code does.
        weigh_untrained: whether a client without a local step is weighed like the others, as in the published code. It
            returns theta_g, to which the weighting may give any weight.
        hardware: what the round will run on; defaults to the hardware of this process.

    Two clients with the rows 1 and 3 have the losses (w - row)^2 / 2, so one step of rate 1 takes each to its row:

    >>> from fedvg_jax.engine import executors
    >>> from fedvg_jax.algorithms.fedavg import fedavg
    >>> def loss(params, stats, batch, mask, train):
    ...     return jnp.where(mask, (params["w"] - batch) ** 2 / 2, 0).sum() / len(batch), stats
    >>> task = Task(lambda key: Variables({"w": jnp.zeros(1)}, {}), loss, None, None, None, str)
    >>> step = make_round(task, fedavg(), basic.uniform(), executors.lanes(1), local_training.sgd, num_clients=2)
    >>> rows = jnp.arange(2).reshape(2, 1)
    >>> settings = {"seed": 0, "cohort_size": 2, "local_epochs": (1, 1), "batch_size": 1, "num_lanes": 1, "capacity": 2}
    >>> data, hyper = Data(jnp.array([1.0, 3.0]), *[jnp.array([[0]])] * 3), {"lr": jnp.float32(1)}
    >>> state = init_state(task, fedavg(), 2, jax.random.key(0), hyper)
    >>> state, metrics = jax.jit(step)(state, schedules.make(0, rows, **settings), data, hyper)
    >>> state.variables.params["w"].tolist(), metrics.weights.tolist()
    ([2.0], [0.5, 0.5])
    """
    parts = RoundParts(
        task,
        algorithm,
        weighting,
        executor,
        optimiser,
        num_clients,
        robust.with_sharding(aggregate, executor.clients),
        disturb,
        refine,
        augment,
        support,
        stats_too,
        weigh_untrained,
        hardware,
    )

    def round_step(state: SimState, schedule: Schedule, data: Data, hyper: Hyper) -> tuple[SimState, Metrics]:
        inputs = _round_inputs(state, schedule, data, hyper)
        terms = cohort_blocks.terms_of(weighting, parts.aggregate, inputs.schedule)
        sharding = cohort_memories.sharding_of(executor, inputs.state)
        exchanged = inputs if sharding is None else _exchange_memories(inputs, sharding)
        process = functools.partial(process_block, parts, terms, exchanged)
        cohort = cohort_blocks.over_blocks(process, exchanged.state, exchanged.schedule, num_clients, len(terms))
        if sharding is not None:
            cohort = cohort_memories.put(cohort, inputs.state, inputs.schedule, sharding)
        return server_step(parts, terms, inputs, cohort)

    return round_step


def _round_inputs(state: SimState, schedule: Schedule, data: Data, hyper: Hyper) -> RoundInputs:
    """Returns the arguments of a round as JAX arrays, and its two keys."""
    # without jit, indices into NumPy tables would be tracers, and Python's numbers have no dtype
    state, schedule, data = tree.arrays((state, schedule, data))
    hyper = tree.arrays(dict(hyper), tree.wide_dtype(state.variables))
    attack_key, rule_key = jax.random.split(jax.random.wrap_key_data(schedule.key, impl="threefry2x32"))
    return RoundInputs(state, schedule, data, hyper, attack_key, rule_key)


def _exchange_memories(inputs: RoundInputs, sharding: NamedSharding) -> RoundInputs:
    """Returns the inputs with the memories of the cohort only, which every device gets."""
    state, schedule = cohort_memories.take(inputs.state, inputs.schedule, sharding)
    is_in_order = cohort_blocks.is_one_block(schedule)  # of several cohort blocks, each has some of the rows
    return inputs._replace(state=state, schedule=schedule, is_in_order=is_in_order)


# --- the clients ------------------------------------------------------------------------------------------------------
def process_block(
    parts: RoundParts,
    terms: tuple[Term, ...],
    inputs: RoundInputs,
    running: RunningCohort | None,
    schedule: Schedule,
    positions: Array,
) -> RunningCohort:
    """Returns the running cohort that includes the clients of one cohort block.

    Args:
        parts: the static parts of the round.
        terms: the terms of the weights.
        inputs: the round's arrays.
        running: the clients processed earlier; None for a cohort that is one block.
        schedule: of this cohort block.
        positions: int32 [H], the block's positions in the cohort.
    """
    state, theta = inputs.state, inputs.state.variables
    if running is not None:
        state = state._replace(clients=running.client_memories, optimisers=running.optimiser_memories)
    block = inputs._replace(state=state, schedule=schedule)

    probes = probe_clients(parts, block, positions)
    trained = train_clients(parts, block)
    clients, finite, present = receive_models(parts, block, trained)
    measured = score_clients(parts, block, clients)
    rows = ClientTable(measured, probes, trained.loss, finite, present)
    rows = drop_nonfinite(rows, parts.weighting.decisive(measured))
    table = cohort_blocks.update_table(running, positions, rows)
    table, weights = weigh_clients(terms, inputs, table, clients if running is None else None)

    present = cohort_blocks.rows_of_block(running, positions, table.present)
    clients = tree.where(present, clients, tree.repeat(theta, len(positions)))
    block_weights = cohort_blocks.rows_of_block(running, positions, weights)
    aggregates = (parts.aggregate(inputs.hyper, inputs.rule_key, theta, clients, w) for w in block_weights)
    models = tuple(tree.like(model, theta) for model in aggregates)

    memories, summed, averaged = report_clients(parts, block, clients, present)
    means = tuple(_mean_messages(parts, w, averaged) for w in block_weights)
    memories = write_memories(block, state.clients, memories)
    optimisers = update_optimisers(block, present, trained.optimiser) if state.optimisers else ()
    cohort = RunningCohort(table, weights, models, means, tree.total(summed), memories, optimisers)
    if running is None:
        return cohort
    return cohort_blocks.merge_block(running, cohort, positions, theta, parts.algorithm_part)


def probe_clients(parts: RoundParts, block: RoundInputs, positions: Array) -> Tree:
    """Returns what the algorithm's probe measures of theta_g for each client, leaves [H, ...]."""

    def probe(shared: Tree, place: tuple[Array, Array]) -> Tree:
        state, schedule, data, hyper = shared
        return parts.algorithm.probe(hyper, _probe_of_client(parts, state, schedule, data, *place))

    shared = (block.state, block.schedule, block.data, block.hyper)
    return parts.executor.map(probe, shared, (_block_indices(block), positions))


def _probe_of_client(
    parts: RoundParts, state: SimState, schedule: Schedule, data: Data, k: Array, position: Array
) -> Probe:
    """Returns client k's probe; its minibatches follow the client's training minibatches in `schedule.rows`."""
    begin = schedule.start[k] + schedule.num_steps[k]

    def batch(i):
        return local_training.training_minibatch(data, schedule, begin + i)

    return Probe(parts.task, state.variables, batch, schedule.probe_steps[k], position, parts.loop)


def train_clients(parts: RoundParts, block: RoundInputs) -> local_training.Carry:
    """Returns the clients after their local steps, leaves [H, ...]."""

    def make_client(shared: Tree, schedule: Schedule) -> Client:
        state, data, hyper = shared
        task, algorithm, optimiser = parts.task, parts.algorithm, parts.optimiser
        return local_training.make_client(
            task, algorithm, optimiser, state, schedule, data, hyper, parts.augment, parts.support
        )

    return parts.executor.train(make_client, (block.state, block.data, block.hyper), block.schedule)


def receive_models(
    parts: RoundParts, block: RoundInputs, trained: local_training.Carry
) -> tuple[Variables, Array, Array]:
    """Returns the models that the server receives, after attacks, and marks the absent clients.

    Returns:
        Variables [H, ...], theta_g for absent clients.
        bool [H], whether model and loss are finite.
        bool [H], whether the client is present.
    """
    theta, schedule = block.state.variables, block.schedule
    params = jax.vmap(parts.support.within, (None, 0))(theta.params, trained.params)
    own = Variables(params, trained.stats)
    returned = tree.like(parts.disturb(block.hyper, block.attack_key, schedule.clients, theta, own), own)
    is_candidate = schedule.heard if parts.weigh_untrained else schedule.heard & (schedule.num_steps > 0)
    return replace_absent(theta, is_candidate, returned, trained.loss)


def replace_absent(
    theta: Variables, is_candidate: Array, returned: Variables, loss: Array
) -> tuple[Variables, Array, Array]:
    """Replaces the models of absent clients by theta_g.

    Args:
        theta: theta_g.
        is_candidate: bool [H], False for a client that dropped out or took no step.
        returned: the clients' models, leaves [H, ...].
        loss: [H].

    Returns:
        As `receive_models`.
    """
    finite = tree.is_finite((returned, loss))
    present = is_candidate & finite
    return tree.where(present, returned, tree.repeat(theta, len(finite))), finite, present


def score_clients(parts: RoundParts, block: RoundInputs, clients: Variables) -> Tree:
    """Returns the weighting's signal of each client, leaves [H, ...]."""

    def measure(shared: Tree, returned: tuple[Variables, Array]) -> Tree:
        (hyper, data, params), (variables, num_samples) = shared, returned
        report = Report(variables, num_samples, tree.sub(params, variables.params))
        return parts.weighting.signal(hyper, report, data)

    shared = (block.hyper, block.data, block.state.variables.params)
    entries = (clients, block.schedule.num_samples)
    if not choices(parts.hardware).is_packed:
        return parts.executor.map(measure, shared, entries)
    packing = packings.of(jax.eval_shape(measure, shared, tree.entry_shapes(entries)))
    packed = parts.executor.map(lambda *arguments: packing.pack(measure(*arguments)), shared, entries)
    return jax.vmap(packing.unpack)(packed)


def weigh_clients(
    terms: tuple[Term, ...], inputs: RoundInputs, table: ClientTable, clients: Variables | None
) -> tuple[ClientTable, tuple[Variables, ...]]:
    """Returns the weights of each term, 0 for absent clients and of sum 1, over the clients processed so far.

    Args:
        terms: the terms of the weights.
        inputs: the round's arrays.
        table: of the cohort.
        clients: the cohort's models [K, ...]; None if it comes in several blocks.

    Returns:
        The table, in which clients with a non-finite weight are absent; and the weights, leaves [K].
    """
    returns = _returns(inputs, table, clients)
    weights = tuple(term.weigh(inputs.hyper, table.measured, returns) for term in terms)
    table = drop_nonfinite(table, weights)
    return table, tuple(basic.renormalise_over_present(table.present, w) for w in weights)


def drop_nonfinite(table: ClientTable, scalars: Tree) -> ClientTable:
    """Marks present clients with a non-finite scalar as absent and diverged; `scalars` [K, ...] may have no leaf."""
    finite = tree.is_finite((scalars, table.present)) | ~table.present
    return table._replace(finite=table.finite & finite, present=table.present & finite)


def report_clients(
    parts: RoundParts, block: RoundInputs, clients: Variables, present: Array
) -> tuple[Tree, Tree, Tree]:
    """Returns the clients' memories after the round and their messages, leaves [H, ...].

    Absent clients keep their memories and send zeros.

    Returns:
        Memories; messages to be summed; messages to be averaged.
    """
    state, schedule, theta = block.state, block.schedule, parts.algorithm_part(block.state.variables)

    def report(k: Array, returned: Tree) -> tuple[Tree, Tree, Tree]:
        anchor = local_training.anchor(state, schedule, k)._replace(params=theta)
        return parts.algorithm.report(block.hyper, returned, anchor, displacement(k))

    def displacement(k: Array) -> Array:
        dtype, num_steps = tree.dtype(theta), schedule.num_steps[k]
        if parts.algorithm.report is no_report:  # so that the optimiser need not take a scalar
            return jnp.zeros((), dtype)
        return local_training.displacement(parts.optimiser, block.hyper, state.round, num_steps, parts.loop, dtype)

    memories, *messages = jax.vmap(report)(_block_indices(block), parts.algorithm_part(clients))
    summed, averaged = tree.where(present, messages, tree.zeros_like(messages))
    return tree.where(present, memories, read_memories(block, state.clients)), summed, averaged


def _mean_messages(parts: RoundParts, weights: Variables, averaged: Tree) -> Tree:
    """Returns the messages [H, ...] averaged with the weights [H]."""
    sharding = parts.executor.clients
    return cohort_blocks.weighted_sums(parts.algorithm_part(weights), averaged, parts.hardware, sharding)


def update_optimisers(block: RoundInputs, present: Array, optimisers: Tree) -> Tree:
    """Returns the optimiser memories of the state; those of absent clients are unchanged."""
    earlier = read_memories(block, block.state.optimisers)
    return write_memories(block, block.state.optimisers, tree.where(present, optimisers, earlier))


def read_memories(block: RoundInputs, memories: Tree) -> Tree:
    """Returns the memories of the clients of a cohort block, leaves [H, ...]."""
    return memories if block.is_in_order else tree.take(memories, schedules.memory_rows(block.schedule))


def write_memories(block: RoundInputs, memories: Tree, entries: Tree) -> Tree:
    """Returns the memories with the entries [H, ...] of the clients of a cohort block."""
    return entries if block.is_in_order else tree.put(memories, schedules.memory_rows(block.schedule), entries)


def update_owners(state: SimState, schedule: Schedule) -> Tree:
    """Returns the clients of the rows of memories after the round; () where row k is client k's."""
    if schedule.memory_rows is None:
        return state.memory_clients
    return state.memory_clients.at[schedule.memory_rows].set(schedule.clients)


def _block_indices(block: RoundInputs) -> Array:
    return jnp.arange(len(block.schedule.clients), dtype=jnp.int32)


def _returns(inputs: RoundInputs, table: ClientTable, clients: Variables | None = None) -> Returns:
    return Returns(inputs.state.variables, clients, inputs.schedule.shuffle, inputs.data, table.present)


# --- the server -------------------------------------------------------------------------------------------------------
def server_step(
    parts: RoundParts, terms: tuple[Term, ...], inputs: RoundInputs, cohort: RunningCohort
) -> tuple[SimState, Metrics]:
    """Returns the state after the round, theta_g - u + R with u = sum_k s_k (theta_g - theta_k), and its metrics."""
    state, table, hyper = inputs.state, cohort.table, inputs.hyper
    shares = [term.share(hyper, table.measured, _returns(inputs, table)) for term in terms]
    weights, mean = streaming.combine_terms(shares, cohort.weights), streaming.combine_terms(shares, cohort.models)
    message_mean = streaming.combine_terms(parts.algorithm_part(shares), cohort.message_means)
    probes = tree.where(table.present, table.probes, tree.zeros_like(table.probes))

    theta, mean_part = parts.algorithm_part(state.variables), parts.algorithm_part(mean)
    summary = Cohort(
        tree.sub(theta, mean_part),
        cohort.message_sums,
        message_mean,
        parts.algorithm_part(weights),
        parts.algorithm_part(probes),
        parts.num_clients,
    )
    residual, server = parts.algorithm.residual(hyper, state.server, theta, summary)
    moved = tree.add(mean_part, residual)
    variables = moved if parts.stats_too else Variables(moved, mean.stats)
    # without any client's update, momentum and dual variables would still move the model
    unchanged = (state.variables, state.server)
    variables, server = tree.where(table.present.any(), tree.like((variables, server), unchanged), unchanged)
    variables = tree.like(parts.refine(hyper, state.round, variables, inputs.data), state.variables)

    memories, optimisers = cohort.client_memories, cohort.optimiser_memories
    owners = update_owners(state, inputs.schedule)
    state = SimState(state.round + 1, variables, server, memories, optimisers, owners)
    return state, _metrics(parts.weighting, inputs.schedule, table, weights)


def _metrics(weighting: Weighting, schedule: Schedule, table: ClientTable, weights: Variables) -> Metrics:
    """Returns the round's metrics, arrays [K]."""
    loss = mean_loss(schedule, table.loss, table.finite)
    scores, detail = weighting.score(table.measured), weighting.detail(table.measured)
    return Metrics(basic.mean_weight(weights), scores, loss, table.finite, detail)


def mean_loss(schedule: Schedule, total: Array, finite: Array) -> Array:
    """Returns the mean loss over each client's steps, [K]: 0 without a step, NaN if the client diverged."""
    steps = jnp.maximum(schedule.num_steps, 1).astype(total.dtype)
    return jnp.where(finite, total / steps, jnp.nan)


# --- several rounds ---------------------------------------------------------------------------------------------------
def make_chunk(round_step: RoundStep) -> Chunk:
    """Returns chunk(state, num_rounds, stacked schedules, data, hyper) -> (state, metrics [R, K]).

    A chunk runs several rounds in one program, without returning to the host. The number of rounds is data, so one
    program serves any number up to R; metrics of further rounds are zero.
    """
    step = jax.jit(round_step)

    def chunk(state: SimState, num_rounds, rounds: Schedule, data: Data, hyper: Hyper) -> tuple[SimState, Metrics]:
        def next_round(r, carry: tuple[SimState, Metrics]) -> tuple[SimState, Metrics]:
            state, metrics = step(carry[0], schedules.round_at(rounds, r), data, hyper)
            return state, tree.put(carry[1], r, metrics)

        after, metrics = jax.eval_shape(step, state, schedules.round_at(rounds, 0), data, hyper)
        _check_state(after, state)
        empty = jax.tree.map(lambda s: jnp.zeros((len(rounds.clients), *s.shape), s.dtype), metrics)
        with jax.named_scope(ROUNDS):
            return lax.fori_loop(0, num_rounds, next_round, (state, empty))

    return chunk


def _check_state(after: SimState, before: SimState) -> None:
    """Raises AssertionError, which names the leaf, unless a round returns a state like the one it takes."""
    leaves, structure = jax.tree.flatten(before)
    types = [(leaf.shape, leaf.dtype) for leaf in leaves]
    if jax.tree.structure(after) != structure or [(x.shape, x.dtype) for x in jax.tree.leaves(after)] != types:
        import chex  # imports test libraries; it names the leaf, which fori_loop would not

        chex.assert_trees_all_equal_shapes_and_dtypes(after, jax.eval_shape(lambda: before))
