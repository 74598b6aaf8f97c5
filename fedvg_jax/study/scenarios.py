"""Which settings of the runs vary, the names of their methods, and their scenarios."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedvg_jax.config import SETTINGS, Config, apply, declare, flatten, presets
from fedvg_jax.config.methods import PERSONAL
from fedvg_jax.config.uses import unused, used_departures, with_passed
from fedvg_jax.runs.record.folder import RESUMABLE_CHANGES
from fedvg_jax.study.cells import Replicate, Scenario, value_text
from fedvg_jax.study.sweep_points import PLACES

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

    config: Config
    settings: Mapping[str, Any]
    """Those that affect its results, by dotted name."""
    values: Mapping[str, Any]
    """Values of the sweep's axes: dotted settings, the shorthands "method" and "fidelity", and "hyper." with a name."""
    tuned: Collection[str]
    """Settings that the sweep has chosen on D_val."""
    given: Collection[str]
    """Names of the objects that Python passed in place of settings, of those in `PASSED`."""


class Place(NamedTuple):
    """Where a run belongs in a study."""

    method: str
    scenario: Scenario
    replicate: Replicate


def make_point(
    config: Config, values: Mapping[str, Any] = {}, tuned: Collection[str] = (), given: Collection[str] = ()
) -> Point:
    """Returns the point of a config; arguments as the fields of `Point`."""
    ignored = NO_RESULT.union(unused(config), ["departures"])
    settings = {name: value for name, value in flatten(config).items() if name not in ignored}
    settings = with_passed(settings | used_departures(config), given)
    settings |= {name: value for name, value in values.items() if name.startswith("hyper.") or name in PLACES}
    return Point(config, settings, values, tuned, given)


def likely_point(values: Mapping[str, Any], others: Sequence[Point]) -> Point:
    """Returns a point of a sweep whose folder is missing: the most similar one with a folder, with its own values.

    Args:
        values: of the sweep's axes.
        others: points of the sweep with a folder, at least one.
    """
    alike = [other for other in others if other.values.get("method") == values.get("method")]
    nearest = max(alike or others, key=lambda other: sum(other.values.get(n) == v for n, v in values.items()))
    own: dict[str, Any] = {} if alike else {"local": Config.local}  # of another method
    named = (*SETTINGS, *presets.SHORTHANDS)
    own |= {name: value for name, value in values.items() if name in named and value != "follow"}
    if all(other.config.partition_seed == other.config.seed for other in others):
        own.setdefault("partition_seed", own.get("seed", nearest.config.seed))
    config = apply(nearest.config, own, "sweep.json")
    return make_point(config, values, nearest.tuned, nearest.given)


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

    A setting that was chosen on D_val for all points that use it is part of no scenario and no name, unless a cell
    would then have runs at several of its values, as of two sweeps that were tuned apart.

    Args:
        points: all runs of the study, and those that are missing.
    """
    fixed = {name for point in points for name in point.settings if name not in point.tuned}
    placed = _places(points, fixed)
    values: dict[tuple[str, Scenario, str], set[Any]] = {}
    for point, place in zip(points, placed, strict=True):
        for name in point.settings.keys() & {*point.tuned} - fixed:
            values.setdefault((place.method, place.scenario, name), set()).add(point.settings[name])
    pooled = {name for (_, _, name), several in values.items() if len(several) > 1}
    return _places(points, fixed | pooled) if pooled else placed


def _places(points: Sequence[Point], fixed: Collection[str]) -> list[Place]:
    """Returns the place of every point.

    Args:
        points: all runs of the study, and those that are missing.
        fixed: settings that may be part of a scenario or a name.
    """
    differing = [name for name in varying(points) if name in fixed]
    has_fidelity = len({point.values.get("fidelity") for point in points} - {None}) > 1
    names = _scenario_settings(points, differing, has_fidelity)
    of_method = [name for name in differing if name.split(".")[0] in METHOD_GROUPS]
    result = []
    for point in points:
        settings = point.settings
        scenario = tuple((name, settings[name]) for name in names if name in settings)
        if has_fidelity:
            scenario += (("fidelity", point.values.get("fidelity", "corrected")),)
        base = base_name(**{name: settings[name] for name in OF_BASE if name in settings})
        details = [
            f"{_short(name, base)} {value_text(settings[name])}"
            for name in of_method
            if name in settings and not _goes_without_saying(name, settings[name], base)
        ]
        replicate = settings["seed"], settings.get("partition_seed", Config.partition_seed)  # a file's rows use none
        result.append(Place(", ".join(filter(None, [base, *details])), scenario, replicate))
    return result


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


def _scenario_settings(points: Sequence[Point], differing: Sequence[str], has_fidelity: bool) -> list[str]:
    """Returns the settings of a scenario, those of `FIRST` first.

    Left out are settings of the method, seeds, those that the shorthand fidelity stands for, and those that follow
    from data set and model, as the presets' do.
    """
    skipped = {"algorithm", "weighting", *REPLICATE}
    if has_fidelity:
        skipped.update(presets.FIDELITY["official"])
    names = [name for name in differing if name not in skipped and name.split(".")[0] not in METHOD_GROUPS]
    names.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    keys = [name for name in ("dataset", "model") if name in names]
    if keys[1:] and not any("model" in point.values for point in points) and _follows(points, "model", keys[:1]):
        keys = keys[:1]  # the presets' models
    return [name for name in names if name in keys or not (keys and _follows(points, name, keys))]


def _follows(points: Sequence[Point], name: str, keys: Sequence[str]) -> bool:
    """Returns whether a setting has one value for every combination of values of the settings `keys`."""
    values: dict[tuple, Any] = {}
    for settings in (point.settings for point in points):
        if values.setdefault(tuple(settings.get(k) for k in keys), settings.get(name)) != settings.get(name):
            return False
    return True


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
