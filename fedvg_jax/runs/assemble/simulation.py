"""From a config to everything a run needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.stages import Wrapped

from fedvg_jax.config import Config, check
from fedvg_jax.config.fidelity import departs
from fedvg_jax.core import reuse, trained_part, tree
from fedvg_jax.core.trained_part import LocalPart
from fedvg_jax.core.types import (
    Algorithm,
    Data,
    Executor,
    Hyper,
    Metric,
    Metrics,
    Schedule,
    Selection,
    SimState,
    Task,
    Tree,
    UsageError,
    Variables,
    Weighting,
)
from fedvg_jax.data import user_data
from fedvg_jax.data.arrays import Arrays, limited
from fedvg_jax.data.images import Progress
from fedvg_jax.data.partitions.client_rows import Partition, joined
from fedvg_jax.data.scaling import Columns
from fedvg_jax.engine import evaluate, federated_round, schedule
from fedvg_jax.engine.local_training import Optimiser
from fedvg_jax.host import extras, processes
from fedvg_jax.models import pretrained
from fedvg_jax.runs.assemble import (
    communication,
    contracts,
    fit,
    privacy,
    programs,
    registry,
    tables,
)
from fedvg_jax.runs.assemble.given import Given, merge_hyperparameters, traced_anew
from fedvg_jax.runs.assemble.population import (
    Population,
    describe,
    load_data,
    make_columns,
    make_partition,
    make_shared,
    take_partition,
)
from fedvg_jax.runs.placement import client_memories, pool_rows
from fedvg_jax.runs.record import digests, provenance


class Simulation(NamedTuple):
    """Everything a run needs: data, initial state, hyperparameters, schedules and programs.

    A caller's function is traced once for each shape, some when the simulation is made and the others at their first
    use. After a change of a value that such a function reads, make another simulation.
    """

    config: Config
    """checked settings"""
    arrays: Arrays
    """the data set as it was read, NumPy arrays [T, ...]"""
    partition: Partition
    """rows of every client, by part"""
    statistics: dict[str, Any]
    """of the partition and the shared validation set"""
    task: Task
    """of the trained part, with the frozen tensors of `data`"""
    state: SimState
    """before the first round; if memories stay on the host, NumPy arrays without rows of clients"""
    data: Data
    """the pool and the tables of rows, on the devices; NumPy arrays if `host_rows` is set"""
    hyper: Hyper
    schedule: Callable[..., Schedule]
    """(round from 0, state before it) -> its schedule, NumPy arrays. Only a selection that measures losses reads the
    state; without one it takes all losses as equal."""
    chunk: Wrapped
    """see `federated_round.make_chunk`; jitted, the state is donated"""
    evaluate: Wrapped
    """(variables, pool, rows) -> added sums of `model.measure`; jitted"""
    algorithm: Algorithm
    weighting: Weighting
    executor: Executor
    optimiser: Optimiser
    model: Task
    """of the whole model: `task`, unless only a part is trained"""
    bind: Callable[[Tree], programs.Bound]
    """`data.base` -> task, weighting and round step with these frozen tensors"""
    keep: reuse.Keep
    """keeps the compiled programs, by shapes"""
    local: LocalPart
    """the part of the model that stays with each client"""
    given: Mapping[str, str]
    """argument that replaces the config's (data, partition, task, algorithm, weighting, selection) -> the object's
    name; "" for one without"""
    host_rows: pool_rows.HostRows | None
    """the rows that the devices hold, if the run keeps its rows on the host (`--placement`)"""
    memories: client_memories.Placement
    """where the clients' memories are (`--placement`)"""
    metrics: Mapping[str, Metric] = {}
    """the user's own, by name"""
    selection: Selection | None = None
    """of the cohorts; None for uniform sampling"""
    traffic: communication.Traffic = communication.Traffic()
    """bytes that a client of a cohort receives and sends in a round"""
    scaled_by: Columns | None = None
    """what scaled the columns of `data`, or encoded its table; None for rows as they are"""
    account: privacy.Account | None = None
    """what the rounds cost in privacy; None without it, and if the cost of the first model is not known"""
    code: Mapping[str, str] = {}
    """see `given.code_of`"""
    names: Mapping[str, str] = {}
    """setting -> the name that the caller gave its value on an axis"""

    def step(self, state: SimState, round: int) -> tuple[SimState, Metrics]:
        """Returns the state after a round, and the round's metrics per client, with the same bits as `run`.

        Args:
            state: before the round, such as `sim.state`; it stays valid.
            round: its number, from 0; it determines the cohort and the minibatches.

        Raises:
            UsageError: rows or memories of clients stay on the host.

        >>> sim = simulation(Config(clients=4, alpha=10.0))
        >>> state, metrics = sim.step(sim.state, 0)
        >>> int(state.round), metrics.weights.shape
        (1, (2,))
        """
        if self.host_rows or self.memories.is_on_host:
            raise UsageError(
                "sim.step needs rows and memories on the device; use placement device, or fv.run"
            )
        rounds = schedule.stack([self.schedule(round, state)], tables.MAX_ROUNDS)
        after, metrics = self.chunk(tree.copies(state), np.int32(1), rounds, self.data, self.hyper)
        return after, tree.take(metrics, 0)

    @property
    def base(self) -> Tree:
        """The frozen tensors, on the devices; None if the whole model is trained."""
        return self.data.base

    def whole(self, variables: Variables, run: Path | None = None) -> Variables:
        """Returns the variables of the whole model, from the variables of its trained part.

        Args:
            variables: of a state of this simulation, or of a checkpoint; whole ones are returned as they are.
            run: the folder of the checkpoint's run; its frozen tensors are compared with these.

        Raises:
            UsageError: the run had other frozen tensors, or no run is named.
        """
        if tree.paths(variables) != tree.paths(self.state.variables):
            return variables
        if self.base is not None and jax.tree.structure(variables) != jax.tree.structure(
            self.state.variables
        ):
            provenance.refuse_other_base(run, self.base)
        part = jax.tree.unflatten(
            jax.tree.structure(self.state.variables), jax.tree.leaves(variables)
        )
        return trained_part.whole(part, self.base)

    def validation_loss(self, model: SimState | Variables) -> jax.Array:
        """Returns the mean loss on D_val in evaluation mode, `val_loss` of records; differentiable by the model.

        With `best_on` held_out it is the loss on the half of D_val that the weights do not use.

        Raises:
            UsageError: the rows stay on the host.
        """
        if self.host_rows:
            raise UsageError(
                "sim.validation_loss needs the rows on the device; use placement device, or fv.evaluate"
            )
        variables = model.variables if isinstance(model, SimState) else model
        rows = self.data.val if self.data.selection is None else self.data.selection
        return evaluate.mean_loss(self.model, self.whole(variables), self.data.pool, rows)


