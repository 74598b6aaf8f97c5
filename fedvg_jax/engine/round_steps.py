"""The steps of a round, in their order: functions of the round's static parts and of the arrays of some clients.

The clients are the whole cohort in `federated_round`, and a client chunk in `client_chunks`. No step depends on a
particular algorithm, weighting, model or data set.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedvg_jax.algorithms.base import no_report, no_residual
from fedvg_jax.core import tree
from fedvg_jax.core.trained_part import LocalPart, whole
from fedvg_jax.core.types import (
    Algorithm,
    Augment,
    ClientReturn,
    Cohort,
    Data,
    Executor,
    Hyper,
    Loop,
    Metrics,
    Probe,
    Schedule,
    ServerView,
    SimState,
    Task,
    Tree,
    Variables,
    Weigh,
    Weighting,
)
from fedvg_jax.engine import attacks, buffered, local_training, privacy, robust
from fedvg_jax.weightings import aggregation, baselines, basic


class RoundParts(NamedTuple):
    """The static parts of a round: the arguments of `federated_round.make_round`."""

    task: Task
    algorithm: Algorithm
    weighting: Weighting
    executor: Executor
    optimiser: local_training.Optimiser
    num_clients: int
    aggregate: robust.Rule
    disturb: attacks.Disturb | None
    refine: baselines.Refine | None
    augment: Augment | None
    stats_too: bool
    weigh_untrained: bool
    check_weights: bool
    local: LocalPart
    private: privacy.Sensitivity | None
    scores_applied: bool

    @property
    def loop(self) -> Loop:
        """The loop over the minibatches of a probe and the steps of a displacement."""
        return self.executor.loop or local_training.counted

    def algorithm_part(self, state: Tree) -> Tree:
        """Returns what the algorithm acts on, of a tree that holds variables."""
        return state if self.stats_too else tree.params_of(state)


class RoundInputs(NamedTuple):
    """The arrays of a round, for the H clients of its schedule: the cohort, or a client chunk."""

    state: SimState
    schedule: Schedule
    positions: Array
    """int32 [H] the clients' positions in the cohort."""
    data: Data
    hyper: Hyper
    attack_key: Array
    noise_key: Array

    @property
    def server_data(self) -> Data:
        """The data without what the algorithm describes of clients, which stays with them."""
        described = self.data.described._replace(algorithm=())
        return self.data._replace(described=described)


class ClientTable(NamedTuple):
    """Scalars of each client, leaves [H, ...]."""

    measured: Tree
    """Signals of the weighting."""
    probes: Tree
    """Results of the algorithm's probe."""
    loss: Array
    """[H] sum of the minibatch losses over the local steps; NaN where it, or the model, is not finite."""
    finite: Array
    """bool [H] whether model, loss, signals and weights are finite."""
    participating: Array
    """bool [H] whether the client is averaged."""


class Averages(NamedTuple):
    """What the server gets of a cohort, or of the client chunks so far.

    Weights, model and messages are tuples with an entry for each rule, until `server_step` combines them.
    """

    table: ClientTable
    weights: Any
    """s_k, leaves [K], 0 for dropped clients and for clients of later client chunks."""
    model: Any
    """The aggregate of the clients' models."""
    messages: Tree
    """sum_k s_k m_k of the messages to be averaged."""
    message_sums: Tree
    """sum_k m_k of the messages to be summed."""
    extremes: Tree
    """See `Metrics.extremes`."""
    client_states: Tree
    """States of all clients after the round, leaves [M, ...]."""


