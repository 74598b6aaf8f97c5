"""One federated round, and a chunk of rounds, as pure functions of arrays.

    theta <- theta_g - sum_k s_k (theta_g - theta_k) + R

with the global model theta_g, the clients' trained models theta_k, the aggregation weights s_k and the algorithm's
residual R. `run_cohort` is the round of a whole cohort, by the steps in `round_steps`. A cohort in several client
chunks takes the same steps in `client_chunks`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedvg_jax.core import trained_part, tree
from fedvg_jax.core.trained_part import NOTHING, LocalPart
from fedvg_jax.core.tree import ROUNDS
from fedvg_jax.core.types import (
    Algorithm,
    Augment,
    Data,
    Executor,
    Hyper,
    Metrics,
    RoundStep,
    Schedule,
    SimState,
    Task,
    UsageError,
    Variables,
    Weighting,
)
from fedvg_jax.engine import (
    attacks,
    contracts,
    descriptions,
    executors,
    local_training,
    privacy,
    robust,
    round_steps as steps,
    schedule as schedules,
)
from fedvg_jax.engine.round_steps import RoundInputs, RoundParts
from fedvg_jax.weightings import baselines

Chunk = Callable[[SimState, Array, Schedule, Data, Hyper], tuple[SimState, Metrics]]
"""(state, number of rounds [], schedules stacked [R], data, hyper) -> (state, metrics [R, K])"""


def run_cohort(parts: RoundParts, inputs: RoundInputs) -> tuple[SimState, Metrics]:
    """Returns the state after the round of a whole cohort, and the round's metrics."""
    averages = steps.average_clients(parts, [parts.weighting.weigh], inputs)
    return steps.server_step(parts, inputs, averages)


def init_state(
    task: Task,
    algorithm: Algorithm,
    num_clients: int,
    hyper: Hyper,
    *,
    seed: int = 0,
    variables: Variables | None = None,
    local: LocalPart = NOTHING,
    stats_too: bool = False,
    weighting: Weighting | None = None,
    num_versions: int = 0,
) -> SimState:
    """Returns the state before the first round.

    Args:
        task: draws the initial model.
        algorithm: makes the state of the server and of the clients.
        num_clients: N, the rows for client states.
        hyper: name -> value, such as {"lr": 0.1}.
        seed: of the initial model.
        variables: the initial model, in place of the task's.
        local: the part of the model that stays with each client, of `local_part`.
        stats_too: as in `make_round`.
        weighting: makes the state of a weighting that has one; needed for no other.
        num_versions: slots for models that clients of a buffered server train from; 0 for synchronous rounds.

    Raises:
        UsageError: the local part has no tensor of the model, or all that are trained.

    >>> from fedvg_jax.algorithms import fedavg
    >>> task = Task(lambda key: Variables({"w": jnp.zeros(2)}, {}), None, None, None, None, str)
    >>> state = init_state(task, fedavg(), 3, {"lr": 0.1})
    >>> int(state.round), state.variables.params["w"].tolist()
    (0, [0.0, 0.0])
    """
    algorithm = contracts.checked(algorithm, "algorithm")
    weighting = weighting and contracts.checked(weighting, "weighting")
    first_round = jax.device_put(np.int32(0))
    if variables is None:
        # a new function, which JAX traces with the values that it reads now
        init = functools.partial(task.init)
        variables = jax.jit(init)(jax.random.key(seed))
    variables = Variables(*tree.arrays(variables))
    hyper = tree.arrays(dict(hyper), tree.wide_dtype(variables))
    initial = algorithm.init(hyper, variables if stats_too else variables.params)
    server, client = tree.arrays(initial, tree.dtype(variables))
    trained_part.check(local, variables, "local")
    state_of_weighting = weighting.state if weighting else None
    of_server, of_client = (
        tree.arrays(state_of_weighting.init(hyper, variables.params), tree.dtype(variables))
        if state_of_weighting
        else ((), ())
    )
    if local.is_local or algorithm.personal or algorithm.send or state_of_weighting:
        kept = variables if algorithm.personal else ()
        if local.is_local:
            kept = local.select(variables)
        sent = algorithm.send.init(hyper, local.sent(variables.params)) if algorithm.send else ()
        client = local_training.ClientState(client, kept, sent, of_client)
    return SimState(
        first_round,
        variables,
        server,
        tree.repeat(client, num_clients),
        weighting=of_server,
        versions=tree.repeat(variables, num_versions) if num_versions else (),
    )


