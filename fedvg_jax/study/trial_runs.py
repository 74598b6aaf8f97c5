"""One trial in a process: builds its simulation, runs it in its folder, and records why it failed.

A trial is a run with a folder of its own, which the process locks that computes it. `compute_sent` does this for the
processes of an executor: it takes bytes of `cloudpickle`, which also holds functions of scripts and notebooks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import pickle
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import cloudpickle
import jax

from fedvg_jax.config import Config
from fedvg_jax.core import cache
from fedvg_jax.core.types import Metric
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.host import files
from fedvg_jax.host.errors import UsageError, one_line
from fedvg_jax.resolve import data as populations, experiment as experiments
from fedvg_jax.resolve.custom import FUNCTIONS, Custom, traced_anew
from fedvg_jax.runs.assemble import simulation
from fedvg_jax.runs.record import checkpoint, folder as run_folder, stored
from fedvg_jax.runs.record.history import DivergedError, History, Record
from fedvg_jax.study import named, sweep_folder
from fedvg_jax.study.named import AXES, Bundle
from fedvg_jax.study.sweep_folder import Failure
from fedvg_jax.study.sweep_trials import HYPER, Trial
from fedvg_jax.views import tracking


class Recipe(NamedTuple):
    """What the trials of a sweep share, besides their settings."""

    custom: Custom = Custom()
    """what takes the place of settings, the same for all trials"""
    bundles: Mapping[str, Mapping[str, Bundle]] = {}
    """axis -> name on it -> what that stands for"""
    metrics: Mapping[str, Metric] = {}
    """see `fedvg_jax.run`"""
    digests: Mapping[str, str] = {}
    """of what is given, of the objects and of the metrics; see `sweep_folder.Stored.objects`"""

    def custom_of(self, trial: Trial) -> Custom:
        """Returns what is given for a trial, with the objects and hyperparameters of its axes, which win."""
        objects = named.objects_of(self.bundles, trial.values)
        hyper = {**(self.custom.hyper or {}), **objects.pop("hyper", {})}
        for name, value in trial.values.items():
            if name.startswith(HYPER):
                hyper[name.removeprefix(HYPER)] = value
        return self.custom._replace(hyper=hyper or None, **objects)

    def names(self, trial: Trial) -> dict[str, str]:
        """Returns the names that a caller gave to values of a trial, by axis."""
        return {axis: trial.values[axis] for axis in self.bundles if axis in trial.values}

    def replaced(self, trial: Trial) -> dict[str, str]:
        """Returns what takes the place of a trial's settings -> its name; "" for one without."""
        return self.custom_of(trial).names | named.names_of(self.bundles, trial.values)

    def code(self, trial: Trial) -> dict[str, str]:
        """Returns the digests of a trial's objects by argument, and of the metrics."""
        code = {}
        for name, digest in self.digests.items():
            axis, _, value = name.partition(" ")
            if axis == run_folder.METRIC:
                code[name] = digest
            elif value and trial.values.get(axis) == value:
                objects = self.bundles[axis][value].objects
                code |= {argument: digest for argument in objects if argument in FUNCTIONS}
            elif axis in FUNCTIONS and not value:
                code[axis] = digest
        return code


class Prepared(NamedTuple):
    """A recipe in a process, with what the process keeps for the next trial."""

    recipe: Recipe
    """with new functions, so that this process traces them once"""
    caches: dict[tuple, cache.Cache]
    """names of a trial's objects -> cache of the programs of these and of what is given; grows"""
    data: dict[tuple, Arrays]
    """the data set that was read last; the others are not kept, because they may fill the memory"""


class Computed(NamedTuple):
    """What became of a trial."""

    status: str
    """"finished", which a failure is, too; "skipped" where nothing was left to do; "held" where another process
    computes the trial; or "stopped" by a signal"""
    result: History | Failure | None = None
    """of a finished trial; without records and models where these are in its folder"""
    lines: tuple[str, ...] = ()
    """about the trial, for the user"""
    signal: str = ""
    """that arrived during the trial"""


