"""Where a run belongs in a study: its method, its scenario and its replicate."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from fedvg_jax.config import Config, declare, flatten, presets
from fedvg_jax.config.methods import PERSONAL
from fedvg_jax.config.uses import PASSED, replaced_with, unused, used_departures, with_passed
from fedvg_jax.config.weighting_grammar import method_of
from fedvg_jax.runs.record.folder import RESUMABLE_CHANGES
from fedvg_jax.study.cells import Replicate, Scenario, value_text
from fedvg_jax.study.sweep_points import HYPER, PLACES

NO_RESULT = RESUMABLE_CHANGES - {"rounds", "stop_at", "patience"}  # which decide the last round
NO_RESULT |= {"lanes", "hold", "conv", "deterministic", "validation.data_dir", "record"}
"""Settings that name a place, an implementation or entries of the history: runs that differ in them are compared. A
folder of data that is an axis of a sweep names the data."""

METHOD_GROUPS = (*declare.method_groups(Config), "hyper", "local", "departures")
METHOD_GROUPS += ("train", "lora", "send", "robust")
"""Groups of settings, and settings, that belong to the name of the method where they vary."""

NAMED_APART = ("seed", "partition_seed", "algorithm", "weighting")
"""Settings that a replicate and the base of a method's name have."""

FIRST = ("dataset", "model", "partition", "alpha")
"""Settings that come first in a scenario, in this order."""


class Place(NamedTuple):
    """Where a run belongs in a study."""

    method: str
    scenario: Scenario
    replicate: Replicate


def settings_of(config: Config, values: Mapping[str, Any] = {}, given: Mapping[str, str] = {}) -> dict[str, Any]:
    """Returns the settings that affect the results of a run, by dotted name.

    Args:
        config: its settings.
        values: of the sweep's axes: dotted settings, the shorthands "method" and "fidelity", and "hyper." with a name.
        given: what Python passed in place of settings, of those in `PASSED` -> its name; "" for one without.
    """
    ignored = NO_RESULT.union(unused(config), ["departures"], replaced_with(given))
    settings = {name: value for name, value in flatten(config).items() if name not in ignored}
    settings = with_passed(settings | used_departures(config), given)
    own = {name: value for name, value in values.items() if name.startswith(HYPER) or name in (*PLACES, "fidelity")}
    return settings | own


def shared_settings(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the settings that all runs use with the same value, by dotted name."""
    first, *others = (settings.items() for settings in runs)
    return {name: value for name, value in first if all((name, value) in items for items in others)}


def places(runs: Sequence[Mapping[str, Any]], axes: Collection[str] = ()) -> list[Place]:
    """Returns the place of every run.

    Names and scenarios have the settings that a sweep declares as axes; those of other runs have all settings that
    vary. A scenario has none that follows from the ones before it, such as a model that goes with its data set.

    Args:
        runs: settings of all runs of the study, and of those that are missing; see `settings_of`.
        axes: of the sweep that all runs are from; none for other runs.
    """
    declared = {PASSED.get(name, name) for name in axes}
    varying = [name for name in dict.fromkeys(n for run in runs for n in run) if _varies(name, runs)]
    names = [name for name in varying if name not in NAMED_APART]
    if axes:
        names = [name for name in names if declared & {name, name.partition(".")[0]}]
    of_method = [name for name in names if name.partition(".")[0] in METHOD_GROUPS]
    others = [name for name in names if name not in of_method]
    of_scenario: list[str] = []
    for name in sorted(others, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST)):
        if _varies(name, runs, of_scenario):
            of_scenario.append(name)
    return [_place(run, of_scenario, of_method) for run in runs]


def _varies(name: str, runs: Sequence[Mapping[str, Any]], told_apart_by: Sequence[str] = ()) -> bool:
    """Returns whether runs that other settings do not tell apart have several values of a setting."""
    values: dict[tuple, set[Any]] = {}
    for run in runs:
        if name in run:
            values.setdefault(tuple(run.get(other) for other in told_apart_by), set()).add(run[name])
    return any(len(several) > 1 for several in values.values())


def _place(run: Mapping[str, Any], of_scenario: Sequence[str], of_method: Sequence[str]) -> Place:
    """Returns the place of a run; the method's name has its settings that do not go without saying."""
    base = method_of(run["algorithm"], run["weighting"], run.get("local", ""))
    details = [
        f"{_short(name, base)} {value_text(run[name])}"
        for name in of_method
        if name in run and not _goes_without_saying(name, run[name], base)
    ]
    scenario = tuple((name, run[name]) for name in of_scenario if name in run)
    replicate = run["seed"], run.get("partition_seed", Config.partition_seed)  # a file's rows use none
    return Place(", ".join([base, *details]), scenario, replicate)


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
