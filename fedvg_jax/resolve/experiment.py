"""The experiment of settings, in which objects may take the place of names, and its simulation."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

from fedvg_jax import algorithms
from fedvg_jax.config import SETTINGS, Config, apply, client_chunk_size, cohort_size, epochs_range
from fedvg_jax.config.checks import unmet
from fedvg_jax.config.declare import FRACTION, Setting, listed
from fedvg_jax.config.options import as_reference, choice, concurrency, has_clock, num_asked
from fedvg_jax.core.types import Algorithm, Hyper, NamedWeighting, UsageError, Weighting
from fedvg_jax.engine import task_checks
from fedvg_jax.models import pretrained
from fedvg_jax.resolve import data as populations
from fedvg_jax.resolve.custom import Custom, Objects, custom_of, names_objects, traced_anew
from fedvg_jax.resolve.machine import make_executor
from fedvg_jax.resolve.method import make_hyper, make_method, named_weightings
from fedvg_jax.resolve.model import check_accuracies, check_settings_of_task, make_model
from fedvg_jax.resolve.texts import settle
from fedvg_jax.runs.assemble import programs
from fedvg_jax.runs.assemble.simulation import Simulation, assemble
from fedvg_jax.runs.experiment import Cohorts, Experiment, Folder, Privacy
from fedvg_jax.runs.record import stored

if TYPE_CHECKING:
    from fedvg_jax.engine.virtual_time import Clock

VALUES = tuple(name for name, setting in SETTINGS.items() if setting.facts.kind != "compiled")
"""Settings that no program depends on: of the host, of the data and the schedule, and traced hyperparameters."""

USED_ABOVE_0 = ("momentum", "weight_decay", "dp.clip")
"""Traced hyperparameters on which a program depends by whether they are above 0."""


@names_objects
def simulation(config: Config, **objects: Unpack[Objects]) -> Simulation:
    """Returns everything that a run of these settings needs.

    Args:
        config: settings; they are checked.
        **objects: objects in place of settings, as in `fedvg_jax.run`.

    Raises:
        UsageError: a setting or a file cannot work, or an object breaks its contract.

    >>> sim = simulation(Config(clients=4, join_ratio=0.5, alpha=10.0))
    >>> sim.arrays.name, len(sim.partition.train), sim.schedule(0).clients.shape
    ('digits', 4, (2,))
    """
    return simulate(*settle(config, custom_of(**objects)))


def simulate(
    config: Config,
    custom: Custom,
) -> Simulation:
    """Returns the simulation of one call, with separate functions and programs.

    Args:
        config: checked settings.
        custom: what the caller passed.
    """
    return assemble(resolve(config, traced_anew(custom)), programs.new_cache())


def resolve(
    config: Config,
    custom: Custom,
) -> Experiment:
    """Returns the experiment of settings.

    Args:
        config: checked settings.
        custom: objects that take the place of settings, with functions of this call; see `custom.traced_anew`.

    Raises:
        UsageError: parts do not fit together, or a file cannot be read.
    """
    assert config.cache_dir is not None, "the check sets it"
    programs.use_cache(config.cache_dir)
    # before the data, which may take minutes to read
    if config.init and not stored.is_run(config.init):
        pretrained.read(config.init)
    method = make_method(config, custom)  # contradictions are found before the data are read
    clock = _clock(config, custom.clock)
    population = populations.make_population(config, custom.data, custom.partition)
    if custom.task is not None:
        task_checks.check_task(custom.task, population.pool)
        check_settings_of_task(config, custom.task, population.pool)
    inputs = population.inputs
    model = make_model(config, inputs, custom.task, custom.initial)
    weightings = named_weightings(config, custom, method.algorithm)
    check_accuracies(config, weightings, custom.task, population)
    # what a named network is built for
    model_key = custom.task or (inputs.x.shape[1:], len(inputs.class_names))
    return Experiment(
        settings=config,
        custom=custom.names,
        # the ids of corrupt clients are constants of a program with an attack
        key=(static_settings(config), model_key, method.corrupt_clients if custom.attack else ()),
        population=population,
        statistics=populations.describe(config, population, custom.partition is not None),
        model=model,
        method=method,
        hyper=functools.partial(hyper_of, config, custom),
        executor=make_executor(config),
        devices=config.devices,
        placement=config.placement,
        rounds=config.rounds,
        eval_every=config.eval_every,
        skips_nonfinite=config.nonfinite == "skip",
        folder=_folder(config),
        cohorts=_cohorts(config, method.algorithm, clock),
        skips_lone_row=_skips_lone_row(config, weightings.values()),
        recorded=frozenset(listed(config.record)),
        privacy=_privacy(config, custom, weightings.values()),
    )


def static_settings(config: Config) -> Config:
    """Returns `config` with every value of `VALUES` at its default: settings on which a program depends.

    Momentum, weight decay and clipping keep whether they are used, on which the program depends.
    """
    values = {name: SETTINGS[name].default for name in VALUES}
    values |= {name: float(SETTINGS[name].get(config) > 0) / 2 for name in USED_ABOVE_0}
    for name, setting in SETTINGS.items():
        if setting.arguments and setting.facts.kind == "compiled":
            values[name] = _without_traced(setting, setting.get(config))
    if config.attack != "none":  # the corrupt clients' ids are constants of the program
        values |= {"seed": config.seed, "corrupt.clients": config.corrupt.clients}
    return apply(config, values, "static settings")


def _without_traced(setting: Setting, text: str) -> str:
    """Returns a text NAME:VALUE without a value that is a traced scalar."""
    name, _, _ = text.partition(":")
    argument = setting.arguments.get(name)
    return name if argument and argument.traced else text


def hyper_of(
    config: Config, custom: Custom, algorithm: Algorithm, weighting: Weighting
) -> tuple[Hyper, dict[str, float]]:
    """Returns what `make_hyper` does; a caller may pass the parameters of its objects."""
    of_caller = ()
    if custom.algorithm is not None:
        of_caller += algorithm.hyperparameters
    if custom.weighting is not None:
        of_caller += weighting.hyperparameters
    settable = [parameter.name for parameter in of_caller]
    return make_hyper(config, algorithm, weighting, custom.hyper, settable)


def _clock(config: Config, custom: Clock | None) -> Clock | None:
    """Returns how long clients take, of settings or the caller; None where nothing says it."""
    if custom is None and not has_clock(config):
        if config.overselect > 1 or config.deadline is not None or config.buffered.size:
            raise UsageError(
                "overselect, deadline and buffered.size need a clock; give --clock.step SECONDS, or leave them out"
            )
        return None
    from fedvg_jax.resolve.clock import make_clock

    return make_clock(config, custom)


def _cohorts(config: Config, algorithm: Algorithm, clock: Clock | None) -> Cohorts:
    """Raises UsageError for a probe without a share of rows."""
    most_stale, ratio = config.buffered.max_staleness, algorithm.probe_ratio
    has_probe = algorithm.probe is not algorithms.no_probe
    if has_probe and not FRACTION.holds(ratio):
        raise UsageError(f"algorithm.probe_ratio must be {FRACTION.words}; got {ratio}")
    return Cohorts(
        seed=config.seed,
        num_clients=config.clients,
        size=cohort_size(config),
        chunk_size=client_chunk_size(config),
        num_asked=num_asked(config),
        local_epochs=epochs_range(config),
        batch_size=config.batch_size,
        dropout=config.dropout,
        skips_single_rows=as_reference(config, "single-rows"),
        probe_ratio=ratio if has_probe else 0.0,
        probe_apart=as_reference(config, "elastic-rows"),
        is_published=as_reference(config, "cohorts"),
        deadline=math.inf if config.deadline is None else config.deadline,
        clock=clock,
        concurrency=concurrency(config) if config.buffered.size else 0,
        max_staleness=math.inf if most_stale is None else most_stale,
    )


def _folder(config: Config) -> Folder:
    return Folder(
        path=config.out,
        is_resumed=config.resume is not None,
        checkpoint_every=config.checkpoint_every,
        num_kept=config.keep,
        export=config.export,
    )


def _skips_lone_row(config: Config, weightings: Iterable[NamedWeighting]) -> bool:
    trains = any(weighting.trains_on_rows for weighting in weightings)
    is_read_in_training = trains or config.tuning.steps > 0
    is_evaluated = config.fedvg.mode == "eval" and unmet(config, "fedvg.mode") is None
    return is_read_in_training or not is_evaluated


def _privacy(
    config: Config, custom: Custom, weightings: Iterable[NamedWeighting]
) -> Privacy | None:
    if config.dp.clip == 0:
        return None
    is_of_clients = choice(config, "validation.source")[0] == "clients"
    reads_d_val = any(weighting.reads_rows for weighting in weightings)
    of_run = config.init is not None and stored.is_run(config.init)
    return Privacy(
        delta=config.dp.delta,
        # a custom weighting may read any row
        reads_all_clients=custom.weighting is not None or (reads_d_val and is_of_clients),
        is_first_public=custom.initial is None and not of_run,
        moves_stats=config.norm_layers != "frozen",
    )
