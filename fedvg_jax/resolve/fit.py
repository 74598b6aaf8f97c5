"""Whether data, model, objects of a caller and settings fit together."""

from __future__ import annotations

import jax

from fedvg_jax.config import MODELS, Config, flatten
from fedvg_jax.config.checks import unmet
from fedvg_jax.config.declare import listed
from fedvg_jax.core.types import Batch, Task, UsageError
from fedvg_jax.data.arrays import Arrays, class_labels, is_sequences, refuse_channels_first, shape
from fedvg_jax.data.partitions.client_rows import Partition
from fedvg_jax.engine import task_checks
from fedvg_jax.runs.experiment import Population
from fedvg_jax.runs.record.history import CLIENT_ACCURACIES, CONFUSION


def check_model_fits(arrays: Arrays, config: Config) -> None:
    """Raises a UsageError if the config's model cannot take these data."""
    named, model = f"model {config.model}", MODELS[config.model]
    num_classes, of_row = len(arrays.class_names), arrays.x.shape[1:]
    instead = (
        "use another model, or give run(..., task=fedvg_jax.linen_task(...)) for one of your own"
    )
    if model.is_sequence:
        is_fitting = is_sequences(arrays)
        if not is_fitting or arrays.x.min() < 0 or arrays.x.max() >= num_classes:
            raise UsageError(
                f"{named} takes sequences, integers x and y [T, L] below {num_classes}, the number of class_names;"
                f" {arrays.name} has x {shape(arrays.x)}; {instead}"
            )
        return
    class_labels(arrays, named, instead)
    is_image, channels, needed = len(of_row) == 3, model.channels, ""
    if is_image and not model.takes_rows:
        refuse_channels_first(arrays, named)
    if not (is_image or model.takes_rows):
        needed = "images [T, H, W, D]"
    elif not of_row or not arrays.x[0].size:
        needed = "rows [T, D] of one value or more"
    elif config.normalise == "imagenet" and not (is_image and of_row[-1] in (1, 3)):
        needed = "images of 1 or 3 channels for normalise imagenet"
    elif channels and of_row[-1] not in channels:
        needed = f"images of {' or '.join(map(str, channels))} channels"
    if needed:
        raise UsageError(f"{named} takes {needed}, x is {shape(arrays.x)}; {instead}")


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


def check_groups(arrays: Arrays, config: Config) -> None:
    """Raises a UsageError if a table's groups have no effect."""
    has_groups = arrays.table is not None and arrays.groups is not None
    if has_groups and "group" not in (config.partition, config.holdout):
        raise UsageError(
            f"group has no effect with partition {config.partition}; use partition group, or leave it out"
        )


MODEL_SETTINGS = ("precision", "normalise", "conv", "norm_layers", "lora")
"""Settings that only the building of the config's model reads."""


def check_settings_of_task(config: Config, task: Task, pool: Batch) -> None:
    """Checks that a user's task does what the settings ask of it.

    A resumed run keeps the settings that it started with, so those that have no effect are not refused there.

    Raises:
        UsageError: a setting would build the config's model and has no effect, or needs a sum that the task does not
            have.
    """
    if config.resume is not None:
        return
    settings, defaults = flatten(config), flatten(Config())
    for name in MODEL_SETTINGS:
        if settings[name] != defaults[name] and unmet(config, name) is None:
            raise UsageError(
                f"{name} {settings[name]} has no effect beside task=; leave it out, set it in the task"
            )
    if CONFUSION in listed(config.record):
        sums = jax.eval_shape(
            task.measure,
            *jax.eval_shape(task.init, jax.random.key(0)),
            *task_checks.shapes_of_batch(pool),
        )
        if not isinstance(sums, dict) or CONFUSION not in sums:
            raise UsageError(
                f"record {CONFUSION} needs '{CONFUSION}' of task.measure, [C * C] counts; leave it out"
            )


def check_accuracies(
    config: Config, native: str, task: Task | None, population: Population, *, is_named: bool
) -> None:
    """Checks that accuracies can be computed where a named weighting or a record needs them.

    Args:
        config: settings.
        native: the name of the weighting of the algorithm's paper.
        task: a caller's task; None for the config's model, which returns scores of the classes.
        population: of the run.
        is_named: whether settings name the weighting.

    Raises:
        UsageError: the data have no class labels, or the task's outputs are not scores of the classes.
    """
    records, arrays = listed(config.record), population.arrays
    num_classes = len(arrays.class_names)
    consumers = {}
    if is_named and "val_accuracy" in config.weighting.replace("native", native):
        consumers["weighting val_accuracy"] = "use val_loss"
    for name in ("client_accuracy", *CLIENT_ACCURACIES):
        if name in records:
            consumers[f"record {name}"] = "use client_val_loss"
    for consumer, instead in consumers.items():
        class_labels(arrays, consumer, instead, of_rows=False)
        if task:
            task_checks.check_scores(task, population.pool, consumer, instead, num_classes)


def check_clients(config: Config, parts: Partition) -> None:
    """Raises UsageError where accuracies by client are recorded, and clients have no test rows."""
    by_client = [name for name in CLIENT_ACCURACIES if name in listed(config.record)]
    if by_client and len(parts.test) != len(parts.train):
        instead = "give each client's" if config.holdout == "client" else "use --holdout client"
        raise UsageError(
            f"record {by_client[0]} needs test rows of every client, and they are one set; {instead}"
        )
