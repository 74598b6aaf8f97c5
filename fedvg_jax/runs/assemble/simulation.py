"""Makes of an experiment what its rounds need: programs, the first state, rows and schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.stages import Traced, Wrapped

from fedvg_jax.core import trained_part, tree
from fedvg_jax.core.trained_part import LocalPart
from fedvg_jax.core.types import (
    Algorithm,
    Data,
    Executor,
    Hyper,
    Metric,
    Metrics,
    Schedule,
    SimState,
    Task,
    Tree,
    UsageError,
    Variables,
    Weighting,
)
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions.client_rows import Partition
from fedvg_jax.engine import evaluate, federated_round, schedule
from fedvg_jax.host import processes
from fedvg_jax.runs.assemble import programs, tables
from fedvg_jax.runs.experiment import Config, Experiment
from fedvg_jax.runs.placement import on_devices
from fedvg_jax.runs.placement.client_states import Federation, Placement, fit_chunk, stays_on_host
from fedvg_jax.runs.record import history

if TYPE_CHECKING:
    from fedvg_jax.data.scaling import Columns
    from fedvg_jax.engine.virtual_time import Timeline
    from fedvg_jax.runs.assemble.arrivals import Arrive
    from fedvg_jax.runs.assemble.communication import Traffic
    from fedvg_jax.runs.assemble.privacy import Account
    from fedvg_jax.runs.placement.pool_rows import HostRows


class Simulation(NamedTuple):
    """Everything a run needs: data, initial state, hyperparameters, schedules and programs.

    A caller's function is traced once for each shape, some when the simulation is made and the others at their first
    use. After a change of a value that such a function reads, make another simulation.
    """

    experiment: Experiment
    """what the run is"""
    arrays: Arrays
    """the data set as it was read, NumPy arrays [T, ...]"""
    partition: Partition
    """rows of every client, by part"""
    task: Task
    """of the trained part, with the frozen tensors of `data`"""
    state: SimState
    """before the first round; if client states stay on the host, NumPy arrays without rows of clients"""
    data: Data
    """the pool and the tables of rows, on the devices; NumPy arrays if `host_rows` is set"""
    hyper: Hyper
    draw: Callable[..., Schedule]
    """as `schedule`, with a table of the round's minibatches alone"""
    capacity: int
    """F, minibatches that the table of a round or of a chunk can hold"""
    chunk: Wrapped
    """see `federated_round.make_chunk`; jitted, the state is donated"""
    evaluate: Wrapped
    """(variables, pool, rows) -> added sums of `model.measure`; jitted"""
    algorithm: Algorithm
    weighting: Weighting
    executor: Executor
    model: Task
    """of the whole model: `task`, unless only a part is trained"""
    bind: Callable[[Tree], programs.Bound]
    """`data.base` -> task, weighting and round step with these frozen tensors"""
    cached: programs.Cache
    """caches the compiled programs, by shapes"""
    local: LocalPart
    """the part of the model that stays with each client"""
    host_rows: HostRows | None
    """the rows that the devices hold, if the run keeps its rows on the host (`--placement`)"""
    state_placement: Placement
    """where the client states are (`--placement`)"""
    custom_hyper: Mapping[str, float]
    """hyperparameters that a caller's objects declare and no setting determines"""
    timeline: Timeline | None
    """of a buffered server; None of a synchronous one"""
    account: Account | None
    """what the rounds cost in privacy; None without it, and if the cost of the first model is not known"""
    metrics: Mapping[str, Metric] = {}
    """the user's metrics, by name"""
    code: Mapping[str, str] = {}
    """digests of the caller's functions, by argument, and of metrics"""
    names: Mapping[str, str] = {}
    """setting -> the name that the caller gave its value on an axis"""

    @property
    def config(self) -> Config:
        """The settings of the run."""
        return self.experiment.settings

    @property
    def traffic(self) -> Traffic:
        """Bytes that a client of a cohort receives and sends in a round."""
        from fedvg_jax.runs.assemble import communication

        return communication.round_traffic(self.experiment, self, self.state, self.data, self.hyper)

    def schedule(self, round: int, state: SimState | None = None) -> Schedule:
        """Returns the schedule of a round, NumPy arrays with the same shapes in every round.

        Args:
            round: its number, from 0.
            state: before it. Only a selection that measures losses reads it; without one it takes all losses as equal.
        """
        return schedule.padded(self.draw(round, state), self.capacity)

    def step(self, state: SimState, round: int) -> tuple[SimState, Metrics]:
        """Returns the state after a round, and the round's metrics per client, with the same bits as `run`.

        Args:
            state: before the round, such as `sim.state`; it stays valid.
            round: its number, from 0; it determines the cohort and the minibatches.

        Raises:
            UsageError: rows or client states stay on the host.

        >>> import fedvg_jax as fv
        >>> sim = fv.simulation(fv.Config(clients=4, alpha=10.0))
        >>> state, metrics = sim.step(sim.state, 0)
        >>> int(state.round), metrics.weights.shape
        (1, (2,))
        """
        if self.host_rows or self.state_placement.is_on_host:
            raise UsageError(
                "sim.step needs rows and client states on the device; use placement device, or fv.run"
            )
        rounds = schedule.stack([self.draw(round, state)], tables.MAX_ROUNDS, self.capacity)
        after, metrics = self.chunk(tree.copies(state), np.int32(1), rounds, self.data, self.hyper)
        return after, tree.take(metrics, 0)

    @property
    def scaled_by(self) -> Columns | None:
        """What encoded the table of `data`; None for arrays."""
        return self.experiment.population.scaled_by

    @property
    def base(self) -> Tree:
        """The frozen tensors, on the devices; None if the whole model is trained."""
        return self.data.base

    def whole(self, variables: Variables) -> Variables:
        """Returns the variables of the whole model, from the variables of its trained part.

        Args:
            variables: of a state of this simulation, or of a checkpoint of a run with the same frozen tensors; whole
                ones are returned as they are.
        """
        trained = self.state.variables
        if tree.paths(variables) != tree.paths(trained):
            return variables
        part = jax.tree.unflatten(jax.tree.structure(trained), jax.tree.leaves(variables))
        return trained_part.whole(part, self.base)

    def validation_loss(self, model: SimState | Variables) -> jax.Array:
        """Returns the mean loss on D_val in evaluation mode, `val_loss` of records; differentiable by the model.

        Raises:
            UsageError: the rows stay on the host.
        """
        if self.host_rows:
            raise UsageError(
                "sim.validation_loss needs the rows on the device; use placement device, or fv.evaluate"
            )
        variables = model.variables if isinstance(model, SimState) else model
        return evaluate.mean_loss(self.model, self.whole(variables), self.data.pool, self.data.val)


