"""Checks a `Config`: types, allowed values, combinations that make no sense, and settings that a run does not use.

A flag that the run does not use is refused. In a TOML file and in Python such settings are allowed, because the runs of
a sweep share them: config.json lists them under `unused`. `NEVER_UNUSED` are refused there, too.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedvg_jax.config import options
from fedvg_jax.config.declare import Condition, listed, shown, suggestion
from fedvg_jax.config.methods import WEIGHTINGS, parse_weighting, streams
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
from fedvg_jax.core.types import UsageError, compiled

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
    _check_values(config)
    _check_texts(config)
    for problems in PROBLEMS:
        for message in problems(config):
            raise UsageError(message)
    return config


def _check_values(config: Config) -> None:
    """Raises UsageError for a value that is not among those its setting allows, or that float32 cannot hold."""
    if not config.dataset.startswith(tuple(OUTSIDE)):
        require_name("dataset", config.dataset, (*DATASETS, *OUTSIDE.values()))
    differences = ("official", *REFERENCES)
    lists = {"record": RECORDS, "track": TRACKERS, "reference": differences}
    for setting, allowed in lists.items():
        for name in listed(getattr(config, setting)):
            require_name(setting, name.removeprefix("no-"), allowed)
    for name, setting in SETTINGS.items():
        value, range = setting.get(config), setting.range
        if type(value) is int and abs(value) >= 2**32 and (range is None or range.high == math.inf):
            raise UsageError(f"{name} must be below 2**32; got a larger number")
        if setting.names:
            _check_choice(name, str(value))
        if range and value is not None and not range.holds(value):
            raise UsageError(f"{name} must be {range.words}; got {shown(value)}")
    for setting in options.SCALARS:
        for number in setting.scalars(config).values():
            if number != 0 and not FLOAT32[0] <= abs(number) <= FLOAT32[1]:
                raise UsageError(
                    f"{setting.name} must be a number that float32 can hold; got {number}"
                )


def _check_choice(name: str, text: str) -> None:
    """Raises UsageError for a text that is no allowed name, or no name with a value that it may have."""
    try:
        chosen, value = SETTINGS[name].split(text)
    except ValueError as error:
        raise UsageError(f"{name} {error}; got {_shorten(text)}") from None
    require_name(name, chosen, SETTINGS[name].names)
    if value == "":
        raise UsageError(f"{name} {chosen} needs a file: --{name} {chosen}:FILE, a .json of rows")


def _check_texts(config: Config) -> None:
    """Raises UsageError for a text that does not follow the grammar of its setting."""
    parse_weighting(config.weighting)
    epochs_range(config)
    rank, layers = options.lora(config)
    _require(
        bool(rank) or config.lora in (0, "", "0"),
        "lora",
        config.lora,
        "0, RANK, or RANK:REGEX with RANK >= 1",
    )
    share, local = options.local(config)
    _require(share < 1, "local", config.local, "REGEX, or SHARE:REGEX with a SHARE below 1")
    patterns = {
        "fedvg.include": config.fedvg.include,
        "train": config.train,
        "local": local,
        "lora": layers,
        "group_pattern": config.group_pattern,
    }
    for name, pattern in patterns.items():
        compiled(pattern, name)
    check_image_size(config.image_size)
    for name in ("lanes", "devices"):
        value = getattr(config, name)
        _require(value == "auto" or _is_count(value), name, value, "auto, or a number >= 1")


def check_image_size(text: str) -> None:
    """Raises UsageError for a text that is no size of images."""
    is_size = re.fullmatch(r"([1-9]\d{0,3}(x[1-9]\d{0,3})?)?", text, re.ASCII) is not None
    _require(
        is_size, "image_size", text, "a number of pixels below 10000, or HEIGHTxWIDTH as 244x224"
    )


def epochs_range(config: Config) -> tuple[int, int]:
    """Returns the smallest and the largest number of local epochs.

    Raises:
        UsageError: `local_epochs` is neither a number nor MIN:MAX.

    >>> epochs_range(Config(local_epochs="1:5")), epochs_range(Config(local_epochs=2))
    ((1, 5), (2, 2))
    """
    smallest, colon, largest = str(config.local_epochs).partition(":")
    numbers = [smallest, largest if colon else smallest]
    is_range = all(map(_is_count, numbers)) and int(numbers[0]) <= int(numbers[1])
    _require(
        is_range,
        "local_epochs",
        config.local_epochs,
        "a number >= 1, or MIN:MAX with 1 <= MIN <= MAX",
    )
    return int(numbers[0]), int(numbers[1])


# --- combinations: each function yields a message for every contradiction, which can be detected without the data


def _unused(config: Config) -> Iterator[str]:
    preset = dataset_preset(config.dataset)  # which other settings may leave without use
    for name in NEVER_UNUSED:
        is_chosen = SETTINGS[name].get(config) not in (SETTINGS[name].default, preset.get(name))
        if is_chosen and (message := no_use(config, name)):
            yield message


def _training_problems(config: Config) -> Iterator[str]:
    """Yields contradictions of the model, its cohorts, its local training and its devices."""
    least, (selection, given) = options.cohort_size(config), options.choice(config, "selection")
    if selection == "power_of_choice" and given and not least <= given <= config.clients:
        yield f"selection power_of_choice:D takes the cohort's {least} to the {config.clients} clients; got {given}"
    if config.norm_layers == "frozen" and not config.init:
        yield "norm_layers frozen keeps statistics of a trained model; name one by --init, or use --norm-layers batch"
    if config.test_ratio + config.val_ratio >= 1:
        yield f"test_ratio + val_ratio must be below 1; got {config.test_ratio + config.val_ratio}"
    if config.batch_size == 1 and as_reference(config, "single-rows"):
        yield "batch_size must be >= 2 with reference single-rows; got 1"


def _method_problems(config: Config) -> Iterator[str]:
    """Yields contradictions of weighting and algorithm, and of the algorithm that the config names."""
    if config.fedvg.norm == "delta" and config.fedvg.signal == "fisher":
        yield "fedvg.norm delta is the L1 norm of fedvg.signal delta; got signal fisher; use --fedvg.norm l1"
    chosen = reference_behaviours(config.reference)
    if (
        config.algorithm == "elastic"
        and "server-stats" in chosen
        and "elastic-sensitivity" not in chosen
    ):
        yield "reference server-stats of elastic needs elastic-sensitivity, which measures running statistics"


def _rule_problems(config: Config) -> Iterator[str]:
    """Yields contradictions of a robust rule with the weighting or the size of the cohort."""
    (rule, value), size = options.choice(config, "robust"), options.cohort_size(config)
    if rule == "trimmed_mean" and value > 0 and math.floor(value * size + 1e-9) < 1:
        yield f"robust {rule}:{value:g} leaves out none of {size} clients; use a larger F or --join-ratio, or mean"
    if rule == "krum":
        bad, kept = value
        if size < 2 * bad + 3:
            yield f"robust krum:F takes at most (K - 3) / 2 corrupt clients of a cohort of K = {size}; got {bad}"
        if not 1 <= kept <= size - bad:
            yield f"robust krum:F,M averages 1 to K - F = {size - bad} models; got {kept}"


def _privacy_problems(config: Config) -> Iterator[str]:
    """Yields what has no bound, or shows a client's data without noise, under differential privacy."""
    if config.dp.clip == 0:
        return
    if config.robust != "mean":
        yield f"dp bounds weighted means, and not robust {config.robust}; use --robust mean"
    if config.local:
        yield f"dp does not account for what clients keep, as local {_shorten(config.local)}; leave one out"
    if config.selection != "uniform":
        yield f"dp accounts for uniform cohorts; selection {config.selection} depends on the clients; use uniform"
    if config.dataset in ("breast_cancer", "wine", "iris"):
        yield f"dataset {config.dataset} is scaled by statistics of all clients' rows without noise; dp needs another"
    if config.tuning.steps and options.choice(config, "validation.source")[0] == "clients":
        yield "tuning.steps trains on D_val, rows of the clients, without noise; dp needs an external validation.source"
    if config.dp.delta * config.clients >= 1:
        yield f"dp.delta must be below 1 / clients = {1 / config.clients:g}; got {config.dp.delta:g}"


