"""One federated round, and a chunk of rounds, as pure functions.

    theta <- theta_g - sum_k s_k (theta_g - theta_k) + R

The cohort is visited whole, or in blocks where the schedule is cut (see `blocks`). The round never learns which
algorithm, weighting, model or data set it is running.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fedvg_jax.core import tree
from fedvg_jax.core.gradient_support import EVERYTHING
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
    Tree,
    Variables,
    Weighting,
)
from fedvg_jax.engine import attacks, cohort_blocks, local_training, robust, server_tuning
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.engine.cohort_blocks import Seen, Told
from fedvg_jax.weightings import basic, streaming


def init(
    task: Task,
    algorithm: Algorithm,
    num_clients: int,
    key: jax.Array,
    hyper: Hyper,
    stats_too: bool = False,
    kept: local_training.Optimiser | None = None,
    variables: Variables | None = None,
) -> SimState:
    """The state before the first round.

    Args:
        kept: the clients' optimiser, where its memory outlives a round.
        variables: where to start, if that is not the task's to draw.
    """
    begin = jnp.zeros((), jnp.int32)
    variables = jax.jit(task.init)(key) if variables is None else tree.arrays(variables)
    hyper = tree.arrays(dict(hyper), tree.dtype(variables))
    server, client = algorithm.init(hyper, variables if stats_too else variables.params)
    optimiser = kept(hyper, begin).init(variables.params) if kept else ()
    return SimState(begin, variables, server, *(tree.repeat(memory, num_clients) for memory in (client, optimiser)))


def make_round(
    task: Task,
    algorithm: Algorithm,
    weighting_: Weighting,
    executor: Executor,
    optimiser: local_training.Optimiser,
    num_clients: int,
    *,
    aggregate: robust.Rule = robust.mean,
    disturb: attacks.Disturb = attacks.none,
    refine: server_tuning.Refine = server_tuning.none,
    augment: Augment | None = None,
    live: GradientSupport = EVERYTHING,
    stats_too: bool = False,
    weigh_untrained: bool = False,
) -> RoundStep:
    """round_step(state, schedule, data, hyper) -> (state, metrics), pure and jittable.

    A client that drops out, or of which anything is not finite (model, loss, what the weighting measures, its weight),
    counts as if it had returned the global model, with weight 0, and keeps the memory it had. So does a client that
    takes no local step, because it has no row, or only one where single rows are skipped. A round in which no client
    is left changes neither the model nor any memory; only `refine` still acts on the model.

    A schedule made with a `block_size` has the cohort in blocks, which takes a weighting with `terms` and the mean.

    Args:
        aggregate: the weighted mean, or a robust rule; it guards the model, not the messages of an algorithm.
        disturb: what corrupt clients return in place of what they trained.
        refine: what the server does to the new model at the end of the round.
        augment: what is done to a minibatch before a client trains on it; probes and scores see the rows as they are.
        live: what clients carry of the parameters, such as the task's: for an algorithm and an optimiser, made anew
            each round, that leave a parameter without a gradient where theta_g has it.
        stats_too: whether the algorithm acts on running statistics as the published code does, not on trained tensors
            only.
        weigh_untrained: whether a client that takes no local step is weighed like the others, as the published code
            does: it returns theta_g, to which the weighting may give any weight.

    Two clients with a row each, 1 and 3, whose losses (w - row)^2 / 2 a step of rate 1 brings to 0:

    >>> from fedvg_jax.engine import executors
    >>> from fedvg_jax.algorithms.fedavg import fedavg
    >>> def loss(params, stats, batch, mask, train):
    ...     return jnp.where(mask, (params["w"] - batch) ** 2 / 2, 0).sum() / len(batch), stats
    >>> task = Task(lambda key: Variables({"w": jnp.zeros(1)}, {}), loss, None, None, None, str)
    >>> step = make_round(task, fedavg(), basic.uniform(), executors.lanes(1), local_training.sgd, num_clients=2)
    >>> rows = jnp.arange(2).reshape(2, 1)
    >>> settings = {"seed": 0, "cohort_size": 2, "local_epochs": (1, 1), "batch_size": 1, "num_lanes": 1, "capacity": 2}
    >>> data, hyper = Data(jnp.array([1.0, 3.0]), *[jnp.array([[0]])] * 3), {"lr": jnp.float32(1)}
    >>> state = init(task, fedavg(), 2, jax.random.key(0), hyper)
    >>> state, metrics = jax.jit(step)(state, schedules.make(0, rows, **settings), data, hyper)
    >>> state.variables.params["w"].tolist(), metrics.weights.tolist()
    ([2.0], [0.5, 0.5])
    """

    loop = executor.loop or local_training.counted

    def acted_on(memory: Tree) -> Tree:
        return memory if stats_too else tree.params_of(memory)

    def client(shared: Tree, schedule: Schedule) -> Client:
        state, data, hyper = shared
        return local_training.make_client(task, algorithm, optimiser, state, schedule, data, hyper, augment, live)

    def probe(shared: Tree, who: tuple[jax.Array, jax.Array]) -> Tree:
        state, schedule, data, hyper = shared
        return algorithm.probe(hyper, _probe(task, state, schedule, data, *who, loop))

    def measure(shared: Tree, returned: tuple[Variables, jax.Array]) -> Tree:
        (hyper, data, params), (variables, num_samples) = shared, returned
        return weighting_.signal(hyper, Report(variables, num_samples, tree.sub(params, variables.params)), data)

    def round_step(state: SimState, schedule: Schedule, data: Data, hyper: Hyper) -> tuple[SimState, Metrics]:
        # without jit, indices of NumPy tables would be tracers, and Python's numbers have no dtype
        state, schedule, data = tree.arrays((state, schedule, data))
        theta, hyper = state.variables, tree.arrays(dict(hyper), tree.dtype(state.variables))
        parts = cohort_blocks.terms_of(weighting_, aggregate, schedule)
        attack_key, rule_key = jax.random.split(jax.random.wrap_key_data(schedule.key, impl="threefry2x32"))

        def returns(told: Told, clients: Variables | None = None) -> Returns:
            return Returns(theta, clients, schedule.shuffle, data, told.present)

        def visit(before: Seen | None, block: Schedule, places: jax.Array) -> Seen:
            """The clients of a block, after those of `before`; a whole cohort is one block, and nobody was before."""
            now = state if before is None else state._replace(clients=before.clients, optimisers=before.optimisers)

            # clients: probe, train, and who is there
            each = jnp.arange(len(block.clients), dtype=jnp.int32)
            probes = executor.map(probe, (now, block, data, hyper), (each, places))
            trained: local_training.Carry = executor.train(client, (now, data, hyper), block)
            whole = jax.vmap(live.within, (None, 0))(theta.params, trained.params)
            returned = Variables(whole, trained.stats)
            returned = disturb(hyper, attack_key, block.clients, theta, returned)
            is_candidate = block.heard if weigh_untrained else block.heard & (block.num_steps > 0)
            clients, finite, present = _screened(now, is_candidate, returned, trained.loss)

            # weights of all who were seen, and their weighted means
            measured = executor.map(measure, (hyper, data, theta.params), (clients, block.num_samples))
            told = _sound(Told(measured, probes, trained.loss, finite, present), measured)
            told = cohort_blocks.noted(before, places, told)
            known = returns(told, clients if before is None else None)
            weights = tuple(term.weigh(hyper, told.measured, known) for term in parts)
            told = _sound(told, weights)
            weights = tuple(basic.renormalise_over_present(told.present, w) for w in weights)
            present = cohort_blocks.at(before, places, told.present)
            clients = tree.where(present, clients, tree.repeat(theta, len(each)))
            here = cohort_blocks.at(before, places, weights)
            models = tuple(aggregate(hyper, rule_key, theta, clients, w) for w in here)

            # what clients remember and tell
            def report(k: jax.Array, returned: Tree) -> tuple[Tree, Tree, Tree]:
                known = local_training.anchor(now, block, k)._replace(params=acted_on(theta))
                moved = local_training.displacement(optimiser, hyper, state.round, block.num_steps[k], loop)
                return algorithm.report(hyper, returned, known, moved)

            memories, *messages = jax.vmap(report)(each, acted_on(clients))
            summed, averaged = tree.where(present, messages, tree.zeros_like(messages))
            memories = tree.where(present, memories, tree.take(now.clients, block.clients))
            averaged = tuple(cohort_blocks.summed(acted_on(w), averaged) for w in here)
            clients_memory = tree.put(now.clients, block.clients, memories)
            optimisers = _kept(now, block, present, trained.optimiser) if state.optimisers else ()
            seen = Seen(told, weights, models, averaged, tree.total(summed), clients_memory, optimisers)
            return seen if before is None else cohort_blocks.gone_on(before, seen, places, theta, acted_on)

        seen = cohort_blocks.fold(visit, state, schedule, num_clients, len(parts))
        told = seen.told
        shares = [term.share(hyper, told.measured, returns(told)) for term in parts]
        weights, averaged = streaming.combine_terms(shares, seen.weights), streaming.combine_terms(shares, seen.models)
        messages = seen.summed, streaming.combine_terms(acted_on(shares), seen.averaged)
        probes = tree.where(told.present, told.probes, tree.zeros_like(told.probes))

        # the server's own term
        update = tree.sub(acted_on(theta), acted_on(averaged))
        cohort = Cohort(update, *messages, acted_on(weights), acted_on(probes), num_clients)
        residual, server = algorithm.residual(hyper, state.server, acted_on(theta), cohort)
        moved = tree.add(acted_on(averaged), residual)
        variables = moved if stats_too else Variables(moved, averaged.stats)
        # momentum and duals would move the model without any client's update
        variables, server = tree.where(told.present.any(), (variables, server), (theta, state.server))
        variables = refine(hyper, state.round, variables, data)

        state = SimState(state.round + 1, variables, server, seen.clients, seen.optimisers)
        loss = _mean_loss(schedule, told.loss, told.finite)
        scores, detail = weighting_.score(told.measured), weighting_.detail(told.measured)
        return state, Metrics(basic.mean_weight(weights), scores, loss, told.finite, detail)

    return round_step


def _probe(
    task: Task, state: SimState, schedule: Schedule, data: Data, k: jax.Array, place: jax.Array, loop: Loop
) -> Probe:
    """Client k's probe batches, which stand behind its training batches."""
    begin = schedule.start[k] + schedule.num_steps[k]

    def batch(i):
        return tree.gather(data.pool, schedule.rows[begin + i])

    return Probe(task, state.variables, batch, schedule.probe_steps[k], place, loop)


