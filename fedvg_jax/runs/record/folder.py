"""The folder of a run: who may use it, its settings, the files that describe the run, and which run to resume.

config.json      the settings
manifest.json    digests of data and partition; versions and machine of every segment of the run
partition.json   samples and classes of every client, statistics of their skew, and of the validation set
layers.json      names of the layers, for the recorded shares of the score
columns.json     means and deviations that the columns of rows are scaled by
history.jsonl    one line per round
checkpoints/     the newest states of the simulation
summary.json     results, seconds, versions
tracking/        what trackers wrote
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedvg_jax import config as configs
from fedvg_jax.config import Config, to_json
from fedvg_jax.config.checks import HOST
from fedvg_jax.config.methods import method_of
from fedvg_jax.config.options import effective
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files, processes
from fedvg_jax.runs.record import stored

if TYPE_CHECKING:
    from fedvg_jax.data.scaling import Columns

TRACKING = "tracking"
"""Folder of the trackers in a run folder."""

COLUMNS = "columns.json"
"""File of what encodes a table."""

FILES = (
    "config.json",
    "manifest.json",
    "partition.json",
    "layers.json",
    COLUMNS,
    stored.HISTORY,
    stored.SUMMARY,
)
"""Files of a run, without checkpoints and what trackers write."""

METRIC = "metric"
"""First word of the names of metrics among objects from Python."""


def reserve_folder(config: Config) -> Path:
    """Makes the folder runs/<time>-<method>, with a number appended where that exists, and returns it.

    No other process gets the same one.

    Raises:
        UsageError: it cannot be made.
    """
    method = method_of(config.algorithm, config.weighting, config.local)
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{method.replace('(', '-').replace(')', '')}"
    with files.writing("a run folder in runs", "--out"):
        for i in itertools.count():
            path = Path("runs", f"{name}-{i}" if i else name)
            with contextlib.suppress(FileExistsError):
                path.mkdir(parents=True)
                return path
    raise AssertionError("some number is free")


def remove_unused(folder: Path) -> None:
    """Removes a folder of `reserve_folder` if nothing was written to it."""
    with contextlib.suppress(OSError):  # of a folder that is not empty, or is gone
        folder.rmdir()


def read_config(folder: Path) -> Config:
    """Returns the settings of a run.

    Raises:
        UsageError: the folder has no config.json, or it is damaged.
    """
    path = folder / "config.json"
    if not path.is_file():
        if (folder / "sweep.json").is_file():
            raise UsageError(
                f"{folder} is a sweep; name the folders of its runs, {folder / 'trials' / '*'}"
            )
        raise UsageError(
            f"{folder} is not a run folder (it has no {path.name}); name the folder of a run"
        )
    return config_from_json(files.read_object(path), str(path))


def read_columns(run: Path) -> Columns | None:
    """Returns what encodes the table of a run; None for arrays.

    Raises:
        UsageError: the file is damaged.
    """
    written = files.read_object_if_any(run / COLUMNS)
    if not written:
        return None
    from fedvg_jax.data import scaling

    return scaling.from_json(written, run / COLUMNS)


def is_run(folder: Path) -> bool:
    """Returns whether a folder has files of a run."""
    return (folder / "config.json").exists() or stored.is_run(folder)


def config_from_json(settings: dict, source: str) -> Config:
    """Returns the settings that `config.to_json` wrote.

    Args:
        source: name of the file, for messages.

    Raises:
        UsageError: they are not settings.
    """
    flat = configs.dotted({name: value for name, value in settings.items() if name != "unused"})
    return configs.apply(Config(), flat, source)


def is_finished(folder: Path, rounds: int) -> bool:
    """Returns whether a run has ended by itself, after so many rounds. Its files are not verified."""
    try:
        summary, written = files.read_object(folder / stored.SUMMARY), read_config(folder)
    except UsageError:
        return False
    return written.rounds == rounds and summary.get("stopped_by") is None


def refuse_taken(folder: Path) -> None:
    """Raises UsageError if the folder holds anything except a lock or a draft: nothing is overwritten.

    What trackers have written may stay: a trial of a sweep that is started anew goes on in its tracked run.
    """
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if (folder.exists() and not folder.is_dir()) or any(
        name[0] != "." and name != TRACKING for name in names
    ):
        raise UsageError(
            f"run folder {folder} is taken; name another with --out, or continue its run with --resume"
        )


def write_settings(
    folder: Path,
    config: Config,
    layers: Sequence[str] = (),
    partition: Mapping[str, Any] | None = None,
    scaled_by: Columns | None = None,
) -> None:
    """Writes config.json, and layers.json, partition.json and columns.json where they are missing.

    Args:
        layers: names of the layers, for the shares of the score in the history.
        partition: its statistics.
        scaled_by: what encodes a table; None for arrays.
    """
    write_json(folder / "config.json", to_json(config))
    columns = scaled_by and scaled_by.as_json()
    documents = {"layers.json": list(layers), "partition.json": partition, COLUMNS: columns}
    for name, content in documents.items():
        if content and not (folder / name).exists():
            files.replace(folder / name, json.dumps(content) + "\n")


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON, atomically."""
    files.replace(path, json.dumps(value, indent=2) + "\n")


# --- the run to resume

AUTO = "auto"

