"""Chooses the run to resume, and checks that it has the same settings, data and objects."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvg_jax import config as configs
from fedvg_jax.config import SETTINGS, Config
from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs.record import folder as run_folder

AUTO = "auto"

_HOST = frozenset(name for name, setting in SETTINGS.items() if setting.facts.kind == "host")

RESUMABLE_CHANGES = _HOST | {"rounds", "stop_at", "patience", "data_dir", "nonfinite", "devices", "pool", "memories"}
"""Settings that may differ when a run is resumed, because they change no result.

Data may be in another folder: their digest is compared. `nonfinite` only says when to stop. A run may move to another
number of `devices`: its results are equal to rounding, and it says so. `lanes`, `hold` and `conv` are not among them:
their results are equal to rounding only. Neither is `eval_every`: evaluations stay equally spaced, except that a run
that is extended keeps the one of its former last round.
"""


def resolve(config: Config) -> Config:
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
    folder = _newest_match(config) if config.resume == AUTO else Path(config.resume)
    if folder is None:
        return dataclasses.replace(config, resume=None)
    if config.out and config.out.resolve() != folder.resolve():
        raise UsageError(f"--resume {folder} continues in that folder; leave out --out {config.out}")
    _refuse_changed(folder, config)
    return dataclasses.replace(config, out=folder, resume=str(folder))


def differences(stored: Config, config: Config) -> list[str]:
    """Returns the settings that differ and may not, such as "lr 0.1 -> 0.2".

    Args:
        stored: the settings of the run.
        config: the settings to resume it with.
    """
    old, new = configs.flatten(stored), configs.flatten(config)
    # with a cosine schedule every learning rate depends on the number of rounds
    allowed = RESUMABLE_CHANGES if config.lr_schedule != "cosine" else RESUMABLE_CHANGES - {"rounds"}
    return [f"{name} {old[name]} -> {new[name]}" for name in old if name not in allowed and old[name] != new[name]]


def _newest_match(config: Config) -> Path | None:
    """Returns the newest run folder of the same settings: `config.out` if that is set, else one below runs/."""
    if config.out:
        return config.out if (config.out / "config.json").exists() else None
    newest_first = sorted(Path("runs").glob("*/config.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    return next((path.parent for path in newest_first if _is_resumable(path.parent, config)), None)


def _is_resumable(folder: Path, config: Config) -> bool:
    try:
        _refuse_changed(folder, config)
    except UsageError:
        return False
    return True


def _refuse_changed(folder: Path, config: Config) -> None:
    """Raises UsageError if the run has other settings, or more rounds than `config` asks for."""
    changed = differences(run_folder.read_config(folder), config)
    if changed:
        raise UsageError(
            f"{folder} ran with other settings: {', '.join(changed)}; repeat the settings it ran with, or start a new"
            " run"
        )
    num_done = 0
    with contextlib.suppress(OSError):
        num_done = files.read_regular(folder / "history.jsonl").count(b"\n")
    if num_done > config.rounds:
        raise UsageError(
            f"{folder} has done {num_done} rounds already; --rounds must be {num_done} or more, got {config.rounds}"
        )


def refuse_other_sources(
    folder: Path, manifest: Mapping[str, Any], digests: Mapping[str, str], given: Mapping[str, str]
) -> None:
    """Raises UsageError unless a run has the data, the partition and the objects from Python that it started with.

    Functions are not compared: their names say little.

    Args:
        folder: of the run.
        manifest: content of manifest.json.
        digests: of data and partition, and hyperparameters, as in the manifest.
        given: objects from Python, by the setting that they replace.
    """
    objects = ("algorithm", "selection", "task", "weighting")
    ran, passed = ([name for name in objects if name in names] for names in (manifest.get("given", {}), given))
    if ran != passed:
        raise UsageError(
            f"{folder} ran with these objects from Python: {', '.join(ran) or 'none'}; this run has"
            f" {', '.join(passed) or 'none'}; pass the same objects to fedvg_jax.run"
        )
    for name, digest in digests.items():
        stored = manifest.get(name, digest)
        if stored != digest and name == "hyperparameters":
            values, others = stored or "no given hyperparameters", digest or "none"
            raise UsageError(f"{folder} ran with {values}, not {others}; pass the same")
        if stored != digest:
            raise UsageError(
                f"{folder} ran on {'other data' if name == 'data' else f'another {name}'} (its manifest.json); give the"
                " files it ran on"
            )
