"""Checks a `Config`: types, allowed values, combinations that make no sense, and settings that a run does not use.

A flag that the run does not use is refused. In a TOML file and in Python such settings are allowed, because the runs of
a sweep share them: config.json lists them under `unused`. `NEVER_UNUSED` are refused there, too.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from fedvg_jax.config import options
from fedvg_jax.config.declare import Condition, Form, flatten, listed, nested, shown, suggestion
from fedvg_jax.config.methods import (
    ALGORITHMS,
    WEIGHTINGS,
    method_of,
    method_title,
    parse_weighting,
    streams,
)
from fedvg_jax.config.options import (
    RECORDS,
    REFERENCES,
    SETTINGS,
    TRACKERS,
    Config,
    as_reference,
    effective,
)
from fedvg_jax.config.presets import DATASETS, OUTSIDE, dataset_preset, reference_behaviours
from fedvg_jax.core.types import Range, UsageError, compiled
from fedvg_jax.engine import robust

FLOAT32 = (2.0**-126, (2 - 2.0**-23) * 2.0**127)
"""Smallest and largest normal number of IEEE 754 single precision; XLA flushes smaller ones to 0."""

NEVER_UNUSED = ("norm_layers", "momentum", "image_size", "min_samples_rule", "validation.data_dir")
"""Settings that are refused where a run does not use them, also in a file and from Python: without them it would
silently train another model, or on other data, than their user expects."""


def check(config: Config) -> Config:
    """Returns `config` with its cache folder, which is `default_cache_dir` unless it is set.

    Raises:
        UsageError: for the first setting with another value than allowed, or that contradicts another.
    """
    if not isinstance(config, Config):
        raise UsageError(f"config must be a fedvg_jax.Config; got {shown(config)}")
    if config.cache_dir is None:
        config = dataclasses.replace(config, cache_dir=options.default_cache_dir())
    check_values(config)
    _check_texts(config)
    preset = dataset_preset(config.dataset)  # which other settings may leave without use
    refuse_unused(
        config,
        (
            name
            for name in NEVER_UNUSED
            if SETTINGS[name].get(config) not in (SETTINGS[name].default, preset.get(name))
        ),
    )
    for problems in PROBLEMS:
        for message in problems(config):
            raise UsageError(message)
    return config


def check_values(config: Config, names: Iterable[str] = tuple(SETTINGS)) -> None:
    """Raises UsageError for the first setting with another value than it declares, or that float32 cannot hold."""
    for name in names:
        setting = SETTINGS[name]
        value = setting.get(config)
        if type(value) is int and abs(value) >= 2**32:
            raise UsageError(f"{name} must be below 2**32; got a larger number")
        if setting.arguments:
            value = _check_choice(name, str(value))
        elif setting.names:
            require_name(name, str(value), setting.names)
        rule = setting.facts.allowed
        if isinstance(rule, Range | Form) and value is not None and not rule.holds(value):
            raise UsageError(f"{name} must be {rule.words}; got {value!s:.100}")
        if type(value) is float and value and not FLOAT32[0] <= abs(value) <= FLOAT32[1]:
            raise UsageError(f"{name} must be a number that float32 can hold; got {value}")


def _check_choice(name: str, text: str) -> Any:
    """Returns the value behind a name; raises UsageError if the setting does not allow the name or the value."""
    try:
        chosen, value = SETTINGS[name].split(text)
    except ValueError as error:
        raise UsageError(f"{name} {error}; got {text:.100}") from None
    require_name(name, chosen, SETTINGS[name].names)
    if value == "":
        raise UsageError(f"{name} {chosen} needs a file: --{name} {chosen}:FILE, a .json of rows")
    return value


def _check_texts(config: Config) -> None:
    """Raises UsageError for a text that does not follow the grammar of its setting."""
    if not config.dataset.startswith(tuple(OUTSIDE)):
        require_name("dataset", config.dataset, (*DATASETS, *OUTSIDE.values()))
    lists = {"record": RECORDS, "track": TRACKERS, "reference": ("official", *REFERENCES)}
    for setting, allowed in lists.items():
        for name in listed(getattr(config, setting)):
            require_name(setting, name.removeprefix("no-"), allowed)
    parse_weighting(config.weighting)
    share, local = options.local(config)
    if share >= 1:
        raise UsageError(f"local SHARE:REGEX takes a SHARE below 1; got {config.local:.100}")
    patterns = {
        "fedvg.include": config.fedvg.include,
        "train": config.train,
        "local": local,
        "lora": options.lora(config)[1],
        "group_pattern": config.group_pattern,
    }
    for name, pattern in patterns.items():
        compiled(pattern, name)


# --- combinations: each function yields a message for every contradiction, which can be detected without the data


_DP_COHORTS = "dp accounts for uniform cohorts"
_NO_ROUND = "a buffered server waits for no round"

APART = {
    ("dp.clip", "robust"): "dp bounds weighted means",
    ("dp.clip", "local"): "dp does not account for what clients keep",
    ("dp.clip", "selection"): _DP_COHORTS,
    ("dp.clip", "overselect"): _DP_COHORTS,
    ("dp.clip", "deadline"): _DP_COHORTS,
    ("buffered.size", "dp.clip"): _DP_COHORTS,
    ("buffered.size", "local"): "one update may have two trainings of a client",
    ("buffered.size", "selection"): "clients that train next are drawn uniformly",
    ("buffered.size", "dropout"): "every client arrives",
    ("buffered.size", "overselect"): _NO_ROUND,
    ("buffered.size", "deadline"): _NO_ROUND,
    ("buffered.size", "reference cohorts"): "it draws the cohorts of synchronous rounds",
    ("overselect", "reference cohorts"): "both choose the cohorts",
    ("export", "local"): "the exported model is the global one, which has no local tensors",
}
"""Two settings of which a run may change only one from its default -> the reason."""
for _name in ("step", "fixed", "upload", "download", "speeds"):
    APART["clock.file", f"clock.{_name}"] = "the file has the durations of clients"


def _pair_problems(config: Config) -> Iterator[str]:
    chosen = {name for name, s in SETTINGS.items() if s.get(config) != s.default}
    chosen |= {f"reference {name}" for name in reference_behaviours(config.reference)}
    for pair, reason in APART.items():
        if chosen.issuperset(pair):
            yield f"{' and '.join(pair)} cannot be used together, because {reason}; leave one out"


def _training_problems(config: Config) -> Iterator[str]:
    """Yields contradictions of the model, its cohorts, its local training and the method."""
    size, clients = options.cohort_size(config), config.clients
    selection, candidates = options.choice(config, "selection")
    if selection == "power_of_choice" and candidates and not size <= candidates <= clients:
        yield f"selection power_of_choice:D takes the cohort's {size} to the {clients} clients; got {candidates}"
    fewest, most = options.epochs_range(config)
    if fewest > most:
        yield f"local_epochs MIN:MAX must have MIN <= MAX; got {config.local_epochs}"
    if config.norm_layers == "frozen" and not config.init:
        yield "norm_layers frozen keeps statistics of a trained model; name one by --init, or use --norm-layers batch"
    if config.test_ratio + config.val_ratio >= 1:
        yield f"test_ratio + val_ratio must be below 1; got {config.test_ratio + config.val_ratio}"
    if config.batch_size == 1 and as_reference(config, "single-rows"):
        yield "batch_size must be >= 2 with reference single-rows; got 1"
    if config.fedvg.norm == "delta" and config.fedvg.signal == "fisher":
        yield "fedvg.norm delta is the L1 norm of fedvg.signal delta; got signal fisher; use --fedvg.norm l1"
    measured, published = "elastic-sensitivity", ALGORITHMS[config.algorithm].published
    if (
        measured in published
        and as_reference(config, "server-stats")
        and not as_reference(config, measured)
    ):
        yield f"reference server-stats needs {measured}, which measures running statistics"
    if 0 < config.client_chunk < size and not streams(config.weighting):
        streamed = ", ".join(name for name, facts in WEIGHTINGS.items() if facts.streams)
        yield (
            f"client_chunk {config.client_chunk} of a cohort of {size} needs {streamed} or a mean of two; got"
            f" {config.weighting}; use these or --client-chunk 0"
        )


def _corruption_problems(config: Config) -> Iterator[str]:
    """Yields contradictions of a robust rule with the size of the cohort, and corruptions of no client."""
    rule, value = options.choice(config, "robust")
    find, arguments = robust.BY_NAME[rule].problem, value if isinstance(value, tuple) else (value,)
    if find and (problem := find(options.cohort_size(config), *arguments)):
        yield f"robust {config.robust} {problem}"
    if not unmet(config, "corrupt.clients") and options.num_corrupt(config) == 0:
        fraction, least = config.corrupt.clients, 0.5 / config.clients
        yield f"corrupt.clients {fraction} of {config.clients} clients is none; use > {least:g}"


def _privacy_problems(config: Config) -> Iterator[str]:
    """Yields what shows a client's data without noise under differential privacy."""
    if config.dp.clip == 0:
        return
    if config.dataset in ("breast_cancer", "wine", "iris"):
        yield f"dataset {config.dataset} is scaled by statistics of all clients' rows without noise; dp needs another"
    if config.tuning.steps and options.choice(config, "validation.source")[0] == "clients":
        yield "tuning.steps trains on D_val, rows of the clients, without noise; dp needs an external validation.source"
    if config.dp.delta * config.clients >= 1:
        yield f"dp.delta must be below 1 / clients = {1 / config.clients:g}; got {config.dp.delta:g}"


