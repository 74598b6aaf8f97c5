"""The command line of a sweep: its own flags, the settings that all points share, and the axes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax import config as configs
from fedvg_jax.config import command_line
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files
from fedvg_jax.study import sweep_folder, sweep_points
from fedvg_jax.study.sweep_points import Axis, Layer, Points, Sweep, cross
from fedvg_jax.study.tuning import Plan, Tuning, make_tuning, tuning_points

PROG = "python -m fedvg_jax.sweep"

OWN = ("out", "config", "dry_run", "jobs")
"""Flags of the sweep itself with one value, or none."""

OF_SWEEP = ("jobs", "tune", "tune_seeds")
"""Flags that are no settings of a run."""

SHARED = ("cache_dir", "track")
"""Settings of the process, which all points share."""


class CommandLine(NamedTuple):
    """What a command line asks for."""

    plan: Plan
    out: Path
    """folder of the sweep"""
    argv: Sequence[str] = ()
    """the words"""
    dry_run: bool = False
    jobs: int | str = "auto"
    """see `workers.num_processes`"""


def read_command_line(argv: Sequence[str]) -> CommandLine:
    """Returns the sweep that a command line asks for, with all its points checked.

    Raises:
        UsageError: for an option that cannot work at some point, or that no point uses.
    """
    flags = split_flags(argv)
    own = {name: _single(name, flags.pop(name)) for name in OWN if name in flags}
    tuned = {}
    for flag in [flag for flag in flags if flag.startswith("tune ")]:
        name = flag.removeprefix("tune ")
        tuned[name] = _tuned_values(name, flags.pop(flag))
    seeds = _typed_list("seed", flags.pop("tune_seeds")) if "tune_seeds" in flags else None
    file = sweep_points.SweepFile({})
    if "config" in own:
        file = sweep_points.read_file(files.user_path(own["config"]))
    if (tuned or file.tune) and flags.get("best_on") == ["val"]:
        del flags["best_on"]
    sweep = make_sweep(flags, file, str(own.get("config")))
    in_file, in_words = (layer.settings.keys() for layer in sweep.layers[-2:])  # words may tune a setting of the file
    if both := sorted((in_words & {*file.tune, *tuned}) | (in_file & file.tune.keys())):
        raise UsageError(f"{both[0]} has a value and is in --tune; leave one of the two out")
    points = sweep_points.make_points(sweep)
    tuning = make_tuning({**file.tune, **tuned}, file.tune_seeds if seeds is None else seeds)
    out = files.user_path(own["out"]) if "out" in own else default_folder(points, tuning)
    jobs = own.get("jobs", "auto")
    return CommandLine(
        plan=Plan(points, out, tuning, tuning_points(sweep, tuning) if tuning else None),
        out=out,
        argv=argv,
        dry_run="dry_run" in own,
        jobs=int(jobs) if jobs.isdecimal() else jobs,
    )


def make_sweep(flags: dict[str, list[str]], file: sweep_points.SweepFile, source: str) -> Sweep:
    """Returns the sweep of a file and of the flags that are settings, which override the file.

    Args:
        flags: words by name; see `split_flags`.
        file: its content.
        source: its name, for messages.
    """
    columns = {name: _typed_list(name, words) for name, words in flags.items()}
    settings = {name: values[0] for name, values in columns.items() if len(values) == 1}
    crossed = cross({name: values for name, values in columns.items() if len(values) != 1}, "command line")
    given = {*settings, *(axis.names[0] for axis in crossed)}
    kept = _without(file.axes, given)
    meant = [configs.meaning(dict(zip(axis.names, row, strict=True))) for axis in kept for row in axis.values]
    # the file's settings win beside a shorthand on its axes, as they do beside a single one
    beside = {name: value for name, value in file.settings.items() if any(name in several for several in meant)}
    all_axes = (*kept, *crossed)
    for axis in all_axes:
        if shared := [name for name in axis.names if name in SHARED and len(axis.values) > 1]:
            raise UsageError(f"{shared[0]} is a setting of the whole process; give it one value")
    layers = (
        Layer({"keep": 1}, "sweep"),
        Layer({name: value for name, value in file.settings.items() if name not in given}, source),
        Layer(beside | settings, "command line"),
    )
    return Sweep(all_axes, layers, title=file.title)


def _tuned_values(name: str, words: Sequence[str]) -> list[Any]:
    """Returns the typed values of a tuned setting."""
    sweep_points.check_name(name, "--tune")
    if not words:
        raise UsageError(f"--tune {name} has no values; give those to try")
    return _typed_list(name, words)


def split_flags(argv: Sequence[str]) -> dict[str, list[str]]:
    """Returns the words behind every flag of a command line, by the flag's name.

    Raises:
        UsageError: a word stands before all flags, a flag is unknown or given twice, or --tune has no setting.

    >>> split_flags(["--alpha", "0.05", "0.5", "--fedvg.norm=l2", "--dry-run", "--tune", "lr", "0.1"])
    {'alpha': ['0.05', '0.5'], 'fedvg.norm': ['l2'], 'dry_run': [], 'tune lr': ['0.1']}
    """
    parser = command_line.Parser(PROG)
    command_line.add_settings(parser, takes_many=True)
    for name in OF_SWEEP:
        parser.add_argument(command_line.flag_of(name), nargs="*", action="append")
    found = command_line.read_words(parser, argv, f"{PROG} --help lists the options")
    tuned = found.pop("tune", [])
    if [] in tuned:
        raise UsageError("--tune needs a setting and the values to try, such as --tune lr 0.1 0.2")
    named = [(name, words) for name, given in found.items() for words in given]
    named += [(f"tune {words[0].replace('-', '_')}", words[1:]) for words in tuned]
    names = [name for name, _ in named]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"--{repeated.replace('_', '-')} is given twice; give it once, with all its values")
    return dict(named)


def _typed_list(name: str, words: Sequence[str]) -> list[Any]:
    """Returns the typed values of one setting; a switch without a value is on."""
    if command_line.is_switch(name):
        if wrong := [word for word in words if word.lower() not in ("true", "false")]:
            raise UsageError(f"--{name.replace('_', '-')} must be true or false; got {wrong[0][:100]}")
        return [word.lower() == "true" for word in words or ["true"]]
    if not words:
        raise UsageError(f"{command_line.flag_of(name)} needs a value")
    listed = [str(value) for word in words for value in sweep_points.seeds(name, word)]
    return [command_line.value_of(name, word) for word in listed]


def _single(name: str, words: list[str]) -> str:
    """Returns the value of a flag of the sweep."""
    is_switch = command_line.is_switch(name)
    if len(words) != (0 if is_switch else 1) or "" in words:
        expected = "no value" if is_switch else "one value"
        raise UsageError(f"--{name.replace('_', '-')} takes {expected}; got {' '.join(words)[:100] or 'none'}")
    return "" if is_switch else words[0]


def _without(file_axes: Sequence[Axis], given: set[str]) -> list[Axis]:
    """Returns the axes of a file that the command line does not replace."""
    for axis in file_axes:
        if len(axis.names) > 1 and (replaced := given & set(axis.names)):
            name = min(replaced)
            raise UsageError(
                f"--{name.replace('_', '-')} is in a [[zip]] of the file ({', '.join(axis.names)}); change it there"
            )
    return [axis for axis in file_axes if axis.names[0] not in given]


def default_folder(points: Points, tuning: Tuning | None) -> Path:
    """Returns runs/sweep-DIGEST: equal sweeps have one folder, so that the same command continues its sweep."""
    text = json.dumps([sweep_folder.document(points, points.points), repr(tuning)], sort_keys=True)
    return Path("runs") / f"sweep-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