def _client_chunk_problems(config: Config) -> Iterator[str]:
    """Yields contradictions of client chunks with what needs all models of the cohort at once."""
    chunks = f"client_chunk {config.client_chunk} of a cohort of {options.cohort_size(config)}"
    if not 0 < config.client_chunk < options.cohort_size(config):
        return
    if not streams(config.weighting):
        streamed = ", ".join(name for name, facts in WEIGHTINGS.items() if facts.streams)
        yield f"{chunks} needs {streamed} or a mean of two; got {config.weighting}; use these or --client-chunk 0"


def _partition_problems(config: Config) -> Iterator[str]:
    """Yields contradictions of the partition, exported files, and the clients that are corrupt."""
    kind, _ = options.choice(config, "partition")
    if config.export is not None and config.local:
        yield "export writes the global model, and no client has its local tensors; leave export or local out"
    if config.holdout != "client" and kind in ("file", "official"):
        yield f"holdout {config.holdout} precedes the partition, and partition {kind} assigns all rows; use client"
    if config.dataset == "dermamnist" and config.splits not in ("all", "official"):
        yield f"splits of dermamnist must be all or official; got {_shorten(config.splits)}"
    if kind == "balanced_client" and config.clients < 2:
        yield "partition balanced_client needs at least 2 clients; got 1"
    if (config.corrupt.kind, config.attack) != ("none", "none") and options.num_corrupt(
        config
    ) == 0:
        fraction, least = config.corrupt.clients, 0.5 / config.clients
        yield f"corrupt.clients {fraction} of {config.clients} clients is none; use > {least:g}"


