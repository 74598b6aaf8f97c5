"""The folder of a sweep: sweep.json, and one run folder per trial. No jax.

sweep.json             the axes, and all settings of every trial
trials/NAME/           the run folder of a trial
trials/NAME/failure.json  why the trial did not finish
trials/NAME/.claim     locked by the process that computes the trial
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedvg_jax import config as configs
from fedvg_jax.config import Config, uses
from fedvg_jax.config.options import choice
from fedvg_jax.data import datasets, images
from fedvg_jax.host import files
from fedvg_jax.host.errors import UsageError, one_line
from fedvg_jax.runs.record import folder as run_folder, stored
from fedvg_jax.runs.record.history import History
from fedvg_jax.study import named
from fedvg_jax.study.sweep_trials import Sweep, Trial

if TYPE_CHECKING:
    from fedvg_jax.core.identity import Identity

DOCUMENT = "sweep.json"
TRIALS = "trials"
FAILURE = "failure.json"
CLAIM = ".claim"
OPENING = ".opening"
"""Locked by the process that makes or checks the folder of a sweep."""
ALONE = ".alone"
"""There while one process computes the sweep alone; see `shared`."""


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


class SweepResult(NamedTuple):
    """The result of one trial of a sweep.

    Attributes:
        name: Name of the trial's folder.
        values: The axes' values that the trial uses, by setting.
        result: The history, or a `Failure` if the trial diverged or failed.
        config: The settings of the trial.
        custom: Setting -> name of the object from Python that replaces it; "" for an object without a name.
        sweep: The names of all trials of the sweep.
        digests: Digests of the objects from Python that the trial uses: "data", "weighting" and so on.
    """

    name: str
    values: dict[str, Any]
    result: History | Failure
    config: Config | None = None
    custom: Mapping[str, str] = {}
    sweep: tuple[str, ...] = ()
    digests: Mapping[str, str] = {}


def trial_folder(out: Path, name: str) -> Path:
    """Returns the run folder of a trial."""
    return out / TRIALS / name


Changed = Literal["recompute", "keep"]
"""What happens to the trials of an object that has changed."""


class StoredTrial(NamedTuple):
    """A trial as sweep.json holds it."""

    values: dict[str, Any]
    """of the sweep's axes that the trial uses"""
    config: Config
    """without the settings that change no result, such as folders"""
    custom: Mapping[str, str] = {}
    """argument that takes an object from Python -> its name; "" for one without"""


class Stored(NamedTuple):
    """The content of sweep.json."""

    title: str
    axes: tuple[str, ...]
    """settings that vary"""
    trials: dict[str, StoredTrial]
    """by name"""
    objects: dict[str, list[str]]
    """object from Python, such as "data", "weighting NAME" or "metric NAME" -> its digest, and those that a caller has
    declared equal to it"""
    tuning: dict[str, Any]
    """see `tuning.as_json`; {} without it"""


def document(
    sweep: Sweep,
    trials: Sequence[Trial],
    objects: Mapping[str, Identity] = {},
    tuning: Mapping[str, Any] = {},
) -> dict[str, Any]:
    """Returns the content of sweep.json, in which a trial has the settings `base` and its own.

    Args:
        sweep: its axes and title.
        trials: its trials, with tuned values where settings are tuned.
        objects: see `Stored`.
        tuning: see `Stored`.
    """
    of_trials = {trial.name: _settings(trial.config) for trial in trials}
    first = next(iter(of_trials.values()))
    base = {
        name: value
        for name, value in first.items()
        if all(s[name] == value for s in of_trials.values())
    }
    to_all = dict.fromkeys(uses.PASSED.keys() & objects.keys(), "")
    listed = []
    for trial in trials:
        entry = {"name": trial.name, "values": uses.plain(trial.values)}
        entry["settings"] = _without(of_trials[trial.name], base)
        entry["custom"] = to_all | named.names_of(sweep.bundles, trial.values)
        listed.append(entry)
    axes = [uses.plain(axis.as_json()) for axis in sweep.axes]
    content = {"title": sweep.title, "axes": axes, "base": base, "trials": listed}
    content["objects"] = {name: [identity.digest] for name, identity in objects.items()}
    return content | ({"tuning": dict(tuning)} if tuning else {})


def _settings(config: Config) -> dict[str, Any]:
    """Returns the settings of a trial that can change its results, as JSON values."""
    return {
        name: uses.plain(value)
        for name, value in configs.flatten(config).items()
        if name not in uses.HOST
    }


def _without(settings: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in base}


def read(out: Path) -> Stored:
    """Returns the content of sweep.json.

    Raises:
        UsageError: it is missing or damaged.
    """
    path = out / DOCUMENT
    return parse(files.read_object(path), path)


