"""The jitted programs of a run, built once and shared by all runs of a process that differ in values only.

Programs of what a caller passes are shared by the runs of one call, such as the trials of a sweep.

A program depends on its functions (algorithm, model, executor, ...) and on shapes. Everything else is an argument:
hyperparameters are traced scalars, and the seed, the partition and the schedule are data. So another seed, alpha or
learning rate needs no compilation.

`use_cache` sets JAX's persistent cache of compiled programs, in the same way for every kind of run.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Hashable
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.stages import Traced, Wrapped

from fedvg_jax.core import trained_part
from fedvg_jax.core.trained_part import LocalPart
from fedvg_jax.core.types import (
    Algorithm,
    Data,
    Executor,
    Hyper,
    Metrics,
    RoundStep,
    Schedule,
    SimState,
    Task,
    Tree,
    Variables,
    Weighting,
)
from fedvg_jax.engine import evaluate, executors, federated_round
from fedvg_jax.host import files, hardware as hw
from fedvg_jax.runs.experiment import Experiment, Method, Model
from fedvg_jax.weightings import baselines, recorded

T = TypeVar("T")

# --- caches of what is compiled for arguments of some shapes

Cache = Callable[[Hashable, Callable[[], Any]], Any]
"""(key, function without arguments) -> its result, which is cached under that key"""

MOST_CACHED = 16
"""Results in a cache; then the oldest is dropped."""

TRACE_SETTINGS = (
    "jax_default_device",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_threefry_partitionable",
)
"""Settings of jax, also of its context managers, that change what a program computes."""


def new_cache() -> Cache:
    """Returns an empty cache.

    >>> cached = new_cache()
    >>> cached("a", lambda: 1), cached("a", lambda: 2)
    (1, 1)
    """
    results: dict[Hashable, Any] = {}

    def cached(key: Hashable, make: Callable[[], T]) -> T:
        result = results.get(key)
        if result is None:
            result = make()
            if len(results) == MOST_CACHED:
                del results[next(iter(results))]
            results[key] = result
        return result

    return cached


def trace_settings() -> tuple[Hashable, ...]:
    """Returns the values of `TRACE_SETTINGS` where it is called."""
    return tuple(getattr(jax.config, name) for name in TRACE_SETTINGS)


def key_of_shapes(arguments: Tree) -> tuple[Hashable, ...]:
    """Returns a key of what is traced for arguments of these shapes, under the settings of jax where it is called."""
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple(map(abstract, leaves)), trace_settings()


def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype of a leaf, and its sharding if it has been placed on devices."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    is_placed = isinstance(leaf, jax.Array) and leaf.committed
    return jax.ShapeDtypeStruct(
        np.shape(leaf), leaf.dtype, sharding=leaf.sharding if is_placed else None
    )


# --- programs


class Bound(NamedTuple):
    """What depends on the frozen tensors of a model."""

    task: Task
    """of the trained part; its loss jitted, so that training and scoring share one trace"""
    weighting: Weighting
    step: RoundStep


class Program(NamedTuple):
    """The pure functions of a run and their jitted compositions; `Simulation` has the same fields."""

    task: Task
    """of the trained part; until a simulation binds it, its frozen tensors are shapes"""
    algorithm: Algorithm
    weighting: Weighting
    executor: Executor
    chunk: Wrapped
    """see `federated_round.make_chunk`; jitted, the state is donated"""
    evaluate: Wrapped
    """see `evaluate.make_evaluate`; jitted; of the whole model"""
    model: Task
    """of the whole model"""
    bind: Callable[[Tree], Bound]
    """`Data.base` -> what depends on it"""
    cached: Cache
    """caches what is compiled or traced of the program, by shapes, for the runs that share it"""
    local: LocalPart
    """the part of the model that stays with each client"""


_of_settings = new_cache()
"""Programs that follow from settings alone, for all runs of the process."""


def make_program(experiment: Experiment, cached: Cache) -> Program:
    """Returns the program of a run, a kept one if a run has the same.

    Args:
        experiment: its `key` determines the program, up to shapes.
        cached: caches programs with functions of a caller, for the runs of one call. Others are cached for the
            process.
    """
    model, method = experiment.model, experiment.method
    key = experiment.key, trace_settings(), hw.current()
    if experiment.custom.keys() <= {"data", "partition", "selection"}:
        cached = _of_settings
    num_clients = experiment.cohorts.num_clients
    return cached(key, lambda: _make(model, method, experiment.executor, num_clients))


def _make(model: Model, method: Method, executor: Executor, num_clients: int) -> Program:
    whole, scored = _tasks(model)
    base = _shapes_of_base(model, whole)

    def bound(task: Task, scored: Task) -> Bound:
        weighting = method.weighting(scored)
        if method.measures:
            measures = {name: recorded.MEASURES[name](task) for name in method.measures}
            weighting = recorded.with_records(weighting, measures)
        steps = method.num_tuning_steps
        step = federated_round.make_round(
            task,
            method.algorithm,
            weighting,
            executor,
            method.optimiser,
            num_clients,
            aggregate=method.aggregate,
            disturb=method.disturb,
            refine=baselines.server_steps(task, steps) if steps else None,
            augment=method.augment,
            stats_too=method.server_stats,
            weigh_untrained=method.weighs_untrained,
            check_weights=method.has_custom_weights,
            local=model.local,
            private=method.sensitivity,
            scores_applied=method.scores_applied,
        )
        return Bound(task, weighting, step)

    # one function, which JAX traces once for all bindings
    init = trained_part.bind(whole, base).init

    def bound_to(base: Tree) -> Bound:
        return bound(*(task._replace(init=init) for task in _tasks(model, base)))

    first = bound(whole, scored) if base is None else bound_to(base)
    bind = bound_to if base is not None else lambda base: first

    def chunk(
        state: SimState, num_rounds, rounds: Schedule, data: Data, hyper: Hyper
    ) -> tuple[SimState, Metrics]:
        step = bind(data.base).step
        return federated_round.make_chunk(step)(state, num_rounds, rounds, data, hyper)

    of_state = executors.placement(executor)
    of_chunk = of_state and (of_state, executor.placement)
    jit = functools.partial(jax.jit, compiler_options=hw.compiler_options())
    return Program(
        first.task,
        method.algorithm,
        first.weighting,
        executor,
        jit(chunk, donate_argnums=0, out_shardings=of_chunk),
        jit(evaluate.make_evaluate(scored, executor), out_shardings=executor.placement),
        whole,
        bind,
        new_cache(),
        model.local,
    )


def _tasks(model: Model, base: Variables | None = None) -> tuple[Task, Task]:
    """Returns the tasks of training and of scoring of the whole model, or of the trained part, with jitted losses."""

    def jitted(task: Task) -> Task:
        return task._replace(loss=jax.jit(task.loss, static_argnums=4))

    task = jitted(model.bound(base))
    return task, jitted(model.scored(base)) if model.scored else task


def is_trained(model: Model, task: Task) -> trained_part.IsTrained | None:
    """Returns which tensors of a whole model are trained; None for all, as they are.

    Raises:
        UsageError: none is.
    """
    pattern = model.trained
    return trained_part.chooser(task, pattern) if pattern or task.is_frozen else None


def _shapes_of_base(model: Model, task: Task) -> Variables | None:
    """Returns the shapes of a model's frozen tensors; None where it is trained as it is. Checks the local part, too."""
    chosen = is_trained(model, task)
    trained, base = jax.eval_shape(task.init, jax.random.key(0)), None
    if chosen is not None:
        trained, base = trained_part.split(trained, chosen)
    trained_part.check(model.local, trained, model.local_name)
    return base