def assemble(experiment: Experiment, cached: programs.Cache) -> Simulation:
    """Returns the simulation of an experiment.

    Args:
        experiment: what the run is.
        cached: caches the programs of functions that a caller gave, for all simulations of the call.

    Raises:
        UsageError: a caller's function breaks its contract, or parts of the experiment do not fit together.
    """
    program = programs.make_program(experiment, cached)
    hyper, custom_hyper = experiment.hyper(program.algorithm, program.weighting)
    variables, base = experiment.model.initial(program.model.init), None
    if is_trained := programs.is_trained(experiment.model, program.model):
        variables, base = trained_part.split(variables, is_trained)
    base = processes.place(base, program.executor.placement)
    task, weighting, _ = program.bind(base)
    # the run's own, because runs with other values of its fields share a program
    algorithm = experiment.method.algorithm
    program = program._replace(task=task, weighting=weighting, algorithm=algorithm)
    rows, host = _make_rows(experiment, program, base)
    _check_features(experiment, program, host.resident if host else rows)
    state, state_placement = _make_state(experiment, program, hyper, variables)
    chosen = experiment.method.selection
    if chosen and chosen.num_candidates and host:
        raise UsageError(
            "this selection measures losses on the device, and rows are on the host; use placement device"
        )
    account = _account(experiment, program, state, hyper)
    select = None
    if chosen:
        from fedvg_jax.runs.assemble import selection

        select = selection.make_select(experiment, chosen, program, rows)
    training = tables.make_training(experiment, program)
    arrive = timeline = None
    if experiment.cohorts.clock:
        arrive, timeline, state = _arrivals(experiment, program, training, state, rows, hyper)
    sim = Simulation(
        experiment=experiment,
        arrays=experiment.population.arrays,
        partition=experiment.population.partition,
        state=state,
        data=rows,
        # on no process's device
        hyper=hyper if processes.count() == 1 else jax.tree.map(np.asarray, hyper),
        custom_hyper=custom_hyper,
        draw=tables.make_schedule(experiment, program, training, select, arrive),
        capacity=tables.table_capacity(experiment, training["batch_size"]),
        timeline=timeline,
        host_rows=host,
        state_placement=state_placement,
        account=account,
        **program._asdict(),
    )
    if experiment.custom:
        _check_contracts(sim)
    return sim


def _arrivals(
    experiment: Experiment,
    program: programs.Program,
    training: Mapping[str, Any],
    state: SimState,
    rows: Data,
    hyper: Hyper,
) -> tuple[Arrive, Timeline | None, SimState]:
    """Returns the arrivals of a run with a clock, all updates of a buffered server, and the state with its versions."""
    from fedvg_jax.runs.assemble import arrivals, communication

    clock = experiment.cohorts.clock
    assert clock is not None, "it has one"
    traffic = communication.round_traffic(experiment, program, state, rows, hyper)
    arguments = experiment, clock, training, (traffic.down, traffic.up)
    if experiment.cohorts.concurrency == 0:
        return arrivals.synchronous(*arguments), None, state
    arrive, timeline, num_versions = arrivals.buffered(*arguments)
    versions = jax.jit(tree.repeat, static_argnums=1)(state.variables, num_versions)
    return arrive, timeline, state._replace(versions=versions)


