"""What a setting may be: names, ranges, and combinations that make no sense."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from fedvg_jax.config import population_checks
from fedvg_jax.config.io import flatten, suggestion, typed
from fedvg_jax.config.options import Config, cohort_size, num_corrupt
from fedvg_jax.config.weighting_grammar import (
    GRANULARITIES,
    LINKS,
    NORMS,
    SCORING_MODES,
    SIGNALS,
    STREAMED,
    check_weighting,
    streams,
)
from fedvg_jax.core.types import UsageError

DATASETS = (
    "digits",
    "cifar10",
    "cifar100",
    "stl10",
    "organamnist",
    "dermamnist",
    "tinyimagenet",
    "covid19",
    "npz",
    "encoded",
    "folder",
)
MODELS = ("mlp", "tinycnn", "cnn", "lenet5", "resnet18", "resnet34", "resnet50", "vit_s16", "vit_b16")
STEMS = ("imagenet", "cifar")
NORMALISERS = ("batch", "group")
PIXEL_STATISTICS = ("none", "imagenet", "half")
AUGMENTATIONS = ("none", "flip", "crop", "flip_crop")
ALGORITHMS = (
    "fedavg",
    "fedavgm",
    "fedprox",
    "scaffold",
    "feddyn",
    "elastic",
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "fednova",
)
MIN_SAMPLES_RULES = ("redraw", "top_up")
CONVS = ("auto", "lax", "gemm", "winograd", "planes")
PLANES_MODELS = ("tinycnn", "cnn", "lenet5")
"""What `--conv planes` is for."""
PRECISIONS = ("default", "highest", "bfloat16")
LR_SCHEDULES = ("constant", "exponential", "cosine")
NONFINITE = ("raise", "skip")
RULES = ("mean", "median", "trimmed_mean", "krum", "clipped_mean")
ATTACKS = ("none", "sign_flip", "scaling", "noise")


FLOAT32 = (2.0**-126, (2 - 2.0**-23) * 2.0**127)
"""Least and largest normal numbers of IEEE 754 single precision; XLA takes smaller ones for 0."""

SINGLE_PRECISION = (
    *("lr", "momentum", "weight_decay", "lr_decay", "fedvg.eps", "fedvg.fit_rate", "fedvg.exponent"),
    *(
        "fedvg.temperature",
        "fedvg.mix",
        "fedavgm.momentum",
        "fedavgm.lr",
        "fedopt.lr",
        "fedopt.b1",
        "fedopt.b2",
        "fedopt.eps",
        "fedprox.mu",
    ),
    *("scaffold.eta_g", "feddyn.alpha", "feddyn.clip", "elastic.tau", "elastic.mu", "robust.clip_norm", "robust.noise"),
    *("attack.scale", "tuning.lr"),
)
"""Settings that a round computes with, in float32: beyond its range they would silently be 0 or infinite."""


def check(config: Config) -> Config:
    """`config` with values of its fields' types, or a UsageError for the first of another type or out of range."""
    config = typed(config)
    if not config.dataset.startswith("tfds:"):
        _one_of("dataset", config.dataset, (*DATASETS, "tfds:NAME"))
    for name, allowed in _NAMES.items():
        _one_of(name, flatten(config)[name], allowed)
    for name, value in flatten(config).items():
        _require(type(value) is not int or abs(value) < 2**32, name, "a larger number", "below 2**32")
        _require("\0" not in str(value), name, repr(value), "text without a zero byte")
        _require(_is_utf8(str(value)), name, ascii(str(value)), "text that UTF-8 can encode")
    check_weighting(config)
    epochs_range(config)
    for name, (holds, allowed) in _RANGES.items():
        value = flatten(config)[name]
        _require(not (isinstance(value, float) and math.isnan(value)) and holds(value), name, value, allowed)
    for name in SINGLE_PRECISION:
        value = flatten(config)[name]
        _require(value == 0 or FLOAT32[0] <= abs(value) <= FLOAT32[1], name, value, "a number that float32 can hold")
    _require(
        config.test_ratio + config.val_ratio < 1,
        "test_ratio + val_ratio",
        config.test_ratio + config.val_ratio,
        "below 1, so that rows are left to train on",
    )
    _require(
        config.lanes in ("auto", "all") or _is_count(config.lanes),
        "lanes",
        config.lanes,
        "auto, all, or a number >= 1",
    )
    _require(
        config.devices == "auto" or _is_count(config.devices),
        "devices",
        config.devices,
        "auto, or a number >= 1",
    )
    if config.lanes == "all" and config.devices not in ("auto", "1"):
        raise UsageError(f"lanes all is one vmap on one device, got devices {config.devices}; use --lanes auto")
    sized = re.fullmatch(r"([1-9]\d{0,3}(x[1-9]\d{0,3})?)?", config.image_size, re.ASCII)
    _require(
        sized is not None,
        "image_size",
        config.image_size,
        "a number of pixels below 10000, or HEIGHTxWIDTH such as 244x224",
    )
    skips_all = config.batch_size == 1 and config.single_rows == "skipped"
    _require(not skips_all, "batch_size", 1, ">= 2 with single_rows skipped; or use --single-rows trained")
    lacks_statistics = config.algorithm == "elastic" and config.elastic.sensitivity != "official"
    fits = not (lacks_statistics and config.server_stats == "official")
    _require(fits, "elastic.sensitivity", config.elastic.sensitivity, "official where server_stats is official")
    _check_robust(config)
    _check_model(config)
    _check_hold(config)
    population_checks.check_population(config)
    return config


