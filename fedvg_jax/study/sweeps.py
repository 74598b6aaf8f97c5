"""Computes the trials of a sweep in one process, which may share them with others; and `run_sweep` of Python.

Trials are ordered by their programs, so each program is compiled once, and a data set is read once for the trials that
follow one another. A trial is a run with a folder of its own, which the process locks that computes it: finished trials
are skipped, one that was interrupted continues from its checkpoint, and one that fails is recorded, stops nothing, and
is tried again by the next command.

From Python, objects may replace settings, and hyperparameters that they declare may be axes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fedvg_jax.config import SETTINGS, Config
from fedvg_jax.config.uses import PASSED, replaced_with
from fedvg_jax.core import reuse
from fedvg_jax.core.identity import Identity, identify
from fedvg_jax.core.types import Algorithm, Metric, Weighting
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.host import files, hardware
from fedvg_jax.host.errors import UsageError, one_line
from fedvg_jax.runs.assemble import population, programs, simulation
from fedvg_jax.runs.assemble.given import (
    FUNCTIONS,
    Given,
    identities,
    merge_hyperparameters,
    traced_anew,
)
from fedvg_jax.runs.record import checkpoint, digests, folder as run_folder
from fedvg_jax.runs.record.history import DivergedError, History, Record
from fedvg_jax.study import sweep_folder, sweep_trials, tuning, workers
from fedvg_jax.study.sweep_folder import Failure, SweepResult
from fedvg_jax.study.sweep_trials import HYPER, OBJECTS, Sweep, Trial
from fedvg_jax.views import tracking
from fedvg_jax.views.output import say

_log_warning = logging.getLogger(__name__).warning

POLL_SECONDS = 1.0
"""Seconds between two looks at trials that other processes compute."""


def by_program(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Returns the trials in groups of one program each, up to shapes of partitions, in the order of first trials."""
    groups: dict[tuple, list[Trial]] = {}
    for trial in trials:
        own = tuple(trial.values.get(argument) for argument in OBJECTS)
        groups.setdefault(
            (programs.static_settings(trial.config), data_key(trial.config), own), []
        ).append(trial)
    return list(groups.values())


@dataclasses.dataclass
class Work:
    """What a process computes trials with, what it reports to, and where the results go."""

    out: Path | None = None
    """folder of the sweep, which `sweep_folder.open_folder` has made; None keeps the results in memory"""
    given: Given = dataclasses.field(default_factory=Given)
    """what takes the place of settings, the same for all trials"""
    objects: Objects = dataclasses.field(default_factory=dict)
    named: Collection[str] = ()
    """axes on which a caller has named values of settings"""
    metrics: Mapping[str, Metric] = dataclasses.field(default_factory=dict)
    """see `fedvg_jax.run`"""
    identities: Mapping[str, Identity] = dataclasses.field(default_factory=dict)
    """of what is given, of the objects and of the metrics; see `sweep_folder.Stored.objects`"""
    changed: sweep_folder.Changed | None = None
    """see `sweep_folder.open_folder`"""
    on_records: Callable[[Trial, list[Record]], None] = lambda trial, records: None
    """gets a trial's records of every chunk of rounds; the records of earlier processes come first"""
    on_end: Callable[[Trial, History | Failure], None] = lambda trial, result: None
    """of every trial that this process has computed"""
    log: Callable[[str], None] = _log_warning
    """gets a line about a trial, which starts with its name"""
    keeps: dict[tuple, reuse.Keep] = dataclasses.field(default_factory=dict)
    """names of a trial's objects -> what keeps the programs of these and of what is given; grows"""
    data: dict[tuple, Arrays] = dataclasses.field(default_factory=dict)
    """the data set that was read last; the others are not kept, because they may fill the memory"""
    results: dict[str, History | Failure] = dataclasses.field(default_factory=dict)
    """of the trials that are computed; grows"""
    stops: list[str] = dataclasses.field(default_factory=list)
    """signals that stopped the process; grows"""

    def names_of_objects(self, trial: Trial) -> tuple:
        """Returns the names of a trial's objects from axes."""
        return tuple(trial.values.get(name) for name in self.objects)

    def given_of(self, trial: Trial) -> Given:
        """Returns what is given for a trial, with its objects and hyperparameters from axes."""
        return of_trial(trial.values, self.given, self.objects)

    def replaced(self, trial: Trial) -> dict[str, str]:
        """Returns what takes the place of a trial's settings -> its name; "" for one without."""
        replaced = self.given_of(trial).replaced
        return replaced | {
            name: str(trial.values[name]) for name in self.objects if name in replaced
        }

    def code(self, trial: Trial) -> dict[str, str]:
        """Returns the digests of a trial's objects by argument, and of the metrics."""
        digests = {}
        for name, identity in self.identities.items():
            argument, _, of_axis = name.partition(" ")
            if argument == run_folder.METRIC:
                digests[name] = identity.digest
            elif argument in FUNCTIONS and (not of_axis or trial.values[argument] == of_axis):
                digests[argument] = identity.digest
        return digests

    def folder(self, trial: Trial) -> Path | None:
        """Returns the run folder of a trial, or None."""
        return sweep_folder.trial_folder(self.out, trial.name) if self.out else None

    def has_begun(self, trials: Sequence[Trial]) -> bool:
        """Returns whether some process has begun one of the trials."""
        return any(folder.exists() for folder in map(self.folder, trials) if folder)


