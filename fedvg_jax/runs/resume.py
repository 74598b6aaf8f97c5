"""Which run goes on, and whether it may: with the same settings, but for those that change no number."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from fedvg_jax import config as configs
from fedvg_jax.config import Config
from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs import history

AUTO = "auto"

FREE = frozenset(
    {
        "rounds",
        "out",
        "resume",
        "dry_run",
        "force",
        "profile",
        "export",
        "checkpoint_every",
        "keep",
        "cache_dir",
        "trust_cache",
        "data_dir",
        "config",
        "nonfinite",
    }
)
"""What may change when a run goes on. Data may move: their digest is compared. `nonfinite` says when to stop, not what
to compute. Not `lanes`, `hold` or `conv`, alike to rounding only; not `eval_every`, for an even history."""


def resolve(config: Config) -> Config:
    """The settings with `out` and `resume` the folder of the run that goes on, `resume` None where a new one starts.

    Raises:
        UsageError: no such run, or other settings than the run's.
    """
    if config.resume is None:
        return config
    found = _newest_match(config) if config.resume == AUTO else Path(config.resume)
    if found is None:
        return dataclasses.replace(config, resume=None)
    if config.out and config.out.resolve() != found.resolve():
        raise UsageError(f"--resume {found} goes on in that folder; leave out --out {config.out}")
    _refuse_changed(found, config)
    return dataclasses.replace(config, out=found, resume=str(found))


def stored(folder: Path) -> Config:
    """The settings of a run.

    Raises:
        UsageError: the folder holds none, or they are damaged.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise UsageError(f"{folder} is no run folder (it has no {path.name}); check --resume")
    return from_json(files.read_object(path), str(path))


def from_json(settings: dict, source: str) -> Config:
    """The settings that `config.to_json` wrote."""
    if not isinstance(settings, dict):
        raise UsageError(f"{source} is damaged (no table of settings); the run cannot go on")
    given = {name: value for name, value in settings.items() if name != "unused"}  # derived from the settings
    try:
        flat = configs.dotted(given)
    except RecursionError:
        raise UsageError(f"{source} is damaged (tables in tables); the run cannot go on") from None
    return configs.apply(Config(), flat, source)


def differences(before: Config, now: Config) -> list[str]:
    """Settings that differ and may not, as "lr 0.1 -> 0.2"."""
    old, new = configs.flatten(before), configs.flatten(now)
    fixed = FREE if now.lr_schedule != "cosine" else FREE - {"rounds"}  # every rate depends on the last round
    return [f"{name} {old[name]} -> {new[name]}" for name in old if name not in fixed and old[name] != new[name]]


def _newest_match(config: Config) -> Path | None:
    """The run folder begun last whose settings fit."""
    if config.out:
        return config.out if (config.out / "config.json").exists() else None
    begun = sorted(Path("runs").glob("*/config.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    return next((path.parent for path in begun if _fits(path.parent, config)), None)


def _fits(folder: Path, config: Config) -> bool:
    try:
        _refuse_changed(folder, config)
    except UsageError:
        return False
    return True


def _refuse_changed(folder: Path, config: Config) -> None:
    changed = differences(stored(folder), config)
    if changed:
        listed = ", ".join(changed)
        raise UsageError(f"{folder} ran with other settings: {listed}; go on with its own, or start a new run")
    done = history.count(folder)
    if done > config.rounds:
        raise UsageError(
            f"{folder} has done {done} rounds already; --rounds must be {done} or more, got {config.rounds}"
        )
