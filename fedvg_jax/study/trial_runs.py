"""One trial in a process: builds its simulation, runs it in its folder, and records why it failed.

A trial is a run in its own folder, which the process locks that computes it. `compute_sent` does this for the
processes of an executor: it takes bytes of `cloudpickle`, which also holds functions of scripts and notebooks.
"""

from __future__ import annotations

import dataclasses
import functools
import pickle
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import jax

from fedvg_jax.config import Config, options
from fedvg_jax.config.checks import FUNCTIONS
from fedvg_jax.core.types import Metric
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.host import files
from fedvg_jax.host.errors import UsageError, one_line
from fedvg_jax.resolve import data as populations, experiment as experiments
from fedvg_jax.resolve.custom import Custom, traced_anew
from fedvg_jax.runs.assemble import programs, simulation
from fedvg_jax.runs.record import checkpoint, folder as run_folder, stored
from fedvg_jax.runs.record.history import DivergedError, History
from fedvg_jax.study import named, sweep_folder
from fedvg_jax.study.sweep_folder import Failure
from fedvg_jax.study.sweep_trials import HYPER, Trial
from fedvg_jax.views import output


class Recipe(NamedTuple):
    """What the trials of a sweep share, besides their settings."""

    custom: Custom = Custom()
    """what takes the place of settings, the same for all trials"""
    named: Mapping[str, Mapping[str, named.Meaning]] = {}
    metrics: Mapping[str, Metric] = {}
    """see `fedvg_jax.run`"""
    digests: Mapping[str, str] = {}
    """of the caller's arguments, of the objects and of the metrics; see `sweep_folder.Stored.objects`"""

    def custom_of(self, trial: Trial) -> Custom:
        """Returns the arguments of a trial, with the objects and hyperparameters of its axes, which win."""
        objects = {}
        for _, meaning in named.chosen(self.named, trial.values):
            objects |= meaning.objects
        hyper = {**(self.custom.hyper or {}), **objects.pop("hyper", {})}
        for name, value in trial.values.items():
            if name.startswith(HYPER):
                hyper[name.removeprefix(HYPER)] = value
        return self.custom._replace(hyper=hyper or None, **objects)

    def key_of_objects(self, trial: Trial) -> tuple:
        """Returns a key that is equal for trials with the same objects: one name may mean another on another axis."""
        return tuple(
            (axis, trial.values.get(axis)) for axis in self.named if axis != named.PARTITION
        )

    def code(self, trial: Trial) -> dict[str, str]:
        """Returns the digests of a trial's objects by argument, and of the metrics."""
        code = {}
        for name, digest in self.digests.items():
            axis, _, value = name.partition(" ")
            if axis == run_folder.METRIC or name in FUNCTIONS:
                code[name] = digest
            elif trial.values.get(axis) == value:
                objects = self.named[axis][value].objects
                code |= {argument: digest for argument in objects if argument in FUNCTIONS}
        return code


class Prepared(NamedTuple):
    """A recipe in a process, with what the process keeps for the next trial."""

    recipe: Recipe
    """with new functions, so that this process traces them once"""
    caches: dict[tuple, programs.Cache]
    """a trial's objects by argument and name -> cache of their programs; grows"""
    data: dict[tuple, Arrays]
    """the data set that was read last; the others are not kept, because they may fill the memory"""


class Computed(NamedTuple):
    """What became of a trial."""

    result: History | Failure | None = None
    """without records and models where these are in its folder; None for a trial that did not end here"""
    lines: Sequence[str] = ()
    """about the trial, for the user"""
    signal: str = ""
    """that arrived during the trial"""
    is_held: bool = False
    """whether another process computes the trial"""


def prepare(recipe: Recipe) -> Prepared:
    """Returns a recipe for a process that has computed nothing of it."""
    anew = {}
    for axis, meanings in recipe.named.items():
        anew[axis] = {}
        for name, meaning in meanings.items():
            new = traced_anew(Custom(**meaning.objects))
            objects = {argument: getattr(new, argument) for argument in meaning.objects}
            anew[axis][name] = meaning._replace(objects=objects)
    return Prepared(recipe._replace(custom=traced_anew(recipe.custom), named=anew), {}, {})


def data_key(config: Config) -> tuple:
    """Returns a key that is equal for trials of one data set."""
    return tuple(getattr(config, name) for name in options.OF_DATA)


def program_key(recipe: Recipe, trial: Trial) -> tuple:
    """Returns a key that is equal for trials of one program, up to shapes of partitions."""
    config, objects = trial.config, recipe.key_of_objects(trial)
    return experiments.static_settings(config), data_key(config), objects


def simulation_of(
    prepared: Prepared, trial: Trial, folder: Path | None = None
) -> simulation.Simulation:
    """Returns the simulation of a trial, which continues from the newest checkpoint in its folder."""
    recipe, config = prepared.recipe, _config_in(folder, trial.config)
    custom = recipe.custom_of(trial)
    if custom.data is None:
        key = data_key(config)
        if key not in prepared.data:
            prepared.data.clear()
            prepared.data[key] = populations.load_data(config)
        custom = custom._replace(data=prepared.data[key])
    cached = prepared.caches.setdefault(recipe.key_of_objects(trial), programs.new_cache())
    experiment = experiments.resolve(config, custom)._replace(custom=trial.custom)
    return simulation.assemble(experiment, cached)._replace(
        metrics=recipe.metrics, code=recipe.code(trial), names=trial.names
    )


