"""Combinations of settings of partitions, validation sets and corrupt rows that make no sense."""

from __future__ import annotations

from fedvg_jax.config.options import DRAWN_SIZES, Config
from fedvg_jax.core.types import UsageError


def check_population(config: Config) -> None:
    """Raises UsageError for the first contradiction that can be detected without the data."""
    problems = _partition_problems(config) | _validation_problems(config) | _corruption_problems(config)
    for message, applies in problems.items():
        if applies:
            raise UsageError(message)


def _partition_problems(config: Config) -> dict[str, bool]:
    """Returns error message -> whether it applies."""
    is_file, is_held_out_first = config.partition == "file", config.split != "client"
    return {
        "partition file needs --partition-file FILE, a .npz or .json of rows": is_file and not config.partition_file,
        f"partition_file {config.partition_file} is for --partition file; got {config.partition}": (
            not is_file and config.partition_file is not None
        ),
        f"export_partition must end in .npz or .json; got {config.export_partition}": (
            config.export_partition is not None and config.export_partition.suffix not in (".npz", ".json")
        ),
        f"export_form clients writes the rows of every client, and split {config.split} holds rows out of all clients;"
        " use --export-form parts": (
            config.export_partition is not None and config.export_form == "clients" and is_held_out_first
        ),
        f"split {config.split} holds rows out before the partition, and partition {config.partition} assigns all rows;"
        " use --split client": is_held_out_first and config.partition in ("file", "official"),
        f"min_samples_rule top_up is for partitions that draw sizes at random ({', '.join(DRAWN_SIZES)});"
        f" got {config.partition}; use redraw": (
            config.min_samples_rule == "top_up" and config.partition not in DRAWN_SIZES
        ),
        "partition balanced_client needs at least 2 clients; got 1": (
            config.partition == "balanced_client" and config.clients < 2
        ),
    }


def _validation_problems(config: Config) -> dict[str, bool]:
    """Returns error message -> whether it applies."""
    options = config.validation
    is_external = options.source != "clients"
    return {
        f"val_ratio must be in (0, 1); got {config.val_ratio}; 0 is for an external --validation.source": (
            not is_external and config.val_ratio == 0
        ),
        f"validation.source {options.source} needs --validation.data-dir DIR with its files": (
            is_external and options.data_dir is None
        ),
        f"validation.data_dir {options.data_dir} is for an external --validation.source; got {options.source}": (
            not is_external and options.data_dir is not None
        ),
        f"validation.clients {options.clients} selects among clients' validation rows, which do not exist with"
        f" --validation.source {options.source} and --split {config.split}; use 1": (
            options.clients < 1 and (is_external or config.split != "client")
        ),
        f"validation.size {options.size} and validation.fraction {options.fraction} contradict each other;"
        " give one of them": options.size > 0 and options.fraction < 1,
        f"validation.classes all is for --validation.source cifar100; got {options.source}": (
            options.classes == "all" and options.source != "cifar100"
        ),
    }


def _corruption_problems(config: Config) -> dict[str, bool]:
    """Returns error message -> whether it applies."""
    rows, updates = config.corrupt, config.attack
    are_both = "none" not in (rows.kind, updates.kind)
    return {
        f"corrupt.clients {rows.clients} of {config.clients} clients is none; use > {0.5 / config.clients:g}": (
            rows.kind != "none" and round(rows.clients * config.clients) == 0
        ),
        f"corrupt.clients {rows.clients} and attack.clients {updates.clients} are the same clients; make them equal": (
            are_both and rows.clients != updates.clients
        ),
    }