def _validation_problems(config: Config) -> Iterator[str]:
    """Yields contradictions of the validation set."""
    source, _ = options.choice(config, "validation.source")
    if source == "clients" and config.val_ratio == 0:
        yield f"val_ratio must be in (0, 1); got {config.val_ratio}; 0 is for an external --validation.source"
    if source == "npz" and config.validation.data_dir is None:
        yield "validation.source npz needs --validation.data-dir DIR with its file"


def _clock_problems(config: Config) -> Iterator[str]:
    """Yields contradictions of the clock, and of a server that does not wait for all clients."""
    clock, is_selective = config.clock, config.overselect > 1 or config.deadline is not None
    if clock.file is not None and any((clock.step, clock.fixed, clock.upload, clock.download)):
        yield "clock.file has the clients' durations; leave clock.step, fixed, upload and download out"
    if clock.file is not None and clock.speeds != "equal":
        yield f"clock.file has the clients' durations; leave clock.speeds {clock.speeds} out"
    kind, bounds = options.choice(config, "clock.speeds")
    if kind == "uniform" and bounds[0] > bounds[1]:
        yield f"clock.speeds uniform:LOW,HIGH must have LOW <= HIGH; got {bounds[0]:g},{bounds[1]:g}"
    if options.num_asked(config) > config.clients:
        most = config.clients / options.cohort_size(config)
        yield f"overselect must ask at most the {config.clients} clients; got {config.overselect:g}, use <= {most:g}"
    if is_selective and config.dp.clip > 0:
        yield "dp accounts for uniform cohorts; overselect and deadline depend on the clients' data, leave them out"
    if config.overselect > 1 and as_reference(config, "cohorts"):
        yield "overselect draws other cohorts than reference cohorts; leave one out"


def _buffered_problems(config: Config) -> Iterator[str]:
    """Yields what has no meaning for a buffered server."""
    if not config.buffered.size:
        return
    for name, number in (
        ("size", config.buffered.size),
        ("concurrency", options.concurrency(config)),
    ):
        if number > config.clients:
            yield f"buffered.{name} must be at most the {config.clients} clients; got {number}"
    reasons = {
        "dp.clip": "dp accounts for uniform cohorts",
        "local": "one update may have two trainings of a client",
        "selection": "clients that train next are drawn uniformly",
        "dropout": "every client arrives",
        "overselect": "the server waits for no round",
        "deadline": "the server waits for no round",
    }
    for name, reason in reasons.items():
        setting = SETTINGS[name]
        if setting.get(config) != setting.default:
            got = _shorten(setting.get(config))
            yield f"{name} {got} has no meaning with buffered.size, because {reason}; leave one out"
    if as_reference(config, "cohorts"):
        yield "reference cohorts draws synchronous cohorts, and buffered.size has none; leave one out"


PROBLEMS = (
    _unused,
    _training_problems,
    _method_problems,
    _rule_problems,
    _privacy_problems,
    _client_chunk_problems,
)
PROBLEMS += (_partition_problems, _validation_problems, _buffered_problems, _clock_problems)


def _is_count(text: str) -> bool:
    """Returns whether a text is a number from 1 to 999,999,999; Python refuses to convert thousands of digits."""
    return text.isdecimal() and text.isascii() and len(text) < 10 and int(text) > 0


def require_name(name: str, value: str, allowed: Iterable[str]) -> None:
    """Raises UsageError for a value that is none of the allowed names."""
    if value not in allowed:
        raise UsageError(f"unknown {name} '{_shorten(value)}'{suggestion(value, allowed)}")


def _require(holds: bool, name: str, value: Any, allowed: str) -> None:
    if not holds:
        raise UsageError(f"{name} must be {allowed}; got {_shorten(value)}")


def _shorten(value: Any) -> str:
    return str(value) if len(str(value)) <= 100 else f"{str(value)[:100]}..."


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

HOST = tuple(name for name, setting in SETTINGS.items() if setting.facts.kind == "host")
"""Settings that change no result, such as folders."""


def unmet(config: Config, name: str) -> Condition | None:
    """Returns the first condition of a setting that does not hold; None where the run uses it.

    `reference` is used where the run uses one of its differences.
    """
    if name == "reference":
        words = [word.removeprefix("no-") for word in listed(config.reference)]
        found = [_first(config, REFERENCES.get(w, ())) for w in words if w != "official"]
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
        for name, used in REFERENCES.items()
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
    """Returns a value of a setting, or several in a dict or a list, as JSON stores them."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value
