"""Where a run belongs in a study: the name of its method, its condition, and its seeds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from fedvg_jax.config import Config, checks, flatten
from fedvg_jax.config.methods import ALGORITHMS, PERSONAL, method_of
from fedvg_jax.config.options import GROUPS, effective
from fedvg_jax.runs.record.folder import RESUMABLE_CHANGES
from fedvg_jax.study.sweep_trials import Settings, Trial

Condition = tuple[tuple[str, Any], ...]
"""(setting, value) of every setting that varies besides the method and the seeds."""

Seeds = tuple[int, int]
"""(seed, partition seed); runs of two methods are paired by it."""

NO_RESULT = RESUMABLE_CHANGES - {"rounds"}
NO_RESULT |= {"lanes", "client_chunk", "conv", "validation.data_dir", "record"}
"""Settings that name a place, an implementation or entries of the history: runs that differ in them are compared. A
folder of data that is an axis of a sweep names the data."""

METHOD_GROUPS = (
    *{*GROUPS} - {"validation", "clock", "buffered", "corrupt"},
    "hyper",
    "local",
    "reference",
    "train",
    "lora",
    "send",
    "robust",
)
"""Groups of settings, and settings, that belong to the name of the method where they vary."""

NAMED_APART = ("seed", "partition_seed", "method", "algorithm", "weighting")
"""Settings that the seeds and the base of a method's name have."""

FIRST = ("dataset", "model", "partition", "alpha")
"""Settings that come first in a condition, in this order."""


class Place(NamedTuple):
    """Where a run belongs in a study."""

    method: str
    condition: Condition
    seeds: Seeds


def settings_of(trial: Trial) -> dict[str, Any]:
    """Returns the settings that affect the results of a trial, by dotted name, without those of a named method."""
    config, custom = trial.config, trial.custom
    ignored = NO_RESULT.union(checks.unused(config), ["reference"], checks.replaced_with(custom))
    settings = {name: value for name, value in effective(config).items() if name not in ignored}
    named = checks.with_passed(settings | checks.used_differences(config), custom)
    settings = {**named, **trial.names}
    return {name: value for name, value in settings.items() if trial.names.get(name) != ""}


def shared_settings(runs: Sequence[Settings]) -> dict[str, Any]:
    """Returns the settings that all runs use with the same value, by dotted name."""
    shared = dict(runs[0])
    for run in runs:
        shared = {n: v for n, v in shared.items() if (n, v) in run.items()}
    return shared


def places(runs: Sequence[Settings], axes: Collection[str] = ()) -> list[Place]:
    """Returns the place of every run.

    Names and conditions have the settings that a sweep declares as axes. Without a sweep, they have all settings that
    vary. A condition has none that follows from the ones before it, such as a model that goes with its data set.

    Args:
        runs: settings of all runs of the study, and of those that are missing; see `settings_of`.
        axes: of the sweep that all runs are from; none for other runs.
    """
    all_names = dict.fromkeys(name for run in runs for name in run)
    names = [name for name in all_names if name not in NAMED_APART and _varies(name, runs)]
    if axes:
        declared = {checks.PASSED.get(name, name) for name in axes}
        names = [name for name in names if declared & {name, _group(name)}]
    of_method = [name for name in names if _group(name) in METHOD_GROUPS]
    of_condition = []
    for name in sorted(names, key=lambda name: (*FIRST, name).index(name)):
        if name not in of_method and _varies(name, runs, of_condition):
            of_condition.append(name)
    return [_place(run, of_condition, of_method) for run in runs]


def _group(name: str) -> str:
    """Returns the group of a dotted setting; the setting itself where it has none."""
    return name.partition(".")[0]


def _varies(name: str, runs: Sequence[Settings], told_apart_by: Sequence[str] = ()) -> bool:
    """Returns whether runs that other settings do not tell apart have several values of a setting."""
    first = {}
    for run in runs:
        if name in run:
            others = tuple(run.get(other) for other in told_apart_by)
            if first.setdefault(others, run[name]) != run[name]:
                return True
    return False


def _place(run: Settings, of_condition: Sequence[str], of_method: Sequence[str]) -> Place:
    """Returns the place of a run; the method's name has its settings that do not go without saying."""
    built_in = method_of(run["algorithm"], run["weighting"], run.get("local", ""))
    base = run.get("method", built_in)
    words = [base]
    for name in of_method:
        if name in run and not _goes_without_saying(name, run[name], base):
            words.append(f"{_short(name, base)} {value_text(run[name])}")
    condition = tuple((name, run[name]) for name in of_condition if name in run)
    return Place(", ".join(words), condition, (run["seed"], run["partition_seed"]))


def _goes_without_saying(name: str, value: Any, base: str) -> bool:
    """Returns whether a setting is part of the method, or a default that stands for nothing, such as no tuning steps.

    >>> _goes_without_saying("tuning.steps", 0, "fedvg"), _goes_without_saying("fedvg.eps", 0.0, "fedvg")
    (True, False)
    >>> _goes_without_saying("local", "^classifier/", "fedper+fedvg"), _goes_without_saying("local", "bias", "fedvg")
    (True, False)
    """
    is_default = flatten(Config()).get(name) == value
    if is_default and value in (0, "none", ""):
        return True
    algorithm = base.partition("+")[0]
    if algorithm in PERSONAL:
        return name == "local" and PERSONAL[algorithm].local == value
    return is_default and algorithm in ALGORITHMS and name.startswith(f"{algorithm}.")


def _short(name: str, base: str) -> str:
    """Returns the name of a setting without its group where that is part of the method's name, or says nothing.

    >>> _short("fedvg.norm", "fedprox+fedvg"), _short("dp.clip", "fedavg"), _short("hyper.T", "fedavg")
    ('norm', 'dp.clip', 'T')
    """
    group, _, rest = name.partition(".")
    return rest if group in base or group == "hyper" else name


# --- in words


def condition_text(condition: Condition) -> str:
    """Returns a condition for people.

    >>> condition_text((("dataset", "digits"), ("alpha", 0.05)))
    'dataset digits, alpha 0.05'
    """
    return ", ".join(f"{name} {value_text(value)}" for name, value in condition)


def value_text(value: Any) -> str:
    """Returns the value of a setting for people: floats without trailing zeros.

    >>> value_text(0.1 + 0.2), value_text(0.12345671)
    ('0.3', '0.12345671')
    """
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def seeds_text(seeds: Seeds) -> str:
    """Returns a seed and a partition seed for people; a partition seed that equals the seed goes without saying.

    >>> seeds_text((3, 42)), seeds_text((3, 3))
    ('seed 3, partition seed 42', 'seed 3')
    """
    seed, partition_seed = seeds
    text = f"seed {seed}"
    return text if seed == partition_seed else f"{text}, partition seed {partition_seed}"
