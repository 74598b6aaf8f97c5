"""From settings: the data set, the partition, the shared validation set, and the rows of corrupt clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedvg_jax.config import SETTINGS, Config, num_corrupt
from fedvg_jax.config.declare import listed
from fedvg_jax.config.options import as_reference, choice, columns_by_role, partition_seed
from fedvg_jax.core.types import UsageError
from fedvg_jax.data import corrupt, datasets, validation
from fedvg_jax.data.arrays import (
    Arrays,
    check_rows_are_images,
    class_labels,
    is_features,
    limited,
    refuse_channels_first,
    shape,
)
from fedvg_jax.data.partitions import client_rows, exchange
from fedvg_jax.data.partitions.client_rows import Partition, sizes
from fedvg_jax.data.partitions.partitioners import BY_NAME, Partitioner, Settings, draw_partition
from fedvg_jax.engine import attacks
from fedvg_jax.host.files import user_path
from fedvg_jax.models import pretrained
from fedvg_jax.runs.experiment import Population
from fedvg_jax.runs.record import folder as run_folder, stored
from fedvg_jax.runs.record.history import CLIENT_ACCURACIES

if TYPE_CHECKING:
    from fedvg_jax.data.scaling import Columns

OF_SPLIT = ("min_samples", "test_ratio", "val_ratio")
"""Settings without effect on a partition (train, val, test); a list of the clients' rows is split by them."""


def make_population(
    config: Config, data: Any, partition: Partitioner | tuple | Sequence | None
) -> Population:
    """Reads the data set, draws the partition and builds D_val, unless the caller passes data or a partition.

    Args:
        config: checked settings.
        data, partition: as in `fedvg_jax.run`.
    """
    if data is None:
        arrays = load_data(config)
    else:
        from fedvg_jax.data import user_data

        arrays = limited(user_data.as_arrays(data), config.max_rows)
    check_pixel_settings(arrays, config)
    _check_groups(arrays, config)
    if partition is None or isinstance(partition, Partitioner):
        parts = make_partition(config, arrays, partition)
    else:
        parts = take_partition(config, arrays, partition)
    _check_test_rows(config, parts)
    scaled_by = make_columns(config, arrays, client_rows.joined(parts.train))
    shared = make_shared(config, arrays, parts, scaled_by)
    return Population(arrays, parts, shared, int(len(arrays.y) * config.test_ratio), scaled_by)


def check_pixel_settings(arrays: Arrays, config: Config) -> None:
    """Raises a UsageError if the config augments or normalises rows that are of another kind."""
    for name, value in (("augment", config.augment), ("normalise", config.normalise)):
        if value == "none":
            continue
        if arrays.x.ndim != 4:
            raise UsageError(
                f"{name} {value} is for images [T, H, W, D], x is {shape(arrays.x)}; use none"
            )
        refuse_channels_first(arrays, f"{name} {value}")


def _check_groups(arrays: Arrays, config: Config) -> None:
    """Raises a UsageError if a table's groups have no effect."""
    has_groups = arrays.table is not None and arrays.groups is not None
    if has_groups and "group" not in (config.partition, config.holdout):
        raise UsageError(
            f"group has no effect with partition {config.partition}; use partition group, or leave it out"
        )


def _check_test_rows(config: Config, parts: Partition) -> None:
    """Raises UsageError where accuracies by client are recorded, and the test rows are one set."""
    by_client = [name for name in CLIENT_ACCURACIES if name in listed(config.record)]
    if by_client and len(parts.test) != len(parts.train):
        raise UsageError(
            f"record {by_client[0]} needs test rows of every client, and they are one set; use --holdout client and"
            " a partition with test rows of each client"
        )


def corrupt_clients(config: Config, is_attacked: bool = False) -> np.ndarray:
    """Returns the ids of the clients with corrupt rows or updates, int [n] ascending.

    Args:
        config: settings.
        is_attacked: whether a caller gave the attack.
    """
    count = num_corrupt(config)
    if is_attacked:
        count = round(config.corrupt.clients * config.clients)
    if not count:
        return np.zeros(0, int)
    return attacks.corrupt_clients(config.seed, config.clients, count)