def make_round(
    task: Task,
    algorithm: Algorithm,
    weighting: Weighting,
    executor: Executor,
    optimiser: local_training.Optimiser,
    num_clients: int,
    *,
    aggregate: robust.Rule = robust.weighted_mean,
    disturb: attacks.Disturb | None = None,
    refine: baselines.Refine | None = None,
    augment: Augment | None = None,
    stats_too: bool = False,
    weigh_untrained: bool = False,
    check_weights: bool = False,
    local: LocalPart = NOTHING,
    private: privacy.Sensitivity | None = None,
    scores_applied: bool = False,
) -> RoundStep:
    """Returns round_step(state, schedule, data, hyper) -> (state, metrics), pure and jittable.

    A client is dropped if it drops out, takes no local step, or has anything non-finite: model, loss, signal or weight.
    A dropped client counts as if it had returned theta_g with weight 0, and keeps its state. A client takes no local
    step if it has no training row, or a single one where single rows are skipped. A round in which all clients are
    dropped changes neither the model nor any state; only `refine` still acts on the model.

    A schedule made with a `client_chunk_size` needs a weighting with `terms`, and the weighted mean as `aggregate`.

    Args:
        task: the model and its loss.
        algorithm: the federated algorithm.
        weighting: the rule of the aggregation weights.
        executor: how the clients are run.
        optimiser: the clients' optimiser. Where the algorithm has a `report`, such as Scaffold's, it has to take a
            scalar as its parameters too, because its displacement under a constant gradient is measured on one.
        num_clients: N.
        aggregate: the weighted mean, or a robust rule. A rule replaces the mean of models, not of messages.
        disturb: replaces what corrupt clients return; None for nothing.
        refine: changes the new global model at the end of the round; None for nothing.
        augment: changes minibatches before a client trains on them; probes and scores use the unchanged rows.
        stats_too: whether the algorithm acts on running statistics too, as the published code does.
        weigh_untrained: whether a client without a local step is weighed like the others, as in the published code. It
            returns theta_g, to which the weighting may give any weight.
        check_weights: whether to record `Metrics.extremes`, which exposes custom weights that are negative or do not
            sum to 1.
        local: the part of the model that stays with each client; by default none. Signals are measured on a client's
            model with its local part, and `delta` is 0 there.
        private: how much one client can change the aggregate, which fits the weighting; updates are then clipped to
            `hyper["dp.clip"]`, and the aggregate gets Gaussian noise, see `engine.privacy`. None for neither.
        scores_applied: whether signals of a buffered server are measured on its present model with one client's update,
            in place of theta_k, see `engine.buffered`.

    Raises:
        UsageError: for a local part with an algorithm that has personal models or with `private`, for `private` with a
            robust rule or a weighting with a state; and of the round, for a schedule with more than N clients.

    Two clients with the rows 1 and 3 have the losses (w - row)^2 / 2, so one step of rate 1 takes each to its row:

    >>> from fedvg_jax.engine import executors
    >>> from fedvg_jax.algorithms.fedavg import fedavg
    >>> from fedvg_jax.weightings.basic import uniform
    >>> def loss(params, stats, batch, mask, train):
    ...     return jnp.where(mask, (params["w"] - batch) ** 2 / 2, 0).sum() / len(batch), stats
    >>> task = Task(lambda key: Variables({"w": jnp.zeros(1)}, {}), loss, None, None, None, str)
    >>> step = make_round(task, fedavg(), uniform(), executors.lanes(1), local_training.sgd, num_clients=2)
    >>> rows = jnp.arange(2).reshape(2, 1)
    >>> settings = {"seed": 0, "cohort_size": 2, "local_epochs": (1, 1), "batch_size": 1, "num_lanes": 1}
    >>> data, hyper = Data(jnp.array([1.0, 3.0]), *[jnp.array([[0]])] * 3), {"lr": jnp.float32(1)}
    >>> state = init_state(task, fedavg(), 2, hyper)
    >>> state, metrics = jax.jit(step)(state, schedules.make(0, rows, **settings), data, hyper)
    >>> state.variables.params["w"].tolist(), metrics.weights.tolist()
    ([2.0], [0.5, 0.5])
    """
    if local.is_local and algorithm.personal:
        raise UsageError(
            "local= and an algorithm with personal models do not combine; leave one of them out"
        )
    if private and (local.is_local or weighting.state or aggregate is not robust.weighted_mean):
        raise UsageError(
            "private takes the weighted mean (robust.weighted_mean), no local part and no weighting with a state"
        )
    if weighting.num_clients not in (None, num_clients):
        wanted = f"{weighting.num_clients} clients; the run has {num_clients}"
        raise UsageError(f"weightings.fixed has the weights of {wanted}")
    task, algorithm = contracts.checked(task, "task"), contracts.checked(algorithm, "algorithm")
    weighting = contracts.checked(weighting, "weighting")
    if aggregate is not robust.weighted_mean:
        aggregate = contracts.checked_function(
            aggregate, lambda returned, hyper, model, *_: model, "aggregate"
        )
    parts = RoundParts(
        task,
        algorithm,
        weighting,
        executor,
        optimiser,
        num_clients,
        aggregate,
        disturb,
        refine,
        augment,
        stats_too,
        weigh_untrained,
        check_weights,
        local,
        private,
        scores_applied,
    )

    def round_step(state, schedule, data, hyper):
        if len(schedule.clients) > num_clients:
            raise UsageError(
                f"the schedule has {len(schedule.clients)} clients a round, make_round {num_clients} in all; give"
                " make_round and init_state the number of all clients"
            )
        descriptions.check(algorithm, weighting, data.described)
        if weighting.state and not isinstance(state.clients, local_training.ClientState):
            raise UsageError("the weighting has a state; give init_state the same weighting=")
        inputs = _round_inputs(state, schedule, data, hyper)
        run = run_cohort
        if schedule.plan.length.ndim > 1:
            from fedvg_jax.engine.client_chunks import run_chunks as run
        return _over_devices(run, parts, inputs)

    return round_step


