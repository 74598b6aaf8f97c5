"""Axes of a sweep, from TOML files and Python, and its trials: one checked `Config` with a stable name for each.

An axis is a setting that takes several values, crossed with the others or zipped. A file has the settings that all
trials share, as a run's file has them, and

    title = "..."        of the sweep's tables and figures
    [axes]               setting -> its values; all axes are crossed
    [[zip]]              settings with values that go together: lists of one length
    [tune]               setting -> the values that are tried for each method; tune_seeds beside it
"""

from __future__ import annotations

import hashlib
import itertools
import re
import urllib.parse
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedvg_jax.config import presets
from fedvg_jax.config.checks import PASSED, check, plain, refuse_unused, replaced_with, unmet
from fedvg_jax.config.command_line import dotted, read_toml
from fedvg_jax.config.declare import flatten, python_scalar, suggestion
from fedvg_jax.config.options import SETTINGS, Config, layered
from fedvg_jax.config.presets import SHORTHANDS
from fedvg_jax.core.types import UsageError
from fedvg_jax.study import named as named_values

HYPER = "hyper."
"""Prefix of axes of hyperparameters that objects from Python declare."""

RANGED = ("seed", "partition_seed")
"""Settings that take ranges such as 0:5."""

DATA_FOLDERS = ("data_dir", "validation.data_dir")
"""Folders of data, which may differ between machines. An empty text stands for none, for which TOML has no value."""

OF_SINGLE_RUNS = ("out", "resume", "export")
"""Paths of a single run, which no trial of a sweep has."""

MAX_NAME = 150
"""Characters of a trial's name; a longer one is cut and ends in a digest."""

ONLY = "trial"
"""Name of the trial of a sweep in which nothing varies."""


Settings = Mapping[str, Any]
"""Dotted setting -> value; "method", "fidelity" and "hyper." with a name may be among them."""


class Axis(NamedTuple):
    """One axis: a setting with its values, or several settings with values that go together."""

    names: tuple[str, ...]
    """dotted settings, `method`, `fidelity`, or "hyper." with a name"""
    values: tuple[tuple[Any, ...], ...]
    """one tuple for each position on the axis, in the order of `names`"""


class Layer(NamedTuple):
    """Settings and axes from one source. Of two layers the later one wins."""

    axes: tuple[Axis, ...] = ()
    settings: Mapping[str, Any] = {}
    """by dotted name, or by the name of a shorthand, which the others of the layer override"""
    source: str = "axes"
    """for messages"""


class Sweep(NamedTuple):
    """What a sweep varies, and what its trials share."""

    layers: tuple[Layer, ...]
    """in rising precedence"""
    start: Config | None = None
    """checked settings below all layers; by default the preset of the data set"""
    title: str = ""
    named: Mapping[str, Mapping[str, named_values.Meaning]] = {}
    custom: Mapping[str, str] = {}
    """argument that takes an object of all trials -> its name; "" for one without"""

    @property
    def axes(self) -> list[Axis]:
        """The axes of all layers, in the order of the trials; the last axis varies fastest."""
        return [axis for layer in self.layers for axis in layer.axes]

    @property
    def names(self) -> list[str]:
        """The settings on the axes."""
        return [name for axis in self.axes for name in axis.names]


class Trial(NamedTuple):
    """One run of a sweep."""

    name: str
    """of its folder: `values` as text, which more values on an axis do not change"""
    values: dict[str, Any]
    """the axes' values that the run uses, without folders of data that go with another setting"""
    config: Config
    """checked"""
    custom: Mapping[str, str] = {}
    """argument that takes an object from Python -> its name; "" for one without"""
    names: Mapping[str, Any] = {}
    """setting -> value that `config` does not hold or a report leaves out: custom names, hyperparameters
    of objects, the fidelity, and folders of data; "" for a setting that belongs to one of these names"""


# --- axes


class SweepFile(NamedTuple):
    """The content of a sweep's TOML file."""

    layer: Layer = Layer()
    title: str = ""
    tune: Mapping[str, Any] = {}
    """setting -> values to choose from"""
    tune_seeds: Any = None


def read_file(path: Path) -> SweepFile:
    """Returns the settings and axes of a sweep's file.

    Raises:
        UsageError: the file cannot be read, or has an axis that cannot be.
    """
    content, source = read_toml(path), str(path)
    title, seeds = content.pop("title", ""), content.pop("tune_seeds", None)
    zips = content.pop("zip", [])
    if not isinstance(zips, list) or not all(isinstance(table, dict) for table in zips):
        raise UsageError(f"{path}: zip must be tables [[zip]]; got {str(zips)[:100]}")
    axes, tune = (_table(content, name) for name in ("axes", "tune"))
    zipped_axes = [zipped(dotted(table), source) for table in zips]
    layer = Layer((*zipped_axes, *parse_axes(axes, source)), content, source)
    return SweepFile(layer, str(title), tune, seeds)