def simulation(
    config: Config,
    *,
    progress: Progress | None = None,
    reading: Progress | None = None,
    data: Any = None,
    label: str | None = None,
    group: str | None = None,
    transformer: Any = None,
    partition: tuple | Sequence | None = None,
    task: Task | None = None,
    algorithm: Algorithm | None = None,
    weighting: programs.WeightingOrFactory | None = None,
    selection: Selection | None = None,
    hyper: Mapping[str, float] | None = None,
    initial: Variables | None = None,
) -> Simulation:
    """Returns everything that a run of these settings needs.

    Args:
        config: settings; they are checked.
        progress: called with (partitions drawn, most draws).
        reading: called with (images decoded, all images).
        data, label, group, transformer, partition, task, algorithm, weighting, selection, hyper, initial: as in
            `fedvg_jax.run`.

    Raises:
        UsageError: a setting or a file cannot work, or a task or weighting breaks its contract.

    >>> sim = simulation(Config(clients=4, join_ratio=0.5, alpha=10.0))
    >>> sim.arrays.name, len(sim.partition.train), sim.schedule(0).clients.shape
    ('digits', 4, (2,))
    """
    data = user_data.of_call(data, label, group, transformer)
    given = Given(data, partition, task, algorithm, weighting, selection, hyper, initial)
    return of_call(check(config), given, progress, reading)


def of_call(
    config: Config, given: Given, progress: Progress | None = None, reading: Progress | None = None
) -> Simulation:
    """Returns the simulation of one call: `assemble` with functions and programs of its own."""
    return assemble(config, traced_anew(given), reuse.keeper(), progress, reading)


def assemble(
    config: Config,
    given: Given,
    keep: reuse.Keep,
    progress: Progress | None = None,
    reading: Progress | None = None,
) -> Simulation:
    """Returns a `simulation`.

    Args:
        config: checked settings.
        progress, reading: as in `simulation`.
        given: what the caller passed, with functions of this call; see `given.traced_anew`.
        keep: keeps the programs of what is given, for all simulations of the call.
    """
    assert config.cache_dir is not None, "the check sets it"
    programs.use_cache(config.cache_dir)
    if config.init and not digests.is_run(
        config.init
    ):  # checked before the data are read, which may take minutes
        pretrained.read(config.init)
    population = _make_population(config, given, progress, reading)
    program = _make_program(config, population, given, keep)
    own = tuple(
        getattr(program, name) for name in ("algorithm", "weighting") if getattr(given, name)
    )
    hyper = merge_hyperparameters(config, program.algorithm, program.weighting, given.hyper, own)
    variables, base = _initial_model(config, program.model, given.initial)
    program = _bound(program, base)
    rows, host = _make_rows(config, population, program, base)
    chosen = tables.choose_selection(config, given.selection, host is not None)
    round_rows = host.resident if host else rows
    contracts.check_given(
        config, given, program, population.pool, population.arrays, round_rows, hyper
    )
    contracts.check_clients(config, population.partition)
    state, memories = _make_state(config, program, hyper, variables)
    privacy.check(config, program.algorithm, state, hyper, given.selection)
    program, parts = (
        _bound(program, rows.base),
        population.partition,
    )  # again, to the base on the devices
    select = tables.make_cohorts(config, chosen, program, rows, parts.train) if chosen else None
    account = _account(config, given, program, population, round_rows, hyper)
    origin = privacy.origin(config, account)
    return Simulation(
        config=config,
        arrays=population.arrays,
        partition=parts,
        statistics=describe(config, population, "partition" in given.replaced),
        scaled_by=population.scaled_by,
        state=state,
        data=rows,
        hyper=hyper
        if processes.count() == 1
        else jax.tree.map(np.asarray, hyper),  # on no process's device
        schedule=tables.make_schedule(
            config, population.arrays, parts, program, select=select, origin=origin
        ),
        selection=chosen,
        given=given.replaced,
        host_rows=host,
        memories=memories._replace(has_custom_model=bool(config.init or given.initial)),
        traffic=communication.round_traffic(config, program, state, rows, hyper, chosen),
        account=account,
        **program._asdict(),
    )


