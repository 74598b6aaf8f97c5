"""Axes of a sweep, from TOML files and Python, and its trials: one checked `Config` with a stable name for each.

An axis is a setting that takes several values, crossed with the others or zipped. A file has the settings that all
trials share, as a run's file has them, and

    title = "..."        of the sweep's tables and figures
    [axes]               setting -> its values; all axes are crossed
    [[zip]]              settings whose values go together: lists of one length
    [tune]               setting -> the values that are tried for each method; tune_seeds beside it
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config import presets
from fedvg_jax.config.checks import check
from fedvg_jax.config.command_line import dotted, read_toml
from fedvg_jax.config.declare import flatten, python_scalar, suggestion
from fedvg_jax.config.options import SETTINGS, Config, layered, registered
from fedvg_jax.config.presets import SHORTHANDS
from fedvg_jax.config.uses import refuse_unused, replaced_with, unmet, used as used_settings
from fedvg_jax.core.types import UsageError
from fedvg_jax.study import named as named_values
from fedvg_jax.study.named import AXES, Bundle

HYPER = "hyper."
"""Prefix of axes of hyperparameters that objects from Python declare."""

RANGED = ("seed", "partition_seed")
"""Settings whose values may be ranges such as 0:5."""

NO_AXES = {
    "out": "every trial has a folder of its own below the sweep's",
    "resume": "a sweep continues when its command is given again",
    "export": "the trials would overwrite one file; export a model from its trial's folder",
}
"""Settings of a run that no trial of a sweep has -> the reason."""


class Axis(NamedTuple):
    """One axis: a setting with its values, or several settings whose values go together."""

    names: tuple[str, ...]
    """dotted settings, `method`, `fidelity`, or "hyper." with a name"""
    values: tuple[tuple[Any, ...], ...]
    """one tuple for each position on the axis, in the order of `names`"""

    def as_json(self) -> dict[str, list[Any]]:
        """Returns the values by setting, lists of one length."""
        return {name: self.column(position) for position, name in enumerate(self.names)}

    def column(self, position: int) -> list[Any]:
        """Returns the values of one setting, by its position in `names`."""
        return [row[position] for row in self.values]


class SweepFile(NamedTuple):
    """The content of a sweep's TOML file."""

    settings: dict[str, Any]
    """those that all trials share, by dotted name; shorthands among them"""
    axes: tuple[Axis, ...] = ()
    title: str = ""
    tune: Mapping[str, Any] = {}
    """setting -> values to choose from"""
    tune_seeds: Any = None


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
    return [zipped({name: given}, source) for name, given in axes.items()]


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
        raise UsageError(
            f"{source}: settings that are zipped must have equally many values; got {listed}"
        )
    # a value that is given twice counts once
    once = {repr(row): row for row in zip(*columns.values(), strict=True)}
    axis = Axis(tuple(columns), tuple(once.values()))
    if axis.names == ("record",) and len(axis.values) > 1:
        joined = ",".join(str(value) for (value,) in axis.values)
        raise UsageError(
            f"record cannot be an axis, because it changes no result; give one value: {joined[:200]}"
        )
    return axis


def parse_axes(
    axes: Mapping[str | tuple[str, ...], Any], named: Mapping[str, Collection[str]] = {}
) -> tuple[Axis, ...]:
    """Returns the axes that a call from Python gives: a tuple of settings goes together.

    Args:
        axes: with names in place of objects.
        named: argument -> names that a caller gave, which stay as they are.

    >>> parse_axes({("dataset", "model"): [("digits", "mlp"), ("cifar10", "lenet5")], "lr": 0.1})[0].names
    ('dataset', 'model')
    """
    parsed = []
    for names, values in axes.items():
        if isinstance(names, str) and names in named:
            listed = dict.fromkeys(values)
            parsed.append(Axis((names,), tuple((value,) for value in listed)))
        elif not isinstance(names, tuple):
            parsed += cross({names: values}, "axes")
        else:
            rows = list(values) if isinstance(values, Iterable) else [values]
            if any(
                not isinstance(row, Sequence) or isinstance(row, str) or len(row) != len(names)
                for row in rows
            ):
                raise UsageError(
                    f"axes: the values of {', '.join(names)} must be tuples of {len(names)}"
                )
            table = Axis(names, tuple(map(tuple, rows))).as_json()
            for name in AXES:
                if not all(isinstance(value, str) for value in table.get(name, ())):
                    raise UsageError(
                        f"axes: objects of {name} cannot be zipped; give them an axis of their own"
                    )
            parsed.append(zipped(table, "axes"))
    return tuple(parsed)