def average_clients(
    parts: RoundParts,
    rules: Sequence[Weigh],
    inputs: RoundInputs,
    earlier: ClientTable | None = None,
) -> Averages:
    """Trains, scores, weighs and averages clients.

    Args:
        parts: the static parts of the round.
        rules: of the weights, at least one.
        inputs: of the round.
        earlier: the table of the cohort, with the clients of earlier client chunks; None for a whole cohort.
    """
    table, arrived, clients, kept = train_and_score(parts, inputs)
    is_whole = earlier is None
    if not is_whole:
        table = tree.put(earlier, inputs.positions, table)
    models = sent_models(parts, inputs, clients) if is_whole else None
    table, weights, extremes = weigh_clients(parts, rules, inputs, table, models)

    discount = functools.partial(buffered.discounted, inputs.hyper, inputs.state, inputs.schedule)
    arrived, clients = discount(arrived), discount(clients)
    of_clients = table.participating, weights
    if not is_whole:
        of_clients = tree.take(of_clients, inputs.positions)
    participating, shares = of_clients
    if parts.aggregate is not robust.weighted_mean:  # which takes nothing of a client of weight 0
        arrived = clients = replace_dropped(inputs.state.variables, participating, clients)
    # theta_g - sum_k s_k (theta_g - theta_k)
    models = tuple(apply_rule(parts, inputs, arrived, s) for s in shares)

    states, summed, averaged = report_clients(parts, inputs, clients, kept, participating)
    messages = tuple(average_messages(parts, s, averaged) for s in shares)
    states = tree.put(inputs.state.clients, inputs.schedule.state_rows, states)
    return Averages(table, weights, models, messages, tree.total(summed), extremes, states)


# --- the clients ------------------------------------------------------------------------------------------------------
def probe_clients(parts: RoundParts, inputs: RoundInputs) -> Tree:
    """Returns what the algorithm's probe measures of theta_g for each client, leaves [H, ...]."""

    def probe(shared, place):
        (state, schedule, data, hyper), (k, position) = shared, place
        begin = schedule.start[k] + schedule.num_steps[k]  # after the client's training minibatches

        def batch(i):
            return local_training.training_minibatch(data, schedule, begin + i)

        theta = local_training.start_of_client(state, schedule, k, parts.local)
        num_batches = schedule.probe_steps[k]
        client = Probe(parts.task, theta, batch, num_batches, position, parts.loop)
        return parts.algorithm.probe(hyper, client)

    shared = (inputs.state, inputs.schedule, inputs.data, inputs.hyper)
    return parts.executor.map(probe, shared, (_indices(inputs), inputs.positions))


def train_clients(parts: RoundParts, inputs: RoundInputs) -> local_training.Carry:
    """Returns the clients after their local steps, leaves [H, ...]."""
    make_client = functools.partial(
        local_training.make_client,
        parts.task,
        parts.algorithm,
        parts.optimiser,
        augment=parts.augment,
        local=parts.local,
    )
    return parts.executor.train(
        make_client, (inputs.state, inputs.data, inputs.hyper), inputs.schedule
    )


def receive_models(
    parts: RoundParts, inputs: RoundInputs, trained: local_training.Carry
) -> tuple[Variables, Array, Array, Tree]:
    """Returns the models that arrive at the server, after attacks and clipping, and marks the dropped clients.

    Returns:
        Variables [H, ...], of any values for dropped clients; of `private` rounds, `privacy.clip` in place of params.
        bool [H], whether model, personal model and loss are finite.
        bool [H], whether the client participates.
        The client states of `Algorithm.send`, leaves [H, ...].
    """
    theta, schedule = inputs.state.variables, inputs.schedule
    models = Variables(trained.params, trained.stats)
    arrived, sent = send_models(parts, inputs, models)
    returned = tree.like(disturb_models(parts, inputs, arrived), models)
    if parts.private:
        returned = returned._replace(
            params=privacy.clip(inputs.hyper, theta.params, returned.params)
        )
    sender = models if parts.algorithm.send else ()
    finite = tree.is_finite((returned, trained.loss, trained.personal, sender))
    has_trained = True if parts.weigh_untrained else schedule.num_steps > 0
    participating = schedule.participating & has_trained & finite
    return returned, finite, participating, sent