def _check_contracts(sim: Simulation) -> None:
    """Traces the round once, in which every function of a caller is checked; see `engine.contracts`.

    Raises:
        UsageError: a function breaks its contract, or a detail has a name of the history.
    """
    _, metrics = trace_chunk(sim).out_info
    for name in metrics.detail:
        if history.is_reserved(name):
            raise UsageError(f"weighting.detail: '{name}' is a name of the history; rename it")


def trace_chunk(sim: Simulation) -> Traced:
    """Returns the program of rounds traced for the shapes of a run, once for equal shapes."""
    return programs.trace_chunk(sim, shapes_of_chunk(sim))


def shapes_of_chunk(sim: Simulation) -> programs.Shapes:
    """Returns what a chunk of rounds is compiled for."""
    _, planned = sim.state_placement.number_rows([sim.draw(0)])
    rounds = schedule.stack(planned, tables.MAX_ROUNDS, sim.capacity)
    data = sim.host_rows.shapes() if sim.host_rows else sim.data
    return sim.state_placement.shapes(sim.state), rounds, data, sim.hyper


def _make_rows(
    experiment: Experiment, program: programs.Program, base: Tree
) -> tuple[Data, HostRows | None]:
    """Returns the pool with its tables and the frozen tensors, on the devices, unless the pool stays on the host."""
    population = experiment.population
    num_bytes = population.shared.x.nbytes + population.shared.y.nbytes
    is_on_host = tables.stays_on_host(experiment.placement, num_bytes)
    rows = tables.make_data(experiment, program.model, is_on_host)
    if program.algorithm.describe or program.weighting.describe:
        from fedvg_jax.engine import descriptions

        described = descriptions.describe_clients(
            program.algorithm,
            program.weighting,
            population.pool,
            population.partition.train,
            len(population.arrays.class_names),
        )
        rows = rows._replace(described=described)
    if not is_on_host:
        return processes.place(rows, program.executor.placement)._replace(base=base), None
    from fedvg_jax.runs.placement import pool_rows

    host = pool_rows.make(experiment, rows, program.executor)
    host = host._replace(resident=host.resident._replace(base=base))
    return rows._replace(base=base), host


def _check_features(experiment: Experiment, program: programs.Program, rows: Data) -> None:
    """Raises UsageError where a loss reads features that the model does not train, or another loss than the task's."""
    algorithm, task = program.algorithm, program.task
    if algorithm.loss is None:
        return
    from fedvg_jax.engine import task_checks

    if experiment.model.is_custom:
        task_checks.check_forward(task, rows.pool)
    if algorithm.reads_features:
        key = "features", *programs.key_of_shapes(rows.pool)
        program.cached(key, lambda: task_checks.check_features(task, rows.pool, "the algorithm"))


def _account(
    experiment: Experiment, program: programs.Program, state: SimState, hyper: Hyper
) -> Account | None:
    """Returns what the rounds cost in privacy; None without it, and for a first model of unknown cost."""
    if experiment.privacy is None:
        return None
    from fedvg_jax.runs.assemble import privacy

    privacy.check(experiment, program, state, hyper)
    if not experiment.privacy.is_first_public:
        return None
    return privacy.make_account(experiment.privacy, experiment.cohorts, hyper)


def _make_state(
    experiment: Experiment, program: programs.Program, hyper: Hyper, variables: Variables
) -> tuple[SimState, Placement]:
    """Returns the state before the first round, of these trained variables, and where the client states are."""
    one = federated_round.init_state(
        program.task,
        program.algorithm,
        1,
        hyper,
        variables=variables,
        local=program.local,
        stats_too=experiment.method.server_stats,
        weighting=program.weighting,
    )
    if tree.num_bytes(one.clients) and experiment.cohorts.concurrency:
        raise UsageError(
            "buffered.size: the method keeps a state of every client, and one update may have two trainings of a"
            " client; use an algorithm, a compression (qsgd) and a weighting without one"
        )
    one = processes.place(one, program.executor.placement)
    placement = _make_placement(experiment, one.clients, program.executor.clients)
    return placement.first(one), placement


def _make_placement(
    experiment: Experiment, fresh: Tree, sharding: NamedSharding | None
) -> Placement:
    """Returns the operations of the place where a run stores its client states.

    Args:
        experiment: of the run.
        fresh: the state of a client that was not sampled yet, leaves [1, ...] on the devices.
        sharding: of the rows over devices; None if each device stores all.
    """
    num_clients = experiment.cohorts.num_clients
    federation = Federation(num_clients, experiment.cohorts.size, experiment.rounds)
    sizes = tree.num_bytes(fresh), sharding.mesh.size if sharding else 1
    if not stays_on_host(experiment.placement, federation, *sizes):
        return on_devices.make(num_clients, tables.MAX_ROUNDS, fresh, sharding)
    from fedvg_jax.runs.placement import on_host

    num_rows, max_rounds = fit_chunk(federation, tables.MAX_ROUNDS, *sizes)
    return on_host.make(federation, max_rounds, fresh, num_rows, sharding)