def _data_problems(config: Config) -> Iterator[str]:
    """Yields contradictions of the partition and the validation set."""
    (kind, _), (source, _) = (
        options.choice(config, name) for name in ("partition", "validation.source")
    )
    if config.holdout != "client" and kind in ("file", "official"):
        yield f"holdout {config.holdout} precedes the partition, and partition {kind} assigns all rows; use client"
    if config.dataset == "dermamnist" and config.splits not in ("all", "official"):
        yield f"splits of dermamnist must be all or official; got {config.splits:.100}"
    if kind == "balanced_client" and config.clients < 2:
        yield "partition balanced_client needs at least 2 clients; got 1"
    if source == "clients" and config.val_ratio == 0:
        yield f"val_ratio must be in (0, 1); got {config.val_ratio}; 0 is for an external --validation.source"
    if source == "npz" and config.validation.data_dir is None:
        yield "validation.source npz needs --validation.data-dir DIR with its file"


def _clock_problems(config: Config) -> Iterator[str]:
    """Yields contradictions of the clock with the number of clients."""
    kind, bounds = options.choice(config, "clock.speeds")
    if kind == "uniform" and bounds[0] > bounds[1]:
        yield f"clock.speeds uniform:LOW,HIGH must have LOW <= HIGH; got {bounds[0]:g},{bounds[1]:g}"
    for name, number in (
        ("size", config.buffered.size),
        ("concurrency", options.concurrency(config)),
    ):
        if number > config.clients:
            yield f"buffered.{name} must be at most the {config.clients} clients; got {number}"
    if options.num_asked(config) > config.clients:
        most = config.clients / options.cohort_size(config)
        yield f"overselect must ask at most the {config.clients} clients; got {config.overselect:g}, use <= {most:g}"