class Listeners(NamedTuple):
    """What a trial in this process reports to."""

    on_records: Callable[[list[Record]], None] = lambda records: None
    """gets the records of every chunk of rounds; those of earlier processes come first"""
    log: Callable[[str], None] | None = None
    """gets lines about the trial; None to collect them in `Computed.lines`"""


def prepare(recipe: Recipe) -> Prepared:
    """Returns a recipe for a process that has computed nothing of it."""
    bundles = {
        axis: {name: _traced_anew(bundle) for name, bundle in of_axis.items()}
        for axis, of_axis in recipe.bundles.items()
    }
    recipe = recipe._replace(custom=traced_anew(recipe.custom), bundles=bundles)
    return Prepared(recipe, {}, {})


def _traced_anew(bundle: Bundle) -> Bundle:
    """Returns a bundle with new functions."""
    made = traced_anew(Custom(**bundle.objects))
    return bundle._replace(objects={name: getattr(made, name) for name in bundle.objects})


def data_key(config: Config) -> tuple:
    """Returns the settings that a data set is read with."""
    places = config.dataset, config.data_dir, config.cache_dir
    form = config.image_size, config.splits, config.group_pattern
    columns = config.input, config.label, config.group
    return *places, *form, *columns, config.max_rows


def program_key(trial: Trial) -> tuple:
    """Returns a key that is equal for trials of one program, up to shapes of partitions."""
    objects = tuple(trial.values.get(axis) for axis in (*AXES, "method"))
    return experiments.static_settings(trial.config), data_key(trial.config), objects


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
    cached = prepared.caches.setdefault(tuple(recipe.names(trial).values()), cache.new())
    experiment = experiments.resolve(config, custom)
    if experiment.custom:
        experiment = experiment._replace(custom=recipe.replaced(trial))
    return simulation.assemble(experiment, cached)._replace(
        metrics=recipe.metrics,
        code=recipe.code(trial),
        names=recipe.names(trial),
    )


def _config_in(folder: Path | None, config: Config) -> Config:
    """Returns the settings of a run in the trial's folder: resumed where it has a checkpoint."""
    resume = None
    if folder and stored.newest_round(folder):
        (folder / sweep_folder.FAILURE).unlink(missing_ok=True)
        resume = str(folder)
    elif folder:
        sweep_folder.clear(folder)
    return dataclasses.replace(config, out=folder, resume=resume)


def compute(
    prepared: Prepared, trial: Trial, folder: Path | None, listeners: Listeners
) -> Computed:
    """Computes a trial, unless it is finished or has failed since the command started, or another process holds it."""
    try:
        with contextlib.ExitStack() as stack:
            if folder:
                folder.mkdir(parents=True, exist_ok=True)
                if not stack.enter_context(files.claimed(folder / sweep_folder.CLAIM)):
                    return Computed("held")
                if sweep_folder.read_failure(folder) or run_folder.is_finished(
                    folder, trial.config
                ):
                    return Computed("skipped")
            return _run(prepared, trial, folder, listeners)
    except OSError as error:  # the folder cannot be made
        return Computed("finished", Failure("failed", 0, one_line(str(error))))


def _run(prepared: Prepared, trial: Trial, folder: Path | None, listeners: Listeners) -> Computed:
    """Runs a trial to its end, or until a signal stops it. Records an error as a `Failure`."""
    num_done, lines, signals = 0, [], []

    def count(records: list[Record]) -> None:
        nonlocal num_done
        num_done = records[-1]["round"]
        listeners.on_records(records)

    try:
        history = tracking.run_simulation(
            simulation_of(prepared, trial, folder),
            log=listeners.log or lines.append,
            on_stop=signals.append,
            on_records=count,
        )
    except Exception as error:  # one trial's error, of whatever kind, must not end the others
        result = failure_of(error, num_done)
        record_failure(folder, trial.config, result)
    else:
        if history.summary["interrupted"]:
            return Computed("stopped", None, tuple(lines), signals[0])
        # in memory, a history's model must not occupy the device
        result = (
            history if folder else history._replace(variables=checkpoint.to_host(history.variables))
        )
    return Computed("finished", result, tuple(lines), signals[0] if signals else "")


