"""The jitted programs of a run, built once and shared by all runs of a process that differ in values only.

Programs of what a caller passes are shared by the runs of one call, such as the trials of a sweep.

A program depends on the *static* settings (which algorithm, model, executor, ...) and on shapes. Everything else is an
argument: hyperparameters are traced scalars, and the seed, the partition and the schedule are data. So another seed,
alpha or learning rate needs no compilation.

The last part of the file sets JAX's persistent cache of compiled programs, in the same way for every kind of run.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core
from jax.stages import Compiled, Traced, Wrapped

from fedvg_jax import config as configs
from fedvg_jax.algorithms.base import keeping_models
from fedvg_jax.config import SETTINGS, Config
from fedvg_jax.config.fidelity import listed
from fedvg_jax.config.methods import algorithm_of
from fedvg_jax.core import checks, reuse, trained_part
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
    UsageError,
    Variables,
    Weighting,
)
from fedvg_jax.engine import cohort_memories, evaluate, federated_round
from fedvg_jax.engine.local_training import Optimiser
from fedvg_jax.host import extras, files, hardware as hw
from fedvg_jax.models.conv.rewrite import fast_task
from fedvg_jax.runs.assemble import privacy, registry
from fedvg_jax.runs.assemble.given import new_functions
from fedvg_jax.weightings import recorded

VALUES = tuple(name for name, setting in SETTINGS.items() if setting.facts.kind != "compiled")
"""Settings that no program depends on: of the host, of the data and the schedule, and traced hyperparameters."""

USED_ABOVE_0 = ("momentum", "weight_decay", "dp.clip")
"""Traced hyperparameters on which a program depends by whether they are above 0."""

NAMES_OF_TRACED = [
    name
    for name, setting in SETTINGS.items()
    if setting.traced_names and not setting.facts.is_traced
]
"""Settings NAME:VALUE with a traced value: a program depends on the name only."""

WeightingOrFactory = Weighting | Callable[[Task], Weighting]
"""A weighting, or a function that makes it for the task of the run."""


class Images(NamedTuple):
    """The images that a named model is built for."""

    shape: tuple[int, ...]
    """[H, W, D]"""
    num_classes: int


class Bound(NamedTuple):
    """What depends on the frozen tensors of a model."""

    task: Task
    """of the trained part; its loss jitted, so that training and scoring share one trace, unless scoring has
    convolutions of its own"""
    weighting: Weighting
    step: RoundStep


class Program(NamedTuple):
    """The pure functions of a run and their jitted compositions; `Simulation` has the same fields."""

    task: Task
    """of the trained part; until a simulation binds it, its frozen tensors are shapes"""
    algorithm: Algorithm
    weighting: Weighting
    executor: Executor
    optimiser: Optimiser
    chunk: Wrapped
    """see `federated_round.make_chunk`; jitted, the state is donated"""
    evaluate: Wrapped
    """see `evaluate.make_evaluate`; jitted; of the whole model"""
    model: Task
    """of the whole model"""
    bind: Callable[[Tree], Bound]
    """`Data.base` -> what depends on it"""
    keep: reuse.Keep
    """keeps what is compiled or traced of the program, by shapes, for the runs that share it"""
    local: LocalPart
    """the part of the model that stays with each client"""


_of_settings = reuse.keeper()
"""Programs that follow from settings alone, for all runs of the process."""


def static_settings(config: Config) -> Config:
    """Returns `config` with every value of `VALUES` at its default.

    Momentum, weight decay and clipping keep whether they are used, on which the program depends.
    """
    values = {name: SETTINGS[name].default for name in VALUES}
    values |= {name: float(SETTINGS[name].get(config) > 0) / 2 for name in USED_ABOVE_0}
    values |= {name: getattr(config, name).partition(":")[0] for name in NAMES_OF_TRACED}
    if config.attack != "none":  # the corrupt clients' ids are constants of the program
        values |= {"seed": config.seed, "corrupt.clients": config.corrupt.clients}
    return configs.apply(config, values, "static settings")


def make_program(
    config: Config,
    model: Images | Task,
    algorithm: Algorithm | None = None,
    weighting: WeightingOrFactory | None = None,
    devices: tuple | None = None,
    keep: reuse.Keep | None = None,
) -> Program:
    """Returns the program of a run, a kept one if a run has equal static settings.

    Args:
        model: a task, or the images for the model that the config names.
        algorithm, weighting: replace what the config names. A weighting may also be a function of the task.
        devices: jax's devices that share a cohort, of the current hardware; defaults to the devices of this process.
        keep: keeps the programs of one call, which all have the same task, algorithm and weighting, if it is given
            any.
    """
    static, is_named = static_settings(config), isinstance(model, Images)
    key = static, model if is_named else None, devices, reuse.trace_settings(), hw.current()
    keep = _of_settings if is_named and algorithm is weighting is None else keep or reuse.keeper()
    return keep(key, lambda: _make(static, model, algorithm, weighting, devices))


def _make(config: Config, model: Images | Task, algorithm, weighting, devices) -> Program:
    if isinstance(model, Task):
        model = fast_task(model)
    whole, scored = _tasks(config, model)
    local = registry.make_local(config)
    base = _shapes_of_base(config, whole, local)
    algorithm = registry.with_send(config, algorithm or algorithm_of(config))
    algorithm = keeping_models(algorithm) if "client_models" in listed(config.record) else algorithm
    # a task of the caller's may have negative losses, which have no weights by val_loss
    may_be_negative = (
        isinstance(model, Task) and "val_loss" in f"{config.weighting} {algorithm.native_weighting}"
    )
    is_unsure = weighting is not None or may_be_negative
    executor = registry.make_executor(config, devices)
    optimiser = registry.make_optimiser(config)
    private = privacy.sensitivity(config, algorithm, is_own=weighting is not None)

    def bound(task: Task, scored: Task) -> Bound:
        own = weighting or registry.make_weighting(config, scored, algorithm)
        own = own if isinstance(own, Weighting) else new_functions(weighting_of(own, scored))
        measures = {
            name: recorded.MEASURES[name](task)
            for name in listed(config.record)
            if name in recorded.MEASURES
        }
        own = recorded.with_records(own, measures) if measures else own
        parts, options = (
            (task, algorithm, own, executor, optimiser),
            registry.round_options(config, task, local),
        )
        step = federated_round.make_round(
            *parts, config.clients, **options, check_weights=is_unsure, private=private
        )
        return Bound(task, own, step)

    init = trained_part.bind(
        whole, base
    ).init  # one function, which JAX traces once for all bindings

    def bound_to(base: Tree) -> Bound:
        return bound(*(task._replace(init=init) for task in _tasks(config, model, base)))

    first = bound(whole, scored) if base is None else bound_to(base)
    bind = bound_to if base is not None else lambda base: first

    def chunk(
        state: SimState, num_rounds, rounds: Schedule, data: Data, hyper: Hyper
    ) -> tuple[SimState, Metrics]:
        return federated_round.make_chunk(bind(data.base).step)(
            state, num_rounds, rounds, data, hyper
        )

    of_state = cohort_memories.placement(executor)
    of_chunk = of_state and (of_state, executor.placement)
    jit = functools.partial(jax.jit, compiler_options=hw.compiler_options())
    return Program(
        first.task,
        algorithm,
        first.weighting,
        executor,
        optimiser,
        jit(chunk, donate_argnums=0, out_shardings=of_chunk),
        jit(evaluate.make_evaluate(scored, executor), out_shardings=executor.placement),
        whole,
        bind,
        reuse.keeper(),
        local,
    )


def weighting_of(factory: Callable[[Task], Weighting], task: Task) -> Weighting:
    """Returns the weighting that a user's function makes for the task.

    Raises:
        UsageError: `factory` fails, or returns something else.

    >>> weighting_of(lambda task: "samples", None)
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: weighting(task) returned a str; expected a Weighting
    """
    with checks.calling("weighting(task)"):
        weighting = factory(task)
    if not isinstance(weighting, Weighting):
        raise UsageError(
            f"weighting(task) returned a {type(weighting).__name__}; expected a Weighting"
        )
    return weighting


def _tasks(
    config: Config, model: Images | Task, base: Variables | None = None
) -> tuple[Task, Task]:
    """Returns the task of training and that of scoring, with jitted losses; with `base`, of the trained part."""
    if isinstance(model, Task):
        task, scored = trained_part.bind(model, base), None
    else:
        task, scored = (
            registry.named_task(config, *model, base),
            registry.scoring_task(config, *model, base),
        )
    task = task._replace(loss=jax.jit(task.loss, static_argnums=4))
    return task, task if scored is None else scored._replace(
        loss=jax.jit(scored.loss, static_argnums=4)
    )


def _shapes_of_base(config: Config, task: Task, local: LocalPart) -> Variables | None:
    """Returns the shapes of a model's frozen tensors; None where it is trained as it is. Checks the local part, too."""
    is_trained = registry.make_is_trained(config, task)
    trained, base = jax.eval_shape(task.init, jax.random.key(0)), None
    if is_trained is not None:
        trained, base = trained_part.split(trained, is_trained)
    trained_part.check(local, trained, f"local {config.local}")
    return base


