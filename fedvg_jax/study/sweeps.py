"""Computes the trials of a sweep, after those of its tuning; and `run_sweep` of Python.

Finished trials are skipped, one that was interrupted continues from its checkpoint, and one that fails is recorded,
stops nothing, and is tried again by the next command.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import pickle
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fedvg_jax.config import SETTINGS, Config
from fedvg_jax.config.uses import PASSED, replaced_with
from fedvg_jax.core.identity import Identity, identify
from fedvg_jax.core.types import Algorithm, Weighting
from fedvg_jax.host import hardware
from fedvg_jax.host.errors import UsageError
from fedvg_jax.resolve.custom import Custom, identities
from fedvg_jax.resolve.hyperparameters import make_hyper
from fedvg_jax.resolve.method import make_method
from fedvg_jax.runs import endings
from fedvg_jax.runs.record import folder as run_folder
from fedvg_jax.runs.record.history import History, Record
from fedvg_jax.study import executors, named, sweep_folder, sweep_trials, trial_runs, tuning
from fedvg_jax.study.executors import Slot, Stopped
from fedvg_jax.study.sweep_folder import Failure, SweepResult
from fedvg_jax.study.sweep_trials import Sweep, Trial
from fedvg_jax.study.trial_runs import Computed, Recipe
from fedvg_jax.views import tracking
from fedvg_jax.views.output import say

Results = dict[str, History | Failure]
"""Name of a trial that this process has computed, or had computed -> its result."""


class Listeners(NamedTuple):
    """What trials report to."""

    on_records: Callable[[Trial, list[Record]], None] = lambda trial, records: None
    """gets a trial's records of every chunk of rounds, if this process computes it"""
    on_end: Callable[[Trial, History | Failure], None] = lambda trial, result: None
    log: Callable[[str], None] = logging.getLogger(__name__).warning
    """gets lines about trials, which start with their names"""


QUIET = Listeners()
"""Hears of lines only, which become warnings of Python's `logging`."""


@dataclasses.dataclass(frozen=True)
class Work:
    """What a sweep is computed with."""

    recipe: Recipe
    changed: sweep_folder.Changed | None = None
    """see `sweep_folder.open_folder`"""
    shard: tuple[int, int] = (1, 1)
    """see `executors.read_shard`"""
    slots: Sequence[Slot] = ()
    """see `executors.opened`"""
    on_last: Callable[[], None] = lambda: None
    """see `executors.compute`"""
    identities: Mapping[str, Identity] = dataclasses.field(default_factory=dict)
    """of what is given, of the objects and of the metrics; see `sweep_folder.Stored.objects`"""

    @functools.cached_property
    def prepared(self) -> trial_runs.Prepared:
        """The recipe with what this process keeps for it."""
        return trial_runs.prepare(self.recipe)


def by_program(trials: Sequence[Trial]) -> dict[tuple, list[Trial]]:
    """Returns the trials by `trial_runs.program_key`, in the order of first trials."""
    groups: dict[tuple, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial_runs.program_key(trial), []).append(trial)
    return groups


def of_shard(trials: Sequence[Trial], shard: tuple[int, int]) -> list[Trial]:
    """Returns the trials of a shard; see `executors.shard_of`."""
    return executors.shard_of(trials, list(map(trial_runs.program_key, trials)), shard)


def compute(
    trials: Sequence[Trial], out: Path | None, work: Work, listeners: Listeners = QUIET
) -> Results:
    """Computes the trials that are not finished; takes over those of another command that dies.

    Trials that have failed, in whichever process, are not tried again; see `sweep_folder.clear_failures`.

    Args:
        trials: of the sweep, or of its tuning.
        out: folder of these; None keeps the results in memory.
        work: what they are computed with.
        listeners: what they report to.

    Raises:
        Stopped: by a signal.
    """
    results: Results = {}
    is_here = any(isinstance(slot.executor, executors.Here) for slot in work.slots)
    folders = {t.name: sweep_folder.trial_folder(out, t.name) if out else None for t in trials}
    pending = [t for t in trials if out is None or not _has_result(folders[t.name], t)]
    if not pending:
        return results
    sent = None if is_here else trial_runs.pack(work.recipe)

    def submit(executor: Any, trial: Trial) -> Any:
        folder = folders[trial.name]
        if sent is not None:
            return executor.submit(trial_runs.compute_sent, sent, trial, folder)
        reports = trial_runs.Listeners(
            functools.partial(listeners.on_records, trial),
            lambda line: listeners.log(f"{trial.name}: {line}"),
        )
        return executor.submit(trial_runs.compute, work.prepared, trial, folder, reports)

    def on_end(trial: Trial, answer: bytes | Computed | Exception) -> str:
        folder = folders[trial.name]
        if isinstance(answer, Exception):
            failure = trial_runs.failure_of(answer)
            trial_runs.record_failure(folder, trial.config, failure)
            answer = Computed("finished", failure)
        computed = pickle.loads(answer) if isinstance(answer, bytes) else answer
        for line in computed.lines:
            listeners.log(f"{trial.name}: {line}")
        if computed.result is not None:
            results[trial.name] = computed.result
            listeners.on_end(trial, computed.result)
        return "held" if computed.status == "held" else computed.signal

    programs = by_program(pending)
    begun = {
        key for key, group in programs.items() if any(_has_begun(folders[t.name]) for t in group)
    }
    queue = executors.Queue(programs, begun)
    catching = contextlib.nullcontext(()) if is_here else endings.catch_signals(log=listeners.log)
    with catching as received:
        stop = executors.compute(
            queue, work.slots, submit, on_end, listeners.log, received, work.on_last
        )
    if stop:
        raise Stopped(stop, results)
    return results