RESUMABLE_CHANGES = frozenset((*HOST, "rounds", "data_dir", "nonfinite", "devices", "placement"))
"""Settings that may differ when a run is resumed, because they change no result.

Data may be in another folder: their digest is compared. `nonfinite` only says when to stop. A run may move to another
number of `devices`: its results are equal to rounding, and it says so. `lanes`, `client_chunk` and `conv` are not among
them: their results are equal to rounding only. Neither is `eval_every`: evaluations stay equally spaced, except that
a run that is extended keeps the one of its former last round.
"""


def settings_to_resume(config: Config) -> Config:
    """Returns the settings with `out` and `resume` set to the folder of the run to resume.

    Args:
        config: its `resume` is a run folder, None, or "auto": the newest run of the same settings.

    Returns:
        The settings; `resume` is None where a new run starts.

    Raises:
        UsageError: there is no such run, or it has other settings.
    """
    if config.resume is None:
        return config
    folder = _newest_match(config) if config.resume == AUTO else files.user_path(config.resume)
    if folder is None:
        return dataclasses.replace(config, resume=None)
    if config.out and config.out.resolve() != folder.resolve():
        raise UsageError(
            f"--resume {folder} continues in that folder; leave out --out {config.out}"
        )
    _refuse_changed(folder, config)
    return dataclasses.replace(config, out=folder, resume=str(folder))


PER_PROCESS = ("out", "export", "resume", "data_dir", "cache_dir")
"""Settings that may differ between the processes of a run."""


def choose_folder(config: Config, choose: Callable[[Config], Config]) -> Config:
    """Returns the settings with the run folder that process 0 chooses.

    Args:
        config: settings of this process.
        choose: settings -> settings with `out` and `resume` resolved; called by process 0 only.

    Raises:
        UsageError: the processes have different settings, or none can be chosen.
    """
    if processes.count() == 1:
        return choose(config)
    flat = configs.flatten(config).items()
    settings = {f"setting {name}": repr(value) for name, value in flat if name not in PER_PROCESS}
    processes.refuse_different(settings, "start all with the same command")
    with processes.together():
        chosen = choose(config) if processes.is_first() else config
    text = json.dumps([chosen.out and str(chosen.out), chosen.resume])
    out, resume = json.loads(processes.exchange(text)[0])
    return dataclasses.replace(config, out=out and Path(out), resume=resume)


def differences(
    written: Config, config: Config, allowed: Set[str] = RESUMABLE_CHANGES
) -> list[str]:
    """Returns the settings that differ and may not, such as "lr 0.1 -> 0.2".

    Args:
        written: the settings of the run.
        config: the settings to resume it with.
        allowed: settings that may differ.
    """
    old, new = effective(written), effective(config)
    # with a cosine schedule every learning rate depends on the number of rounds
    allowed = allowed if config.lr_schedule != "cosine" else allowed - {"rounds"}
    changed = [name for name in old if old[name] != new[name]]
    return [f"{name} {old[name]} -> {new[name]}" for name in changed if name not in allowed]


def _newest_match(config: Config) -> Path | None:
    """Returns the newest run folder of the same settings: `config.out` if that is set, else one below runs/."""
    if config.out:
        return config.out if (config.out / "config.json").exists() else None
    newest_first = sorted(
        Path("runs").glob("*/config.json"), key=lambda path: path.stat().st_mtime, reverse=True
    )
    for path in newest_first:
        with contextlib.suppress(UsageError):
            _refuse_changed(path.parent, config, RESUMABLE_CHANGES - {"data_dir"})
            return path.parent
    return None


def _refuse_changed(folder: Path, config: Config, allowed: Set[str] = RESUMABLE_CHANGES) -> None:
    """Raises UsageError if the run has other settings, or has already done the rounds that `config` asks for."""
    written = read_config(folder)
    if changed := differences(written, config, allowed):
        raise UsageError(
            f"{folder} ran with other settings: {', '.join(changed)}; repeat them, or start a new run"
        )
    num_done = 0
    with contextlib.suppress(OSError):
        num_done = (folder / stored.HISTORY).read_bytes().count(b"\n")
    # the last round is evaluated, and one before it may not be
    least = min(num_done + 1, written.rounds)
    if config.rounds < least:
        done = f"{num_done} of {written.rounds} rounds"
        raise UsageError(
            f"{folder} has done {done}; --rounds must be {least} or more, got {config.rounds}"
        )


def refuse_other_sources(
    folder: Path,
    manifest: Mapping[str, Any],
    digests: Mapping[str, str],
    objects: Mapping[str, str],
    code: Mapping[str, str],
) -> None:
    """Raises UsageError unless a run has the data, the partition and the objects from Python that it started with.

    Args:
        folder: of the run.
        manifest: content of manifest.json.
        digests: of data and partition, and hyperparameters, as in the manifest.
        objects: argument that takes an object from Python -> the object's name.
        code: digests of these objects and of metrics.
    """
    ran = _described(
        manifest.get("custom", {}),
        manifest.get("code", {}),
        {name: manifest.get(name, "") for name in digests},
    )
    passed = _described(objects, code, digests)
    for name in ran | passed:
        old, new = ran.get(name, ""), passed.get(name, "")
        if old != new:
            raise UsageError(
                f"{folder} ran with other {name.replace('_', ' ')} ({old or 'none'} -> {new or 'none'}); pass what it"
                " ran with, or start a new run"
            )


def _described(
    objects: Mapping[str, str], code: Mapping[str, str], digests: Mapping[str, str]
) -> dict[str, str]:
    """Returns what a run depends on besides its settings; data and a partition from Python have digests."""
    names = ", ".join(sorted({*objects} - {"data", "partition"}))
    return {"objects from Python": names, **code, **digests}