def send_models(
    parts: RoundParts, inputs: RoundInputs, clients: Variables
) -> tuple[Variables, Tree]:
    """Returns what arrives of the clients' models [H, ...], and the client states of `Algorithm.send` [H, ...]."""
    rule, local = parts.algorithm.send, parts.local
    if rule is None:
        return clients, ()

    def send(shared, entry):
        (state, schedule, hyper), (params, k) = shared, entry
        key = local_training.client_key(schedule, k, local_training.SEND)
        earlier = tree.take(state.clients.sent, schedule.state_rows[k])
        received = buffered.received_model(state, schedule, k).params
        theta, trained = local.sent(received), local.sent(params)
        arrived, after = rule.apply(hyper, key, tree.sub(theta, trained), earlier)
        return tree.like((tree.sub(theta, arrived), after), (theta, earlier))

    shared = (inputs.state, inputs.schedule, inputs.hyper)
    params, after = parts.executor.map(send, shared, (clients.params, _indices(inputs)))
    return clients._replace(params=whole(clients.params, params)), after


def disturb_models(parts: RoundParts, inputs: RoundInputs, clients: Variables) -> Variables:
    """Returns the models [H, ...] after attacks, which change tensors that are sent."""
    if parts.disturb is None:
        return clients
    applied = buffered.applied(inputs.state, inputs.schedule, clients)
    models = (
        m._replace(params=parts.local.sent(m.params)) for m in (inputs.state.variables, applied)
    )
    disturbed = parts.disturb(inputs.hyper, inputs.attack_key, inputs.schedule.clients, *models)
    received = applied._replace(params=whole(applied.params, disturbed.params))
    return buffered.returned(inputs.state, inputs.schedule, received)


def replace_dropped(theta: Variables, participating: Array, clients: Variables) -> Variables:
    """Returns the clients' models, leaves [H, ...], with theta_g in the place of dropped clients."""
    return tree.where(participating, clients, tree.repeat(theta, len(participating)))


def score_clients(
    parts: RoundParts, inputs: RoundInputs, clients: Variables, participating: Array
) -> Tree:
    """Returns the weighting's signal of each client, with its local part, leaves [H, ...]; of theta_g if dropped."""

    def measure(shared, returned):
        hyper, data, theta, versions = shared
        variables, is_participating, num_samples, number, slot = returned
        # here, where it is no copy of all models
        variables = tree.where(is_participating, variables, theta)
        origin = (theta if slot is None else tree.take(versions, slot)).params
        delta = tree.sub(origin, parts.local.restored(variables.params, origin))
        described = tree.take(data.described.weighting, number)
        client = ClientReturn(variables, num_samples, delta, number, described)
        return parts.weighting.signal(hyper, client, data)

    measure = jax.jit(measure)  # one trace for its shapes and its computation
    state, schedule = inputs.state, inputs.schedule
    slots = None if parts.scores_applied else schedule.received
    shared = (inputs.hyper, inputs.server_data, state.variables, state.versions)
    entries = (clients, participating, schedule.num_samples, schedule.clients, slots)
    signals = jax.eval_shape(measure, shared, tree.entry_shapes(entries))
    packing = tree.packing_of(signals)
    packed = parts.executor.map(
        lambda *arguments: packing.pack(measure(*arguments)), shared, entries
    )
    return jax.vmap(packing.unpack)(packed)


def recall_clients(parts: RoundParts, inputs: RoundInputs, measured: Tree) -> tuple[Tree, Tree]:
    """Returns the signals to weigh the clients by, and the weighting's state of each, leaves [H, ...]."""
    rule, state = parts.weighting.state, inputs.state
    if rule is None:
        return measured, ()
    earlier = tree.take(state.clients.weighting, inputs.schedule.state_rows)
    recall = jax.vmap(rule.recall, (None, 0, 0, None))
    return recall(inputs.hyper, measured, earlier, state.weighting)