def compute(trials: Sequence[Trial], work: Work) -> str | None:
    """Computes the trials that are not finished; waits for other processes' trials, and takes over where one dies.

    Trials that have failed, in whichever process, are not tried again; see `sweep_folder.clear_failures`.

    Returns:
        The signal that stopped this process, or None.
    """
    pending = list(trials)
    while pending:
        busy, groups = [], by_program(pending)
        while groups:
            groups.sort(key=work.has_begun)  # programs that no process has compiled come first
            for trial in groups.pop(0):
                if workers.is_orphan():
                    return "SIGTERM"
                if not _compute_or_skip(work, trial):
                    busy.append(trial)
                if work.stops:
                    return work.stops[0]
        if pending := busy:
            time.sleep(POLL_SECONDS)
    return None


def compute_plan(
    plan: tuning.Plan, console: Console | None, work: Work
) -> tuple[list[Trial], dict[str, History | Failure]]:
    """Computes the tuning runs, if there are any, and then the trials with the values that these have chosen.

    Args:
        plan: what is computed.
        console: where progress and choices are shown; None for nowhere.
        work: what the trials are computed with.

    Returns:
        The trials, and the results of those that this process has computed, by name.

    Raises:
        Stopped: by a signal.
        UsageError: a folder cannot be used, or a tuning run has no result.
    """

    def compute_shown(trials: Sequence[Trial], out: Path | None) -> dict[str, History | Failure]:
        if out and not workers.is_started():
            sweep_folder.clear_failures(out, trials)
        mine = dataclasses.replace(work, out=out, results={}, stops=[])
        with (
            sweep_progress(console, trials, mine)
            if console
            else contextlib.nullcontext(mine) as shown
        ):
            stopped_by = compute(trials, shown)
        if stopped_by:
            raise workers.Stopped(stopped_by, mine.results)
        return mine.results

    trials, chosen = plan.trials, {}
    if plan.out and plan.tuning:
        sweep_folder.refuse_taken(plan.out)
        grid, tried = plan.out / tuning.FOLDER, plan.tuning_trials
        tuning_sweep = tuning.tuning_sweep(plan.sweep, plan.tuning)
        content = sweep_folder.document(tuning_sweep, tried, work.identities)
        sweep_folder.open_folder(grid, content, work.identities, work.changed)
        compute_shown(tried, grid)
        choices = tuning.choose(grid, tried, plan.tuning)
        if console:
            for group, choice in choices.items():
                say(console, f"{group}: {tuning.chosen_text(choice, plan.tuning)}")
        trials, chosen = tuning.chosen_trials(trials, choices), tuning.as_json(plan.tuning, choices)
    if plan.out:
        content = sweep_folder.document(plan.sweep, trials, work.identities, chosen)
        sweep_folder.open_folder(plan.out, content, work.identities, work.changed)
    return trials, compute_shown(trials, plan.out)


Objects = Mapping[str, Mapping[str, Any]]
"""Argument of a run -> name on its axis -> object from Python."""


def of_trial(values: Mapping[str, Any], given: Given, objects: Objects) -> Given:
    """Returns what is given with the objects and the hyperparameters among the values of axes, which win."""
    own = {
        name.removeprefix(HYPER): value for name, value in values.items() if name.startswith(HYPER)
    }
    chosen = {
        name: named[values[name]] for name, named in objects.items() if values.get(name) in named
    }
    return given._replace(hyper={**(given.hyper or {}), **own} or None, **chosen)