def epochs_range(config: Config) -> tuple[int, int]:
    """Fewest and most local epochs."""
    fewest, _, most = str(config.local_epochs).partition(":")
    numbers = [fewest, most or fewest]
    proper = all(n.isdecimal() and len(n) < 10 for n in numbers) and 1 <= int(numbers[0]) <= int(numbers[1])
    _require(proper, "local_epochs", config.local_epochs, "a number >= 1, or MIN:MAX with 1 <= MIN <= MAX")
    return int(numbers[0]), int(numbers[1])


def _check_model(config: Config) -> None:
    """UsageError for an option that the model has not."""
    is_resnet = config.model.startswith("resnet")
    for name in ("stem", "norm"):
        value, default = getattr(config, name), getattr(Config, name)
        if value != default and not is_resnet:
            raise UsageError(
                f"--{name} {value} is for ResNets, and model {config.model} has no choice of {name}; drop it"
            )
    if config.pretrained and not (is_resnet or config.model.startswith("vit")):
        raise UsageError(
            f"no pretrained weights exist for model {config.model}; drop --pretrained, or use --model"
            f" {', '.join(name for name in MODELS if name.startswith(('resnet', 'vit')))}"
        )


def _check_hold(config: Config) -> None:
    """UsageError for a cohort in blocks under a rule that needs all models at once."""
    size = cohort_size(config)
    if not 0 < config.hold < size:
        return
    if config.robust.rule != "mean":
        raise UsageError(
            f"hold {config.hold} of a cohort of {size} takes the weighted mean, for robust.rule {config.robust.rule}"
            f" needs all {size} models at once; use --hold 0 or --robust.rule mean"
        )
    layer_stats = config.fedvg.stats == "layer" and "fedvg" in config.weighting
    if layer_stats or not streams(config.weighting):
        raise UsageError(
            f"hold {config.hold} of a cohort of {size} takes weights that can be averaged client by client:"
            f" {', '.join(STREAMED)} or a mean of two, running statistics uniform; got"
            f" {config.weighting}{' with fedvg.stats layer' if layer_stats else ''}; use --hold 0 or one of these"
        )