def train_and_score(
    parts: RoundParts, inputs: RoundInputs
) -> tuple[ClientTable, Variables, Variables, local_training.ClientState]:
    """Trains and scores the clients.

    Returns:
        The table of the clients.
        What arrives at the server, as `receive_models` returns it; on a buffered server `buffered.applied` to theta_g.
        Their models theta_k, with theta_g for dropped clients: a copy of all of them, unless nothing reads it.
        What clients keep.
    """
    probes = probe_clients(parts, inputs)
    trained = train_clients(parts, inputs)
    arrived, finite, participating, sent = receive_models(parts, inputs, trained)  # theta_k
    clients, theta = arrived, inputs.state.variables
    if parts.private:
        clients = arrived._replace(
            params=jax.vmap(functools.partial(privacy.moved, theta.params))(arrived.params)
        )
    # of FedVG: ||g_k^(l)|| on D_val
    applied = buffered.applied(inputs.state, inputs.schedule, clients)
    scored = applied if parts.scores_applied else clients
    measured = score_clients(parts, inputs, scored, participating)
    measured, remembered = recall_clients(parts, inputs, measured)
    table = ClientTable(
        measured, probes, jnp.where(finite, trained.loss, jnp.nan), finite, participating
    )
    table = drop_nonfinite(table, (parts.weighting.decisive(measured), probes))
    clients = replace_dropped(theta, participating, applied)
    return (
        table,
        arrived if parts.private else applied,
        clients,
        local_training.ClientState((), trained.personal, sent, remembered),
    )


def weigh_clients(
    parts: RoundParts,
    rules: Sequence[Weigh],
    inputs: RoundInputs,
    table: ClientTable,
    clients: Variables | None,
) -> tuple[ClientTable, tuple[Variables, ...], Tree]:
    """Returns the weights of each rule, leaves [K], 0 for dropped clients and of sum 1.

    Args:
        parts: the static parts of the round.
        rules: at least one.
        inputs: of the round.
        table: of the cohort's clients that have been scored.
        clients: what the cohort sends of its models [K, ...]; None if it comes in several client chunks.

    Returns:
        The table, in which clients with a non-finite weight are dropped; the weights; and `Metrics.extremes`.
    """
    returned = server_view(inputs, table, clients)
    weights = tuple(weigh(inputs.hyper, table.measured, returned) for weigh in rules)
    extremes = weight_extremes(table.participating, weights) if parts.check_weights else ()
    table = drop_nonfinite(table, weights)
    weights = tuple(basic.renormalise_over_participating(table.participating, w) for w in weights)
    if parts.private:  # its bounds need weights of sum 1; the check of custom ones lets rounding of half precision pass
        weights = jax.tree.map(lambda w: basic.shares(tree.wide(w), table.participating), weights)
    return table, weights, extremes


def weight_extremes(participating: Array, weights: Tree) -> Array:
    """Returns `Metrics.extremes`; (1, 0) where no client participates.

    Args:
        participating: bool [K].
        weights: leaves [K], of one or more rules.

    >>> weight_extremes(jnp.array([True, True, False]), {"a": jnp.array([0.5, 0.5, 1]), "b": jnp.array([-1.0, 0, 0])})
    Array([-1., -1.], dtype=float32)
    """
    by_tensor = jnp.stack([leaf.astype(jnp.float32) for leaf in jax.tree.leaves(weights)])
    by_tensor = jnp.where(participating[None], by_tensor, 0)
    sums = by_tensor.sum(1)
    extremes = jnp.stack([sums[jnp.argmax(jnp.abs(sums - 1))], by_tensor.min()])
    return jnp.where(participating.any(), extremes, jnp.array([1.0, 0.0], jnp.float32))


def drop_nonfinite(table: ClientTable, scalars: Tree) -> ClientTable:
    """Marks clients with a non-finite scalar as dropped and diverged; `scalars` [H, ...] may have no leaf."""
    finite = tree.is_finite((scalars, table.participating)) | ~table.participating
    return table._replace(finite=table.finite & finite, participating=table.participating & finite)


def server_view(
    inputs: RoundInputs, table: ClientTable, clients: Variables | None = None
) -> ServerView:
    """Returns what the server holds when it weighs the cohort; arguments as in `weigh_clients`."""
    shuffle = inputs.schedule.shuffle
    return ServerView(
        inputs.state.variables, clients, shuffle, inputs.server_data, table.participating
    )