def _has_begun(folder: Path | None) -> bool:
    return folder is not None and folder.exists()


def _has_result(folder: Path | None, trial: Trial) -> bool:
    """Returns whether a trial is finished, or has failed since the command started."""
    assert folder is not None
    has_failed = sweep_folder.read_failure(folder) is not None
    return has_failed or run_folder.is_finished(folder, trial.config)


def compute_plan(
    plan: tuning.Plan, console: Console | None, work: Work
) -> tuple[list[Trial], Results]:
    """Computes the tuning runs, if there are any, and then the trials with the values that these have chosen.

    Args:
        plan: what is computed.
        console: where progress and choices are shown; None for nowhere.
        work: what the trials are computed with.

    Returns:
        The trials, and the results of those that were computed.

    Raises:
        Stopped: by a signal.
        UsageError: a folder cannot be used, or a tuning run has no result.
    """

    def compute_shown(trials: Sequence[Trial], out: Path | None) -> Results:
        trials = of_shard(trials, work.shard)
        if out:
            sweep_folder.clear_failures(out, trials)
        if console is None:
            return compute(trials, out, work)
        with sweep_progress(console, trials, out) as listeners:
            return compute(trials, out, work, listeners)

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
            for condition, choice in choices.items():
                say(console, f"{condition}: {tuning.chosen_text(choice, plan.tuning)}")
        trials, chosen = tuning.chosen_trials(trials, choices), tuning.as_json(plan.tuning, choices)
    if plan.out:
        content = sweep_folder.document(plan.sweep, trials, work.identities, chosen)
        sweep_folder.open_folder(plan.out, content, work.identities, work.changed)
    return trials, compute_shown(trials, plan.out)


# --- checks before the first run

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
    recipe, prepared = work.recipe, work.prepared
    for trial in trials:  # contradictions are found before the data are read
        make_method(trial.config, prepared.recipe.custom_of(trial))
    keys: dict[str, tuple] = {}
    for trial in trials:
        of_model = {name: SETTINGS[name].get(trial.config) for name in OF_MODEL}
        names_tensors = any(of_model[name] for name in OF_TENSORS)
        if names_tensors or any(value is not None for value in recipe.custom_of(trial)):
            data = trial_runs.data_key(trial.config)
            keys[trial.name] = (data, *recipe.names(trial).values(), *of_model.values())
    first_of_each = {keys[trial.name]: trial for trial in reversed(trials) if trial.name in keys}
    declaring: dict[tuple, tuple[Algorithm, Weighting]] = {}
    for key, trial in first_of_each.items():
        try:
            sim = trial_runs.simulation_of(prepared, trial)
        except UsageError as error:
            prefix = f"trial {trial.name}: " if len(first_of_each) > 1 else ""
            raise UsageError(f"{prefix}{error}") from None
        declaring[key] = sim.algorithm, sim.weighting
    declared = {
        parameter.name
        for parts in declaring.values()
        for part in parts
        for parameter in part.hyperparameters
    }
    _refuse_replaced(trials, recipe.custom, declared)
    for trial in trials:
        its = recipe.custom_of(trial)
        if its.hyper:
            algorithm, weighting = declaring[keys[trial.name]]
            pairs = ((algorithm, its.algorithm), (weighting, its.weighting))
            settable = [p.name for part, value in pairs if value for p in part.hyperparameters]
            make_hyper(trial.config, algorithm, weighting, its.hyper, settable)


def _refuse_replaced(trials: Sequence[Trial], custom: Custom, declared: Collection[str]) -> None:
    """Raises UsageError for an axis that has no effect beside a given object, which declares some hyperparameters."""
    replaced = replaced_with(custom.names) | {PASSED[name] for name in custom.names}
    replaced |= {"method"} if replaced & {"algorithm", "weighting"} else set()
    on_axes = dict.fromkeys(name for trial in trials for name in trial.values)
    for name in on_axes:
        if name in replaced and (name not in SETTINGS or name not in declared):
            raise UsageError(
                f"axes: {name} has no effect beside {'=, '.join(custom.names)}=; leave one of them out"
            )


# --- from Python


class Call(NamedTuple):
    """Arguments of `fedvg_jax.run_sweep`."""

    start: Config
    """settings that all trials share"""
    axes: Mapping[Any, Any]
    out: Path | None
    recipe: Recipe
    """with what replaces settings, and with the metrics"""
    progress: bool
    """whether to print a line for every run, or bars on a terminal"""
    tuned: tuning.Tuning | None = None
    changed: sweep_folder.Changed | None = None
    jobs: int | str = 1
    executor: executors.ExecutorOrMaker | None = None
    shard: tuple[int, int] = (1, 1)


