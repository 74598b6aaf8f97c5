"""Which settings a run uses, and how its settings are recorded.

A flag that the run does not use is refused. In a TOML file and in Python such settings are allowed, because the runs of
a sweep share them: config.json lists them under `unused`. `checks.NEVER_UNUSED` are refused there, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedvg_jax.config.declare import Condition
from fedvg_jax.config.fidelity import listed, reference_behaviours
from fedvg_jax.config.options import DIFFERENCES, SETTINGS, Config, effective
from fedvg_jax.core.types import UsageError

PASSED = {
    "data": "dataset",
    "partition": "partition",
    "task": "model",
    "algorithm": "algorithm",
    "weighting": "weighting",
    "selection": "selection",
    "aggregate": "robust",
    "send": "send",
    "attack": "attack",
}
"""Object that a call from Python passes in place of a setting -> that setting."""

HOST = tuple(name for name, setting in SETTINGS.items() if setting.facts.kind == "host")
"""Settings that change no result, such as folders."""


def unmet(config: Config, name: str) -> Condition | None:
    """Returns the first condition of a setting that does not hold; None where the run uses it.

    `reference` is used where the run uses one of its differences.
    """
    if name == "reference":
        words = [word.removeprefix("no-") for word in listed(config.reference)]
        found = [_first(config, DIFFERENCES.get(w, ())) for w in words if w != "official"]
        return found[0] if found and all(found) else None
    # shorthands have no conditions
    return _first(config, SETTINGS[name].facts.used if name in SETTINGS else ())


def _first(config: Config, conditions: Iterable[Condition]) -> Condition | None:
    for condition in conditions:
        if not condition.holds(config):
            return condition
    return None


CONDITIONAL = [n for n, s in SETTINGS.items() if s.facts.used or n == "reference"]
"""Settings that some runs do not use."""


def unused(config: Config, names: Iterable[str] = tuple(CONDITIONAL)) -> list[str]:
    """Returns the settings, of `names`, that have no effect on this run.

    >>> unused(Config(weighting="samples"), ["fedvg.norm", "fedprox.mu", "lr"])
    ['fedvg.norm', 'fedprox.mu']
    """
    return [name for name in names if unmet(config, name)]


def used(config: Config) -> dict[str, Any]:
    """Returns the settings on which the results of a run depend, by dotted name.

    >>> settings = used(Config(weighting="samples"))
    >>> "lr" in settings, "fedvg.norm" in settings, "out" in settings
    (True, False, False)
    """
    left_out = {*HOST, "reference", *unused(config)}
    settings = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in effective(config).items()
        if name not in left_out
    }
    return settings | used_differences(config)


def used_differences(config: Config) -> dict[str, bool]:
    """Returns whether the run has each difference that it can have, as a setting of that name.

    >>> used_differences(Config(algorithm="scaffold", reference="scaffold-state"))["reference.scaffold-state"]
    True
    """
    chosen = reference_behaviours(config.reference)
    return {
        f"reference.{name}": name in chosen
        for name, used in DIFFERENCES.items()
        if not _first(config, used)
    }


def to_json(config: Config) -> dict[str, Any]:
    """Returns the settings as JSON values, nested as in the dataclasses, and the list `unused`."""
    settings: dict[str, Any] = {}
    for name, declared in SETTINGS.items():  # those of groups are the last
        group, dot, last = name.rpartition(".")
        value = declared.get(config)
        of_group = settings.setdefault(group, {}) if dot else settings
        of_group[last] = str(value) if isinstance(value, Path) else value
    return settings | {"unused": unused(config)}


def refuse_unused(config: Config, names: Iterable[str]) -> None:
    """Raises UsageError for the first flag that the run does not use.

    Args:
        config: settings of the run.
        names: settings that are flags of the command line.
    """
    for message in filter(None, (no_use(config, name) for name in names)):
        raise UsageError(message)


def no_use(config: Config, name: str) -> str:
    """Returns the message about a setting that the run does not use; "" where it uses it."""
    condition = unmet(config, name)
    if condition is None:
        return ""
    value = SETTINGS[condition.setting].get(config)
    flag, decider = (f"--{text.replace('_', '-')}" for text in (name, condition.setting))
    return f"{flag} is not used by {decider} {value!r}; it is used by {condition.by}; leave it out"


def replaced_with(passed: Collection[str]) -> set[str]:
    """Returns the settings that have no effect beside objects from Python, because only what these replace reads them.

    >>> "fedvg.norm" in replaced_with(["weighting"]), "fedvg.norm" in replaced_with(["algorithm"])
    (True, False)
    """
    replaced = {PASSED[name] for name in passed if name in PASSED}
    return {
        n
        for n, s in SETTINGS.items()
        if any(condition.setting in replaced for condition in s.facts.used)
    }


def with_passed(settings: Mapping[str, Any], passed: Mapping[str, str]) -> dict[str, Any]:
    """Returns settings as they name a run: by the name of an object that came from Python, or "custom weighting".

    Args:
        settings: dotted name -> value.
        passed: what a call from Python passed in place of a setting -> its name; "" for one without.

    >>> with_passed({"weighting": "fedvg", "lr": 0.1}, {"weighting": ""})
    {'weighting': 'custom weighting', 'lr': 0.1}
    """
    own = {
        setting: passed[name] or f"custom {name}"
        for name, setting in PASSED.items()
        if name in passed
    }
    return {name: own.get(name, value) for name, value in settings.items()}


def plain(value: Any) -> Any:
    """Returns a value of a setting, or several in a dict or a list, as JSON holds them."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value