Shapes = tuple[SimState, Schedule, Data, Hyper]
"""State, stacked schedules, rows and hyperparameters of a chunk, arrays or shapes"""


def trace_chunk(program: Any, shapes: Shapes) -> Traced:
    """Returns the program of rounds traced for its shapes, a kept one if equal shapes were traced.

    Programs traced under other settings of jax, such as `jax.default_matmul_precision`, are others.

    Args:
        program: a `Program`, or a simulation, which has its fields.
        shapes: of a chunk.
    """
    state, *others = shapes
    arguments = jax.tree.map(abstract, (state, np.int32(0), *others))
    key = "traced", *key_of_shapes(arguments)
    return program.cached(key, lambda: program.chunk.trace(*arguments))


def compile_for(program: Any, shapes: Shapes) -> tuple[Callable, Callable]:
    """Returns the two programs of a run compiled for its shapes, kept ones if equal shapes were compiled.

    Args:
        program: as in `trace_chunk`.
        shapes: of a chunk. The evaluation is compiled for its tables, unless its pool holds no rows to train on.
    """
    shapes = jax.tree.map(abstract, shapes)
    key = "compiled", *key_of_shapes(shapes)
    return program.cached(key, lambda: _compiled(program, shapes))


def _compiled(program: Any, shapes: Shapes) -> tuple[Callable, Callable]:
    state, _, data, _ = shapes
    tables = sorted((data.val, data.test), key=len) if data.training is None else ()
    # the program of the longest table skips the empty groups of a shorter one
    longest = {table.shape[1]: table for table in tables}
    variables = trained_part.whole(state.variables, data.base)
    with hw.paused_gc(), futures.ThreadPoolExecutor(1) as pool:
        compiling = pool.submit(trace_chunk(program, shapes).lower().compile)
        # traced while the rounds compile
        compiled = {
            width: program.evaluate.lower(variables, data.pool, table).compile()
            for width, table in longest.items()
        }
        compiled_chunk = compiling.result()

    def evaluate_compiled(variables: Variables, pool: Tree, rows) -> Tree:
        num_groups, width = rows.shape
        missing = len(longest[width]) - num_groups
        if missing:  # empty groups at its end, by NumPy: JAX would compile a program
            rows = np.pad(np.asarray(rows), [(0, missing), (0, 0)], constant_values=-1)
        return compiled[width](variables, pool, rows)

    return compiled_chunk, evaluate_compiled


def program_bytes(compiled: Any) -> int:
    """Returns the bytes of arguments, results and temporaries of a compiled program; 0 where XLA has no plan."""
    plan = compiled.memory_analysis()
    if plan is None:
        return 0
    outputs = plan.output_size_in_bytes - plan.alias_size_in_bytes
    return plan.temp_size_in_bytes + plan.argument_size_in_bytes + max(0, outputs)


def use_cache(folder: Path) -> None:
    """Makes this process keep compiled programs in a sub-folder of the cache, if that can be written.

    A folder that jax is already configured with stays, such as `$JAX_COMPILATION_CACHE_DIR`.

    Args:
        folder: of the cache; its programs are executed.
    """
    with contextlib.suppress(OSError):  # one that cannot be made keeps nothing
        files.make_private(folder)
    is_set = jax.config.values["jax_compilation_cache_dir"] is not None
    if not is_set and folder.is_dir() and os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", str(folder / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
