"""Axes of a sweep: settings that take several values, crossed with one another or zipped; read from TOML files.

A file has the settings that all points share, as a run's file has them, and

    title = "..."        of the sweep's tables and figures
    [axes]               setting -> its values; all axes are crossed
    [[zip]]              settings whose values go together: lists of one length
    [tune]               setting -> the values that are tried for each method; tune_seeds, tune_budget beside it
    [tiny], [tiny.axes]  what `--scale tiny` replaces
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config.io import dotted, name_hint, python_scalar, read_toml
from fedvg_jax.config.options import SETTINGS, Config, registered
from fedvg_jax.config.presets import SHORTHANDS
from fedvg_jax.config.suggestions import suggestion
from fedvg_jax.core.types import UsageError

FOLLOW = "follow"
"""Value of `partition_seed` that stands for the seed of the run."""

RANGED = ("seed", "partition_seed")
"""Settings whose values may be ranges such as 0:5."""

MAX_SEEDS = 100_000
"""Longest range of seeds."""

SCALES = ("full", "tiny")
"""Sizes of a sweep's file: as it stands, or with its table `tiny`."""

NO_AXES = {
    "out": "every point has a folder of its own below the sweep's",
    "resume": "a sweep continues when its command is given again",
    "export": "the points would overwrite one file; export a model from its point's folder",
    "profile": "the points would write into one folder; profile a run of its own",
    "export_partition": "the points would write into one file; export the partition of a run of its own",
    "config": "the file of a sweep is read once",
    "dry_run": "it is a flag of the whole sweep",
}
"""Settings of a run that no point of a sweep has -> the reason."""


class Axis(NamedTuple):
    """One axis: a setting with its values, or several settings whose values go together."""

    names: tuple[str, ...]
    """dotted settings, `method` or `fidelity`"""
    values: tuple[tuple[Any, ...], ...]
    """one tuple for each position on the axis, in the order of `names`"""

    def as_json(self) -> dict[str, list[Any]]:
        """Returns the values by setting, lists of one length."""
        return {name: [row[i] for row in self.values] for i, name in enumerate(self.names)}


class SweepFile(NamedTuple):
    """The content of a sweep's TOML file."""

    settings: dict[str, Any]
    """those that all points share, by dotted name; shorthands among them"""
    axes: tuple[Axis, ...] = ()
    title: str = ""
    tune: dict[str, Any] | None = None
    """setting -> values to choose from; see `tuning_grid`"""
    tune_seeds: Any = None
    tune_budget: int = 0


def cross(axes: Mapping[str, Any], source: str) -> list[Axis]:
    """Returns one axis per setting.

    Args:
        axes: setting -> its values, or a single value.
        source: where they come from, for messages.

    Raises:
        UsageError: a setting is unknown, cannot vary, or has no value.

    >>> cross({"seed": "0:3"}, "example")
    [Axis(names=('seed',), values=((0,), (1,), (2,)))]
    """
    return [_axis((name,), [(v,) for v in _values(name, given, source)]) for name, given in axes.items()]


def zipped(table: Mapping[str, Any], source: str) -> Axis:
    """Returns one axis on which several settings go together.

    Args:
        table: setting -> its values; all of one length.
        source: where they come from, for messages.

    Raises:
        UsageError: as `cross`, and for lists of different lengths.

    >>> zipped({"dataset": ["digits", "cifar10"], "model": ["mlp", "lenet5"]}, "example").values
    (('digits', 'mlp'), ('cifar10', 'lenet5'))
    """
    columns = {name: _values(name, given, source) for name, given in table.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) != 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items()) or "no setting"
        raise UsageError(f"{source}: settings that are zipped must have equally many values; got {listed}")
    return _axis(tuple(columns), zip(*columns.values(), strict=True))


