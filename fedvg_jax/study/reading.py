"""Reads run folders and sweeps for a report: results, and why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedvg_jax.host import files
from fedvg_jax.host.errors import UsageError, one_line
from fedvg_jax.runs import endings
from fedvg_jax.runs.record import folder as run_folder
from fedvg_jax.runs.record.history import History
from fedvg_jax.study import outcomes, sweep_folder
from fedvg_jax.study.places import settings_of
from fedvg_jax.study.run import Run
from fedvg_jax.study.sweep_folder import Failure, Stored, SweepResult
from fedvg_jax.study.sweep_trials import Settings, Trial


class Folder(NamedTuple):
    """What a run folder, or a trial of a sweep, has to offer."""

    name: str
    settings: Settings
    """See `places.settings_of`."""
    run: Run | None
    """None where the run is missing, incomplete or has failed."""
    problem: str = ""
    """What is wrong with the run, in one line."""
    kind: str = ""
    """Of the problem: "missing", "diverged", "failed", or "stopped" before its last round by a callback."""


def read_all(folders: Sequence[Path]) -> tuple[list[Folder], list[Stored]]:
    """Returns every run below these folders, and their sweeps."""
    runs, sweeps = [], []
    for folder in folders:
        sources = [folder]
        if not (_is_sweep(folder) or run_folder.is_run(folder)):
            inner = sorted(folder.glob("*"))
            sources = [path for path in inner if _is_sweep(path) or run_folder.is_run(path)]
        if not sources:
            raise UsageError(f"{folder} holds no runs; name the folder of a sweep or of runs")
        for source in sources:
            if _is_sweep(source):
                sweeps.append(sweep_folder.read(source))
                runs += [read_trial(source, trial) for trial in sweeps[-1].trials.values()]
            else:
                runs.append(_read_run(source))
    return runs, sweeps


def _is_sweep(folder: Path) -> bool:
    return (folder / sweep_folder.DOCUMENT).exists()


def read_trial(out: Path, trial: Trial) -> Folder:
    """Returns what the folder of a sweep's trial has to offer."""
    folder = sweep_folder.trial_folder(out, trial.name)
    try:
        return _read_run(folder, trial)
    except UsageError as error:
        problem = str(error) if folder.exists() else "no run folder yet"
        return _lost(trial.name, settings_of(trial), "missing", problem)


def _read_run(folder: Path, trial: Trial | None = None) -> Folder:
    """Returns what a run folder has to offer.

    Args:
        folder: of the run.
        trial: that the sweep of the run has for it; None without a sweep.

    Raises:
        UsageError: its settings or results cannot be read, or belong to another trial.
    """
    history = History.load(folder)
    partition = files.read_object_if_any(folder / "partition.json")
    manifest = files.read_object_if_any(folder / "manifest.json")
    assert history.config is not None
    if trial and (changed := run_folder.differences(trial.config, history.config)):
        raise UsageError(f"other settings than those of the sweep: {changed[0]}")
    custom, names = manifest.get("custom", {}), history.summary.get("names", {})
    trial = trial or Trial(folder.name, {}, history.config, custom, names)
    settings = settings_of(trial._replace(config=history.config))
    failure = sweep_folder.read_failure(folder)
    if failure is None and history.summary.get("stopped_by") == "diverged":
        failure = Failure("diverged", len(endings.until_first(history.records)[0]), "not finite")
    if failure is None and not run_folder.is_finished(folder, history.config.rounds):
        problem = f"{len(history.records)} of {history.config.rounds} rounds"
        return _lost(folder.name, settings, "missing", problem)
    run = Run(folder, history, partition, manifest, trial.custom)
    return _offered(folder.name, settings, failure or run)


def read_result(each: SweepResult) -> Folder:
    """Returns what the result of a trial has to offer, from its run folder if it has one."""
    result = each.result
    if isinstance(result, History):
        if result.folder:
            return _read_run(result.folder, each.trial)
        result = Run(Path(each.name), result, {}, each.manifest, each.trial.custom)
    return _offered(each.name, settings_of(each.trial), result)


def _offered(name: str, settings: Settings, result: Run | Failure) -> Folder:
    """Returns a run that has ended, or why it failed."""
    if isinstance(result, Failure):
        when = f" in round {result.round}" if result.round else ""
        reason = one_line(result.reason).removeprefix(f"round {result.round}: ")
        return _lost(name, settings, result.kind, f"{result.kind}{when}: {reason}")
    if not outcomes.evaluations(result.records):
        return _lost(name, settings, "missing", "no evaluation in its history")
    folder = Folder(name, settings, result)
    if result.stop:
        return folder._replace(problem=f"{name}: {result.stop}", kind="stopped")
    return folder


def _lost(name: str, settings: Settings, kind: str, problem: str) -> Folder:
    """Returns what is known of a run without a result."""
    return Folder(name, settings, None, f"{name}: {problem}", kind)
