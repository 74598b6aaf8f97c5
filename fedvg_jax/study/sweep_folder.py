"""The folder of a sweep: sweep.json, and one run folder per trial.

sweep.json             the axes, and all settings of every trial
trials/NAME/           the run folder of a trial
trials/NAME/failure.json  why the trial did not finish
trials/NAME/.claim     locked by the process that computes the trial
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fedvg_jax import config as configs
from fedvg_jax.config import Config, checks
from fedvg_jax.data import datasets
from fedvg_jax.host import files
from fedvg_jax.host.errors import UsageError
from fedvg_jax.runs.record import folder as run_folder, stored as records
from fedvg_jax.runs.record.history import History
from fedvg_jax.study.sweep_trials import Trial

T = TypeVar("T", bound=tuple)

DOCUMENT = "sweep.json"
TRIALS = "trials"
FAILURE = "failure.json"
CLAIM = ".claim"
OPENING = ".opening"
"""Locked by the process that makes or checks the folder of a sweep."""


class Failure(NamedTuple):
    """Why a trial did not finish; it takes the place of the trial's history.

    Attributes:
        kind: "diverged", which the same settings always do, or "failed": an error of settings, files or memory.
        round: The last round that is recorded; 0 if there is none.
        reason: One line.
        traceback: Traceback of an error; "" after a divergence.
    """

    kind: str
    round: int
    reason: str
    traceback: str = ""


def trial_folder(out: Path, name: str) -> Path:
    """Returns the run folder of a trial."""
    return out / TRIALS / name


class Stored(NamedTuple):
    """The content of sweep.json."""

    title: str
    axes: Sequence[str]
    """settings that vary"""
    trials: dict[str, Trial]
    """by name; of the settings, those that change no result, such as folders, are not stored"""
    objects: Mapping[str, str] = {}
    """object from Python, such as "data", "weighting NAME" or "metric NAME" -> its digest"""
    tuning: Mapping[str, Any] = {}
    """see `tuning.as_json`; {} without it"""


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """The result of one trial of a sweep.

    Attributes:
        trial: What was computed.
        result: The history, or a `Failure` if the trial diverged or failed.
        sweep: The sweep of the trial; None for a run without one.
        manifest: Digests of the objects from Python that the trial uses, as in manifest.json.
    """

    trial: Trial
    result: History | Failure
    sweep: Stored | None = dataclasses.field(default=None, repr=False)
    manifest: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """Name of the trial's folder."""
        return self.trial.name

    @property
    def values(self) -> dict[str, Any]:
        """The axes' values that the trial uses, by setting."""
        return self.trial.values

    @property
    def config(self) -> Config:
        """The settings of the trial."""
        return self.trial.config


def write(out: Path, stored: Stored) -> None:
    """Writes sweep.json."""
    content, trials = stored._asdict(), []
    for trial in stored.trials.values():
        flat = configs.flatten(trial.config)
        config = {name: value for name, value in flat.items() if name not in checks.HOST}
        trials.append(trial._asdict() | {"config": config})
    run_folder.write_json(out / DOCUMENT, checks.plain(content | {"trials": trials}))


def read(out: Path) -> Stored:
    """Returns the content of sweep.json.

    Raises:
        UsageError: it is missing or damaged.
    """
    path = out / DOCUMENT
    content = files.read_object(path)
    try:
        trials = {}
        for entry in content["trials"]:
            config = configs.apply(Config(), entry.pop("config"), str(path))
            trials[entry["name"]] = _typed(Trial(config=config, **entry), *TRIAL)
        content["trials"] = trials
        return _typed(Stored(**content), *STORED)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is damaged, or of another version ({type(error).__name__} {error}); name another folder, or report"
            f" the runs in {out / TRIALS}"
        ) from None


TRIAL, STORED = (str, dict, Config, dict, dict), (str, list, dict, dict, dict)
"""Types of the fields of a `Trial` and of `Stored` in sweep.json."""


def _typed(entry: T, *types: type) -> T:
    """Returns an entry of sweep.json; TypeError if a field has another type."""
    if not all(map(isinstance, entry, types)):
        raise TypeError(f"a field of {type(entry).__name__}")
    return entry


def refuse_taken(out: Path) -> None:
    """Raises UsageError for a folder that holds something else than a sweep."""
    # listed first: another process writes sweep.json before the others
    entries = out.iterdir() if out.is_dir() else []
    others = [path for path in entries if path.name[0] != "." and path.name != "tuning"]
    if (others or out.is_file()) and not (out / DOCUMENT).exists():
        raise UsageError(f"{out} is taken and holds no sweep; name another folder with --out")