def apply_rule(
    parts: RoundParts, inputs: RoundInputs, clients: Variables, weights: Variables
) -> Variables:
    """Returns the aggregate of models [H, ...] with weights [H], by default theta_g - sum_k s_k (theta_g - theta_k)."""
    theta, clients = origin(parts, inputs.state.variables), sent_models(parts, inputs, clients)
    adds_on_devices = robust.facts(parts.aggregate).adds_on_devices
    options = {"sharding": parts.executor.clients} if adds_on_devices else {}
    return tree.like(parts.aggregate(inputs.hyper, theta, clients, weights, **options), theta)


def origin(parts: RoundParts, variables: Variables) -> Variables:
    """Returns the model that means of clients' models start from: theta_g, or 0 where they are of clipped updates."""
    return (
        variables._replace(params=tree.wide_zeros(variables.params)) if parts.private else variables
    )


def sent_models(parts: RoundParts, inputs: RoundInputs, clients: Variables) -> Variables:
    """Returns what clients send of their models [H, ...]: theta_g's values in place of their local parts."""
    theta = parts.local.select(inputs.state.variables)
    return whole(clients, tree.repeat(theta, len(inputs.positions)))


def report_clients(
    parts: RoundParts,
    inputs: RoundInputs,
    clients: Variables,
    kept: local_training.ClientState,
    participating: Array,
) -> tuple[Tree, Tree, Tree]:
    """Returns the client states after the round and their messages, leaves [H, ...].

    Dropped clients keep their states and send zeros. `kept` has the personal models and the client states of `send`.

    Returns:
        States; messages to be summed; messages to be averaged.
    """
    state, schedule, theta = (
        inputs.state,
        inputs.schedule,
        parts.algorithm_part(inputs.state.variables),
    )

    def report(k, returned):
        anchor = local_training.anchor(state, schedule, inputs.data, k, parts.local)
        anchor = anchor._replace(params=theta)
        return parts.algorithm.report(inputs.hyper, returned, anchor, displacement(k))

    def displacement(k: Array) -> Array:
        dtype, num_steps = tree.dtype(theta), schedule.num_steps[k]
        if parts.algorithm.report is no_report:  # so that the optimiser need not take a scalar
            return jnp.zeros((), dtype)
        still = parts.local.steps_alone(num_steps)  # the sent tensors do not move in them
        settings = (parts.optimiser, inputs.hyper, state.round, num_steps, parts.loop, dtype, still)
        return local_training.displacement(*settings)

    sent = parts.algorithm_part(sent_models(parts, inputs, clients))
    client_states, *messages = jax.vmap(report)(_indices(inputs), sent)
    # which may compare with the client's whole model
    if parts.local.is_local and parts.algorithm.loss:
        client_states, *_ = jax.vmap(report)(_indices(inputs), parts.algorithm_part(clients))
    if isinstance(state.clients, local_training.ClientState):
        kept_tensors = parts.local.select(clients) if parts.local.is_local else kept.local
        client_states = kept._replace(algorithm=client_states, local=kept_tensors)
    summed, averaged = tree.where(participating, messages, tree.zeros_like(messages))
    earlier = tree.take(state.clients, schedule.state_rows)
    return tree.where(participating, tree.like(client_states, earlier), earlier), summed, averaged


def average_messages(parts: RoundParts, weights: Variables, messages: Tree) -> Tree:
    """Returns sum_k s_k m_k of messages [H, ...] with weights [H]; () stays ()."""
    if not jax.tree.leaves(messages):
        return messages

    shares = jax.tree.map(
        lambda s, part: jax.tree.map(lambda m: s, part), parts.algorithm_part(weights), messages
    )
    zeros = jax.tree.map(lambda m: jnp.zeros((), m.dtype), messages)
    return tree.weighted_sum(shares, messages, zeros, parts.executor.clients)


def _indices(inputs: RoundInputs) -> Array:
    return jnp.arange(len(inputs.schedule.clients), dtype=jnp.int32)


