"""Reads run folders and sweeps for a report: results, and why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config import Config
from fedvg_jax.config.uses import PASSED
from fedvg_jax.host import files
from fedvg_jax.host.errors import UsageError, one_line
from fedvg_jax.runs import endings
from fedvg_jax.runs.record import folder as run_folder
from fedvg_jax.runs.record.history import History
from fedvg_jax.study import outcomes, sweep_folder
from fedvg_jax.study.places import settings_of
from fedvg_jax.study.run import Run
from fedvg_jax.study.sweep_folder import Stored, StoredTrial


class Folder(NamedTuple):
    """What a run folder, or a trial of a sweep, has to offer."""

    name: str
    settings: Mapping[str, Any]
    """See `places.settings_of`."""
    run: Run | None = None
    """None where the run is missing, incomplete or has failed."""
    missing: str = ""
    """Why there is no result, except for a failure."""
    failure: str = ""
    kind: str = ""
    """Of the failure: "diverged" or "failed"."""


def read_all(folders: Sequence[Path]) -> tuple[list[Folder], list[str], list[Stored]]:
    """Returns every run below the given folders, a line for each run that lost its settings, and their sweeps."""
    runs: list[Folder] = []
    lost: list[str] = []
    sweeps: list[Stored] = []
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder; name a sweep, a run, or a folder of runs")
        if (folder / sweep_folder.DOCUMENT).exists():
            sweep = sweep_folder.read(folder)
            sweeps.append(sweep)
            for name, trial in sweep.trials.items():
                runs.append(_read_trial(sweep_folder.trial_folder(folder, name), trial))
        elif run_folder.is_run(folder):
            read = _read_run(folder)
            if isinstance(read, str):
                lost.append(read)
            else:
                runs.append(read)
        else:
            inner = read_all(_folders_of_runs(folder))
            runs += inner[0]
            lost += inner[1]
            sweeps += inner[2]
    return runs, lost, sweeps


def _folders_of_runs(folder: Path) -> list[Path]:
    """Returns the sweeps and runs in a folder; UsageError without any."""
    inner = [path for path in sorted(folder.iterdir()) if _holds_runs(path)]
    if not inner:
        trials = folder / sweep_folder.TRIALS
        hint = f", such as {trials}" if trials.is_dir() else ""
        raise UsageError(
            f"{folder} holds no runs (no sweep.json, config.json); name a sweep or a run{hint}"
        )
    return inner


def _holds_runs(path: Path) -> bool:
    return (path / sweep_folder.DOCUMENT).exists() or run_folder.is_run(path)


def _read_trial(folder: Path, trial: StoredTrial) -> Folder:
    """Returns what the folder of a sweep's trial has to offer."""
    custom = trial.custom
    read = _read_run(folder, trial.values, custom, trial.config)
    if isinstance(read, str):
        return Folder(folder.name, settings_of(trial.config, trial.values, custom), missing=read)
    return read


def _read_run(
    folder: Path,
    values: Mapping[str, Any] = {},
    custom: Mapping[str, str] = {},
    planned: Config | None = None,
) -> Folder | str:
    """Returns what a run folder has to offer, or why its settings are lost; damaged files are one line.

    Args:
        folder: of the run.
        values, custom: see `settings_of`.
        planned: settings that the sweep of the run has for it.
    """
    name = folder.name
    if not (folder / "config.json").exists():
        return f"{name}: {'config.json is missing' if run_folder.is_run(folder) else 'no run folder yet'}"
    try:
        history = History.load(folder)
        partition, manifest = (
            files.read_object_if_any(folder / f"{stem}.json") for stem in ("partition", "manifest")
        )
        layers = (
            files.read_json(folder / "layers.json") if (folder / "layers.json").exists() else ()
        )
    except UsageError as error:
        return f"{name}: {one_line(str(error))}"
    assert history.config is not None
    if planned and (changed := run_folder.differences(planned, history.config)):
        return f"{name}: other settings than those of the sweep: {changed[0]}"
    recorded = {
        argument: text
        for argument, text in manifest.get("custom", {}).items()
        if argument in PASSED
    }
    custom = {**custom, **recorded}
    values = {**history.summary.get("names", {}), **values}
    read = Folder(name, settings_of(history.config, values, custom))
    kind, failure = _failure(folder, history)
    if not kind and (problem := _unfinished(folder, history)):
        return read._replace(missing=f"{name}: {problem}")
    if kind:
        return read._replace(failure=f"{name}: {failure}", kind=kind)
    return read._replace(run=Run(folder, history, partition, manifest, layers, custom))


def _failure(folder: Path, history: History) -> tuple[str, str]:
    """Returns the kind and the text of why a run ended early for good; empty where it did not."""
    if failure := sweep_folder.read_failure(folder):
        return failure.kind, failure_text(failure)
    if history.summary.get("stopped_by") == "diverged":
        return "diverged", f"diverged in round {len(endings.until_first(history.records))}"
    return "", ""


def failure_text(failure: sweep_folder.Failure) -> str:
    """Returns why a trial did not finish, in one line."""
    when = f" in round {failure.round}" if failure.round else ""
    reason = one_line(failure.reason).removeprefix(f"round {failure.round}: ")
    return f"{failure.kind}{when}: {reason}"


def _unfinished(folder: Path, history: History) -> str:
    """Returns what a run lacks; empty for a finished one."""
    assert history.config is not None
    if not run_folder.is_finished(folder, history.config):
        return f"{len(history.records)} of {history.config.rounds} rounds"
    return "" if outcomes.evaluations(history.records) else "no evaluation in its history"