def _check_robust(config: Config) -> None:
    """UsageError for a rule that would not do what it says."""
    rule, size = config.robust.rule, cohort_size(config)
    measured = config.weighting not in ("uniform", "samples", "native")
    if measured and rule in ("median", "trimmed_mean", "krum"):
        raise UsageError(
            f"robust.rule {rule} ignores weights, so those of {config.weighting} would be measured for nothing;"
            " use --weighting uniform, or the rule clipped_mean"
        )
    if rule != "mean" and config.algorithm in ("scaffold", "feddyn", "fednova"):
        raise UsageError(
            f"robust.rule {rule} guards the averaged model, but the server of {config.algorithm} also averages other"
            " messages of the clients; use --robust.rule mean or another --algorithm"
        )
    if rule == "krum":
        bad, kept = config.robust.num_bad, config.robust.num_kept
        _require(size >= 2 * bad + 3, "robust.num_bad", bad, f"at most (K - 3) / 2 for krum on a cohort of K = {size}")
        _require(kept <= size - bad, "robust.num_kept", kept, f"at most K - num_bad = {size - bad}")
    if config.momentum and config.optimiser != "sgd":
        raise UsageError(f"momentum {config.momentum:g} is of optimiser sgd, got {config.optimiser}; leave it out")
    remembers = config.momentum or config.optimiser != "sgd"
    if config.optimiser_state == "kept" and (not remembers or config.algorithm in ("scaffold", "fednova")):
        raise UsageError(
            f"optimiser_state kept needs an optimiser with a memory and an algorithm that does not count its steps from"
            f" rest; got {config.optimiser} at momentum {config.momentum:g}, and {config.algorithm}; use reset"
        )
    if config.conv == "planes" and config.model not in PLANES_MODELS:
        raise UsageError(f"conv planes is for {', '.join(PLANES_MODELS)}; for model {config.model} use gemm or auto")
    least = 0.5 / config.clients
    if config.attack.kind != "none" and num_corrupt(config) == 0:
        raise UsageError(f"attack.clients {config.attack.clients} of {config.clients} is nobody; use > {least:g}")


_NAMES = {
    "splits": ("all", "official"),
    "model": MODELS,
    "stem": STEMS,
    "norm": NORMALISERS,
    "normalise": PIXEL_STATISTICS,
    "augment": AUGMENTATIONS,
    "algorithm": ALGORITHMS,
    "select": ("shared", "held_out"),
    "min_samples_rule": MIN_SAMPLES_RULES,
    "conv": CONVS,
    "precision": PRECISIONS,
    "fedvg.signal": SIGNALS,
    "fedvg.norm": NORMS,
    "fedvg.layer": ("tensor", "module"),
    "fedvg.stats": ("uniform", "layer"),
    "fedvg.granularity": GRANULARITIES,
    "fedvg.block": ("residual", "stage"),
    "fedvg.mode": SCORING_MODES,
    "fedvg.link": LINKS,
    "lr_schedule": LR_SCHEDULES,
    "nonfinite": NONFINITE,
    "untrained": ("absent", "weighed"),
    "single_rows": ("trained", "skipped"),
    "optimiser": ("sgd", "adam", "adamw"),
    "optimiser_state": ("reset", "kept"),
    "cohorts": ("seeded", "official"),
    "server_stats": ("averaged", "official"),
    "scaffold.steps": ("epochs", "single"),
    "scaffold.memory": ("kept", "lost"),
    "feddyn.regulariser": ("full", "linear"),
    "feddyn.weights": ("uniform", "samples"),
    "feddyn.average": ("always", "once"),
    "fedopt.variant": ("paper", "official", "optax"),
    "elastic.sensitivity": ("output", "official"),
    "elastic.rows": ("all", "rest"),
    "robust.rule": RULES,
    "attack.kind": ATTACKS,
    **population_checks.NAMES,
}