def compile_for(
    keep: reuse.Keep,
    chunk: Wrapped,
    evaluate: Wrapped,
    state: SimState,
    rounds: Schedule,
    data: Data,
    hyper: Hyper,
) -> tuple[Callable, Callable]:
    """Returns the two programs of a run compiled for its shapes, kept ones if equal shapes were compiled.

    Programs compiled under other settings of jax, such as `jax.default_matmul_precision`, are others.

    Args:
        keep, chunk, evaluate: of a `Program`.
        rounds: a stacked schedule.
        data: of a chunk. The evaluation is compiled for its tables, unless its pool holds no rows to train on.
    """
    shapes = jax.tree.map(reuse.abstract, (state, np.int32(0), rounds, data, hyper))
    return keep(
        ("compiled", *reuse.key_of_shapes(shapes)), lambda: _compiled(chunk, evaluate, *shapes)
    )


def _compiled(
    chunk: Wrapped,
    evaluate: Wrapped,
    state: SimState,
    count,
    rounds: Schedule,
    data: Data,
    hyper: Hyper,
) -> tuple[Callable, Callable]:
    tables = (
        []
        if data.training is not None
        else [t for t in (data.val, data.test, data.selection) if t is not None]
    )
    with extras.paused(), futures.ThreadPoolExecutor(1) as pool:
        compiling = pool.submit(chunk.lower(state, count, rounds, data, hyper).compile)
        # traced while the rounds compile; the program of the longest table skips the empty groups of a shorter one
        variables = trained_part.whole(state.variables, data.base)
        longest = {
            _width(table): table for table in sorted(tables, key=lambda table: table.shape[-2])
        }
        compiled = {
            width: (
                table.shape[-2],
                _compile_evaluation(evaluate.trace(variables, data.pool, table)),
            )
            for width, table in longest.items()
        }
        compiled_chunk = compiling.result()

    def evaluate_compiled(variables: Variables, pool: Tree, rows) -> Tree:
        count, program = compiled[_width(rows)]
        if (
            rows.shape[-2] < count
        ):  # with empty groups at its end, by NumPy: JAX would compile a program
            padding = [*(rows.ndim - 2) * [(0, 0)], (0, count - rows.shape[-2]), (0, 0)]
            rows = np.pad(np.asarray(rows), padding, constant_values=-1)
        return program(variables, pool, rows)

    return compiled_chunk, evaluate_compiled


