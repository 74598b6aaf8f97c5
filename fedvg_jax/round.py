"""One federated round, and a chunk of rounds, as pure functions.

    theta <- theta_g - sum_k s_k (theta_g - theta_k) + R

The round never learns which algorithm, weighting, model or data set it is running.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fedvg_jax import attacks, local, robust, tree, tuning, weighting
from fedvg_jax import schedule as schedules
from fedvg_jax.types import (
    Algorithm,
    Augment,
    Client,
    Cohort,
    Data,
    Executor,
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


def init(
    task: Task,
    algorithm: Algorithm,
    num_clients: int,
    key: jax.Array,
    hyper: Hyper,
    stats_too: bool = False,
    kept: local.Optimiser | None = None,
    variables: Variables | None = None,
) -> SimState:
    """The state before the first round.

    Args:
        kept: the clients' optimiser, where its memory outlives a round.
        variables: where to start, if that is not the task's to draw.
    """
    begin = jnp.zeros((), jnp.int32)
    variables = jax.jit(task.init)(key) if variables is None else variables
    server, client = algorithm.init(hyper, variables if stats_too else variables.params)
    optimiser = kept(hyper, begin).init(variables.params) if kept else ()
    return SimState(begin, variables, server, *(tree.repeat(memory, num_clients) for memory in (client, optimiser)))


def make_round(
    task: Task,
    algorithm: Algorithm,
    weighting_: Weighting,
    executor: Executor,
    optimiser: local.Optimiser,
    num_clients: int,
    *,
    aggregate: robust.Rule = robust.mean,
    disturb: attacks.Disturb = attacks.none,
    refine: tuning.Refine = tuning.none,
    augment: Augment | None = None,
    stats_too: bool = False,
) -> RoundStep:
    """round_step(state, schedule, data, hyper) -> (state, metrics), pure and jittable.

    A client that drops out, or of which anything is not finite (model, loss, what the weighting measures, its weight),
    counts as if it had returned the global model, with weight 0, and keeps the memory it had.

    Args:
        aggregate: the weighted mean, or a robust rule; it guards the model, not the messages of an algorithm.
        disturb: what corrupt clients return in place of what they trained.
        refine: what the server does to the new model at the end of the round.
        augment: what is done to a minibatch before a client trains on it; probes and scores see the rows as they are.
        stats_too: whether the algorithm acts on running statistics as the published code does, not on trained tensors
            only.

    Two clients with a row each, 1 and 3, whose losses (w - row)^2 / 2 a step of rate 1 brings to 0:

    >>> from fedvg_jax import executors
    >>> from fedvg_jax.algorithms.fedavg import fedavg
    >>> def loss(params, stats, batch, mask, train):
    ...     return jnp.where(mask, (params["w"] - batch) ** 2 / 2, 0).sum() / len(batch), stats
    >>> task = Task(lambda key: Variables({"w": jnp.zeros(1)}, {}), loss, None, None, None, str)
    >>> step = make_round(task, fedavg(), weighting.uniform(), executors.lanes(1), local.sgd, num_clients=2)
    >>> rows = jnp.arange(2).reshape(2, 1)
    >>> settings = {"seed": 0, "cohort_size": 2, "local_epochs": (1, 1), "batch_size": 1, "num_lanes": 1, "capacity": 2}
    >>> data, hyper = Data(jnp.array([1.0, 3.0]), *[jnp.array([[0]])] * 3), {"lr": jnp.float32(1)}
    >>> state = init(task, fedavg(), 2, jax.random.key(0), hyper)
    >>> state, metrics = jax.jit(step)(state, schedules.make(0, rows, **settings), data, hyper)
    >>> state.variables.params["w"].tolist(), metrics.weights.tolist()
    ([2.0], [0.5, 0.5])
    """

    loop = executor.loop or local.counted

    def acted_on(memory: Tree) -> Tree:
        return memory if stats_too else tree.params_of(memory)

    def client(shared: Tree, schedule: Schedule) -> Client:
        state, data, hyper = shared
        return local.make_client(task, algorithm, optimiser, state, schedule, data, hyper, augment)

    def probe(shared: Tree, k: jax.Array) -> Tree:
        state, schedule, data, hyper = shared
        return algorithm.probe(hyper, _probe(task, state, schedule, data, k, loop))

    def measure(shared: Tree, report: Report) -> Tree:
        hyper, data = shared
        return weighting_.signal(hyper, report, data)

    def round_step(state: SimState, schedule: Schedule, data: Data, hyper: Hyper) -> tuple[SimState, Metrics]:
        # clients: probe, train, and who is there
        cohort = jnp.arange(len(schedule.clients), dtype=jnp.int32)
        probes = executor.map(probe, (state, schedule, data, hyper), cohort)
        trained: local.Carry = executor.train(client, (state, data, hyper), schedule)
        attack_key, rule_key = jax.random.split(jax.random.wrap_key_data(schedule.key, impl="threefry2x32"))
        returned = Variables(trained.params, trained.stats)
        returned = disturb(hyper, attack_key, schedule.clients, state.variables, returned)
        clients, finite, present = _screened(state, schedule, returned, trained.loss)

        # weights and the weighted mean
        deltas = jax.tree.map(lambda p, c: p[None] - c, state.variables.params, clients.params)
        reports = Report(clients, schedule.num_samples, deltas)
        measured = executor.map(measure, (hyper, data), reports)
        sound = _all_finite(measured, cohort) | ~present
        present = present & sound
        weights = weighting_.weigh(hyper, measured, Returns(state.variables, clients, schedule.shuffle, data, present))
        sound = sound & (_all_finite(weights, cohort) | ~present)
        finite, present = finite & sound, present & sound
        clients = tree.where(present, clients, tree.repeat(state.variables, len(cohort)))
        weights = weighting.among(present, weights)
        averaged = aggregate(hyper, rule_key, state.variables, clients, weights)

        # what clients remember and tell
        def report(k: jax.Array, returned: Tree) -> tuple[Tree, Tree]:
            known = local.anchor(state, schedule, k)._replace(params=acted_on(state.variables))
            moved = local.displacement(optimiser, hyper, state.round, schedule.num_steps[k], loop)
            return algorithm.report(hyper, returned, known, moved)

        memories, messages = jax.vmap(report)(cohort, acted_on(clients))
        messages, probes = (tree.where(present, told, tree.zeros_like(told)) for told in (messages, probes))
        memories = tree.where(present, memories, tree.take(state.clients, schedule.clients))

        # the server's own term
        theta = acted_on(state.variables)
        update = tree.sub(theta, acted_on(averaged))
        told = Cohort(update, messages, acted_on(weights), acted_on(probes), num_clients)
        residual, server = algorithm.residual(hyper, state.server, theta, told)
        moved = tree.add(acted_on(averaged), residual)
        variables = moved if stats_too else Variables(moved, averaged.stats)
        variables = refine(hyper, state.round, variables, data)

        clients_memory = tree.put(state.clients, schedule.clients, memories)
        optimisers = _kept(state, schedule, present, trained.optimiser) if state.optimisers else ()
        loss = _mean_loss(schedule, trained.loss, finite)
        shown = (weighting.mean_weight(weights), weighting_.score(measured), loss, finite, weighting_.detail(measured))
        return SimState(state.round + 1, variables, server, clients_memory, optimisers), Metrics(*shown)

    return round_step


def _probe(task: Task, state: SimState, schedule: Schedule, data: Data, k: jax.Array, loop: Loop) -> Probe:
    """Client k's probe batches, which stand behind its training batches."""
    begin = schedule.start[k] + schedule.num_steps[k]

    def batch(i):
        return tree.gather(data.pool, schedule.rows[begin + i])

    return Probe(task, state.variables, batch, schedule.probe_steps[k], k, loop)


def _screened(
    state: SimState, schedule: Schedule, returned: Variables, loss: jax.Array
) -> tuple[Variables, jax.Array, jax.Array]:
    """The clients' models, the global one for those that diverged or dropped out; who is finite; who is there."""
    finite = tree.is_finite((returned, loss))
    present = schedule.heard & finite
    unmoved = tree.repeat(state.variables, len(finite))
    return tree.where(present, returned, unmoved), finite, present


def _kept(state: SimState, schedule: Schedule, present: jax.Array, optimisers: Tree) -> Tree:
    """The optimisers' memories; that of a client that diverged or dropped out stays as it was."""
    known = tree.take(state.optimisers, schedule.clients)
    return tree.put(state.optimisers, schedule.clients, tree.where(present, optimisers, known))


def _all_finite(measured: Tree, cohort: jax.Array) -> jax.Array:
    """[K] of which clients all scalars are finite; a rule may measure nothing."""
    return tree.is_finite((measured, cohort))


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