_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "alpha": (lambda v: 0 < v <= 1e30, "> 0 and at most 1e30; 0.05 is very skewed, 100 almost even"),
    "clients": (lambda v: v >= 1, ">= 1"),
    "join_ratio": (lambda v: 0 < v <= 1, "in (0, 1]"),
    "rounds": (lambda v: v >= 1, ">= 1"),
    "batch_size": (lambda v: v >= 1, ">= 1"),
    "lr": (lambda v: 0 < v < math.inf, "> 0"),
    "seed": (lambda v: 0 <= v < 2**32, "in [0, 2**32)"),
    "partition_seed": (lambda v: 0 <= v < 2**32, "in [0, 2**32)"),
    "min_samples": (lambda v: v >= 1, ">= 1"),
    "test_ratio": (lambda v: 0 < v < 1, "in (0, 1)"),
    "val_ratio": (lambda v: 0 <= v < 1, "in (0, 1)"),
    "eval_every": (lambda v: v >= 1, ">= 1"),
    **dict.fromkeys(("checkpoint_every", "keep", "hold"), (lambda v: v >= 0, ">= 0")),
    "lr_decay": (lambda v: 0 < v <= 1, "in (0, 1]"),
    "dropout": (lambda v: 0 <= v < 1, "in [0, 1)"),
    **dict.fromkeys(("momentum", "fedavgm.momentum"), (lambda v: 0 <= v < 1, "in [0, 1)")),
    **dict.fromkeys(("fedopt.b1", "fedopt.b2", "elastic.mu"), (lambda v: 0 <= v < 1, "in [0, 1)")),
    **dict.fromkeys(("weight_decay", "fedprox.mu", "elastic.tau"), (lambda v: 0 <= v < math.inf, ">= 0")),
    **dict.fromkeys(("fedvg.eps", "fedopt.eps", "feddyn.clip"), (lambda v: 0 < v < math.inf, "> 0")),
    **dict.fromkeys(("fedavgm.lr", "fedopt.lr", "scaffold.eta_g"), (lambda v: 0 < v < math.inf, "> 0")),
    "fedvg.exponent": (lambda v: 0 <= v < math.inf, ">= 0"),
    "fedvg.temperature": (lambda v: 0 < v < math.inf, "> 0"),
    "fedvg.mix": (lambda v: 0 <= v <= 1, "in [0, 1]"),
    "fedvg.fit_steps": (lambda v: 1 <= v < 2**31, ">= 1 and below 2**31"),
    "fedvg.fit_rate": (lambda v: 0 < v < math.inf, "> 0"),
    "feddyn.alpha": (lambda v: 0 < v < math.inf, "> 0"),
    **dict.fromkeys(("elastic.ratio", "attack.clients"), (lambda v: 0 < v <= 1, "in (0, 1]")),
    "robust.trim": (lambda v: 0 <= v < 0.5, "in [0, 0.5)"),
    "robust.num_kept": (lambda v: v >= 1, ">= 1"),
    "robust.num_bad": (lambda v: v >= 0, ">= 0"),
    "tuning.steps": (lambda v: 0 <= v < 2**31, ">= 0 and below 2**31"),
    **dict.fromkeys(("robust.noise", "attack.scale"), (lambda v: 0 <= v < math.inf, ">= 0")),
    **dict.fromkeys(("robust.clip_norm", "tuning.lr"), (lambda v: 0 < v < math.inf, "> 0")),
    **population_checks.RANGES,
}


def _is_count(text: str) -> bool:
    """Whether a text is a number from 1 to 999,999,999; Python refuses to convert thousands of digits."""
    return text.isdecimal() and text.isascii() and len(text) < 10 and int(text) > 0


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes of a command line that are not UTF-8 become lone surrogates
        return False
    return True


def _one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise UsageError(f"unknown {name} '{_short(value)}'{suggestion(value, allowed)}")


def _require(holds: bool, name: str, value: Any, allowed: str) -> None:
    if not holds:
        raise UsageError(f"{name} must be {allowed}; got {_short(value)}")


def _short(value: Any) -> str:
    return str(value) if len(str(value)) <= 100 else f"{str(value)[:100]}..."