def _axis(names: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> Axis:
    """Returns an axis on which every position is another one: a value that is given twice counts once."""
    axis = Axis(names, tuple({repr(row): row for row in rows}.values()))
    if names == ("record",) and len(axis.values) > 1:
        joined = ",".join(str(value) for (value,) in axis.values)
        raise UsageError(f"record changes no result, so it is no axis; for all of them give one value: {joined[:200]}")
    return axis


def parse_axes(axes: Mapping[str | tuple[str, ...], Any]) -> tuple[Axis, ...]:
    """Returns the axes that a call from Python gives: a tuple of settings goes together.

    >>> parse_axes({("dataset", "model"): [("digits", "mlp"), ("cifar10", "lenet5")], "lr": 0.1})[0].names
    ('dataset', 'model')
    """
    if not isinstance(axes, Mapping):
        raise UsageError(f"axes must be a dict of settings with their values; got {type(axes).__name__}")
    parsed = []
    for names, values in axes.items():
        if not isinstance(names, tuple):
            parsed += cross({names: values}, "axes")
            continue
        rows = list(values) if isinstance(values, Iterable) else [values]
        if any(not isinstance(row, Sequence) or isinstance(row, str) or len(row) != len(names) for row in rows):
            raise UsageError(f"axes: the values of {', '.join(names)} must be tuples of {len(names)}")
        parsed.append(zipped({name: [row[i] for row in rows] for i, name in enumerate(names)}, "axes"))
    return tuple(parsed)


def check_distinct(axes: Sequence[Axis]) -> None:
    """Raises UsageError for a setting on two axes."""
    names = [name for axis in axes for name in axis.names]
    if repeated := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise UsageError(f"{repeated[0]} is on two axes; give all its values on one")


def read_file(path: Path, scale: str = "full") -> SweepFile:
    """Returns the settings and axes of a sweep's file.

    Args:
        path: a TOML file.
        scale: "full", or "tiny": with the settings and axes of its table `tiny` in place of its own.

    Raises:
        UsageError: the file cannot be read, or has an axis that cannot be.
    """
    if scale not in SCALES:
        raise UsageError(f"unknown scale {scale!r}{suggestion(scale, SCALES)}")
    content = read_toml(path)
    tiny = _inside(content, "tiny")
    if scale == "tiny":
        if not tiny:
            raise UsageError(f"{path} has no table [tiny]; leave out --scale, or add one with the settings to replace")
        content = _without(content, tiny) | tiny
    zips = _tables(content.pop("zip", []), f"{path}: zip")
    if scale == "tiny" and "zip" not in tiny:
        _refuse_zipped(tiny, zips, path)
    crossed = _table(content, "axes", path)
    title = content.pop("title", "")
    if not isinstance(title, str):
        raise UsageError(f"{path}: title must be a text; got {title!r}")
    tune = _table(content, "tune", path)
    budget = content.pop("tune_budget", 0)
    if type(budget) is not int or budget < 0:
        raise UsageError(f"{path}: tune_budget must be a number >= 0; got {str(budget)[:50]}")
    axes = (*(zipped(table, f"{path}: zip") for table in zips), *cross(crossed, f"{path}: axes"))
    check_distinct(axes)
    if several := [name for name, value in content.items() if isinstance(value, list) and name != "tune_seeds"]:
        raise UsageError(f"{path}: {several[0]} has several values; put them in the table [axes]")
    return SweepFile(content, axes, title, tune, content.pop("tune_seeds", None), budget)


def _inside(content: dict[str, Any], table: str) -> dict[str, Any]:
    """Removes a table from dotted settings, and returns its entries by their names inside it."""
    names = [name for name in content if name == table or name.startswith(f"{table}.")]
    return {name.removeprefix(table).removeprefix("."): content.pop(name) for name in names}


def _table(content: dict[str, Any], table: str, path: Path) -> dict[str, Any]:
    """Removes a table of settings with their values from dotted settings, and returns it; {} without one."""
    entries = _inside(content, table)
    alone = entries.pop("", {})
    if alone != {}:
        raise UsageError(f"{path}: {table} must be a table [{table}] of settings with their values; got {alone!r:.100}")
    return entries


def _without(content: Mapping[str, Any], tiny: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the full size's settings and axes except those that the tiny one has, as axis or as setting."""
    given = {name.removeprefix("axes.") for name in tiny}
    return {name: value for name, value in content.items() if name.removeprefix("axes.") not in given}


def _refuse_zipped(tiny: Mapping[str, Any], zips: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Raises UsageError for a setting or an axis of the tiny size that a [[zip]] of the full size would override."""
    given = {name.removeprefix("axes.") for name in tiny}
    if zipped_names := [name for table in zips for name in table if name in given]:
        raise UsageError(
            f"{path}: [tiny] has {zipped_names[0]}, which a [[zip]] of the full size varies; add zip = [] to [tiny]"
        )


def _tables(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
        raise UsageError(f"{where} must be tables [[zip]]; got {str(value)[:100]}")
    return [dotted(table) for table in value]


def _values(name: str, given: Any, source: str) -> list[Any]:
    """Returns the values of a setting on an axis; ranges of seeds as their numbers."""
    check_name(name, source)
    many = not isinstance(given, str) and isinstance(given, Iterable) and not isinstance(given, Mapping)
    listed = [v for value in (given if many else [given]) for v in seeds(name, registered(name, python_scalar(value)))]
    if not listed:
        raise UsageError(f"{source}: {name} has no value; give one or more")
    return listed


def check_name(name: str, source: str) -> None:
    """Raises UsageError for an unknown setting, and for one that the points of a sweep do not have."""
    known = (*SHORTHANDS, *SETTINGS)
    if name not in known:
        raise UsageError(f"{source}: unknown setting '{str(name)[:100]}'{name_hint(str(name), known)}")
    if name in NO_AXES:
        raise UsageError(f"{source}: {name} cannot be a setting of a sweep's points: {NO_AXES[name]}")


def refuse_set(config: Config) -> None:
    """Raises UsageError if the config that all points share has a setting that no point has."""
    for name, reason in NO_AXES.items():
        if getattr(config, name) != getattr(Config, name):
            raise UsageError(f"Config: {name} cannot be a setting of a sweep's points: {reason}")


def unset_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings with None in place of an empty path: a TOML file has no other value for a path that is not set.

    >>> unset_paths({"data_dir": "", "image_size": ""})
    {'data_dir': None, 'image_size': ''}
    """
    return {name: None if name in _PATHS and value == "" else value for name, value in settings.items()}


_PATHS = ("data_dir", "pretrained", "init", "partition_file", "validation.data_dir")
"""Paths that the points of a sweep may have."""


def seeds(name: str, value: Any) -> list[Any]:
    """Returns the numbers of a range of seeds, "0:5" being 0 to 4; of any other value the value alone.

    >>> seeds("seed", "2:5"), seeds("seed", 7), seeds("local_epochs", "1:5")
    ([2, 3, 4], [7], ['1:5'])
    """
    if name not in RANGED or not isinstance(value, str) or ":" not in value:
        return [value]
    match = re.fullmatch(r"(\d{1,10}):(\d{1,10})", value, re.ASCII)
    start, stop = (int(text) for text in match.groups()) if match else (0, 0)
    if stop > start + MAX_SEEDS:
        raise UsageError(f"{name} {value[:50]} has {stop - start:,} seeds; give a range of at most {MAX_SEEDS:,}")
    if not start < stop:
        raise UsageError(f"{name} {value[:50]}: a range is START:STOP with START < STOP, such as 0:5 for 0 to 4")
    return list(range(start, stop))