def data_key(config: Config) -> tuple:
    """Returns the settings that a data set is read with."""
    of_set = (
        config.dataset,
        config.data_dir,
        config.cache_dir,
        config.image_size,
        config.splits,
        config.columns,
    )
    return *of_set, config.max_rows, config.max_rows_seed


def _compute_or_skip(work: Work, trial: Trial) -> bool:
    """Computes a trial unless that is done, or has failed since the command started; returns False if it is held."""
    folder = work.folder(trial)
    with contextlib.ExitStack() as stack:
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            if not stack.enter_context(files.claimed(folder / sweep_folder.CLAIM)):
                return False
            if sweep_folder.read_failure(folder) or run_folder.is_finished(folder, trial.config):
                return True
        result = _compute_trial(work, trial)
        if not (isinstance(result, History) and result.summary["interrupted"]):
            work.results[trial.name] = result
            work.on_end(trial, result)
    return True


def _compute_trial(work: Work, trial: Trial) -> History | Failure:
    """Runs a trial to its end, or until a signal stops it. Records an error as a `Failure`."""
    num_done = 0

    def count(records: list[Record]) -> None:
        nonlocal num_done
        num_done = records[-1]["round"]
        work.on_records(trial, records)

    try:
        history = tracking.run_simulation(
            simulation_of(work, trial),
            log=lambda line: work.log(f"{trial.name}: {line}"),
            on_stop=work.stops.append,
            on_records=count,
        )
        # in memory, a history's model must not occupy the device
        return (
            history
            if work.out
            else history._replace(variables=checkpoint.to_host(history.variables))
        )
    except Exception as error:  # one trial's error, of whatever kind, must not end the others
        return record_failure(work, trial, error, num_done)


def simulation_of(work: Work, trial: Trial) -> simulation.Simulation:
    """Returns the simulation of a trial, in its folder."""
    config, given = _config_in(work.folder(trial), trial.config), work.given_of(trial)
    if given.data is None:
        key = data_key(config)
        if key not in work.data:
            work.data.clear()
            work.data[key] = population.load_data(config)
        given = given._replace(data=work.data[key])
    keep = work.keeps.setdefault(work.names_of_objects(trial), reuse.keeper())
    sim = simulation.assemble(config, given, keep)
    names = {name: trial.values[name] for name in work.named}
    return sim._replace(
        given=work.replaced(trial), metrics=work.metrics, code=work.code(trial), names=names
    )


def record_failure(work: Work, trial: Trial, error: Exception, num_done: int) -> Failure:
    """Returns an error as a `Failure`, and writes it to the trial's folder."""
    if isinstance(error, DivergedError):
        failure = Failure("diverged", len(error.history.records), one_line(str(error)))
    else:
        is_expected = isinstance(error, (UsageError, OSError))
        reason = one_line(str(error) if is_expected else f"{type(error).__name__}: {error}")
        failure = Failure("failed", num_done, reason, "".join(traceback.format_exception(error)))
    if folder := work.folder(trial):
        with contextlib.suppress(OSError):  # of a full disk: the trial stays unfinished
            sweep_folder.write_failure(folder, trial.config, failure)
    return failure


def _config_in(folder: Path | None, config: Config) -> Config:
    """Returns the settings of a run in the trial's folder: resumed where it has a checkpoint."""
    resume = None
    if folder and digests.newest_round(folder):
        (folder / sweep_folder.FAILURE).unlink(missing_ok=True)
        resume = str(folder)
    elif folder:
        sweep_folder.clear(folder)
    return dataclasses.replace(config, out=folder, resume=resume)


OF_TENSORS = ("train", "lora", "local", "fedvg.include", "init")
"""Settings that name tensors or sizes of a model, which only its building can check."""

OF_MODEL = (*OF_TENSORS, "model", "norm_layers")
"""Settings; all their combinations are built before the first trial."""


