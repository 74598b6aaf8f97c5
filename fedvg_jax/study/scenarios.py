"""Which settings of the runs vary, the names of their methods, and their scenarios."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedvg_jax.config import Config, declare, flatten, presets
from fedvg_jax.config.methods import PERSONAL
from fedvg_jax.config.uses import replaced_with, unused, used_departures, with_passed
from fedvg_jax.runs.record.folder import RESUMABLE_CHANGES
from fedvg_jax.study.cells import Replicate, Scenario, value_text
from fedvg_jax.study.sweep_points import HYPER, PLACES

NO_RESULT = RESUMABLE_CHANGES - {"rounds", "stop_at", "patience"}  # which decide the last round
NO_RESULT |= {"lanes", "hold", "conv", "deterministic", "validation.data_dir", "record"}
"""Settings that name a place, an implementation or entries of the history: runs that differ in them are compared. A
folder of data that is an axis of a sweep names the data."""

REPLICATE = ("seed", "partition_seed")
METHOD_GROUPS = (*declare.method_groups(Config), "hyper", "local", "departures")
METHOD_GROUPS += ("train", "lora", "send", "robust")
"""Groups of settings, and settings, that belong to the name of the method where they vary."""

OF_BASE = ("algorithm", "weighting", "local")
"""Settings that `base_name` reads."""

FIRST = ("dataset", "model", "partition", "alpha")
"""Settings that come first in a scenario, in this order."""


class Point(NamedTuple):
    """A run that exists or should exist."""

    settings: Mapping[str, Any]
    """Those that affect its results, by dotted name."""
    fidelity: str | None
    """Value of the shorthand on a sweep's axis; None without it."""
    tuned: Collection[str]
    """Settings that the sweep has chosen on D_val."""


class Place(NamedTuple):
    """Where a run belongs in a study."""

    method: str
    scenario: Scenario
    replicate: Replicate


def make_point(
    config: Config, values: Mapping[str, Any] = {}, tuned: Collection[str] = (), given: Mapping[str, str] = {}
) -> Point:
    """Returns the point of a run.

    Args:
        config: its settings.
        values: of the sweep's axes: dotted settings, the shorthands "method" and "fidelity", and "hyper." with a name.
        tuned: see `Point`.
        given: what Python passed in place of settings, of those in `PASSED` -> its name; "" for one without.
    """
    ignored = NO_RESULT.union(unused(config), ["departures"], replaced_with(given))
    settings = {name: value for name, value in flatten(config).items() if name not in ignored}
    settings = with_passed(settings | used_departures(config), given)
    settings |= {name: value for name, value in values.items() if name.startswith(HYPER) or name in PLACES}
    return Point(settings, values.get("fidelity"), tuned)


def varying(points: Sequence[Point]) -> list[str]:
    """Returns the settings with more than one value, among the runs that use them."""
    values: dict[str, set[Any]] = {}
    for point in points:
        for name, value in point.settings.items():
            values.setdefault(name, set()).add(value)
    return [name for name, several in values.items() if len(several) > 1]


def shared_settings(points: Sequence[Point]) -> dict[str, Any]:
    """Returns the settings that all runs use with the same value, by dotted name."""
    first, *others = (point.settings.items() for point in points)
    return {name: value for name, value in first if all((name, value) in items for items in others)}


def places(points: Sequence[Point]) -> list[Place]:
    """Returns the place of every point.

    A scenario has the settings that vary among runs that it does not tell apart yet, so none that follows from others,
    as a preset's from the data set. A setting that was chosen on D_val wherever it is used is part of no scenario and
    no name, unless one cell has runs at several of its values, as of two sweeps that were tuned apart.

    Args:
        points: all runs of the study, and those that are missing.
    """
    points = _with_fidelity(points)
    untuned = {name for point in points for name in point.settings if name not in point.tuned}
    differing = [name for name in varying(points) if name not in (*REPLICATE, "algorithm", "weighting")]
    differing.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    of_method = [name for name in differing if name.split(".")[0] in METHOD_GROUPS]
    named = [name for name in of_method if name in untuned]
    names, methods = [], [method_name(point, named) for point in points]
    for name in differing:
        if name not in of_method and _varies_within(name, points, names, None if name in untuned else methods):
            names.append(name)
    named += [n for n in of_method if n not in untuned and _varies_within(n, points, names, methods)]
    return [_place(point, names, named) for point in points]


def _with_fidelity(points: Sequence[Point]) -> list[Point]:
    """Returns points with the setting "fidelity" in place of those that it stands for, where it is an axis."""
    if len({point.fidelity for point in points} - {None}) < 2:
        return [*points]
    meant = {name.partition(".")[0] for name in presets.FIDELITY["official"]}
    return [
        point._replace(
            settings={name: value for name, value in point.settings.items() if name.partition(".")[0] not in meant}
            | {"fidelity": point.fidelity or "corrected"}
        )
        for point in points
    ]