def _screened(
    state: SimState, is_candidate: jax.Array, returned: Variables, loss: jax.Array
) -> tuple[Variables, jax.Array, jax.Array]:
    """Replaces the models of absent clients by the global one.

    Args:
        is_candidate: bool [K] False for a client that dropped out or took no step.

    Returns:
        The models; bool [K] whose model and loss are finite; bool [K] which clients are present.
    """
    finite = tree.is_finite((returned, loss))
    present = is_candidate & finite
    unmoved = tree.repeat(state.variables, len(finite))
    return tree.where(present, returned, unmoved), finite, present


def _kept(state: SimState, schedule: Schedule, present: jax.Array, optimisers: Tree) -> Tree:
    """The optimisers' memories; that of a client that diverged or dropped out stays as it was."""
    known = tree.take(state.optimisers, schedule.clients)
    return tree.put(state.optimisers, schedule.clients, tree.where(present, optimisers, known))


def _sound(told: Told, scalars: Tree) -> Told:
    """The table without the clients of which some scalar is not finite; a rule may measure nothing."""
    sound = tree.is_finite((scalars, told.present)) | ~told.present
    return told._replace(finite=told.finite & sound, present=told.present & sound)


def _mean_loss(schedule: Schedule, total: jax.Array, finite: jax.Array) -> jax.Array:
    """[K] loss of a client's mean step, 0 without a step, NaN where it diverged."""
    steps = jnp.maximum(schedule.num_steps, 1).astype(total.dtype)
    return jnp.where(finite, total / steps, jnp.nan)


def make_chunk(round_step: RoundStep):
    """chunk(state, num_rounds, stacked schedules, data, hyper) -> (state, metrics [R, K]): rounds without a host trip.

    The number of rounds is data, so one program serves every length; entries past it are zero.
    """
    step = jax.jit(round_step)

    def chunk(state: SimState, num_rounds, rounds: Schedule, data: Data, hyper: Hyper) -> tuple[SimState, Metrics]:
        def one(r, carry: tuple[SimState, Metrics]) -> tuple[SimState, Metrics]:
            state, metrics = step(carry[0], schedules.at(rounds, r), data, hyper)
            return state, tree.put(carry[1], r, metrics)

        found = jax.eval_shape(step, state, schedules.at(rounds, 0), data, hyper)[1]
        empty = jax.tree.map(lambda s: jnp.zeros((len(rounds.clients), *s.shape), s.dtype), found)
        return lax.fori_loop(0, num_rounds, one, (state, empty))

    return chunk