def check(trials: Sequence[Trial], work: Work) -> None:
    """Checks the given objects, and the settings of tensors, before the first run.

    Raises:
        UsageError: an axis varies what an object replaces, a hyperparameter is unknown or out of range, or a model, the
            data, the partition or an object cannot be used.
    """
    keys: dict[str, tuple] = {}
    for trial in trials:
        of_model = {name: SETTINGS[name].get(trial.config) for name in OF_MODEL}
        if any(value is not None for value in work.given_of(trial)) or any(
            of_model[name] for name in OF_TENSORS
        ):
            keys[trial.name] = (
                data_key(trial.config),
                work.names_of_objects(trial),
                *of_model.values(),
            )
    first_of_each = {keys[trial.name]: trial for trial in reversed(trials) if trial.name in keys}
    declaring: dict[tuple, tuple[Algorithm, Weighting]] = {}
    for key, trial in first_of_each.items():
        try:
            sim = simulation_of(dataclasses.replace(work, out=None), trial)
        except UsageError as error:
            raise UsageError(
                f"trial {trial.name}: {error}" if len(first_of_each) > 1 else str(error)
            ) from None
        declaring[key] = sim.algorithm, sim.weighting
    declared = {
        parameter.name
        for parts in declaring.values()
        for part in parts
        for parameter in part.hyperparameters
    }
    _refuse_replaced(trials, work.given, declared)
    for trial in trials:
        its = work.given_of(trial)
        if its.hyper:
            algorithm, weighting = declaring[keys[trial.name]]
            own = ((algorithm, its.algorithm), (weighting, its.weighting))
            passed = tuple(part for part, value in own if value)
            merge_hyperparameters(trial.config, algorithm, weighting, its.hyper, passed)


def _refuse_replaced(trials: Sequence[Trial], given: Given, declared: Collection[str]) -> None:
    """Raises UsageError for an axis that has no effect beside a given object, which declares some hyperparameters."""
    replaced = replaced_with(given.replaced) | {PASSED[name] for name in given.replaced}
    replaced |= {"method"} if replaced & {"algorithm", "weighting"} else set()
    for name in dict.fromkeys(
        name for trial in trials for name in trial.values if name in replaced
    ):
        if name not in SETTINGS or name not in declared:
            raise UsageError(
                f"axes: {name} has no effect beside {'=, '.join(given.replaced)}=; leave one of them out"
            )


CALL = """
import contextlib, pickle, sys, fedvg_jax
with contextlib.suppress(fedvg_jax.UsageError, KeyboardInterrupt), open(sys.argv[1], "rb") as file:
    fedvg_jax.run_sweep(**pickle.load(file))
"""
"""The program of a process that `run_sweep` starts; its argument is a file of the call's arguments."""


def run_sweep(
    start: Config,
    axes: Mapping[Any, Any],
    work: Work,
    progress: bool,
    tuned: tuning.Tuning | None = None,
    jobs: int | str = 1,
    call: Mapping[str, Any] = {},
) -> list[SweepResult]:
    """Returns the results of a sweep, in the order of its trials; those that a signal left out are missing.

    Args:
        start: settings that all trials share.
        axes: as in `fedvg_jax.run_sweep`.
        work: where the results go, and what is given, with functions of this call.
        progress: whether to print a line for every run, or bars on a terminal.
        tuned: settings that are chosen on D_val first; None for none.
        jobs: processes that share the trials, this one included, or "auto".
        call: arguments of `fedvg_jax.run_sweep` for the others.
    """
    sweep_trials.refuse_set(start)
    out = work.out
    if tuned and out is None:
        raise UsageError("tune needs out=, a folder for the tuning runs and their choices")
    axes, named, names = sweep_trials.named_objects(axes)
    listed = {
        argument: [*named.get(argument, ()), *names.get(argument, ())]
        for argument in {**named, **names}
    }
    parsed = sweep_trials.parse_axes(axes, listed)
    sweep = Sweep(parsed, start=start, objects=named, names=names)
    plan = tuning.make_plan(sweep, out, tuned)
    objects = {
        argument: {
            name: getattr(traced_anew(Given(**{argument: value})), argument)
            for name, value in values.items()
        }
        for argument, values in named.items()
    }
    on_axes = {
        f"{argument} {name}": identify(value)
        for argument, of in named.items()
        for name, value in of.items()
    }
    work = dataclasses.replace(
        work,
        objects=objects,
        named=tuple(names),
        identities={**identities(work.given, work.metrics), **on_axes},
    )
    for trial in plan.every:
        tracking.require(trial.config, out is not None)
    if work.given.data is None:
        sweep_folder.check_sources(plan.every)
    check(plan.every, work)
    functions = [
        *(work.given.replaced.keys() - {"data", "partition"}),
        *named,
        *(["metrics"] if work.metrics else []),
    ]
    if jobs != 1 and (functions or out is None):
        remedy = "start one script several times, with the same out="
        what = (
            f"processes cannot receive {functions[0]}; {remedy}"
            if functions
            else "give out=, the folder of the sweep"
        )
        raise UsageError(f"jobs {jobs}: {what}")
    machine = hardware.current()
    count = workers.num_processes(jobs, plan.pending, machine if machine.is_cpu else None)
    try:
        with contextlib.ExitStack() as stack:
            can_share = stack.enter_context(sweep_folder.shared(out, work.log))
            stack.enter_context(_further_calls(call, count if can_share else 1, work.log))
            trials, results = compute_plan(plan, Console() if progress else None, work)
    except workers.Stopped as stop:
        if stop.signal == "SIGINT":
            raise KeyboardInterrupt(f"stopped; folder of the sweep: {out}") from None
        signal.raise_signal(signal.Signals[stop.signal])
        trials, results = plan.trials, stop.results
    listed = []
    names = tuple(trial.name for trial in trials)
    sources = {
        name: work.identities[name].digest
        for name in ("data", "partition")
        if name in work.identities
    }
    for trial in trials:
        result = results.get(trial.name)
        if folder := work.folder(trial):
            is_finished = run_folder.is_finished(folder, trial.config)
            result = sweep_folder.read_failure(folder) or (
                History.load(folder) if is_finished else None
            )
        if result:
            digests_of = {**sources, **work.code(trial)}
            given = work.replaced(trial)
            listed.append(
                SweepResult(
                    trial.name, trial.values, result, trial.config, given, names, digests_of
                )
            )
    return listed