def run_sweep(call: Call) -> list[SweepResult]:
    """Returns the results of a sweep, in the order of its trials; those that a signal left out are missing."""
    plan, work = _plan(call)
    machine = hardware.current()
    jobs = executors.num_processes(call.jobs, plan.pending, machine if machine.is_cpu else None)
    if call.executor is not None and call.jobs != 1:
        raise UsageError(f"jobs {call.jobs}: executor has the processes; leave out jobs")
    log = logging.getLogger(__name__).warning
    console = Console() if call.progress else None
    try:
        with contextlib.ExitStack() as stack:
            can_share = stack.enter_context(
                sweep_folder.shared(call.out, log, call.shard != (1, 1))
            )
            jobs = jobs if can_share else 1
            slots = stack.enter_context(executors.opened(call.executor, jobs))
            work = dataclasses.replace(work, slots=slots)
            trials, results = compute_plan(plan, console, work)
    except Stopped as stop:
        if stop.signal == "SIGINT":
            raise KeyboardInterrupt(f"stopped; folder of the sweep: {call.out}") from None
        signal.raise_signal(signal.Signals[stop.signal])
        trials, results = plan.trials, stop.results
    return _listed(trials, results, call.out, work)


def _plan(call: Call) -> tuple[tuning.Plan, Work]:
    """Returns the checked trials of a call, and what they are computed with."""
    sweep_trials.refuse_set(call.start)
    if call.tuned and call.out is None:
        raise UsageError("tune needs out=, a folder for the tuning runs and their choices")
    axes, bundles = named.name_values(call.axes)
    sweep = Sweep(sweep_trials.parse_axes(axes, bundles), start=call.start, bundles=bundles)
    plan = tuning.make_plan(sweep, call.out, call.tuned)
    custom, metrics = call.recipe.custom, call.recipe.metrics
    of_objects = identities(custom, metrics) | _identities(bundles)
    digests = {name: identity.digest for name, identity in of_objects.items()}
    recipe = Recipe(custom, bundles, metrics, digests)
    work = Work(recipe, call.changed, call.shard, identities=of_objects)
    for trial in plan.every:
        tracking.require(trial.config, call.out is not None)
    if custom.data is None:
        sweep_folder.check_sources(plan.every)
    check(plan.every, work)
    return plan, work


def _identities(bundles: named.Bundles) -> dict[str, Identity]:
    """Returns the identities of the objects on axes, by "AXIS NAME"."""
    identified = {}
    for axis, of_axis in bundles.items():
        for name, (objects, _) in of_axis.items():
            if objects:  # that of a single object is its own, as in a run
                value = next(iter(objects.values())) if len(objects) == 1 else objects
                identified[f"{axis} {name}"] = identify(value)
    return identified


def _listed(
    trials: Sequence[Trial], results: Results, out: Path | None, work: Work
) -> list[SweepResult]:
    """Returns the results of trials, from their folders where they have some."""
    names = tuple(trial.name for trial in trials)
    of_data = {n: d for n, d in work.recipe.digests.items() if n in ("data", "partition")}
    listed = []
    for trial in trials:
        result = results.get(trial.name)
        if out:
            folder = sweep_folder.trial_folder(out, trial.name)
            is_finished = run_folder.is_finished(folder, trial.config)
            stored = History.load(folder) if is_finished else None
            # a full disk holds no failure
            result = sweep_folder.read_failure(folder) or stored or result
        if result:
            custom = work.recipe.replaced(trial)
            digests = {**of_data, **work.recipe.code(trial)}
            listed.append(
                SweepResult(trial.name, trial.values, result, trial.config, custom, names, digests)
            )
    return listed


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
def sweep_progress(
    console: Console, trials: Sequence[Trial], out: Path | None
) -> Iterator[Listeners]:
    """Shows trials and rounds as they finish; yields the listeners that do it.

    In a terminal: two bars. Elsewhere: a line per trial of this command, which counts those of others, too.

    Args:
        console: where to print.
        trials: that are computed.
        out: their folder.
    """
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
            others = [each for each in waiting if each.name != trial.name]
            waiting[:] = [t for t in others if not (out and sweep_folder.is_done(out, t))]
            num_done = len(trials) - len(waiting)
            log(f"{num_done}/{len(trials)}  {trial.name}: {result_text(result)}, {left()}")
            progress.update(bar, completed=num_done, text=left())

        yield Listeners(count, end, log)


def result_text(result: History | Failure) -> str:
    """Returns the result of a trial in a few words."""
    if isinstance(result, Failure):
        return f"{result.kind} in round {result.round} ({result.reason})"
    name = "accuracy" if "test_accuracy_final" in result.summary else "loss"
    value = result.summary.get(f"test_{name}_final")
    text = f"{value:.2%}" if name == "accuracy" and value is not None else f"{value}"
    return f"test {name} {text}, {result.summary['run_seconds']:.1f} s"