def _make_population(
    config: Config, given: Given, progress: Progress | None, reading: Progress | None
) -> Population:
    """Reads the data set and draws the partition, unless they are given."""
    data, partition = given.data, given.partition
    if data is None:
        arrays = load_data(config, reading)
    else:
        arrays = limited(user_data.as_arrays(data), config.max_rows, config.max_rows_seed)
    fit.check_pixel_settings(arrays, config)
    fit.check_groups(arrays, config)
    parts = (
        make_partition(config, arrays, progress)
        if partition is None
        else take_partition(config, arrays, partition)
    )
    scaled_by = make_columns(config, arrays, joined(parts.train))
    return Population(arrays, parts, make_shared(config, arrays, parts, scaled_by), scaled_by)


def _make_program(
    config: Config, population: Population, given: Given, keep: reuse.Keep
) -> programs.Program:
    """Returns the program of a run, after checking that the data fit the given task, or the config's model."""
    arrays, model = population.inputs, given.task
    if model is None:
        registry.check_images(config, arrays)
        model = programs.Images(arrays.x.shape[1:], len(arrays.class_names))
    else:
        contracts.check_task(model, population.pool)
        contracts.check_settings_of_task(config, model, population.pool)
    return programs.make_program(config, model, given.algorithm, given.weighting, keep=keep)


def _initial_model(
    config: Config, model: Task, initial: Variables | None
) -> tuple[Variables, Variables | None]:
    """Returns the trained part of the initial model, and its frozen tensors; None where all are trained."""
    variables = registry.make_variables(config, model.init, initial)
    is_trained = registry.make_is_trained(config, model)
    return trained_part.split(variables, is_trained) if is_trained else (variables, None)


def _bound(program: programs.Program, base: Tree) -> programs.Program:
    """Returns the program with the task and the weighting of these frozen tensors."""
    task, weighting, _ = program.bind(base)
    return program._replace(task=task, weighting=weighting)


def _make_rows(
    config: Config, population: Population, program: programs.Program, base: Tree
) -> tuple[Data, pool_rows.HostRows | None]:
    """Returns the pool with its tables and the frozen tensors, on the devices, unless the pool stays on the host."""
    shared = population.shared
    is_on_host = pool_rows.is_chosen(config, shared.x.nbytes + shared.y.nbytes)
    rows = tables.make_data(config, population, program.model, is_on_host)._replace(base=base)
    if not is_on_host:
        return processes.place(rows, program.executor.placement), None
    host = pool_rows.make(config, rows, population.partition, program.executor)
    return rows._replace(base=host.resident.base), host


def _account(
    config: Config,
    given: Given,
    program: programs.Program,
    population: Population,
    rows: Data,
    hyper: Hyper,
) -> privacy.Account | None:
    """Returns what the rounds cost in privacy; None without it, and for a given initial model.

    Args:
        rows: those that a round reads.
    """
    if config.dp.clip == 0 or given.initial is not None:
        return None
    extras.load("dp_accounting", "dp", "dp.clip")  # before anything is computed
    is_own = given.weighting is not None
    own_reads = (
        contracts.reads_rows(program.weighting, program.task, rows, hyper) if is_own else None
    )
    mechanism = privacy.mechanism(config, program.algorithm, hyper, own_reads)
    arrays, parts = population.arrays, population.partition
    earlier = privacy.earlier_rounds(
        config, lambda: provenance.sources(arrays, parts, population.pool, {}, ())
    )
    return None if earlier is None else privacy.Account(config.dp.delta, mechanism, earlier)


def _make_state(
    config: Config, program: programs.Program, hyper: Hyper, variables: Variables
) -> tuple[SimState, client_memories.Placement]:
    """Returns the state before the first round, of these trained variables, and where the clients' memories are."""
    options = {"local": program.local, "stats_too": departs(config, "server-stats")}
    options |= {"weighting": program.weighting}

    def init() -> SimState:
        """Returns the state with the memories of one client."""
        return federated_round.init_state(
            program.task, program.algorithm, 1, hyper, variables=variables, **options
        )

    client_bytes = tree.num_bytes(jax.eval_shape(init).clients)
    memories = client_memories.choose(
        config, client_bytes, tables.MAX_ROUNDS, program.executor.rows
    )
    one = processes.place(init(), program.executor.placement)
    memories = memories._replace(fresh=one.clients)
    return client_memories.first_state(memories, one, config.clients), memories