def read_file(path: Path) -> SweepFile:
    """Returns the settings and axes of a sweep's file.

    Raises:
        UsageError: the file cannot be read, or has an axis that cannot be.
    """
    content = read_toml(path)
    zips = content.pop("zip", [])
    if not isinstance(zips, list) or not all(isinstance(table, dict) for table in zips):
        raise UsageError(f"{path}: zip must be tables [[zip]]; got {str(zips)[:100]}")
    crossed, tune = (_table(content, name, path) for name in ("axes", "tune"))
    title, seeds = content.pop("title", ""), content.pop("tune_seeds", None)
    axes = (
        *(zipped(dotted(table), f"{path}: zip") for table in zips),
        *cross(crossed, f"{path}: axes"),
    )
    if several := [name for name, value in content.items() if isinstance(value, list)]:
        raise UsageError(f"{path}: {several[0]} has several values; put them in the table [axes]")
    return SweepFile(content, axes, str(title), tune, seeds)


def _table(content: dict[str, Any], table: str, path: Path) -> dict[str, Any]:
    """Removes a table of settings with their values from dotted settings, and returns it; {} without one."""
    if (alone := content.pop(table, {})) != {}:
        raise UsageError(
            f"{path}: {table} must be a table [{table}] of settings with their values; got {alone!r:.100}"
        )
    names = [name for name in content if name.startswith(f"{table}.")]
    return {name.removeprefix(f"{table}."): content.pop(name) for name in names}


def _values(name: str, given: Any, source: str) -> list[Any]:
    """Returns the values of a setting on an axis: of a hyperparameter numbers, ranges of seeds as their numbers."""
    given = python_scalar(given)
    many = (
        not isinstance(given, str)
        and isinstance(given, Iterable)
        and not isinstance(given, Mapping)
    )
    if name.startswith(HYPER) and source == "axes":
        try:
            values: Any = given if many else [given]
            return [float(value) for value in values]
        except (TypeError, ValueError):
            raise UsageError(f"axes: {name} must be numbers; got {given!r:.100}") from None
    check_name(name, source)
    scalars = [registered(name, python_scalar(value)) for value in (given if many else [given])]
    listed = [number for scalar in scalars for number in seeds(name, scalar)]
    if not listed:
        raise UsageError(f"{source}: {name} has no value; give one or more")
    return listed


def check_name(name: str, source: str) -> None:
    """Raises UsageError for an unknown setting, and for one that the trials of a sweep do not have."""
    known = (*SHORTHANDS, *SETTINGS)
    if name not in known:
        raise UsageError(
            f"{source}: unknown setting '{str(name)[:100]}'{suggestion(str(name), known)}"
        )
    if name in NO_AXES:
        raise UsageError(
            f"{source}: {name} cannot be a setting of a sweep's trials: {NO_AXES[name]}"
        )


def refuse_set(config: Config) -> None:
    """Raises UsageError if the config that all trials share has a setting that no trial has."""
    for name, reason in NO_AXES.items():
        if SETTINGS[name].get(config) != SETTINGS[name].get(Config()):
            raise UsageError(f"Config: {name} cannot be a setting of a sweep's trials: {reason}")


PATHS = ("data_dir", "init", "validation.data_dir")
"""Paths that the trials of a sweep may have; an empty one is not set, for which TOML has no other value."""


def seeds(name: str, value: Any) -> list[Any]:
    """Returns the numbers of a range of seeds, "0:5" being 0 to 4; of any other value the value alone.

    >>> seeds("seed", "2:5"), seeds("seed", 7), seeds("local_epochs", "1:5")
    ([2, 3, 4], [7], ['1:5'])
    """
    if name not in RANGED or not isinstance(value, str) or ":" not in value:
        return [value]
    match = re.fullmatch(r"(\d{1,10}):(\d{1,10})", value, re.ASCII)
    start, stop = (int(text) for text in match.groups()) if match else (0, 0)
    if not start < stop:
        raise UsageError(
            f"{name} {value[:50]}: a range is START:STOP with START < STOP, such as 0:5 for 0 to 4"
        )
    return list(range(start, stop))


MAX_NAME = 150
"""Characters of a trial's name; a longer one is cut and ends in a digest."""

ONLY = "trial"
"""Name of the trial of a sweep in which nothing varies."""

PLACES = ("data_dir", "validation.data_dir")
"""Folders of data, which may differ between machines."""


