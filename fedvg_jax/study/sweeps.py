"""Computes the tuning runs and the trials of a sweep; and `run_sweep` of Python.

Finished trials are skipped, one that was interrupted continues from its checkpoint, and one that fails is recorded,
stops nothing, and is tried again by the next command.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import logging
import pickle
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedvg_jax.config import SETTINGS, Config
from fedvg_jax.config.checks import PASSED
from fedvg_jax.core import checks
from fedvg_jax.core.identity import identify
from fedvg_jax.host.errors import UsageError
from fedvg_jax.resolve.custom import digests_of
from fedvg_jax.resolve.experiment import hyper_of
from fedvg_jax.resolve.method import make_method
from fedvg_jax.resolve.texts import settle
from fedvg_jax.runs import endings
from fedvg_jax.runs.record import folder as run_folder
from fedvg_jax.runs.record.history import History
from fedvg_jax.study import executors, named, sweep_folder, sweep_trials, trial_runs, tuning
from fedvg_jax.study.executors import Slot, Stopped
from fedvg_jax.study.sweep_folder import Failure, Stored, SweepResult
from fedvg_jax.study.sweep_trials import Layer, Sweep, Trial
from fedvg_jax.study.trial_runs import Computed, Recipe
from fedvg_jax.views import output

Results = dict[str, History | Failure]
"""Name of a trial that this process has computed, or had computed -> its result."""


@dataclasses.dataclass(frozen=True)
class Work:
    """What a sweep is computed with."""

    recipe: Recipe
    shard: str = "1/1"
    """see `executors.of_shard`"""
    slots: Sequence[Slot] = ()
    """see `executors.opened`"""
    show: output.Log = lambda line: None
    """gets a line for every trial that ends, and for every choice of tuning"""
    log: output.Log = logging.getLogger(__name__).warning
    """gets what is unusual about trials, in lines that start with their names"""

    @functools.cached_property
    def prepared(self) -> trial_runs.Prepared:
        """The recipe with what this process keeps for it."""
        return trial_runs.prepare(self.recipe)


def compute(trials: Sequence[Trial], out: Path | None, work: Work) -> Results:
    """Computes the trials that are not finished; takes over the trials of another command that dies.

    Args:
        trials: of the sweep, or of its tuning.
        out: folder of these; None keeps the results in memory.
        work: what they are computed with.

    Raises:
        Stopped: by a signal.
    """
    results: Results = {}
    is_here = any(isinstance(slot.executor, executors.Here) for slot in work.slots)
    left = sweep_folder.pending(out, trials)
    sent = trial_runs.pack(work.recipe) if left and not is_here else None
    programs = collections.defaultdict(list)
    for trial in left:
        programs[trial_runs.program_key(work.recipe, trial)].append(trial)

    def submit(executor: Any, trial: Trial) -> Any:
        if sent is not None:
            return executor.submit(trial_runs.compute_sent, sent, trial, out)
        log = functools.partial(_log_of, trial, work)
        return executor.submit(trial_runs.compute, work.prepared, trial, out, log)

    def on_end(trial: Trial, answer: bytes | Computed | BaseException) -> bool:
        if isinstance(answer, BaseException):
            failure = trial_runs.failure_of(answer)
            folder = out and sweep_folder.trial_folder(out, trial.name)
            sweep_folder.write_failure(folder, trial.config, failure)
            answer = Computed(failure)
        with checks.calling(f"the result of executor, {answer!r:.50},"):
            computed = pickle.loads(answer) if isinstance(answer, bytes) else answer
            lines = computed.lines
        for line in lines:
            _log_of(trial, work, line)
        if computed.is_held:
            return True
        left.remove(trial)
        if computed.result is not None:
            results[trial.name] = computed.result
            done = f"{len(trials) - len(left)}/{len(trials)}"
            work.show(f"{done}  {trial.name}: {result_text(computed.result)}")
        if computed.signal:
            raise Stopped(computed.signal)
        return False

    catching = contextlib.nullcontext(()) if is_here else endings.catch_signals(log=work.log)
    with catching as received:
        executors.compute(programs, work.slots, submit, on_end, work.log, received)
    return results


def _log_of(trial: Trial, work: Work, line: str) -> None:
    work.log(f"{trial.name}: {line}")


def compute_plan(plan: tuning.Plan, work: Work) -> tuple[Stored, Results]:
    """Computes the tuning runs, if there are any, and then the trials with the values that these have chosen.

    Returns:
        The sweep with the values that tuning has chosen, and the results of the trials that were computed.

    Raises:
        Stopped: by a signal.
        UsageError: some trial cannot work, a folder cannot be used, or a tuning run has no result.
    """
    pending = plan.pending
    for trial in pending:
        output.check_targets(trial.config.export, trial.config.track, plan.out is not None)
    if work.recipe.custom.data is None:
        sweep_folder.check_sources(pending)
    check(pending, work)
    trials, chosen = plan.trials, {}
    if plan.out and plan.tuning:
        sweep_folder.refuse_taken(plan.out)
        grid, tried = plan.out / tuning.FOLDER, plan.tuning_trials
        _compute_in(grid, tuning.tuning_sweep(plan.sweep, plan.tuning), tried, work)
        choices = tuning.choose(grid, tried, plan.tuning)
        for condition, choice in choices.items():
            values = tuning.values_text(choice.values, plan.tuning.settings)
            work.show(f"{condition}: {values} (validation {choice.metric} {choice.score:.4g})")
        trials, chosen = tuning.chosen_trials(trials, choices), tuning.as_json(plan.tuning, choices)
    return _compute_in(plan.out, plan.sweep, trials, work, chosen)


def _compute_in(
    out: Path | None,
    sweep: Sweep,
    trials: Sequence[Trial],
    work: Work,
    chosen: Mapping[str, Any] = {},
) -> tuple[Stored, Results]:
    """Computes this command's part of the trials in the folder of their sweep, which it opens; see `compute`."""
    by_name = {trial.name: trial for trial in trials}
    stored = Stored(sweep.title, sweep.names, by_name, work.recipe.digests, chosen)
    if out:
        sweep_folder.open_folder(out, stored)
    return stored, compute(executors.of_shard(trials, work.shard), out, work)