def parse(content: Mapping[str, Any], path: Path) -> Stored:
    """Returns the content of sweep.json at a path.

    Raises:
        UsageError: it is damaged.
    """
    try:
        trials = {
            str(trial["name"]): StoredTrial(
                trial["values"],
                configs.apply(Config(), {**content["base"], **trial["settings"]}, str(path)),
                trial.get("custom", {}),
            )
            for trial in content["trials"]
        }
        axes = tuple(str(name) for axis in content["axes"] for name in axis)
        return Stored(content["title"], axes, trials, content["objects"], content.get("tuning", {}))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is damaged ({type(error).__name__} {one_line(str(error))})"
        ) from None


def refuse_taken(out: Path) -> None:
    """Raises UsageError for a folder that holds something else than a sweep."""
    # listed first: another process writes sweep.json before the others
    others = (
        [path for path in out.iterdir() if path.name[0] != "." and path.name != "tuning"]
        if out.is_dir()
        else []
    )
    if not (out / DOCUMENT).exists() and ((out.exists() and not out.is_dir()) or others):
        raise UsageError(f"{out} is taken and holds no sweep; name another folder with --out")


@contextlib.contextmanager
def shared(out: Path | None, log: Callable[[str], None], has_parts: bool = False) -> Iterator[bool]:
    """Yields whether processes can share a sweep; where files cannot be locked, this process has it alone.

    Args:
        out: the folder of the sweep; None for a sweep in memory.
        log: called with one line if it is not shared.
        has_parts: whether every command computes trials of its own, so that none needs a lock.

    Raises:
        UsageError: another process has it, or the folder cannot be used.
    """
    if out is None or has_parts or files.can_lock(out):
        yield True
        return
    with files.writing(f"the folder of the sweep {out}", "--out"):
        refuse_taken(out)
        out.mkdir(parents=True, exist_ok=True)
    with files.marked(out / ALONE):
        log(f"one process computes the sweep, because files in {out} cannot be locked")
        yield False


def open_folder(
    out: Path,
    content: dict[str, Any],
    objects: Mapping[str, Identity] = {},
    changed: Changed | None = None,
) -> None:
    """Makes the folder of a sweep, or checks that an existing one is of the same sweep.

    A sweep may gain trials; it may not lose or change any.

    Args:
        out: the folder.
        content: see `document`.
        objects: the identities in it.
        changed: what happens to trials that were computed with another object of the same name. "recompute" removes
            them, "keep" keeps those that are finished; None refuses them.

    Raises:
        UsageError: the folder holds something else, or another sweep; or it cannot be written.
    """
    with files.writing(f"the folder of the sweep {out}", "--out"):
        refuse_taken(out)
        out.mkdir(parents=True, exist_ok=True)
        with files.claimed(out / OPENING, waits=True):
            path = out / DOCUMENT
            if path.exists():
                stored = read(out)
                _refuse_other(out, stored, parse(json.loads(json.dumps(content)), path))
                _settle_changed(out, stored, objects, changed)
                for name, digests_of in content["objects"].items():
                    known = stored.objects.get(name, [])
                    if changed == "keep" or digests_of[0] in known:
                        content["objects"][name] = list(dict.fromkeys([*digests_of, *known]))
            text = json.dumps(content, indent=1) + "\n"
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                files.replace_bytes(path, [text.encode()])
            (out / TRIALS).mkdir(exist_ok=True)


def _refuse_other(out: Path, stored: Stored, new: Stored) -> None:
    """Raises UsageError if a folder holds trials that a sweep does not have, or other settings of them."""
    changes = [
        f"it has {name}, which this sweep has not"
        for name in stored.trials
        if name not in new.trials
    ]
    for name, trial in new.trials.items():
        if name in stored.trials:  # data in another folder are compared by their digests
            changed = run_folder.differences(stored.trials[name].config, trial.config, {"data_dir"})
            changes += [f"{change} in {name}" for change in changed]
    if changes:
        raise UsageError(
            f"{out} holds another sweep: {changes[0]}; repeat its settings, or name another folder"
        )


def _settle_changed(
    out: Path, stored: Stored, objects: Mapping[str, Identity], changed: Changed | None
) -> None:
    """Refuses, removes or keeps the trials that were computed with other objects than this call has.

    An object of an axis belongs to the trials that have its name; the others belong to all.
    """
    for name in dict.fromkeys([*stored.objects, *objects]):
        argument, _, value = name.partition(" ")
        of_axis = argument != run_folder.METRIC and value
        if name in objects and objects[name].digest in stored.objects.get(name, []):
            continue
        begun = [
            folder
            for trial, its in stored.trials.items()
            if not of_axis or its.values.get(argument) == value
            if has_begun(folder := trial_folder(out, trial))
        ]
        if begun and changed is None:
            rename = ", give it another name" if of_axis else ""
            raise UsageError(
                f"{name} {_change(name, stored, objects)} {begun[0]} was computed; name another folder{rename}, or give"
                ' changed="recompute" or changed="keep"'
            )
        for folder in begun:
            if changed == "recompute" or not (folder / "summary.json").exists():
                _clear_unclaimed(folder)


