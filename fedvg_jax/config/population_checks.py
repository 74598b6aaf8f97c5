"""What settings of partitions, validation sets and corrupt rows may be, and combinations that make no sense."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fedvg_jax.config.options import Config
from fedvg_jax.config.population import CORRUPTIONS, DRAWN_SIZES, PARTITIONS, SPLITS, VALIDATION_SOURCES
from fedvg_jax.core.types import UsageError

NAMES = {
    "partition": PARTITIONS,
    "split": SPLITS,
    "validation.source": VALIDATION_SOURCES,
    "validation.copies": ("official", "none"),
    "validation.classes": ("paper", "all"),
    "validation.imbalance": ("corrected", "official"),
    "corrupt.kind": CORRUPTIONS,
}

RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("classes_per_client", "shards_per_client"), (lambda v: v >= 1, ">= 1")),
    **dict.fromkeys(("validation.clients", "validation.fraction"), (lambda v: 0 < v <= 1, "in (0, 1]")),
    "validation.size": (lambda v: v == 0 or v >= 2, ">= 2, or 0 for all"),
    **dict.fromkeys(("validation.rho", "validation.label_noise"), (lambda v: 0 <= v <= 1, "in [0, 1]")),
    "validation.pixel_noise": (lambda v: 0 <= v < math.inf, ">= 0"),
    **dict.fromkeys(("corrupt.clients", "corrupt.strength"), (lambda v: 0 < v <= 1, "in (0, 1]")),
}


def check_population(config: Config) -> None:
    """UsageError for a combination that makes no sense, as far as that shows without the data."""
    for problem, found in (_of_partition(config) | _of_validation(config) | _of_corrupt(config)).items():
        if found:
            raise UsageError(problem)


def _of_partition(config: Config) -> dict[str, bool]:
    in_file, apart = config.partition == "file", config.split != "client"
    return {
        "partition file needs --partition-file FILE, a .npz or .json of rows": in_file and not config.partition_file,
        f"partition_file {config.partition_file} is read by --partition file only; got {config.partition}": (
            not in_file and config.partition_file is not None
        ),
        f"split {config.split} holds rows out before there are clients, and partition {config.partition} deals all;"
        " use --split client": apart and config.partition in ("file", "official"),
        f"min_samples_rule top_up repairs sizes that are drawn, and partition {config.partition} draws none;"
        " use redraw": config.min_samples_rule == "top_up" and config.partition not in DRAWN_SIZES,
        "partition balanced_client needs at least 2 clients; got 1": (
            config.partition == "balanced_client" and config.clients < 2
        ),
    }


def _of_validation(config: Config) -> dict[str, bool]:
    options = config.validation
    external = options.source != "clients"
    return {
        f"val_ratio must be in (0, 1); got {config.val_ratio}; 0 is for an external --validation.source": (
            not external and config.val_ratio == 0
        ),
        f"validation.source {options.source} needs --validation.data-dir DIR with its files": (
            external and options.data_dir is None
        ),
        f"validation.data_dir {options.data_dir} is read only for an external --validation.source;"
        f" got {options.source}": not external and options.data_dir is not None,
        f"validation.clients {options.clients} chooses among clients' validation rows, which --validation.source"
        f" {options.source} and --split {config.split} have not; use 1": (
            options.clients < 1 and (external or config.split != "client")
        ),
        f"validation.size {options.size} and validation.fraction {options.fraction} are two answers to one question;"
        " give one": options.size > 0 and options.fraction < 1,
        f"validation.classes all adds a class of cifar100; got --validation.source {options.source}": (
            options.classes == "all" and options.source != "cifar100"
        ),
    }


def _of_corrupt(config: Config) -> dict[str, bool]:
    rows, updates = config.corrupt, config.attack
    both = "none" not in (rows.kind, updates.kind)
    return {
        f"corrupt.clients {rows.clients} of {config.clients} is nobody; use > {0.5 / config.clients:g}": (
            rows.kind != "none" and round(rows.clients * config.clients) == 0
        ),
        f"corrupt.clients {rows.clients} and attack.clients {updates.clients} are the same clients; make them equal": (
            both and rows.clients != updates.clients
        ),
    }