def result_text(result: History | Failure) -> str:
    """Returns the result of a trial in a few words."""
    if isinstance(result, Failure):
        return f"{result.kind} in round {result.round} ({result.reason})"
    name = "accuracy" if "test_accuracy_final" in result.summary else "loss"
    value = result.summary.get(f"test_{name}_final")
    return f"test {name} {value}" if value is None else f"test {name} {value:.4f}"


# --- checks before the first run

OF_TENSORS = ("train", "lora", "local", "fedvg.include", "init")
"""Settings that name tensors or sizes of a model, which only its building can check."""


def check(trials: Sequence[Trial], work: Work) -> None:
    """Checks the caller's objects, and the settings of tensors, before the first run.

    Raises:
        UsageError: a hyperparameter is unknown or out of range, or a model, the data, the partition or an object cannot
            be used.
    """
    recipe, prepared = work.recipe, work.prepared
    for trial in trials:  # contradictions are found before the data are read
        make_method(trial.config, prepared.recipe.custom_of(trial))
    built = {}
    for trial in trials:
        config, custom = trial.config, recipe.custom_of(trial)
        of_tensors = [SETTINGS[name].get(config) for name in OF_TENSORS]
        if not any(of_tensors) and all(value is None for value in custom):
            continue
        of_model = trial_runs.data_key(config), config.model, config.norm_layers
        key = (*of_model, *of_tensors, recipe.key_of_objects(trial))
        try:
            if key not in built:
                sim = trial_runs.simulation_of(prepared, trial)
                built[key] = sim.algorithm, sim.weighting
            hyper_of(config, custom, *built[key])
        except UsageError as error:
            prefix = f"trial {trial.name}: " if len(trials) > 1 else ""
            raise UsageError(f"{prefix}{error}") from None