def _change(name: str, stored: Stored, objects: Mapping[str, Identity]) -> str:
    """Returns in words how an object differs from that of computed trials."""
    if name not in objects:
        return "is not given, and was when"
    if name not in stored.objects:
        return "was not given when"
    if objects[name].unseen:
        return f"holds a {objects[name].unseen[0]}, which cannot be compared with the one in the call in which"
    return "has changed since"


def has_begun(folder: Path) -> bool:
    """Returns whether a trial has results, or a part of them."""
    return (folder / stored.HISTORY).exists() or read_failure(folder) is not None


def _clear_unclaimed(folder: Path) -> None:
    """Removes the results of a trial.

    Raises:
        UsageError: a process computes it.
    """
    with files.claimed(folder / CLAIM) as is_mine:
        if not is_mine:
            raise UsageError(
                f"{folder} is being computed with another object; stop that process first"
            )
        clear(folder)


def check_sources(trials: Sequence[Trial]) -> None:
    """Raises UsageError for data sets, partitions or pretrained weights that a trial would not find."""
    checked = set()
    for config in (trial.config for trial in trials):
        key = (config.dataset, config.data_dir, config.image_size, config.splits)
        if key not in checked:
            checked.add(key)
            size = images.parse_size(config.image_size)
            cache_dir = config.cache_dir and config.cache_dir / "data"
            datasets.check(
                config.dataset, config.data_dir, cache_dir, size=size, splits=config.splits
            )
        kind, file = choice(config, "partition")
        paths = {"init": config.init, "validation.data_dir": config.validation.data_dir}
        for name, path in (
            paths | {"partition file": files.user_path(file) if kind == "file" else None}
        ).items():
            if path and not path.exists():
                raise UsageError(f"{name} {path}: no such file or folder")


def read_failure(folder: Path) -> Failure | None:
    """Returns why a trial did not finish; None if it finished, or was not computed."""
    try:
        stored = files.read_object(folder / FAILURE)
        return Failure(
            str(stored["kind"]),
            int(stored["round"]),
            str(stored["reason"]),
            stored.get("traceback", ""),
        )
    except (UsageError, KeyError, TypeError, ValueError):
        return None


def write_failure(folder: Path, config: Config, failure: Failure) -> None:
    """Writes failure.json, beside config.json and the history so far."""
    if not (folder / "config.json").exists():
        run_folder.write_json(folder / "config.json", configs.to_json(config))
    run_folder.write_json(folder / FAILURE, failure._asdict())


def is_done(out: Path, trial: Trial) -> bool:
    """Returns whether nothing is left to compute: the trial is finished, or it diverged."""
    folder = trial_folder(out, trial.name)
    failure = read_failure(folder)
    return (
        run_folder.is_finished(folder, trial.config)
        if failure is None
        else failure.kind == "diverged"
    )


def refuse_unfinished(out: Path, trials: Sequence[Trial], noun: str = "trial") -> None:
    """Raises UsageError unless nothing is left to compute of the trials: they are finished, or they diverged.

    Args:
        out: folder of the trials.
        trials: which were computed, unless they failed or the process that held them was lost.
        noun: what a trial is called.
    """
    pending = [trial for trial in trials if not is_done(out, trial)]
    failures = {
        p.name: failure for p in pending if (failure := read_failure(trial_folder(out, p.name)))
    }
    if failures:
        name, failure = next(iter(failures.items()))
        failed = f"{count(len(failures), noun)} failed, such as {name}: {failure.reason}"
        raise UsageError(f"{failed}; the same command tries again")
    if pending:
        names = f"{count(len(pending), noun)} not finished, such as {pending[0].name}"
        raise UsageError(f"{names}; the same command continues them")


def count(number: int, noun: str = "trial") -> str:
    """Returns a number of things in words.

    >>> count(1), count(2, "seed")
    ('1 trial', '2 seeds')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def clear_failures(out: Path, trials: Sequence[Trial]) -> None:
    """Removes the records of trials that failed, so that they are computed again; trials that diverged stay.

    A command does this once, at its start: what its processes find later is a failure of this command.

    Raises:
        UsageError: the folder cannot be written.
    """
    with files.writing(f"the folder of the sweep {out}", "--out"):
        for folder in (trial_folder(out, trial.name) for trial in trials):
            failure = read_failure(folder)
            if failure is not None and failure.kind != "diverged":
                (folder / FAILURE).unlink(missing_ok=True)


def clear(folder: Path) -> None:
    """Removes the files of a trial that was interrupted before its first checkpoint."""
    for name in (*run_folder.FILES, FAILURE):
        (folder / name).unlink(missing_ok=True)
    stored.remove_checkpoints(folder)