class Layer(NamedTuple):
    """Settings from one source. Of two layers the later one wins."""

    settings: Mapping[str, Any]
    """by dotted name, or by the name of a shorthand, which the others of the layer override"""
    source: str
    """for messages"""


class Sweep(NamedTuple):
    """What a sweep varies, and what its trials share."""

    axes: tuple[Axis, ...]
    layers: tuple[Layer, ...] = ()
    """settings that all trials share, in rising precedence; the axes' values join the last one"""
    start: Config | None = None
    """settings below all layers; by default the preset of the data set"""
    title: str = ""
    bundles: Mapping[str, Mapping[str, Bundle]] = {}
    """axis -> name on it -> what that stands for"""


class Trial(NamedTuple):
    """One run of a sweep."""

    name: str
    """of its folder: `values` as text, which more values on an axis do not change"""
    values: dict[str, Any]
    """the axes' values that the run uses, without folders of data that go with another setting"""
    config: Config
    """checked"""


def make_trials(sweep: Sweep) -> list[Trial]:
    """Returns the trials of a sweep, checked, in the order of the axes; the last axis varies fastest.

    A setting that a trial does not use is not among its values: FedAvg has no `fedprox.mu`. Combinations with the same
    used settings are one trial.

    Raises:
        UsageError: a setting cannot work at some trial, or no trial uses it.

    >>> axes = (Axis(("method",), (("fedavg",), ("fedprox",))), Axis(("fedprox.mu",), ((0.1,), (1.0,))))
    >>> [trial.name for trial in make_trials(Sweep(axes))]
    ['method=fedavg', 'method=fedprox,fedprox.mu=0.1', 'method=fedprox,fedprox.mu=1']
    """
    _refuse_repeated(sweep.axes)
    sweep = sweep._replace(start=check(sweep.start)) if sweep.start else sweep
    labels = label_names(sweep.axes)
    resolved = [_resolve(sweep, values, labels) for values in combinations(sweep.axes)]
    distinct: dict[str, Resolved] = {}
    for combination in resolved:
        distinct.setdefault(_key_of(combination), combination)
    trials = [Trial(name_of(each.used), each.used, each.config) for each in distinct.values()]
    _refuse_never_used(sweep, trials)
    return trials


class Resolved(NamedTuple):
    """A combination of the axes' values as its run uses them."""

    config: Config
    """checked"""
    custom: dict[str, Any]
    """names of objects from Python by argument, and hyperparameters that these declare"""
    named: dict[str, str]
    """the names that a caller gave to values, by axis"""
    used: dict[str, Any]
    """the values that the run uses, typed as its settings"""


def _resolve(sweep: Sweep, values: Mapping[str, Any], labels: Sequence[str]) -> Resolved:
    """Returns a combination of the axes' values, resolved.

    Args:
        sweep: its layers and bundles.
        values: of all axes, by name.
        labels: the names of axes that tell trials apart.
    """
    hyper = {name: value for name, value in values.items() if name.startswith(HYPER)}
    custom = named_values.names_of(sweep.bundles, values) | hyper
    named = {n: v for n, v in values.items() if v in sweep.bundles.get(n, ())}
    settings = named_values.settings_of(sweep.bundles, values)
    settings = {name: value for name, value in settings.items() if name not in hyper}
    config = trial_config(sweep, settings, name_of(_only(values, labels)))
    typed = _typed_values(config, values) | hyper | named
    labelled = {name: typed[name] for name in values if name in labels}
    without_use = [name for name in labelled if _is_unused(config, name, custom)]
    unused = [name for name in without_use if name not in custom]
    return Resolved(
        config,
        custom,
        named,
        {name: value for name, value in labelled.items() if name not in unused},
    )


def _key_of(combination: Resolved) -> str:
    """Returns a text that is equal for combinations with equal results."""
    replaced = replaced_with(combination.custom)
    settings = {
        name: value
        for name, value in used_settings(combination.config).items()
        if name not in replaced
    }
    return repr((settings, combination.custom, combination.named))