def _over_devices(
    run: Callable, parts: RoundParts, inputs: RoundInputs
) -> tuple[SimState, Metrics]:
    """Returns `run(parts, inputs)`. Devices that divide client states exchange the states of the cohort for it.

    The rows of a run are a multiple of the devices. States with other row counts, as in custom loops, are not divided.
    """
    state, schedule, sharding = inputs.state, inputs.schedule, parts.executor.clients
    leaves = jax.tree.leaves(state.clients)
    if sharding is None or not leaves or len(leaves[0]) % sharding.mesh.size:
        return run(parts, inputs)
    of_cohort = executors.take_rows(state.clients, schedule.state_rows, sharding)
    state = state._replace(clients=of_cohort)
    of_rows = schedule._replace(state_rows=inputs.positions)
    after, metrics = run(parts, inputs._replace(state=state, schedule=of_rows))
    states = executors.put_rows(inputs.state.clients, schedule.state_rows, after.clients, sharding)
    return after._replace(clients=states), metrics


def _round_inputs(state: SimState, schedule: Schedule, data: Data, hyper: Hyper) -> RoundInputs:
    """Returns the arguments of a round as JAX arrays, with a state row for every client, and its two keys."""
    # without jit, indices into NumPy tables would be tracers, and Python's numbers have no dtype
    state, schedule, data = tree.arrays((state, schedule, data))
    if schedule.state_rows is None:
        schedule = schedule._replace(state_rows=schedule.clients)
    hyper = tree.arrays(dict(hyper), tree.wide_dtype(state.variables))
    positions = jnp.arange(len(schedule.clients), dtype=jnp.int32)
    attack_key, noise_key = jax.random.split(
        jax.random.wrap_key_data(schedule.key, impl="threefry2x32")
    )
    return RoundInputs(state, schedule, positions, data, hyper, attack_key, noise_key)


# --- several rounds ---------------------------------------------------------------------------------------------------
def make_chunk(round_step: RoundStep) -> Chunk:
    """Returns chunk(state, num_rounds, stacked schedules, data, hyper) -> (state, metrics [R, K]).

    A chunk runs several rounds in one program, without returning to the host. The number of rounds is data, so one
    program serves any number up to R; metrics of further rounds are zero.
    """
    step = jax.jit(round_step)

    def chunk(state, num_rounds, rounds, data, hyper):
        def next_round(r, carry):
            state, metrics = step(carry[0], schedules.round_at(rounds, r), data, hyper)
            return state, tree.replaced(carry[1], r, metrics)

        _, metrics = jax.eval_shape(step, state, schedules.round_at(rounds, 0), data, hyper)
        empty = jax.tree.map(lambda s: jnp.zeros((len(rounds.clients), *s.shape), s.dtype), metrics)
        with jax.named_scope(ROUNDS):
            return lax.fori_loop(0, num_rounds, next_round, (state, empty))

    return chunk
