"""From a config to everything a run needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.stages import Wrapped

from fedvg_jax import data as datasets
from fedvg_jax.config import Config, block_size, check, cohort_size, epochs_range, flatten
from fedvg_jax.config.checks import problems_of_algorithm
from fedvg_jax.config.departures import departs, listed
from fedvg_jax.config.methods import AlgorithmFacts
from fedvg_jax.config.options import choice, columns
from fedvg_jax.config.uses import unmet
from fedvg_jax.core import trained_part, tree
from fedvg_jax.core.types import (
    Algorithm,
    Batch,
    Data,
    Executor,
    Hyper,
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
from fedvg_jax.data.arrays import Arrays, spaced
from fedvg_jax.data.images import Progress, parse_size
from fedvg_jax.data.partitions import client_rows
from fedvg_jax.data.partitions.client_rows import Partition
from fedvg_jax.data.readers.hf import PREFIX, Columns
from fedvg_jax.data.validation import Shared, halves
from fedvg_jax.engine import evaluate, federated_round, schedule
from fedvg_jax.engine.local_training import Optimiser
from fedvg_jax.host import extras, files, processes
from fedvg_jax.models import layers, pretrained
from fedvg_jax.models.task import MOST_COUNTED
from fedvg_jax.runs import compilation, endings, evaluation_records
from fedvg_jax.runs.assemble import cohorts, communication, contracts, privacy, programs, registry
from fedvg_jax.runs.assemble.given import Given, traced_anew
from fedvg_jax.runs.assemble.hyperparameters import merge_hyperparameters
from fedvg_jax.runs.assemble.population import describe, make_partition, make_shared, take_partition
from fedvg_jax.runs.placement import client_memories, memory, pool_rows
from fedvg_jax.runs.record import digests, provenance
from fedvg_jax.runs.record.history import CLIENT_ACCURACIES

MAX_ROUNDS = 64
"""R, rounds a chunk can hold."""

MODEL_SETTINGS = ("precision", "normalise", "conv", "norm_layers", "lora")
"""Settings that only the building of the config's model reads."""


class Simulation(NamedTuple):
    """Everything a run needs: data, initial state, hyperparameters, schedules and programs."""

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
    """before the first round; where memories stay on the host, those of no client, NumPy arrays"""
    data: Data
    """the pool and the tables of rows, on the devices; NumPy arrays where `host_rows` is set"""
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
    keep: programs.Keep
    """keeps what is compiled of the program, by shapes"""
    given: frozenset[str]
    """what the caller passed in place of the config's: data, partition, task, algorithm, weighting"""
    host_rows: pool_rows.HostRows | None
    """for a run whose rows stay on the host (`--placement`), what the devices hold of them"""
    memories: client_memories.Placement
    """where the clients' memories are (`--placement`)"""
    metrics: Mapping[str, Callable[[Variables, Data], Any]] = {}
    """the user's own, by name"""
    selection: Selection | None = None
    """of the cohorts; None for uniform sampling"""
    traffic: communication.Traffic = communication.Traffic()
    """bytes that a client of a cohort receives and sends in a round"""
    account: privacy.Account | None = None
    """what the rounds cost in privacy; None without it, and where the cost of the first model is not known"""

    def step(self, state: SimState, round: int) -> tuple[SimState, Metrics]:
        """Returns the state after a round, and the round's metrics per client. It is a round of `run`, to the bit.

        Args:
            state: before the round, such as `sim.state`; it stays valid.
            round: its number, from 0, from which its cohort and minibatches follow.

        Raises:
            UsageError: rows or memories of clients stay on the host.

        >>> sim = simulation(Config(clients=4, alpha=10.0))
        >>> state, metrics = sim.step(sim.state, 0)
        >>> int(state.round), metrics.weights.shape
        (1, (2,))
        """
        if self.host_rows or self.memories.is_on_host:
            raise UsageError("sim.step needs rows and memories on the device; use placement device, or fv.run")
        rounds = schedule.stack([self.schedule(round, state)], MAX_ROUNDS)
        after, metrics = self.chunk(tree.copies(state), np.int32(1), rounds, self.data, self.hyper)
        return after, tree.take(metrics, 0)

    @property
    def base(self) -> Tree:
        """The frozen tensors, on the devices; None where the whole model is trained."""
        return self.data.base

    def whole(self, variables: Variables) -> Variables:
        """Returns the variables of the whole model, from those of its trained part, also as a checkpoint has them.

        Whole ones are returned as they are.
        """
        if tree.paths(variables) != tree.paths(self.state.variables):
            return variables
        part = jax.tree.unflatten(jax.tree.structure(self.state.variables), jax.tree.leaves(variables))
        return trained_part.whole(part, self.base)

    def validation_loss(self, model: SimState | Variables) -> jax.Array:
        """Returns the mean loss on D_val in evaluation mode, `val_loss` of records; differentiable by the model.

        With `best_on` held_out it is of the half of D_val that the weights do not use.

        Raises:
            UsageError: the rows stay on the host.
        """
        if self.host_rows:
            raise UsageError("sim.validation_loss needs the rows on the device; use placement device, or fv.evaluate")
        variables = model.variables if isinstance(model, SimState) else model
        rows = self.data.val if self.data.selection is None else self.data.selection
        return evaluate.mean_loss(self.model, self.whole(variables), self.data.pool, rows)