def _config_in(folder: Path | None, config: Config) -> Config:
    """Returns the settings of a run in the trial's folder: resumed where it has a checkpoint."""
    if folder is None:
        return config
    (folder / sweep_folder.FAILURE).unlink(missing_ok=True)
    if stored.newest_round(folder):
        return dataclasses.replace(config, out=folder, resume=str(folder))
    sweep_folder.clear(folder)
    return dataclasses.replace(config, out=folder)


def compute(
    prepared: Prepared, trial: Trial, out: Path | None, log: output.Log | None = None
) -> Computed:
    """Computes a trial, unless it is finished or has diverged, or another process holds it.

    Args:
        prepared: what the trial is computed with.
        trial: what is computed.
        out: folder of the sweep; None to keep the trial in memory.
        log: gets lines about the trial; None to collect them in the result.
    """
    if out is None:
        return _run(prepared, trial, None, log)
    folder = sweep_folder.trial_folder(out, trial.name)
    folder.mkdir(parents=True, exist_ok=True)
    with files.claimed(folder / sweep_folder.CLAIM) as is_mine:
        if not is_mine or sweep_folder.is_done(folder, trial.config):
            return Computed(is_held=not is_mine)
        return _run(prepared, trial, folder, log)


def _run(prepared: Prepared, trial: Trial, folder: Path | None, log: output.Log | None) -> Computed:
    """Runs a trial to its end, or until a signal stops it. Records an error as a `Failure`."""
    rounds, lines, signals = [0], [], []
    try:
        history = output.run_simulation(
            simulation_of(prepared, trial, folder),
            log=log or lines.append,
            on_stop=signals.append,
            on_progress=lambda records: rounds.append(records[-1]["round"]),
        )
    except (Exception, SystemExit) as error:  # one trial's error must not end the others
        result = failure_of(error, rounds[-1])
        sweep_folder.write_failure(folder, trial.config, result)
        return Computed(result, lines, *signals[:1])
    if history.summary["interrupted"]:
        return Computed(None, lines, signals[0])
    # in memory, a history's model must not occupy the device
    if folder is None:
        history = history._replace(variables=checkpoint.to_host(history.variables))
    return Computed(history, lines, *signals[:1])


def failure_of(error: BaseException, num_done: int = 0) -> Failure:
    """Returns an error as the `Failure` of a trial with so many rounds."""
    if isinstance(error, DivergedError):
        return Failure("diverged", len(error.history.records), one_line(str(error)))
    is_expected = isinstance(error, (UsageError, OSError))
    reason = one_line(str(error) if is_expected else f"{type(error).__name__}: {error}")
    return Failure("failed", num_done, reason, "".join(traceback.format_exception(error)))


# --- in the processes of an executor

TRACED = tuple(name for name in programs.TRACE_SETTINGS if name != "jax_default_device")
"""Settings of jax that a process takes over from the one that sends it trials."""


def pack(recipe: Recipe) -> bytes:
    """Returns a recipe and the settings of jax, by `cloudpickle`.

    Raises:
        UsageError: some object cannot be sent; the message has its name and the reason.
    """
    jax_settings = {name: getattr(jax.config, name) for name in TRACED}
    try:
        return _dumps("an object", (recipe, jax_settings))
    except UsageError:
        parts = {**recipe.custom._asdict(), **recipe.metrics}
        for axis, meanings in recipe.named.items():
            parts |= {f"{axis} {name}": meaning for name, meaning in meanings.items()}
        for name, part in parts.items():
            _dumps(name, part)
        raise


def _dumps(name: str, value: Any) -> bytes:
    """Returns an object as bytes."""
    try:
        return cloudpickle.dumps(value)
    except Exception as error:  # whatever the `__reduce__` of an object raises
        raise UsageError(
            f"{name} cannot be sent to other processes ({error!s:.200}); make it of functions, numbers"
            " and arrays, or leave out jobs and executor"
        ) from None


@functools.lru_cache(1)
def _unpack(sent: bytes) -> Prepared:
    """Returns the recipe of the trials that this process computes, and sets jax as in the process that sent it."""
    recipe, jax_settings = pickle.loads(sent)
    for name, value in jax_settings.items():
        if getattr(jax.config, name) != value:
            jax.config.update(name, value)
    return prepare(recipe)


_LOCK = threading.Lock()
"""A process computes one trial at a time, also where its executor has several threads."""


def compute_sent(sent: bytes, trial: Trial, out: Path | None) -> bytes:
    """Computes a trial in a process of an executor; returns `Computed` by `cloudpickle`.

    Args:
        sent: see `pack`. The process keeps it with its programs, so that the next trial of a program compiles nothing.
        trial: what is computed.
        out: folder of the sweep; None to return the whole history.
    """
    with _LOCK:
        computed = compute(_unpack(sent), trial, out)
    if out and isinstance(computed.result, History):  # the folder has the rest
        result = computed.result._replace(records=[], variables=None, best_variables=None)
        computed = computed._replace(result=result)
    return cloudpickle.dumps(computed)