PROBLEMS = (
    _training_problems,
    _corruption_problems,
    _privacy_problems,
    _data_problems,
    _clock_problems,
    _pair_problems,
)


def require_name(name: str, value: str, allowed: Iterable[str]) -> None:
    """Raises UsageError for a value that is none of the allowed names."""
    if value not in allowed:
        raise UsageError(f"unknown {name} '{value!s:.100}'{suggestion(value, allowed)}")


# --- which settings a run uses, and how they are recorded

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

FUNCTIONS = tuple(name for name in PASSED if name not in ("data", "partition"))
"""Arguments that hold functions."""

HOST = tuple(name for name, setting in SETTINGS.items() if setting.facts.kind == "host")
"""Settings that change no result, such as folders."""


CONDITIONS = {name: setting.facts.used for name, setting in SETTINGS.items()}
CONDITIONS |= {f"reference.{name}": used for name, used in REFERENCES.items()}
"""Setting, or behaviour of the published code -> conditions that must all hold for a run to use it."""


def unmet(config: Config, name: str) -> Condition | None:
    """Returns the first condition of a setting that does not hold; None where the run uses it.

    `reference` is used where the run uses one of its differences.
    """
    if name == "reference":
        words = [word.removeprefix("no-") for word in listed(config.reference)]
        found = [unmet(config, f"reference.{word}") for word in words if word != "official"]
        return found[0] if found and all(found) else None
    for condition in CONDITIONS.get(name, ()):  # shorthands have none
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
    settings = {name: value for name, value in effective(config).items() if name not in left_out}
    return plain(settings) | used_differences(config)