def _table(content: dict[str, Any], table: str) -> dict[str, Any]:
    """Removes a table from dotted settings, and returns its entries."""
    names = [name for name in content if name.startswith(f"{table}.")]
    return {name.removeprefix(f"{table}."): content.pop(name) for name in names}


def parse_axes(
    axes: Mapping[Any, Any], source: str = "axes", named: Collection[str] = ()
) -> tuple[Axis, ...]:
    """Returns one axis per setting; a tuple of settings goes together.

    Args:
        axes: setting -> its values, or a single value, or the name of an object in its place.
        source: where they come from, for messages.
        named: settings with names on their axes, which stay as they are.

    >>> parse_axes({("dataset", "model"): [("digits", "mlp"), ("cifar10", "lenet5")], "seed": "0:2"})
    (Axis(names=('dataset', 'model'), values=(('digits', 'mlp'), ('cifar10', 'lenet5'))), \
Axis(names=('seed',), values=((0,), (1,))))
    """
    parsed = []
    for names, values in axes.items():
        table = {names: values}
        if isinstance(names, tuple):
            try:
                columns = zip(*values, strict=True)
                table = dict(zip(names, map(list, columns), strict=True))
            except (TypeError, ValueError):
                raise UsageError(
                    f"axes: the values of {', '.join(names)} must be tuples of {len(names)}"
                ) from None
        if names in named:
            parsed.append(Axis((str(names),), tuple(zip(values))))
        else:
            parsed.append(zipped(table, source))
    return tuple(parsed)