# --- from Python


def run_sweep(
    start: Config,
    axes: Mapping[Any, Any],
    out: Path | None,
    recipe: Recipe,
    tuned: tuning.Tuning | None,
    *,
    jobs: int | str,
    executor: executors.ExecutorOrMaker | None,
    shard: str,
    is_shown: bool,
) -> list[SweepResult]:
    """Returns the results of `fedvg_jax.run_sweep`, in the order of its trials.

    Args:
        start: settings that all trials share.
        axes: with objects.
        out: folder of the sweep.
        recipe: with what replaces settings, and with the metrics.
        tuned: what is tuned.
        jobs, executor, shard: as in `fedvg_jax.run_sweep`.
        is_shown: whether to print a line for every trial.
    """
    if tuned and out is None:
        raise UsageError("tune needs out=, a folder for the tuning runs and their choices")
    if executor is not None and jobs != 1:
        raise UsageError(f"jobs {jobs}: executor has the processes; leave out jobs")
    start, custom = settle(start, recipe.custom)
    arguments = recipe.custom.names
    plain, methods = named.name_values(axes, start, tuned.settings if tuned else ())
    layer = Layer(sweep_trials.parse_axes(plain, named=methods))
    sweep = Sweep((layer,), start, "", methods, custom.names)
    plan = tuning.make_plan(sweep, out, tuned)
    recipe = recipe._replace(custom=custom, named=methods)
    _refuse_replaced(arguments, recipe, start, (*plan.trials, *plan.tuning_trials))
    count = executors.num_processes(jobs, plan.pending)
    digests = digests_of(recipe.custom, recipe.metrics)
    for axis, meanings in methods.items():
        for name, (objects, _) in meanings.items():
            if objects:  # a single object has its digest, as in a run
                value = objects if len(objects) > 1 else next(iter(objects.values()))
                digests[f"{axis} {name}"] = identify(value)
    show = functools.partial(output.say, Console())
    listeners = {"show": show, "log": show} if is_shown else {}
    try:
        with executors.opened(executor, count) as slots:
            work = Work(recipe._replace(digests=digests), shard, slots, **listeners)
            stored, results = compute_plan(plan, work)
    except Stopped as stop:
        if str(stop) != "SIGINT":
            signal.raise_signal(signal.Signals[str(stop)])
        raise KeyboardInterrupt(f"stopped; folder of the sweep: {out}") from None
    return _listed(stored, results, out, work)


def _refuse_replaced(
    arguments: Iterable[str], recipe: Recipe, start: Config, trials: Sequence[Trial]
) -> None:
    """Raises UsageError for an object of all trials in whose place a trial has another, or another setting."""
    for argument, trial in itertools.product(arguments, trials):
        setting, its = SETTINGS[PASSED[argument]], getattr(recipe.custom_of(trial), argument)
        is_kept = its is getattr(recipe.custom, argument)
        if not is_kept or setting.get(trial.config) != setting.get(start):
            raise UsageError(
                f"{argument}= is for all trials, and {trial.name} has another; leave it out, or put it into each"
                " fv.Method"
            )


def _listed(sweep: Stored, results: Results, out: Path | None, work: Work) -> list[SweepResult]:
    """Returns the results of trials, from their folders where they have some."""
    of_data = {n: d for n, d in work.recipe.digests.items() if n in ("data", "partition")}
    listed = []
    for trial in sweep.trials.values():
        result = results.get(trial.name)
        if out:
            folder = sweep_folder.trial_folder(out, trial.name)
            is_finished = run_folder.is_finished(folder, trial.config.rounds)
            stored = History.load(folder) if is_finished else None
            # a full disk holds no failure
            result = sweep_folder.read_failure(folder) or stored or result
        if result:
            manifest = {**of_data, "code": work.recipe.code(trial)}
            listed.append(SweepResult(trial, result, sweep, manifest))
    return listed