# --- the server -------------------------------------------------------------------------------------------------------
def server_step(
    parts: RoundParts, inputs: RoundInputs, averages: Averages, shares: Sequence[Tree] = ()
) -> tuple[SimState, Metrics]:
    """Returns the state after the round, theta_g - u + R with u = sum_k s_k (theta_g - theta_k), and its metrics.

    Args:
        parts: the static parts of the round.
        inputs: of the cohort.
        averages: of the cohort, by rule.
        shares: of the rules in the weights; not read for a single rule.
    """
    state, hyper, table = inputs.state, inputs.hyper, averages.table
    averages = averages._replace(
        weights=aggregation.combine_terms(shares, averages.weights),
        model=aggregation.combine_terms(shares, averages.model),
        messages=aggregation.combine_terms(parts.algorithm_part(shares), averages.messages),
    )
    if parts.private:
        averages = privatise(parts, inputs, averages)
    theta, mean = (parts.algorithm_part(model) for model in (state.variables, averages.model))
    zeros = tree.zeros_like(table.probes)
    probes = tree.where(table.participating, table.probes, zeros)
    probes = parts.local.restored(probes, zeros)  # nothing is sent of local tensors
    messages = (averages.message_sums, averages.messages)
    weights, probes = parts.algorithm_part((averages.weights, probes))
    cohort = Cohort(tree.sub(theta, mean), *messages, weights, probes, parts.num_clients)
    residual, server = parts.algorithm.residual(hyper, state.server, theta, cohort)
    moved = tree.add(mean, residual)
    variables = moved if parts.stats_too else Variables(moved, averages.model.stats)
    unchanged = (state.variables, state.server)
    variables, server = tree.like((variables, server), unchanged)
    if not parts.private and (
        parts.algorithm.residual is not no_residual or parts.aggregate is not robust.weighted_mean
    ):
        # without any client's update, momentum and dual variables would still move the model
        variables, server = tree.where(table.participating.any(), (variables, server), unchanged)
    if parts.refine:
        variables = tree.like(
            parts.refine(hyper, state.round, variables, inputs.data), state.variables
        )
    variables = whole(variables, parts.local.select(state.variables))
    state = state._replace(
        round=state.round + 1, variables=variables, server=server, clients=averages.client_states
    )
    if rule := parts.weighting.state:
        after = rule.update(hyper, state.weighting, table.measured, server_view(inputs, table))
        after = tree.where(
            table.participating.any(), tree.like(after, state.weighting), state.weighting
        )
        state = state._replace(weighting=after)
    return buffered.with_version(state, inputs.schedule), _metrics(parts, inputs.schedule, averages)


def privatise(parts: RoundParts, inputs: RoundInputs, averages: Averages) -> Averages:
    """Returns the averages with the model after the noise; of fixed weights, dropped clients count as updates 0.

    The noise comes once for the whole cohort, and also where all clients are dropped.
    """
    assert parts.private is not None
    weights, update, theta = averages.weights, averages.model.params, inputs.state.variables.params
    participating = averages.table.participating
    if parts.private is privacy.fixed:
        # the weights over participating clients sum to 1
        share = participating.mean(dtype=tree.dtype(update))
        weights, update = tree.scale(share, (weights, update))
    update = privacy.add_noise(
        inputs.hyper, inputs.noise_key, update, parts.private, len(participating)
    )
    return averages._replace(
        weights=weights, model=averages.model._replace(params=privacy.moved(theta, update))
    )


def _metrics(parts: RoundParts, schedule: Schedule, averages: Averages) -> Metrics:
    """Returns the round's metrics, arrays [K]."""
    table = averages.table
    # 0 without a step
    loss = table.loss / jnp.maximum(schedule.num_steps, 1).astype(table.loss.dtype)
    scores, detail = parts.weighting.score(table.measured), parts.weighting.detail(table.measured)
    weights = basic.mean_over_tensors(parts.local.sent(averages.weights.params))
    return Metrics(weights, scores, loss, table.finite, detail, averages.extremes)