def _varies_within(name: str, points: Sequence[Point], names: Sequence[str], methods: Sequence[str] | None) -> bool:
    """Returns whether runs of one scenario, and one method where these are given, have several values of a setting."""
    values: dict[tuple, set[Any]] = {}
    for i, point in enumerate(points):
        if name in point.settings:
            key = (*(point.settings.get(other) for other in names), methods and methods[i])
            values.setdefault(key, set()).add(point.settings[name])
    return any(len(several) > 1 for several in values.values())


def _place(point: Point, names: Sequence[str], of_method: Sequence[str]) -> Place:
    """Returns the place of a point; arguments as those of `method_name`, and the settings of scenarios."""
    settings = point.settings
    replicate = settings["seed"], settings.get("partition_seed", Config.partition_seed)  # a file's rows use none
    scenario = tuple((name, settings[name]) for name in names if name in settings)
    return Place(method_name(point, of_method), scenario, replicate)


def method_name(point: Point, of_method: Sequence[str]) -> str:
    """Returns the name of a run's method with its settings, of those that vary, that do not go without saying."""
    settings = point.settings
    base = base_name(**{name: settings[name] for name in OF_BASE if name in settings})
    details = [
        f"{_short(name, base)} {value_text(settings[name])}"
        for name in of_method
        if name in settings and not _goes_without_saying(name, settings[name], base)
    ]
    return ", ".join(filter(None, [base, *details]))


def _goes_without_saying(name: str, value: Any, base: str) -> bool:
    """Returns whether a setting is the method's own, or a default that stands for nothing, such as no tuning steps.

    >>> _goes_without_saying("tuning.steps", 0, "fedvg"), _goes_without_saying("fedvg.eps", 0.0, "fedvg")
    (True, False)
    >>> _goes_without_saying("local", "^classifier/", "fedper+fedvg"), _goes_without_saying("local", "bias", "fedvg")
    (True, False)
    """
    is_default = flatten(Config()).get(name) == value
    own = presets.METHODS.get(base) or getattr(PERSONAL.get(base.partition("+")[0]), "settings", {})
    return own.get(name) == value or (is_default and value in (0, "none", ""))


def _short(name: str, base: str) -> str:
    """Returns the name of a setting without its group where that is part of the method's name, or says nothing.

    >>> _short("fedvg.norm", "fedprox+fedvg"), _short("dp.clip", "fedavg"), _short("hyper.T", "fedavg")
    ('norm', 'dp.clip', 'T')
    """
    group, _, rest = name.partition(".")
    return rest if group in base or group == "hyper" else name


def base_name(algorithm: str = "", weighting: str = "", local: str = "") -> str:
    """Returns the name of a method, which `--method` takes: that of the paper, else WEIGHTING or ALGORITHM+WEIGHTING.

    >>> base_name("fedavg", "samples+fedvg"), base_name("fedavg", "uniform"), base_name("fedprox", "uniform")
    ('fedavg+fedvg', 'uniform', 'fedprox+uniform')
    >>> base_name("fedavg", "samples"), base_name("fedavg", "native"), base_name("fedavg", "fedvg", "^classifier/")
    ('fedavg', 'fedavg', 'fedper+fedvg')
    """
    personal = [name for name, preset in PERSONAL.items() if preset.settings["local"] == local]
    if algorithm == "fedavg" and personal:
        return f"{personal[0]}+{weighting}".removesuffix("+native").removesuffix("+samples")
    if (algorithm, weighting) == ("fedavg", "samples"):
        return "fedavg"
    for name, preset in presets.METHODS.items():
        if (preset["algorithm"], preset["weighting"]) == (algorithm, weighting):
            return name
    return weighting if algorithm == "fedavg" else f"{algorithm}+{weighting}".removesuffix("+native")


def method_order(name: str) -> int:
    """Returns the position of a method among the paper's; others come last."""
    return list(presets.METHODS).index(name) if name in presets.METHODS else len(presets.METHODS)


def mixtures(placed: Sequence[Place], declared: Sequence[str]) -> list[str]:
    """Returns a line for every setting that varies without being an axis of all methods.

    Args:
        placed: the places of all runs.
        declared: axes of the sweeps; empty where there is none. Then a setting is an axis if every method has runs at
            each of its values.
    """
    lines = []
    for name in dict.fromkeys(name for place in placed for name, _ in place.scenario):
        by_method: dict[str, dict[Any, None]] = {}  # keys as an ordered set
        for place in placed:
            by_method.setdefault(place.method, {})[dict(place.scenario).get(name)] = None
        differs = len({frozenset(values) for values in by_method.values()}) > 1
        if (declared and name not in declared) or (not declared and differs):
            lines.append(f"mixed settings: {name} is {_by_value(by_method)}")
    return lines


def _by_value(by_method: Mapping[str, Iterable[Any]]) -> str:
    """Returns the values of a setting with the methods that have each."""
    methods: dict[str, list[str]] = {}
    for method, values in by_method.items():
        for value in values:
            methods.setdefault(value_text(value), []).append(repr(method))
    return "; ".join(f"{value} for {', '.join(several)}" for value, several in methods.items())
