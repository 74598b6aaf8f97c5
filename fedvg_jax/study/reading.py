"""Reads run folders and sweeps for a report: results, and why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config.checks import PASSED
from fedvg_jax.host import files
from fedvg_jax.host.errors import UsageError, one_line
from fedvg_jax.runs import endings
from fedvg_jax.runs.record import folder as run_folder
from fedvg_jax.runs.record.history import History
from fedvg_jax.study import outcomes, sweep_folder
from fedvg_jax.study.places import settings_of
from fedvg_jax.study.run import Run
from fedvg_jax.study.sweep_folder import Failure, Stored, StoredTrial


class Folder(NamedTuple):
    """What a run folder, or a trial of a sweep, has to offer."""

    name: str
    settings: Mapping[str, Any]
    """See `places.settings_of`."""
    run: Run | None = None
    """None where the run is missing, incomplete or has failed."""
    problem: str = ""
    """What is wrong with the run, in one line."""
    kind: str = ""
    """Of the problem: "missing", "diverged", "failed", or "stopped" before its last round by a callback."""


def read_all(folders: Sequence[Path]) -> tuple[list[Folder], list[Stored]]:
    """Returns every run below these folders, and their sweeps."""
    runs: list[Folder] = []
    sweeps: list[Stored] = []
    for folder in folders:
        if (folder / sweep_folder.DOCUMENT).exists():
            sweeps.append(sweep_folder.read(folder))
            runs += [_read_trial(folder, sweeps[-1], name) for name in sweeps[-1].trials]
        elif run_folder.is_run(folder):
            runs.append(_read_run(folder))
        else:
            paths = sorted(folder.iterdir()) if folder.is_dir() else []
            inner = [path for path in paths if _holds_runs(path)]
            if not inner:
                raise UsageError(f"{folder} holds no runs; name the folder of a sweep or of runs")
            of_inner = read_all(inner)
            runs += of_inner[0]
            sweeps += of_inner[1]
    return runs, sweeps


def _holds_runs(path: Path) -> bool:
    return (path / sweep_folder.DOCUMENT).exists() or run_folder.is_run(path)


def _read_trial(out: Path, sweep: Stored, name: str) -> Folder:
    """Returns what the folder of a sweep's trial has to offer."""
    folder, trial = sweep_folder.trial_folder(out, name), sweep.trials[name]
    try:
        return _read_run(folder, trial)
    except UsageError as error:
        settings = settings_of(trial.config, trial.values, trial.custom)
        problem = one_line(str(error)) if folder.exists() else "no run folder yet"
        return Folder(name, settings, problem=f"{name}: {problem}", kind="missing")


def _read_run(folder: Path, trial: StoredTrial | None = None) -> Folder:
    """Returns what a run folder has to offer.

    Args:
        folder: of the run.
        trial: that the sweep of the run has for it; None without a sweep.

    Raises:
        UsageError: its settings or results cannot be read, or belong to another trial.
    """
    history = History.load(folder)
    partition, manifest = (
        files.read_object_if_any(folder / f"{stem}.json") for stem in ("partition", "manifest")
    )
    layers = files.read_json(folder / "layers.json") if (folder / "layers.json").exists() else ()
    assert history.config is not None
    if trial and (changed := run_folder.differences(trial.config, history.config)):
        raise UsageError(f"other settings than those of the sweep: {changed[0]}")
    custom = passed(trial.custom if trial else {}, manifest)
    settings = settings_of(history.config, names_of(history, trial.values if trial else {}), custom)
    failure = sweep_folder.read_failure(folder)
    if failure is None and history.summary.get("stopped_by") == "diverged":
        failure = Failure("diverged", len(endings.until_first(history.records)), "not finite")
    if failure is None and not run_folder.is_finished(folder, history.config):
        problem = f"{len(history.records)} of {history.config.rounds} rounds"
        return Folder(folder.name, settings, problem=f"{folder.name}: {problem}", kind="missing")
    run = Run(folder, history, partition, manifest, layers, custom)
    return offered(folder.name, settings, failure or run)


def passed(custom: Mapping[str, str], recorded: Mapping[str, Any]) -> dict[str, str]:
    """Returns what Python passed in place of settings, with what a manifest or a summary has recorded."""
    others = recorded.get("custom", {}).items()
    return {**custom, **{argument: text for argument, text in others if argument in PASSED}}


def names_of(history: History, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a trial, with the names that its run has recorded."""
    return {**history.summary.get("names", {}), **values}


def offered(name: str, settings: Mapping[str, Any], result: Run | Failure) -> Folder:
    """Returns a run that has ended, or why it failed."""
    if isinstance(result, Failure):
        when = f" in round {result.round}" if result.round else ""
        reason = one_line(result.reason).removeprefix(f"round {result.round}: ")
        problem = f"{name}: {result.kind}{when}: {reason}"
        return Folder(name, settings, problem=problem, kind=result.kind)
    if not outcomes.evaluations(result.records):
        return Folder(
            name, settings, problem=f"{name}: no evaluation in its history", kind="missing"
        )
    problem = f"{name}: {result.stop}" if result.stop else ""
    return Folder(name, settings, result, problem, "stopped" if problem else "")