def open_folder(out: Path, new: Stored) -> None:
    """Makes the folder of a sweep, or checks that an existing one is of the same sweep.

    A sweep may gain trials; it may not lose or change any.

    Args:
        out: the folder.
        new: the sweep, with tuned values where settings are tuned.

    Raises:
        UsageError: the folder holds something else, or another sweep; or it cannot be written.
    """
    with files.writing(f"the folder of the sweep {out}", "--out"):
        refuse_taken(out)
        out.mkdir(parents=True, exist_ok=True)
        with files.claimed(out / OPENING, waits=True):
            if (out / DOCUMENT).exists():
                _refuse_other(out, read(out), new)
            write(out, new)


def _refuse_other(out: Path, stored: Stored, new: Stored) -> None:
    """Raises UsageError if a folder has trials that a sweep lacks, or computed some with other settings or objects."""
    for name, trial in stored.trials.items():
        changes = [f"no trial {name}"]
        if name in new.trials:  # data in another folder are compared by their digests
            other = new.trials[name].config
            differences = run_folder.differences(trial.config, other, {"data_dir", *checks.HOST})
            changes = [f"{change} in {name}" for change in differences]
        if changes:
            raise UsageError(
                f"{out} holds another sweep; this one has {changes[0]}; repeat its settings, or name another folder"
            )
    for name in {**stored.objects, **new.objects}:
        argument, _, value = name.partition(" ")
        if stored.objects.get(name) == new.objects.get(name):
            continue
        for trial, its in stored.trials.items():
            # an object of an axis belongs to the trials that have its name; the others belong to all
            is_used = its.values.get(argument, value) == value
            if is_used and (trial_folder(out, trial) / records.HISTORY).exists():
                raise UsageError(
                    f"{name} is not the one that {trial} was computed with, or cannot be compared;"
                    " name another folder, or remove the trials that were computed with it"
                )


def check_sources(trials: Sequence[Trial]) -> None:
    """Raises UsageError for data sets or pretrained weights that a trial would not find."""
    for trial in trials:
        config = trial.config
        cached = config.cache_dir and config.cache_dir / "data"
        size = datasets.parse_size(config.image_size)
        datasets.check(config.dataset, config.data_dir, cached, size=size, splits=config.splits)
        for path in (config.init, config.validation.data_dir):
            if path and not path.exists():
                raise UsageError(f"{path}: no such file or folder")


def read_failure(folder: Path) -> Failure | None:
    """Returns why a trial did not finish; None if it finished, or was not computed."""
    try:
        return Failure(**files.read_object(folder / FAILURE))
    except (UsageError, TypeError):
        return None


def write_failure(folder: Path | None, config: Config, failure: Failure) -> None:
    """Writes failure.json to a trial's folder, if it has one; on a full disk the trial stays unfinished."""
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "config.json").exists():
            run_folder.write_json(folder / "config.json", configs.to_json(config))
        run_folder.write_json(folder / FAILURE, failure._asdict())


def is_done(folder: Path, config: Config) -> bool:
    """Returns whether nothing is left to compute: the trial in a folder is finished, or it diverged."""
    failure = read_failure(folder)
    if failure is None:
        return run_folder.is_finished(folder, config.rounds)
    return failure.kind == "diverged"


def pending(out: Path | None, trials: Sequence[Trial]) -> list[Trial]:
    """Returns the trials that are left to compute; all without a folder."""
    if out is None:
        return list(trials)
    return [trial for trial in trials if not is_done(trial_folder(out, trial.name), trial.config)]


def refuse_unfinished(out: Path, trials: Sequence[Trial]) -> None:
    """Raises UsageError unless nothing is left to compute of the trials: they are finished, or they diverged.

    Args:
        out: folder of the trials.
        trials: which were computed, unless they failed or the process that held them was lost.
    """
    left = pending(out, trials)
    if left:
        name = left[0].name
        failure = read_failure(trial_folder(out, name))
        reason = f": {failure.reason}" if failure else ""
        raise UsageError(
            f"{count(len(left))} not finished, such as {name}{reason}; the same command tries again"
        )


def count(number: int, noun: str = "trial") -> str:
    """Returns a number of things in words.

    >>> count(1), count(2, "seed")
    ('1 trial', '2 seeds')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def clear(folder: Path) -> None:
    """Removes the files of a trial that was interrupted before its first checkpoint."""
    for name in run_folder.FILES:
        (folder / name).unlink(missing_ok=True)
    records.remove_checkpoints(folder)