def _compile_evaluation(traced: Traced) -> Compiled:
    """Returns a compiled evaluation; its only loop, unless the network has loops, is over minibatches."""
    options = hw.choices().options_of_evaluation if _num_loops(traced.jaxpr.jaxpr) == 1 else {}
    return traced.lower().compile(compiler_options=hw.known_to_jax(options) or None)


def _num_loops(jaxpr: core.Jaxpr) -> int:
    """Returns the number of loops in a jaxpr and those within it; a scan of one step is none."""
    own = sum(e.primitive.name == "while" or e.params.get("length", 1) > 1 for e in jaxpr.eqns)
    return own + sum(
        _num_loops(inner) for e in jaxpr.eqns for inner in core.jaxprs_in_params(e.params)
    )


def _width(table: Any) -> tuple[int, ...]:
    """Returns the shape of a table of rows [..., V, B] without V."""
    return (*table.shape[:-2], table.shape[-1])


@functools.lru_cache(16)
def program_bytes(compiled: Any) -> dict[str, int]:
    """Returns the bytes of a compiled program by part, as XLA plans them; empty where the back end has no plan."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return {}
    outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return {
        "temporaries": analysis.temp_size_in_bytes,
        "arguments": analysis.argument_size_in_bytes,
        "results": max(0, outputs),
    }


PATIENCE = 1.0
"""Seconds of compiling before a line about it; a program from the cache takes less."""

FIRST_SECONDS = {"resnet": 75.0, "efficientnet": 75.0, "vit": 100.0}
"""Family of models -> seconds of a first compilation on two CPU cores, see docs/performance.md."""

_UNREADABLE = re.compile("Error reading persistent compilation cache entry for '(.+?)'")


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


def first_seconds(model: str) -> float:
    """Returns about how long the first compilation of a named model takes on two CPU cores.

    >>> first_seconds("resnet18_cifar"), first_seconds("mlp")
    (75.0, 5.0)
    """
    return next(
        (seconds for family, seconds in FIRST_SECONDS.items() if model.startswith(family)), 5.0
    )


@contextlib.contextmanager
def announced(say: Callable[[str], None], guess: float | None = None) -> Iterator[None]:
    """Says that a program is being compiled, and about how long that takes where it is not in the cache.

    Args:
        say: called with one line, from another thread, after `PATIENCE`.
        guess: seconds that compiling takes.
    """
    line = f"compiling, about {guess:.0f} s the first time" if guess else "compiling"
    timer = threading.Timer(PATIENCE, say, [line])
    timer.start()
    try:
        with replacing_damaged(say):
            yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def replacing_damaged(say: Callable[[str], None]) -> Iterator[None]:
    """Removes entries of jax's cache that it cannot read, before it has compiled and keeps the program again.

    jax warns, and writes no entry where one exists: a damaged one would be compiled again in every process. The warning
    names the program and not the entry, so all entries of programs of that name go.

    Args:
        say: called with one line about the first of them.
    """
    said = []

    def show(message: Warning | str, *details: Any) -> None:
        match, folder = (
            _UNREADABLE.match(str(message)),
            jax.config.values["jax_compilation_cache_dir"],
        )
        if match is None or folder is None:
            shown(message, *details)
            return
        for path in Path(folder).glob(f"{glob.escape(match[1])}-*"):
            path.unlink(missing_ok=True)
        if not said:
            said.append(match[1])
            say(f"a compiled program in {folder} is damaged; it is compiled again and replaced")

    with warnings.catch_warnings():
        warnings.filterwarnings("always", _UNREADABLE.pattern)
        shown, warnings.showwarning = warnings.showwarning, show
        yield