def combinations(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """Returns the values at every combination of the axes' positions, by setting."""
    names = [name for axis in axes for name in axis.names]
    rows = itertools.product(*(axis.values for axis in axes))
    return [dict(zip(names, itertools.chain(*row), strict=True)) for row in rows]


def label_names(axes: Sequence[Axis]) -> list[str]:
    """Returns the settings that tell trials apart: all but the folders that go with another setting.

    >>> label_names([Axis(("dataset", "data_dir"), (("cifar10", "data/c"), ("stl10", "data/s")))])
    ['dataset']
    """
    names = []
    for axis in axes:
        others = [_without_places(axis.names, row) for row in axis.values]
        is_enough = _num_distinct(others) == _num_distinct(axis.values)
        names += [name for name in axis.names if not is_enough or name not in PLACES]
    return names


def _without_places(names: Sequence[str], row: Sequence[Any]) -> list[Any]:
    return [value for name, value in zip(names, row, strict=True) if name not in PLACES]


def _num_distinct(rows: Iterable[Any]) -> int:
    return len(set(map(repr, rows)))


def trial_config(sweep: Sweep, values: Mapping[str, Any], name: str = "") -> Config:
    """Returns the checked settings of one trial.

    Args:
        sweep: its layers.
        values: of the axes, by setting.
        name: of the trial, for messages.

    Raises:
        UsageError: a setting is unknown, or the run would refuse it.
    """
    *others, last = sweep.layers or (Layer({}, "sweep"),)
    layers = [*others, Layer({**last.settings, **values}, last.source if last.settings else "axes")]
    for layer in layers:
        for setting in layer.settings:
            check_name(setting, layer.source)
    if sweep.start is not None:
        _refuse_contradiction(sweep.start, layers[-1].settings)
    try:
        return check(
            layered(
                [(_with_unset_paths(layer.settings), layer.source) for layer in layers], sweep.start
            )
        )
    except UsageError as error:
        raise UsageError(f"trial {name}: {error}" if name != ONLY else str(error)) from None


def _with_unset_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings in which empty paths are None."""
    unset = [name for name in PATHS if settings.get(name) == ""]
    return {**settings, **dict.fromkeys(unset)}


def name_of(values: Mapping[str, Any]) -> str:
    """Returns the name of a trial, which is safe as the name of a folder.

    Different values have different names. Letters, digits and `._+()-` stand for themselves.

    >>> name_of({"weighting": "permuted(fedvg)", "alpha": 100.0, "fedvg.include": "^a/b"})
    'weighting=permuted(fedvg),alpha=100,fedvg.include=%5Ea%2Fb'
    """
    name = ",".join(f"{setting}={_text_of(value)}" for setting, value in values.items()) or ONLY
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 13]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def _text_of(value: Any) -> str:
    if value is None:
        return "~"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
    return re.sub(
        r"[^A-Za-z0-9._+()-]",
        lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()),
        text,
    )


def _only(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}


def _typed_values(config: Config, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values as the settings hold them, so that 1 and 1.0 are one learning rate."""
    flat = flatten(config)
    return {n: v if v == "native" else flat.get(n, v) for n, v in values.items()}


def _is_unused(config: Config, name: str, custom: Mapping[str, Any]) -> bool:
    """Returns whether a trial does not use a setting, beside objects from Python and their hyperparameters."""
    return name not in presets.SHORTHANDS and (
        unmet(config, name) is not None or name in replaced_with(custom)
    )


def _refuse_repeated(axes: Sequence[Axis]) -> None:
    """Raises UsageError for a setting on two axes."""
    on_axes = collections.Counter(name for axis in axes for name in axis.names)
    if repeated := [name for name, number in on_axes.items() if number > 1]:
        raise UsageError(f"{repeated[0]} is on two axes; give all its values on one")


def _refuse_contradiction(config: Config, settings: Mapping[str, Any]) -> None:
    """Raises UsageError where a shorthand would replace a setting that the caller's config has chosen."""
    default, chosen = flatten(Config()), flatten(config)
    for name, value in presets.meaning(settings).items():
        if name not in settings and chosen[name] not in (default[name], value):
            raise UsageError(
                f"the config has {name} {chosen[name]!r}, and a shorthand of the axes sets it to {value!r};"
                f" leave {name} out of the config, or give it as an axis"
            )


def _refuse_never_used(sweep: Sweep, trials: Sequence[Trial]) -> None:
    """Raises UsageError for a setting of the last layer, or of an axis, that no trial uses."""
    last = sweep.layers[-1].settings if sweep.layers and sweep.start is None else {}
    names = [*last, *(name for axis in sweep.axes for name in axis.names)]

    def is_unused_in(trial: Trial, name: str) -> bool:
        objects = named_values.names_of(sweep.bundles, trial.values)
        return _is_unused(trial.config, name, objects)

    for name in names:
        if all(is_unused_in(trial, name) for trial in trials):
            refuse_unused(trials[0].config, [name])