def failure_of(error: BaseException, num_done: int = 0) -> Failure:
    """Returns an error as the `Failure` of a trial with so many rounds."""
    if isinstance(error, DivergedError):
        return Failure("diverged", len(error.history.records), one_line(str(error)))
    is_expected = isinstance(error, (UsageError, OSError))
    reason = one_line(str(error) if is_expected else f"{type(error).__name__}: {error}")
    return Failure("failed", num_done, reason, "".join(traceback.format_exception(error)))


def record_failure(folder: Path | None, config: Config, failure: Failure) -> None:
    """Writes a failure to the trial's folder, if it has one; on a full disk the trial stays unfinished."""
    if folder:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            sweep_folder.write_failure(folder, config, failure)


# --- in the processes of an executor

TRACED = tuple(name for name in cache.TRACE_SETTINGS if name != "jax_default_device")
"""Settings of jax that a process takes over from the one that sends it trials."""


class Sent(NamedTuple):
    """A recipe as a process of an executor receives it."""

    content: bytes
    """a recipe and the settings of jax, by `cloudpickle`"""
    digest: str
    """of the content"""


def pack(recipe: Recipe) -> Sent:
    """Returns a recipe to send.

    Raises:
        UsageError: some object cannot be sent; the message names it.
    """
    jax_settings = {name: getattr(jax.config, name) for name in TRACED}
    try:
        content = cloudpickle.dumps((recipe, jax_settings))
    except Exception as error:  # whatever an object's own `__reduce__` raises
        name, reason = _culprit(recipe), one_line(str(error))[:200]
        raise UsageError(
            f"{name} cannot be sent to other processes ({reason}); make it of functions, numbers and arrays, or leave"
            " out jobs and executor"
        ) from None
    return Sent(content, hashlib.sha256(content).hexdigest())


def _culprit(recipe: Recipe) -> str:
    """Returns the name of the first object of a recipe that cannot be sent."""
    parts = {name: value for name, value in recipe.custom._asdict().items() if value is not None}
    for axis, bundles in recipe.bundles.items():
        parts |= {f"{axis} {name}": bundle for name, bundle in bundles.items()}
    parts |= {f"{run_folder.METRIC} {name}": value for name, value in recipe.metrics.items()}
    for name, value in parts.items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            return name
    return "an object"


_prepared: dict[str, Prepared] = {}
"""Digest -> the recipe whose trials this process computed last, with its programs."""

_LOCK = threading.Lock()
"""A process computes one trial at a time, also where its executor has several threads."""


def compute_sent(sent: Sent, trial: Trial, folder: Path | None) -> bytes:
    """Computes a trial in a process of an executor; returns `Computed` by `cloudpickle`.

    Args:
        sent: see `pack`. The process keeps it with its programs, so that the next trial of a program compiles nothing.
        trial: what is computed.
        folder: of the trial; None to return the whole history.
    """
    with _LOCK:
        if sent.digest not in _prepared:
            recipe, jax_settings = pickle.loads(sent.content)
            for name, value in jax_settings.items():
                if getattr(jax.config, name) != value:
                    jax.config.update(name, value)
            _prepared.clear()
            _prepared[sent.digest] = prepare(recipe)
        computed = compute(_prepared[sent.digest], trial, folder, Listeners())
    if folder and isinstance(computed.result, History):  # the folder has the rest
        result = computed.result._replace(records=[], variables=None, best_variables=None)
        computed = computed._replace(result=result)
    return cloudpickle.dumps(computed)