class Population(NamedTuple):
    """The data set, its partition, and the shared validation set."""

    arrays: Arrays
    partition: Partition
    shared: Shared

    @property
    def pool(self) -> Batch:
        """The rows that all tables are of."""
        return Batch(self.shared.x, self.shared.y)


def simulation(
    config: Config,
    *,
    progress: Progress | None = None,
    reading: Progress | None = None,
    data: Arrays | tuple | None = None,
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
        data, partition, task, algorithm, weighting, selection, hyper, initial: as those of `fedvg_jax.run`.

    Raises:
        UsageError: a setting or a file cannot work, or a task or weighting breaks its contract.

    >>> sim = simulation(Config(clients=4, join_ratio=0.5, alpha=10.0))
    >>> sim.arrays.name, len(sim.partition.train), sim.schedule(0).clients.shape
    ('digits', 4, (2,))
    """
    given = Given(data, partition, task, algorithm, weighting, selection, hyper, initial)
    return assemble(config, traced_anew(given), programs.keeper(), progress, reading)


def assemble(
    config: Config,
    given: Given,
    keep: programs.Keep,
    progress: Progress | None = None,
    reading: Progress | None = None,
) -> Simulation:
    """Returns a `simulation`.

    Args:
        config, progress, reading: as those of `simulation`.
        given: what the caller passed, with functions of this call; see `given.traced_anew`.
        keep: keeps the programs of what is given, for all simulations of the call.
    """
    config = _check_settings(config)
    population = _make_population(config, given, progress, reading)
    program = _make_program(config, population, given, keep)
    own = tuple(getattr(program, name) for name in ("algorithm", "weighting") if getattr(given, name))
    hyper = merge_hyperparameters(config, program.algorithm, program.weighting, given.hyper, own)
    arrays, parts, executor = population.arrays, population.partition, program.executor
    is_on_host = pool_rows.is_chosen(config, population.shared.x.nbytes + population.shared.y.nbytes)
    chosen = cohorts.choose_selection(config, given.selection, is_on_host)
    variables, base = _initial_model(config, program.model, given.initial)
    program = _bound(program, base)
    tables = make_data(config, population, program.model, is_on_host)._replace(base=base)
    host = pool_rows.make(config, tables, parts, executor, program.algorithm) if is_on_host else None
    _check_own(config, given, program, population, host.resident if host else tables, hyper)
    endings.check_target(config, program.task, population.pool)
    evaluation_records.check_clients(config, parts, program.algorithm)
    table = table_shape(config, len(arrays.y), int(client_rows.sizes(parts.train).max()), program.algorithm)
    estimate = functools.partial(memory.estimate, config, pool_rows.on_device(host, tables), table, base=base)
    state, memories = make_state(config, program, hyper, variables, estimate)
    privacy.check(config, program.algorithm, state, hyper, given.selection)
    host, data = pool_rows.place(host, tables, executor)
    program = _bound(program, data.base)
    select = cohorts.make_cohorts(config, chosen, program, data, parts.train) if chosen else None
    return Simulation(
        config=config,
        arrays=arrays,
        partition=parts,
        statistics=describe(config, arrays, parts, population.shared, "partition" in given.replaced),
        state=state,
        data=data,
        hyper=hyper if processes.count() == 1 else jax.tree.map(np.asarray, hyper),  # on no process's device
        schedule=make_schedule(config, arrays, parts, program, select=select),
        selection=chosen,
        given=given.replaced,
        host_rows=host,
        memories=memories._replace(has_given=bool(config.init or given.initial)),
        traffic=communication.round_traffic(config, program, state, tables, hyper, chosen),
        account=_account(config, given, program, population, host.resident if host else tables, hyper),
        **program._asdict(),
    )


def _check_settings(config: Config) -> Config:
    """Returns the settings, checked, with the cache folder, also where that is the default."""
    config = check(config)
    assert config.cache_dir is not None, "the check sets it"
    files.private_folder(config.cache_dir)
    compilation.use_cache(config.cache_dir)
    if config.init and not digests.is_run(config.init):  # checked before the data are read, which may take minutes
        pretrained.read(config.init)
    return config


def _make_population(config: Config, given: Given, progress: Progress | None, reading: Progress | None) -> Population:
    """Reads the data set and draws the partition, unless they are given."""
    data, partition = given.data, given.partition
    arrays = load_data(config, reading) if data is None else spaced(user_data.as_arrays(data), config.max_rows)
    user_data.check_pixel_settings(arrays, config)
    parts = make_partition(config, arrays, progress) if partition is None else take_partition(config, arrays, partition)
    return Population(arrays, parts, make_shared(config, arrays, parts))


def _make_program(config: Config, population: Population, given: Given, keep: programs.Keep) -> programs.Program:
    """Returns the program of a run, after checking that the data fit the given task, or the config's model."""
    arrays, model = population.arrays, given.task
    if model is None:
        registry.check_images(config, arrays)
        model = programs.Images(arrays.x.shape[1:], len(arrays.class_names))
    else:
        contracts.check_task(model, population.pool)
        _check_settings_of_task(config, model, population.pool)
    return programs.make_program(config, model, given.algorithm, given.weighting, keep=keep)


def _initial_model(config: Config, model: Task, initial: Variables | None) -> tuple[Variables, Variables | None]:
    """Returns the trained part of the initial model, and its frozen tensors; None where all are trained."""
    variables = registry.make_variables(config, model.init, initial)
    is_trained = registry.make_is_trained(config, model)
    return trained_part.split(variables, is_trained) if is_trained else (variables, None)


def _bound(program: programs.Program, base: Tree) -> programs.Program:
    """Returns the program with the task and the weighting of these frozen tensors."""
    task, weighting, _ = program.bind(base)
    return program._replace(task=task, weighting=weighting)


def _check_own(
    config: Config, given: Given, program: programs.Program, population: Population, tables: Data, hyper: Hyper
) -> None:
    """Raises UsageError if a given weighting or algorithm breaks its contract, or accuracies cannot be computed.

    Args:
        tables: the rows that a round reads.
    """
    task, own_algorithm = given.task, given.algorithm
    if given.weighting:
        if (rule := choice(config, "robust")[0]) not in ("mean", "clipped_mean"):
            raise UsageError(f"robust {rule} ignores weighting=; use clipped_mean, or leave one out")
        in_blocks = block_size(config) < cohort_size(config)
        arguments = program.weighting, program.task, tables, hyper
        check = functools.partial(contracts.check_weighting, *arguments, in_blocks=in_blocks)
        program.keep(("weighting", in_blocks, *programs.key_of_shapes(tables)), check)
    algorithm = None if given.weighting else program.algorithm
    _check_accuracies(config, algorithm, task and program.task, population.pool, population.arrays)
    sees_minibatches = task is not None and program.algorithm.loss is not None
    if sees_minibatches:
        contracts.check_forward(program.task, tables.pool)
    if own_algorithm or sees_minibatches:
        messages = contracts.check_algorithm(
            program.algorithm,
            program.task,
            tables.pool,
            hyper,
            num_clients=config.clients,
            stats_too=departs(config, "server-stats"),
        )
        sends, keeps = bool(jax.tree.leaves(messages)), program.algorithm.personal is not None
        facts = AlgorithmFacts("", sends_messages=sends, has_personal_models=keeps)
        for message in problems_of_algorithm(config, "the algorithm", facts) if own_algorithm else ():
            raise UsageError(message)
    name = "the algorithm" if own_algorithm else f"algorithm {config.algorithm}"
    key = "features", *programs.key_of_shapes((tables.pool, hyper))
    check_features = functools.partial(contracts.check_features, program.algorithm, program.task)
    program.keep(key, lambda: check_features(tables.pool, hyper, name))


def _account(
    config: Config, given: Given, program: programs.Program, population: Population, tables: Data, hyper: Hyper
) -> privacy.Account | None:
    """Returns what the rounds cost in privacy; arguments as of `_check_own`."""
    if config.dp.clip == 0 or given.initial is not None:
        return None
    extras.load("dp_accounting", "dp", "dp.clip")  # before anything is computed
    own_reads = given.weighting and contracts.reads_rows(program.weighting, program.task, tables, hyper)
    mechanism = privacy.mechanism(config, program.algorithm, hyper, own_reads)
    arrays, parts, _ = population
    earlier = privacy.earlier_rounds(config.init, lambda: provenance.sources(arrays, parts, population.pool, {}, ()))
    return None if earlier is None else privacy.Account(config.dp.delta, mechanism, earlier)


def _check_accuracies(
    config: Config, algorithm: Algorithm | None, task: Task | None, pool: Batch, arrays: Arrays
) -> None:
    """Checks that accuracies can be computed where a named weighting or a record needs them.

    Args:
        config: settings.
        algorithm: whose native weighting is used where the config names it; None for a user's weighting.
        task: a user's task; None for the config's model, whose outputs are scores of the classes.
        pool: the rows of all tables.
        arrays: the data set.

    Raises:
        UsageError: the data have no class labels, or the task's outputs are not scores of the classes.
    """
    consumers = []
    if algorithm:
        is_native = "native" in config.weighting and algorithm.native_weighting == "val_accuracy"
        if is_native or "val_accuracy" in config.weighting:
            consumers.append(("weighting val_accuracy", "use val_loss"))
    recorded = [name for name in ("client_accuracy", *CLIENT_ACCURACIES) if name in listed(config.record)]
    consumers += [(f"record {name}", "use client_val_loss") for name in recorded]
    num_classes = len(arrays.class_names)
    if evaluation_records.CONFUSION in listed(config.record) and num_classes > MOST_COUNTED:
        raise UsageError(f"record confusion is for at most {MOST_COUNTED:,} classes; got {num_classes:,}; leave it out")
    for consumer, instead in consumers:
        user_data.integer_labels(arrays, consumer, instead)
        if task:
            contracts.check_scores(task, pool, consumer, instead, len(arrays.class_names))


def _check_settings_of_task(config: Config, task: Task, pool: Batch) -> None:
    """Checks that a user's task does what the settings ask of it.

    A resumed run keeps the settings that it started with, so those that have no effect are not refused there.

    Raises:
        UsageError: a setting would build the config's model and has no effect, or needs a sum that the task does not
            have.
    """
    if config.resume is not None:
        return
    settings, defaults = flatten(config), flatten(Config())
    for name in MODEL_SETTINGS:
        if settings[name] not in (defaults[name], "columns") and unmet(config, name) is None:
            raise UsageError(f"{name} {settings[name]} has no effect beside task=; leave it out, set it in the task")
    evaluation_records.check_sums(config, task, pool)


def make_state(
    config: Config,
    program: programs.Program,
    hyper: Hyper,
    variables: Variables,
    estimate: Callable[[SimState, Executor], dict[str, int]],
) -> tuple[SimState, client_memories.Placement]:
    """Returns the state before the first round, and where the clients' memories are.

    Args:
        variables: before the first round, of the trained part.
        estimate: (shapes of the state, executor) -> bytes of the run by part.

    Raises:
        UsageError: the run would not fit in this machine's memory.
    """
    options = {"local": registry.make_local(config), "stats_too": departs(config, "server-stats")}

    def init() -> SimState:
        """Returns the state with the memories of one client."""
        return federated_round.init_state(program.task, program.algorithm, 1, hyper, variables=variables, **options)

    one_client, divided = jax.eval_shape(init), program.executor.rows
    client_bytes = memory.num_bytes(one_client.clients)
    memories = client_memories.choose(config, client_bytes, MAX_ROUNDS, divided)
    shapes = client_memories.shapes_of_rows(one_client, memories.num_rows, config.clients, divided)
    memory.refuse_unfitting(config, estimate(shapes, program.executor))
    if memories.is_on_host:
        client_memories.refuse_unfitting(config, client_bytes)
    one = processes.place(init(), program.executor.placement)
    memories = memories._replace(fresh=one.clients)
    return client_memories.first_state(memories, one, config.clients), memories


def load_data(config: Config, reading: Callable[[int, int], None] | None = None) -> Arrays:
    """Returns the data set that the config names, or as many of its rows as the config allows."""
    whole = datasets.load(
        config.dataset,
        config.data_dir,
        config.cache_dir and config.cache_dir / "data",
        size=parse_size(config.image_size),
        splits=config.splits,
        columns=Columns(**columns(config)) if config.dataset.startswith(PREFIX) else Columns(),
        progress=reading,
    )
    return spaced(whole, config.max_rows)


def make_data(config: Config, population: Population, task: Task, is_on_host: bool = False) -> Data:
    """Returns the pool and the tables of rows; their shapes do not depend on the partition.

    D_val is scored in groups of `batch_size` rows. A last group of one row is left out only where BatchNorm would take
    the statistics of a single value, in train mode: there the published code raises, and otherwise it scores that row
    too.

    Args:
        config: settings.
        population: the rows.
        task: the model that scores.
        is_on_host: whether pool and tables stay NumPy arrays.
    """
    arrays, parts, shared = population
    pool = Batch(np.asarray(shared.x), np.asarray(shared.y))
    max_test = int(len(arrays.y) * config.test_ratio)
    is_split = config.best_on == "held_out"
    scored, selected = halves(shared.rows, config.partition_seed) if is_split else (shared.rows, None)
    max_selected = shared.most // 2 if is_split else 0
    max_scored = shared.most - max_selected
    is_read_in_training = config.tuning.steps or "fltrust" in config.weighting
    only_evaluated = config.fedvg.mode == "eval" and unmet(config, "fedvg.mode") is None and not is_read_in_training
    keeps_lone_row = only_evaluated or len(scored) % config.batch_size != 1
    if not keeps_lone_row:  # a model is traced only where it matters
        keeps_lone_row = not layers.lone_row_is_undefined(task.init)

    def table(rows, max_rows, batch_size=evaluate.ROWS, keep_single=True):
        num_rows = max(len(rows), max_rows)
        batch_size = fitting_width(batch_size, num_rows)
        made = schedule.table(rows, batch_size, -(-num_rows // batch_size), keep_single)
        return made if is_on_host else jax.device_put(made)

    return Data(
        pool if is_on_host else tree.copies(pool),  # whatever becomes of the caller's arrays
        table(scored, max_scored, config.batch_size, keep_single=keeps_lone_row),
        table(scored, max_scored),
        table(client_rows.joined(parts.test), max_test),
        table(selected, max_selected) if is_split else None,
    )


def fitting_width(batch_size: int, largest: int) -> int:
    """Returns B, the columns of a table of minibatches: `batch_size`, or the next power of two of `largest`.

    Powers of two keep the number of compiled programs small: another partition has another largest client.

    Args:
        largest: rows of the largest client.

    >>> fitting_width(32, 1000), fitting_width(4294967295, 171), fitting_width(32, 20), fitting_width(32, 1)
    (32, 256, 32, 2)
    """
    return min(batch_size, 1 << (max(2, largest) - 1).bit_length())


def table_shape(config: Config, num_rows: int, largest: int, algorithm: Algorithm) -> tuple[int, int]:
    """Returns F and B of a chunk's table of minibatches, its rows and columns.

    Args:
        num_rows: T, rows of the data set.
        largest: training rows of the largest client.
        algorithm: whose probe may read further minibatches.
    """
    width = fitting_width(config.batch_size, largest)
    epochs = epochs_range(config)[1] + (registry.probe_ratio(config, algorithm) > 0)
    return schedule.capacity(max(num_rows, largest), cohort_size(config), epochs, width, largest), width


def keeps_single_rows(config: Config, sizes: np.ndarray, program: programs.Program | Simulation) -> bool:
    """Returns whether clients train on minibatches of a single row.

    They skip them by the departure single-rows, and where BatchNorm would have undefined statistics.

    Args:
        config: the run's settings.
        sizes: training rows of each client.
        program: has the model that is trained, and the algorithm.

    Raises:
        UsageError: if all minibatches have a single row and BatchNorm would have undefined statistics.
    """
    # a model is traced only where it matters; a probe leaves other numbers of rows
    is_possible = registry.probe_ratio(config, program.algorithm) > 0 or bool((sizes % config.batch_size == 1).any())
    if departs(config, "single-rows") or not (config.batch_size == 1 or is_possible):
        return False
    is_undefined = layers.lone_row_is_undefined(program.model.init)
    if is_undefined and config.batch_size == 1:
        raise UsageError("batch_size 1 leaves BatchNorm a single value; use --batch-size 2 or more, or no BatchNorm")
    return not is_undefined


def make_schedule(
    config: Config,
    arrays: Arrays,
    parts: Partition,
    program: programs.Program | Simulation,
    largest: int | None = None,
    select: cohorts.Cohorts | None = None,
) -> Callable[..., Schedule]:
    """Returns a function from the number of a round, from 0, and perhaps the state before it, to its schedule.

    Args:
        program: has the model that is trained, the executor, and the algorithm, whose probe may read rows.
        largest: rows of the largest client of all partitions that share a program; by default of `parts`.
        select: the cohorts; by default those of the config.
    """
    sizes = client_rows.sizes(parts.train)
    keep_single = keeps_single_rows(config, sizes, program)
    size = cohort_size(config)
    capacity, batch_size = table_shape(config, len(arrays.y), largest or int(sizes.max()), program.algorithm)
    is_official = departs(config, "cohorts")
    official = schedule.official_cohorts(config.seed, config.clients, size) if is_official else None
    cohort_of = select or (lambda number, state: official(number) if official else None)

    def schedule_of(number: int, state: SimState | None = None) -> Schedule:
        made = schedule.make(
            number,
            parts.train,
            seed=config.seed,
            cohort_size=size,
            local_epochs=epochs_range(config),
            batch_size=batch_size,
            num_lanes=program.executor.num_lanes,
            lanes_together=program.executor.lanes_together,
            capacity=capacity,
            probe_ratio=registry.probe_ratio(config, program.algorithm),
            keep_single=keep_single,
            probe_apart=departs(config, "elastic-rows"),
            single_batches=program.algorithm.single_batches,
            dropout=config.dropout,
            clients=cohort_of(number, state),
            block_size=block_size(config),
        )
        noise_seed = config.dp.noise_seed
        return made._replace(key=schedule.key(noise_seed, number)) if noise_seed else made

    return schedule_of