def used_differences(config: Config) -> dict[str, bool]:
    """Returns whether the run has each difference that it can have, as a setting of that name.

    >>> used_differences(Config(algorithm="scaffold", reference="scaffold-state"))["reference.scaffold-state"]
    True
    """
    chosen = reference_behaviours(config.reference)
    return {
        f"reference.{name}": name in chosen
        for name in REFERENCES
        if not unmet(config, f"reference.{name}")
    }


def to_json(config: Config) -> dict[str, Any]:
    """Returns the settings as JSON values, nested as in the dataclasses, and the list `unused`."""
    return plain(nested(flatten(config))) | {"unused": unused(config)}


def refuse_unused(config: Config, names: Iterable[str]) -> None:
    """Raises UsageError for the first of these settings that the run does not use."""
    for name in names:
        if condition := unmet(config, name):
            value = SETTINGS[condition.setting].get(config)
            flag, decider = (f"--{text.replace('_', '-')}" for text in (name, condition.setting))
            raise UsageError(
                f"{flag} is not used by {decider} {value!r}; it is used by {condition.by}; leave it out"
            )


def replaced_with(passed: Collection[str]) -> set[str]:
    """Returns the settings that have no effect beside objects from Python, because only what these replace reads them.

    >>> "fedvg.norm" in replaced_with(["weighting"]), "fedvg.norm" in replaced_with(["algorithm"])
    (True, False)
    """
    replaced = {PASSED[name] for name in passed if name in PASSED}
    return {name for name, setting in SETTINGS.items() if replaced & setting.deciders}


def with_passed(settings: Mapping[str, Any], passed: Mapping[str, str]) -> dict[str, Any]:
    """Returns settings as they name a run: by the name of an object that came from Python, or "custom weighting".

    Args:
        settings: dotted name -> value.
        passed: what a call from Python passed in place of a setting -> its name; "" for one without.

    >>> with_passed({"weighting": "fedvg", "lr": 0.1}, {"weighting": ""})
    {'weighting': 'custom weighting', 'lr': 0.1}
    """
    names = {PASSED[argument]: name or f"custom {argument}" for argument, name in passed.items()}
    return {setting: names.get(setting, value) for setting, value in settings.items()}


def partition_label(config: Config) -> str:
    """Returns the partition, with its concentration where it has one.

    >>> partition_label(Config(alpha=0.1)), partition_label(Config(partition="iid"))
    ('dirichlet, alpha 0.1', 'iid')
    """
    if unmet(config, "alpha"):
        return config.partition
    return f"{config.partition}, alpha {config.alpha:g}"


def method_name(config: Config, custom: Mapping[str, str]) -> str:
    """Returns the name of a run's method.

    Args:
        config: of the run.
        custom: what Python passed in place of settings -> its name; "" for one without.
    """
    settings = {"algorithm": config.algorithm, "weighting": config.weighting}
    return method_of(**with_passed(settings, custom), local=config.local)


def method_and_run(config: Config, custom: Mapping[str, str] = {}) -> tuple[str, str]:
    """Returns the name of a run's method, and a line of method, data set, partition and seed.

    Args:
        config: of the run.
        custom: as in `method_name`.

    >>> method_and_run(Config())
    ('fedvg', 'FedVG; digits, dirichlet, alpha 0.05; seed 0')
    >>> method_and_run(Config(), {"weighting": "root", "data": ""})
    ('root', 'root; custom data, dirichlet, alpha 0.05; seed 0')
    """
    method = method_name(config, custom)
    settings = {"dataset": config.dataset, "partition": partition_label(config)}
    rows = ", ".join(with_passed(settings, custom).values())
    return method, f"{method_title(method)}; {rows}; seed {config.seed}"


def plain(value: Any) -> Any:
    """Returns settings, or other nested values, as JSON holds them: paths as texts."""
    return json.loads(json.dumps(value, default=str))
