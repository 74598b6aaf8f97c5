"""Checks a `Config`: types, allowed values, and combinations that make no sense."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from fedvg_jax.config import population_checks
from fedvg_jax.config.io import flatten, typed
from fedvg_jax.config.options import (
    MODELS,
    RECORDS,
    SETTINGS,
    TRACKERS,
    WEIGHTINGS,
    Config,
    cohort_size,
    num_corrupt,
    recorded_names,
    stop_target,
    tracker_names,
)
from fedvg_jax.config.presets import DATASETS, OUTSIDE
from fedvg_jax.config.suggestions import suggestion
from fedvg_jax.config.weighting_grammar import NO_PATTERN, parse_multipliers, parse_weighting, streams
from fedvg_jax.core.types import UsageError

FLOAT32 = (2.0**-126, (2 - 2.0**-23) * 2.0**127)
"""Smallest and largest normal number of IEEE 754 single precision; XLA flushes smaller ones to 0."""


def check(config: Config) -> Config:
    """Returns `config` with every value converted to the type of its field.

    Raises:
        UsageError: for the first setting with another type or value than allowed, or that contradicts another.
    """
    config = typed(config)
    _check_names(config)
    _check_text_and_size(config)
    _check_weighting(config)
    epochs_range(config)
    _check_ranges(config)
    _check_ratios(config)
    _check_batch_size(config)
    _check_devices(config)
    _check_image_size(config)
    _check_elastic(config)
    _check_robust_rule(config)
    _check_optimiser(config)
    _check_attack(config)
    _check_model(config)
    _check_hold(config)
    least, given = cohort_size(config), config.candidates
    allowed = f"from the cohort's {least} to the {config.clients} clients, or 0"
    is_used = config.selection == "power_of_choice" and given > 0
    _require(not is_used or least <= given <= config.clients, "candidates", given, allowed)
    is_target = not config.stop_at or stop_target(config) is not None
    _require(is_target, "stop_at", config.stop_at, "a metric of D_val and a number, such as val_accuracy 0.9")
    population_checks.check_population(config)
    return config


def _check_weighting(config: Config) -> None:
    """Raises UsageError for a weighting or an option of FedVG that makes no sense with any model."""
    parse_weighting(config.weighting)
    options = config.fedvg
    if options.norm == "delta" and options.signal == "fisher":
        raise UsageError(
            "fedvg.norm delta is the L1 norm of fedvg.signal delta; got signal fisher; use --fedvg.norm l1"
        )
    parse_multipliers(options.multipliers)
    try:
        re.compile(options.include)
    except NO_PATTERN as error:
        shown = options.include[:100]
        raise UsageError(f"fedvg.include is not a regular expression: {error}; got {shown}") from None


def epochs_range(config: Config) -> tuple[int, int]:
    """Returns the smallest and the largest number of local epochs.

    Raises:
        UsageError: `local_epochs` is neither a number nor MIN:MAX.

    >>> epochs_range(Config(local_epochs="1:5")), epochs_range(Config(local_epochs=2))
    ((1, 5), (2, 2))
    """
    smallest, _, largest = str(config.local_epochs).partition(":")
    numbers = [smallest, largest or smallest]
    is_range = all(n.isdecimal() and len(n) < 10 for n in numbers) and 1 <= int(numbers[0]) <= int(numbers[1])
    _require(is_range, "local_epochs", config.local_epochs, "a number >= 1, or MIN:MAX with 1 <= MIN <= MAX")
    return int(numbers[0]), int(numbers[1])


def _check_names(config: Config) -> None:
    """Raises UsageError for a value that is not among the allowed names of its setting."""
    if not config.dataset.startswith(tuple(OUTSIDE)):
        _require_name("dataset", config.dataset, (*DATASETS, *OUTSIDE.values()))
    for name, setting in SETTINGS.items():
        if setting.names:
            _require_name(name, setting.get(config), setting.names)
    for name in recorded_names(config):
        _require_name("record", name, RECORDS)
    for name in tracker_names(config):
        _require_name("track", name, TRACKERS)


def _check_text_and_size(config: Config) -> None:
    """Raises UsageError for an integer of more than 32 bits and for text that no file name can hold."""
    for name, value in flatten(config).items():
        _require(type(value) is not int or abs(value) < 2**32, name, "a larger number", "below 2**32")
        _require("\0" not in str(value), name, repr(value), "text without a zero byte")
        _require(_is_utf8(str(value)), name, ascii(str(value)), "text that UTF-8 can encode")


def _check_ranges(config: Config) -> None:
    """Raises UsageError for a number that is out of its range, or that float32 cannot hold."""
    for name, setting in SETTINGS.items():
        value = setting.get(config)
        if setting.range:
            _require(setting.range.holds(value), name, value, setting.range.words)
        if setting.facts.hyper:
            fits = value == 0 or FLOAT32[0] <= abs(value) <= FLOAT32[1]
            _require(fits, name, value, "a number that float32 can hold")


def _check_ratios(config: Config) -> None:
    """Raises UsageError if test and validation rows leave none to train on."""
    held_out = config.test_ratio + config.val_ratio
    _require(held_out < 1, "test_ratio + val_ratio", held_out, "below 1, so that rows are left to train on")


def _check_batch_size(config: Config) -> None:
    """Raises UsageError if every minibatch would be skipped."""
    skips_all = config.batch_size == 1 and config.single_rows == "skipped"
    _require(not skips_all, "batch_size", 1, ">= 2 with single_rows skipped; or use --single-rows trained")


def _check_devices(config: Config) -> None:
    """Raises UsageError for numbers of lanes or devices that are not numbers, or that contradict each other."""
    is_lanes = config.lanes in ("auto", "all") or _is_count(config.lanes)
    _require(is_lanes, "lanes", config.lanes, "auto, all, or a number >= 1")
    is_devices = config.devices == "auto" or _is_count(config.devices)
    _require(is_devices, "devices", config.devices, "auto, or a number >= 1")
    if config.lanes == "all" and config.devices not in ("auto", "1"):
        raise UsageError(f"lanes all is one vmap on one device; got devices {config.devices}; use --lanes auto")


def _check_image_size(config: Config) -> None:
    """Raises UsageError for an image size that is neither empty, S nor HxW."""
    match = re.fullmatch(r"([1-9]\d{0,3}(x[1-9]\d{0,3})?)?", config.image_size, re.ASCII)
    allowed = "a number of pixels below 10000, or HEIGHTxWIDTH such as 244x224"
    _require(match is not None, "image_size", config.image_size, allowed)


def _check_elastic(config: Config) -> None:
    """Raises UsageError for official running statistics without the official sensitivity, which is measured on them."""
    sensitivity = config.elastic.sensitivity
    contradicts = config.algorithm == "elastic" and sensitivity != "official" and config.server_stats == "official"
    _require(not contradicts, "elastic.sensitivity", sensitivity, "official where server_stats is official")


def _check_robust_rule(config: Config) -> None:
    """Raises UsageError for an aggregation rule that weighting, algorithm or cohort do not allow."""
    rule, size = config.robust.rule, cohort_size(config)
    is_measured = config.weighting not in ("uniform", "samples", "native")
    if is_measured and rule in ("median", "trimmed_mean", "krum"):
        raise UsageError(
            f"robust.rule {rule} ignores weights, so measuring those of {config.weighting} would be wasted;"
            " use --weighting uniform, or --robust.rule clipped_mean"
        )
    if rule != "mean" and config.algorithm in ("scaffold", "feddyn", "fednova"):
        raise UsageError(
            f"robust.rule {rule} protects the averaged model only, and the server of {config.algorithm} also averages"
            " other messages of the clients; use --robust.rule mean or another --algorithm"
        )
    if rule == "trimmed_mean" and config.robust.trim > 0:
        _check_trim(config.robust.trim, size)
    if rule == "krum":
        bad, kept = config.robust.num_bad, config.robust.num_kept
        _require(size >= 2 * bad + 3, "robust.num_bad", bad, f"at most (K - 3) / 2 for krum on a cohort of K = {size}")
        _require(kept <= size - bad, "robust.num_kept", kept, f"at most K - num_bad = {size - bad}")


def _check_trim(trim: float, size: int) -> None:
    """Raises UsageError for a share above 0 that leaves out no client of a cohort, so that the rule is a plain mean."""
    if size <= 2:
        raise UsageError(
            f"robust.trim {trim:g} needs a cohort of 3 clients or more, to leave out one at each end; got a cohort of"
            f" {size}; use a larger --join-ratio, or --robust.rule mean"
        )
    if math.floor(trim * size + 1e-9) < 1:  # as the rule counts them
        digits = 10 ** (len(str(size)) + 1)
        smallest = math.ceil(digits / size) / digits
        raise UsageError(
            f"robust.trim {trim:g} leaves out no client of a cohort of {size}; use {smallest:g} or more, 0 for"
            " the plain mean, or a larger --join-ratio"
        )


def _check_optimiser(config: Config) -> None:
    """Raises UsageError for momentum without sgd, and for a kept state where there is none or it would do harm."""
    if config.momentum and config.optimiser != "sgd":
        raise UsageError(f"momentum {config.momentum:g} is for optimiser sgd; got {config.optimiser}; leave it out")
    has_state = config.momentum or config.optimiser != "sgd"
    if config.optimiser_state == "kept" and (not has_state or config.algorithm in ("scaffold", "fednova")):
        raise UsageError(
            "optimiser_state kept needs an optimiser with a state, and an algorithm that does not assume a fresh one;"
            f" got {config.optimiser} at momentum {config.momentum:g} and {config.algorithm}; use reset"
        )


def _check_attack(config: Config) -> None:
    """Raises UsageError for a fraction of corrupt clients that rounds to none."""
    smallest = 0.5 / config.clients
    if config.attack.kind != "none" and num_corrupt(config) == 0:
        raise UsageError(
            f"attack.clients {config.attack.clients} of {config.clients} clients is none; use > {smallest:g}"
        )


def _check_model(config: Config) -> None:
    """Raises UsageError for an option that the model does not have."""
    is_resnet = config.model.startswith("resnet")
    for name in ("stem", "norm"):
        value, default = getattr(config, name), getattr(Config, name)
        if value != default and not is_resnet:
            raise UsageError(
                f"--{name} {value} is for ResNets, and model {config.model} has no choice of {name}; leave it out"
            )
    if config.conv == "planes" and not MODELS[config.model].has_planes:
        fitting = ", ".join(name for name, network in MODELS.items() if network.has_planes)
        raise UsageError(f"conv planes is for {fitting}; got model {config.model}; use --conv gemm or auto")


def _check_hold(config: Config) -> None:
    """Raises UsageError for cohort blocks under a rule that needs all models of the cohort at once."""
    size = cohort_size(config)
    if not 0 < config.hold < size:
        return
    if config.robust.rule != "mean":
        raise UsageError(
            f"hold {config.hold} of a cohort of {size} needs the weighted mean, because robust.rule"
            f" {config.robust.rule} needs all {size} models at once; use --hold 0 or --robust.rule mean"
        )
    layer_stats = config.fedvg.stats == "layer" and "fedvg" in config.weighting
    if layer_stats or not streams(config.weighting):
        streamed = ", ".join(name for name, is_streamed in WEIGHTINGS.items() if is_streamed)
        raise UsageError(
            f"hold {config.hold} of a cohort of {size} needs weights that can be averaged client by client:"
            f" {streamed} or a mean of two, running statistics uniform; got"
            f" {config.weighting}{' with fedvg.stats layer' if layer_stats else ''}; use --hold 0 or one of these"
        )


def _is_count(text: str) -> bool:
    """Whether a text is a number from 1 to 999,999,999; Python refuses to convert thousands of digits."""
    return text.isdecimal() and text.isascii() and len(text) < 10 and int(text) > 0


def _is_utf8(text: str) -> bool:
    """Whether UTF-8 can encode a text; bytes of a command line that are not UTF-8 become lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _require_name(name: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise UsageError(f"unknown {name} '{_shorten(value)}'{suggestion(value, allowed)}")


def _require(holds: bool, name: str, value: Any, allowed: str) -> None:
    if not holds:
        raise UsageError(f"{name} must be {allowed}; got {_shorten(value)}")


def _shorten(value: Any) -> str:
    return str(value) if len(str(value)) <= 100 else f"{str(value)[:100]}..."