def make_partition(config: Config, arrays: Arrays, custom: Partitioner | None = None) -> Partition:
    """Draws the partition by the config's partitioner or a custom one, or reads it from its file.

    Args:
        config: checked settings.
        arrays: the data set.
        custom: takes the place of the config's partitioner.

    Raises:
        UsageError: the partition cannot be drawn, or its file is missing or malformed.
    """
    kind, value = choice(config, "partition")
    if kind == "file" and not custom:
        return _checked(config, arrays, exchange.read(user_path(value)), value)
    if custom and custom.uses:
        raise UsageError(
            f"partition uses {', '.join(custom.uses)}: a custom Partitioner has its own numbers; leave uses out"
        )
    # an object of the package that is changed is custom, too
    partitioner = custom._replace(text="") if custom else SETTINGS["partition"].made(config)
    source = "partition" if custom else f"partition {config.partition}"
    names = [field for field in Settings._fields if field not in ("num_clients", "seed")]
    drawn = draw_partition(
        _labels(arrays, partitioner, source),
        partitioner,
        groups=arrays.groups,
        num_clients=config.clients,
        seed=partition_seed(config),
        **{name: getattr(config, name) for name in names},
    )
    return _with_rows(drawn, source)


def _labels(arrays: Arrays, partitioner: Partitioner, source: str) -> np.ndarray:
    """Returns int32 [T] class labels; without any, zeros for partitioners that do not read labels."""
    has_labels = arrays.class_names and arrays.y.ndim == 1
    if not has_labels and partitioner.reads != "labels":
        return np.zeros(len(arrays.y), np.int32)
    free = [kind for kind, named in BY_NAME.items() if named.made(1).reads != "labels"]
    instead = (
        f"use {', '.join(free)}, or give run(..., partition=...) an array of row numbers per client"
    )
    return class_labels(arrays, source, instead)


def take_partition(
    config: Config, arrays: Arrays, partition: tuple | Sequence[np.ndarray]
) -> Partition:
    """Checks a partition from Python.

    Args:
        config: checked settings.
        arrays: the data set.
        partition: (train, val, test) with the rows of every client; or a list of the rows of every client, which are
            split by the config's ratios.

    Raises:
        UsageError: it is not a partition of these data among the config's clients, or the lists are to be split, and
            the config's `holdout` holds rows out before the partition.
    """
    if config.holdout != "client" and not isinstance(partition, tuple):
        raise UsageError(
            f"holdout {config.holdout} is made before a partition; use client, or give (train, val, test)"
        )
    return _checked(config, arrays, partition, "the partition given")


def make_columns(config: Config, arrays: Arrays, training_rows: np.ndarray) -> Columns | None:
    """Returns what encodes a table: the stored model's transformer, or else one fitted to the training rows.

    Args:
        config: checked settings.
        arrays: the data set; of arrays nothing is encoded.
        training_rows: int [n], of all clients.

    Raises:
        UsageError: the stored model has other classes, or another transformer is given; the transformer cannot be
            fitted, or stored where the run is; or differential privacy is asked for.
    """
    columns, table = columns_of_model(config.init), arrays.table
    if table is None:
        if columns:
            raise UsageError(f"init {config.init} was trained on a table; give a DataFrame or csv")
        return None
    if config.dp.clip:
        raise UsageError(
            "dp does not account for what a table's encoding tells of the rows; give arrays"
        )
    from fedvg_jax.data import scaling

    if not columns:
        columns = scaling.fit(table, training_rows)
    elif table.transformer is not None:
        raise UsageError(f"transformer has no effect with init {config.init}; leave it out")
    elif config.init and stored.is_run(config.init) and columns.class_names != arrays.class_names:
        raise UsageError(
            f"init {config.init} has classes {columns.class_names}, got {arrays.class_names}; rename the labels"
        )
    if config.out or config.export:
        columns.as_json()  # refuses what cannot be stored
    # a file gives no head, so that labels may differ
    return columns._replace(label=table.label, class_names=arrays.class_names)


def columns_of_model(init: Path | None) -> Columns | None:
    """Returns what encodes the tables that a stored model takes; None for arrays."""
    if init is None:
        return None
    if stored.is_run(init):
        return run_folder.read_columns(stored.run_of(init))
    return pretrained.read_columns(init)


def make_shared(
    config: Config, arrays: Arrays, parts: Partition, scaled_by: Columns | None = None
) -> validation.Shared:
    """Builds D_val and the pool of a run: encoded tables, external images, noise and corrupt rows.

    Args:
        config: checked settings.
        arrays: the data set.
        parts: the partition.
        scaled_by: see `make_columns`.

    Raises:
        UsageError: there are too few images for the settings of the validation set.
    """
    options, seed, classes = config.validation, partition_seed(config), len(arrays.class_names)
    _check_kinds_of_rows(config, arrays)
    if scaled_by and arrays.table:
        arrays = arrays._replace(x=scaled_by.scaled(arrays.table.inputs), table=None)
    source, share = choice(config, "validation.source")
    if source == "clients":
        shared = validation.from_clients(arrays, parts, share, config.val_ratio, seed)
    else:
        cache_dir = config.cache_dir / "data" if config.cache_dir else None
        all_classes = not as_reference(config, "truck")
        images = validation.outside_images(source, options.data_dir, arrays, all_classes, cache_dir)
        shared = validation.from_outside(
            arrays, *images, as_reference(config, "external-copies"), seed
        )
    if options.size:
        shared = validation.subset(shared, options.size, seed)
    if options.rho:
        batch_size = config.batch_size if as_reference(config, "imbalance") else 0
        shared = validation.imbalanced(shared, options.rho, classes, seed, batch_size)
    if options.label_noise:
        shared = validation.noisy(shared, options.label_noise, classes, seed)
    kind, strength = choice(config, "corrupt.kind")
    if kind == "none":
        return shared
    of_clients = {"ids": corrupt_clients(config), "num_classes": classes, "seed": config.seed}
    x, y = corrupt.apply(kind, shared.x, shared.y, parts.train, strength=strength, **of_clients)
    return shared._replace(x=x, y=y)


