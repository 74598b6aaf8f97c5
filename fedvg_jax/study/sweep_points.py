"""Points of a sweep: one checked `Config` with a stable name for every combination of the axes' values."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedvg_jax.config import presets, shorthands
from fedvg_jax.config.checks import check
from fedvg_jax.config.io import apply, flatten
from fedvg_jax.config.options import Config
from fedvg_jax.config.uses import refuse_unused, unmet
from fedvg_jax.config.uses import used as used_settings
from fedvg_jax.core.types import UsageError
from fedvg_jax.study.axes import FOLLOW, Axis, check_distinct, check_name, unset_paths

MAX_POINTS = 100_000
"""Most points of a sweep."""

MAX_NAME = 150
"""Characters of a point's name; a longer one is cut and ends in a digest."""

ONLY = "point"
"""Name of the point of a sweep in which nothing varies."""

PLACES = ("data_dir", "validation.data_dir")
"""Folders of data, which may differ between machines."""


class Layer(NamedTuple):
    """Settings from one source. Of two layers the later one wins."""

    settings: Mapping[str, Any]
    """by dotted name, or by the name of a shorthand, which the others of the layer override"""
    source: str
    """for messages"""


class Sweep(NamedTuple):
    """What a sweep varies, and what its points share."""

    axes: tuple[Axis, ...]
    layers: tuple[Layer, ...] = ()
    """settings that all points share, in rising precedence; the axes' values join the last one"""
    start: Config | None = None
    """settings below all layers; by default the preset of the data set"""
    title: str = ""


class Point(NamedTuple):
    """One run of a sweep."""

    name: str
    """of its folder: the settings that vary and that the run uses"""
    values: dict[str, Any]
    """the axes' values that the run uses, without folders of data that go with another setting"""
    config: Config
    """checked"""


class Points(NamedTuple):
    """The points of a sweep, and the combinations that repeat another one."""

    points: list[Point]
    merged: dict[str, str]
    """name of a combination -> the point that has the same settings"""


def make_points(sweep: Sweep) -> Points:
    """Returns the points of a sweep, checked, in the order of the axes; the last axis varies fastest.

    A setting that a point does not use is not among its values: FedAvg has no `fedprox.mu`. Combinations with the same
    used settings are one point.

    Raises:
        UsageError: a setting cannot work at some point, or no point uses it; or there are too many points.

    >>> axes = (Axis(("method",), (("fedavg",), ("fedprox",))), Axis(("fedprox.mu",), ((0.1,), (1.0,))))
    >>> points, merged = make_points(Sweep(axes))
    >>> [point.name for point in points]
    ['method=fedavg', 'method=fedprox,fedprox.mu=0.1', 'method=fedprox,fedprox.mu=1']
    >>> merged
    {'method=fedavg,fedprox.mu=1': 'method=fedavg'}
    """
    check_distinct(sweep.axes)
    count = math.prod(len(axis.values) for axis in sweep.axes)
    if count > MAX_POINTS:
        raise UsageError(f"the axes cross to {count:,} points; {MAX_POINTS:,} are the most of one sweep")
    sweep = sweep._replace(start=check(sweep.start)) if sweep.start else sweep
    labels = label_names(sweep.axes)
    varying = [name for name in varying_names(sweep.axes) if name in labels]
    points: dict[str, Point] = {}
    merged: dict[str, str] = {}
    for given in combinations(sweep.axes):
        config = resolve(sweep, given, name_of(_only(given, varying)))
        values = _only(_typed_values(config, given), labels)
        used = {name: value for name, value in values.items() if not _is_unused(config, name)}
        point = Point(name_of(_only(used, varying)), used, config)
        kept = points.setdefault(repr(used_settings(config)), point)
        repeated = name_of(_only(values, varying))
        if kept is not point and kept.name != repeated:
            merged[repeated] = kept.name
    kept_points = list(points.values())
    _refuse_never_used(sweep, kept_points)
    return Points(kept_points, merged)