def zipped(table: Mapping[Any, Any], source: str) -> Axis:
    """Returns one axis on which several settings go together.

    Args:
        table: setting -> its values, or a single value; all of one length.
        source: where they come from, for messages.

    Raises:
        UsageError: a setting is unknown, cannot vary, or has no value; or lengths differ.

    >>> zipped({"dataset": ["digits", "cifar10"], "model": ["mlp", "lenet5"]}, "example").values
    (('digits', 'mlp'), ('cifar10', 'lenet5'))
    """
    columns = {name: _values(name, listed, source) for name, listed in table.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len({*lengths.values()}) != 1 or 0 in lengths.values():
        raise UsageError(
            f"{source}: settings of an axis must have equally many values, one or more; got {lengths}"
        )
    return Axis(tuple(columns), tuple(zip(*columns.values(), strict=True)))


def _values(name: str, listed: Any, source: str) -> list[Any]:
    """Returns the values of a setting on an axis: of a hyperparameter numbers, ranges of seeds as their numbers."""
    listed = python_scalar(listed)
    is_single = isinstance(listed, (str, Mapping)) or not isinstance(listed, Iterable)
    values: list[Any] = [listed] if is_single else list(listed)
    if str(name).startswith(HYPER):
        try:
            return [float(value) for value in values]
        except (TypeError, ValueError):
            raise UsageError(f"{source}: {name} must be numbers; got {listed!r:.100}") from None
    check_name(name, source)
    scalars = [python_scalar(value) for value in values]
    if name in DATA_FOLDERS:
        scalars = [value or None for value in scalars]
    return [number for scalar in scalars for number in seeds(name, scalar)]


def check_name(name: str, source: str) -> None:
    """Raises UsageError for an unknown setting, and for one that the trials of a sweep do not have."""
    known = (*SHORTHANDS, *SETTINGS)
    if name not in known:
        raise UsageError(
            f"{source}: unknown setting '{str(name)[:100]}'{suggestion(str(name), known)}"
        )
    if name in OF_SINGLE_RUNS:
        raise UsageError(f"{source}: {name} is a setting of single runs; leave it out of a sweep")


def seeds(name: str, value: Any) -> list[Any]:
    """Returns the numbers of a range of seeds, "0:5" being 0 to 4; of any other value the value alone.

    >>> seeds("seed", "2:5"), seeds("seed", 7), seeds("local_epochs", "1:5")
    ([2, 3, 4], [7], ['1:5'])
    """
    if name not in RANGED or not isinstance(value, str) or ":" not in value:
        return [value]
    match = re.fullmatch(r"(\d{1,10}):(\d{1,10})", value, re.ASCII)
    numbers = range(*map(int, match.groups())) if match else ()
    if not numbers:
        raise UsageError(
            f"{name} {value[:50]}: a range is START:STOP with START < STOP, such as 0:5 for 0 to 4"
        )
    return list(numbers)


# --- trials


def make_trials(sweep: Sweep) -> list[Trial]:
    """Returns the trials of a sweep, checked, in the order of the axes; the last axis varies fastest.

    A setting that a trial does not use is not among its values: FedAvg has no `fedprox.mu`. Combinations with the same
    used values are one trial.

    Raises:
        UsageError: a setting cannot work at some trial, or no trial uses it.

    >>> axes = (Axis(("method",), (("fedavg",), ("fedprox",))), Axis(("fedprox.mu",), ((0.1,), (1.0,))))
    >>> [trial.name for trial in make_trials(Sweep((Layer(axes),)))]
    ['method=fedavg', 'method=fedprox,fedprox.mu=0.1', 'method=fedprox,fedprox.mu=1']
    """
    names = sweep.names
    fixed = []
    for layer in reversed(sweep.layers):
        fixed += layer.settings
        for name in Sweep((layer,)).names:
            if name in fixed:
                raise UsageError(f"{name} stands twice, as an axis or to tune; leave one out")
            fixed.append(name)
    for name in OF_SINGLE_RUNS:
        if sweep.start and getattr(sweep.start, name) is not None:
            check_name(name, "Config")
    by_name = {}
    for rows in itertools.product(*(axis.values for axis in sweep.axes)):
        trial = _make_trial(sweep, dict(zip(names, itertools.chain(*rows), strict=True)))
        by_name.setdefault(trial.name, trial)
    trials = list(by_name.values())
    _refuse_never_used(sweep, trials)
    return trials


def _make_trial(sweep: Sweep, values: Settings) -> Trial:
    """Returns the trial of a combination of the axes' values."""
    config, objects, names = _config_of(sweep, values), {}, {}
    for name, meaning in named_values.chosen(sweep.named, values):
        objects |= {argument: name for argument in meaning.objects if argument != "hyper"}
        names |= dict.fromkeys(meaning.decided - {"algorithm", "weighting"}, "")
    custom, flat = {**sweep.custom, **objects}, flatten(config)
    replaced = replaced_with(custom) - objects.keys() | {PASSED[name] for name in sweep.custom}
    if replaced & {"algorithm", "weighting"}:
        replaced.add("method")
    used = {}
    for axis in sweep.axes:
        for name in axis.names:
            goes_along = name in DATA_FOLDERS and len(axis.names) > 1
            if goes_along or name in replaced or unmet(config, name):
                continue
            # so that 1 and 1.0 are one learning rate
            is_own = values[name] in sweep.named.get(name, ())
            is_typed = name in flat and not is_own and values[name] != "native"
            used[name] = flat[name] if is_typed else values[name]
            names.pop(name, None)
            if is_own or name in (*DATA_FOLDERS, "fidelity") or name.startswith(HYPER):
                names["model" if name == "task" else name] = plain(used[name])
    return Trial(name_of(used), used, config, custom, names)


def _config_of(sweep: Sweep, values: Settings) -> Config:
    """Returns the checked settings of a combination of the axes' values."""
    layers = []
    for layer in sweep.layers:
        on_axes = {name: values[name] for axis in layer.axes for name in axis.names}
        settings = dict(layer.settings)
        for _, meaning in named_values.chosen(sweep.named, on_axes):
            settings |= meaning.settings
        for name, value in on_axes.items():
            if value not in sweep.named.get(name, ()) and not name.startswith(HYPER):
                settings[name] = value
        for name in settings:
            check_name(name, layer.source)
        layers.append((settings, layer.source))
    if sweep.start is not None:
        _refuse_contradiction(sweep.start, layers[-1][0])
    try:
        return check(layered(layers, sweep.start))
    except UsageError as error:
        prefix = f"trial {name_of(values)}: " if values else ""
        raise UsageError(f"{prefix}{error}") from None


def name_of(values: Settings) -> str:
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
    return urllib.parse.quote(text, safe="+()")


def _refuse_contradiction(config: Config, settings: Settings) -> None:
    """Raises UsageError where a shorthand would replace a setting that the caller's config has chosen."""
    default, chosen = flatten(Config()), flatten(config)
    for name, value in presets.meaning(settings).items():
        if name not in settings and chosen[name] not in (default[name], value):
            raise UsageError(
                f"the config has {name} {chosen[name]!r}, and a shorthand of the axes sets it to {value!r};"
                f" leave {name} out of the config, or give it as an axis"
            )


def _refuse_never_used(sweep: Sweep, trials: Sequence[Trial]) -> None:
    """Raises UsageError for a setting of the last layer, of an axis or of a named value that no trial uses."""
    used = {name for trial in trials for name in trial.values}
    for name in sorted({*sweep.layers[-1].settings, *sweep.names} - used):
        if all(unmet(trial.config, name) for trial in trials):
            refuse_unused(trials[0].config, [name])
        if name in sweep.names and name not in DATA_FOLDERS:
            raise UsageError(
                f"axes: {name} has no effect beside objects from Python; leave it out, or put these into each fv.Method"
            )
    for axis, meanings in sweep.named.items():
        for custom, meaning in meanings.items():
            of_name = [trial for trial in trials if trial.values.get(axis) == custom]
            for name in sorted(meaning.settings):
                if of_name and not any(_reads(trial, name) for trial in of_name):
                    raise UsageError(f"{axis} {custom}: its {name} has no effect; leave it out")


def _reads(trial: Trial, name: str) -> bool:
    """Returns whether a trial reads a setting; objects from Python may read any traced one, which `hyper` has."""
    if name in replaced_with(trial.custom):
        return SETTINGS[name].facts.is_traced
    return unmet(trial.config, name) is None