def _check_kinds_of_rows(config: Config, arrays: Arrays) -> None:
    """Raises UsageError for a validation set or corrupt rows that need images, or a label for each row."""
    (source, _), (kind, _) = choice(config, "validation.source"), choice(config, "corrupt.kind")
    has_features = is_features(arrays.x) and arrays.table is None
    if source != "clients" and not has_features:
        check_rows_are_images(arrays, f"validation.source {source}", "use clients")
    if kind == "feature_noise":
        check_rows_are_images(arrays, "corrupt.kind feature_noise", "use label_noise")
    if config.validation.rho:
        class_labels(arrays, "validation.rho", "use 0")
    if config.validation.label_noise:
        class_labels(arrays, "validation.label_noise", "use 0", of_rows=False)
    if kind in corrupt.LABELS:
        class_labels(arrays, f"corrupt.kind {kind}", "use none", of_rows=False)


def describe(config: Config, population: Population, is_custom: bool = False) -> dict[str, Any]:
    """Returns statistics of the partition and of D_val for the run folder, as JSON values.

    Args:
        config: checked settings.
        population: of the run; of clients the labels of the data set are counted, not the corrupt ones.
        is_custom: whether the partition comes from Python.
    """
    arrays, parts, shared = population.arrays, population.partition, population.shared
    result: dict[str, Any] = {
        "partition": "custom" if is_custom else config.partition,
        "holdout": config.holdout,
    }
    result |= client_rows.describe(arrays.y, arrays.class_names, parts)
    result["validation"] = {
        "source": choice(config, "validation.source")[0],
        "samples": len(shared.rows),
    }
    if "counts" in result:
        counts = np.bincount(shared.y[shared.rows], minlength=len(arrays.class_names))
        result["validation"]["counts"] = counts.tolist()
    if shared.clients is not None:
        result["validation"]["clients"] = shared.clients.tolist()
    return result


def _checked(
    config: Config, arrays: Arrays, partition: tuple | Sequence[np.ndarray], source: object
) -> Partition:
    """Checks a caller's partition, and that training and test sets have rows.

    Raises:
        UsageError: it is not a partition of these data; or rows are held out already, and a setting asks for others.
    """
    if isinstance(partition, tuple):
        for name in OF_SPLIT:
            value, default = getattr(config, name), SETTINGS[name].default
            if value not in (default, 0):  # 0 rows to validate belong to an external D_val
                raise UsageError(
                    f"{name} {value} has no effect: {source} is split already; leave it out"
                )
    options = {name: getattr(config, name) for name in OF_SPLIT} | {"seed": partition_seed(config)}
    parts = exchange.check(
        partition, num_samples=len(arrays.y), num_clients=config.clients, source=source, **options
    )
    return _with_rows(parts, source)


def _with_rows(parts: Partition, source: object) -> Partition:
    """Returns a partition; a UsageError where it has no row to train or to test. D_val may be external."""
    for name, part in {"training": parts.train, "test": parts.test}.items():
        if not sizes(part).any():
            raise UsageError(
                f"{source}: leaves no {name} row; add some, or use fewer clients or another {name} ratio"
            )
    return parts


def load_data(config: Config) -> Arrays:
    """Returns the data set that the config names, or as many of its rows as the config allows."""
    # a file of settings may name columns of one of several data sets
    names_columns = config.dataset.startswith(datasets.HUB) or config.dataset == "csv"
    whole = datasets.load(
        config.dataset,
        config.data_dir,
        config.cache_dir and config.cache_dir / "data",
        size=datasets.parse_size(config.image_size),
        splits=config.splits,
        group_pattern=config.group_pattern if config.dataset == "folder" else "",
        columns=columns_by_role(config) if names_columns else {},
    )
    return limited(whole, config.max_rows)