@contextlib.contextmanager
def _further_calls(
    call: Mapping[str, Any], count: int, log: Callable[[str], None]
) -> Iterator[None]:
    """Starts all processes of a call but this one; they end with it."""
    if count == 1:
        yield
        return
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(tempfile.NamedTemporaryFile())
        start = stack.enter_context(workers.further_processes(["-c", CALL, file.name], count, log))
        try:
            pickle.dump({**call, "progress": False}, file)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            reason = one_line(str(error))[:200]
            raise UsageError(
                f"jobs: {reason}; give lists and arrays, which a process can receive"
            ) from None
        file.flush()
        start()
        yield


# --- progress


def duration(seconds: float) -> str:
    """Returns a number of seconds in the largest fitting unit.

    >>> duration(42.4), duration(300), duration(9000)
    ('42 s', '5 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@contextlib.contextmanager
def sweep_progress(console: Console, trials: Sequence[Trial], work: Work) -> Iterator[Work]:
    """Shows trials and rounds as they finish; yields the work, which reports them.

    In a terminal: two bars. Elsewhere: a line per trial of this process, which counts other processes' trials, too.

    Args:
        console: where to print.
        trials: of the sweep.
        work: of the process.
    """
    out = work.out
    waiting = [trial for trial in trials if out is None or not sweep_folder.is_done(out, trial)]
    num_left, started = len(waiting), time.perf_counter()

    def left() -> str:
        """Returns the time left in words: the trials left, at the pace of those that ended since the start."""
        if len(waiting) == num_left:
            return "time left unknown"
        pace = (time.perf_counter() - started) / (num_left - len(waiting))
        return f"about {duration(pace * len(waiting))} left"

    log = functools.partial(say, console)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
    )
    shown = TextColumn("{task.fields[text]}", markup=False)
    with Progress(*columns, shown, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(
            "trials", total=len(trials), completed=len(trials) - len(waiting), text=""
        )
        rounds = progress.add_task("rounds", total=None, text="")

        def count(trial: Trial, records: list[Record]) -> None:
            progress.update(
                rounds, total=trial.config.rounds, completed=records[-1]["round"], text=trial.name
            )

        def end(trial: Trial, result: History | Failure) -> None:
            waiting[:] = [
                p
                for p in waiting
                if p.name != trial.name and not (out and sweep_folder.is_done(out, p))
            ]
            num_done = len(trials) - len(waiting)
            log(f"{num_done}/{len(trials)}  {trial.name}: {result_text(result)}, {left()}")
            progress.update(bar, completed=num_done, text=left())

        yield dataclasses.replace(work, on_records=count, on_end=end, log=log)


def result_text(result: History | Failure) -> str:
    """Returns the result of a trial in a few words."""
    if isinstance(result, Failure):
        return f"{result.kind} in round {result.round} ({result.reason})"
    name = "accuracy" if "test_accuracy_final" in result.summary else "loss"
    value = result.summary.get(f"test_{name}_final")
    text = f"{value:.2%}" if name == "accuracy" and value is not None else f"{value}"
    return f"test {name} {text}, {result.summary['run_seconds']:.1f} s"