def combinations(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """Returns the values at every combination of the axes' positions, by setting."""
    rows = itertools.product(*(axis.values for axis in axes))
    return [
        {name: value for axis, values in zip(axes, row, strict=True) for name, value in zip(axis.names, values)}  # noqa: B905
        for row in rows
    ]


def varying_names(axes: Sequence[Axis]) -> list[str]:
    """Returns the settings that have more than one value, in the order of the axes."""
    return [name for axis in axes for name, values in axis.as_json().items() if len({*map(repr, values)}) > 1]


def label_names(axes: Sequence[Axis]) -> list[str]:
    """Returns the settings that tell points apart: all but the folders that go with another setting.

    >>> label_names([Axis(("dataset", "data_dir"), (("cifar10", "data/c"), ("stl10", "data/s")))])
    ['dataset']
    """
    names = []
    for axis in axes:
        others = [i for i, name in enumerate(axis.names) if name not in PLACES]
        rows = {tuple(repr(row[i]) for i in others) for row in axis.values}
        is_enough = len(rows) == len({tuple(map(repr, row)) for row in axis.values})
        names += [name for name in axis.names if not is_enough or name not in PLACES]
    return names


def resolve(sweep: Sweep, values: Mapping[str, Any], name: str = "") -> Config:
    """Returns the checked settings of one point.

    Args:
        sweep: its layers.
        values: of the axes, by setting.
        name: of the point, for messages.

    Raises:
        UsageError: a setting is unknown, or the run would refuse it.
    """
    *below, last = sweep.layers or (Layer({}, "sweep"),)
    layers = [*below, last._replace(settings={**last.settings, **values})]
    for layer in layers:
        for setting in layer.settings:
            check_name(setting, layer.source)
    config, follows = sweep.start, False
    if config is None:
        datasets = [layer.settings["dataset"] for layer in layers if "dataset" in layer.settings]
        dataset = str(datasets[-1] if datasets else Config.dataset)
        config = apply(Config(), presets.of_dataset(dataset), f"preset {dataset}")
    else:
        _refuse_contradiction(config, layers[-1].settings)
    for layer in layers:
        meant = shorthands.meaning(layer.settings)
        own = {n: value for n, value in unset_paths(layer.settings).items() if n not in presets.SHORTHANDS}
        if "method" in layer.settings and own.get("weighting") == "native":
            del own["weighting"]  # the method's own
        if "partition_seed" in own:
            follows = own["partition_seed"] == FOLLOW
            own |= {"partition_seed": 0} if follows else {}
        config = apply(apply(config, meant, layer.source), own, layer.source)
    # by default only a drawn partition follows: seeds that share the rows of a file can be compared by their digests
    is_asked = "partition_seed" in values or any("partition_seed" in layer.settings for layer in sweep.layers[1:])
    if follows and (is_asked or config.partition != "file"):
        config = dataclasses.replace(config, partition_seed=config.seed)
    elif follows:
        config = dataclasses.replace(config, partition_seed=Config.partition_seed)
    try:
        return check(config)
    except UsageError as error:
        raise UsageError(f"point {name}: {error}" if name != ONLY else str(error)) from None


def name_of(values: Mapping[str, Any]) -> str:
    """Returns the name of a point, which is safe as the name of a folder.

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
    return re.sub(r"[^A-Za-z0-9._+()-]", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), text)


def _only(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}


def _typed_values(config: Config, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values as the settings hold them, so that 1 and 1.0 are one learning rate."""
    flat = flatten(config)
    kept = {name: value for name, value in values.items() if name in presets.SHORTHANDS or value in (FOLLOW, "native")}
    return {name: kept.get(name, flat.get(name)) for name in values}


def _is_unused(config: Config, name: str) -> bool:
    return name not in presets.SHORTHANDS and unmet(config, name) is not None


def _refuse_contradiction(config: Config, settings: Mapping[str, Any]) -> None:
    """Raises UsageError where a shorthand would replace a setting that the caller's config has chosen."""
    default, chosen = flatten(Config()), flatten(config)
    for name, value in shorthands.meaning(settings).items():
        if name not in settings and chosen[name] not in (default[name], value):
            raise UsageError(
                f"the config has {name} {chosen[name]!r}, and a shorthand of the axes sets it to {value!r};"
                f" leave {name} out of the config, or give it as an axis"
            )


def _refuse_never_used(sweep: Sweep, points: Sequence[Point]) -> None:
    """Raises UsageError for a setting of the last layer, or of an axis, that no point uses."""
    last = sweep.layers[-1].settings if sweep.layers and sweep.start is None else {}
    for name in (*last, *(name for axis in sweep.axes for name in axis.names)):
        if all(_is_unused(point.config, name) for point in points):
            refuse_unused(points[0].config, [name])
