"""Whether a data set fits the model and the settings of its pixels."""

from __future__ import annotations

from fedvg_jax.config import MODELS, Config
from fedvg_jax.core.types import UsageError
from fedvg_jax.data import user_data
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.user_data import shape


def check_model_fits(arrays: Arrays, config: Config) -> None:
    """Raises a UsageError if the config's model cannot take these data."""
    own = "give run(..., task=fedvg_jax.linen_task(...)) for a model and loss of your own"
    named, num_classes = f"model {config.model}", len(arrays.class_names)
    if MODELS[config.model].is_sequence:
        if not user_data.is_sequences(arrays):
            raise UsageError(
                f"{named} takes sequences, integers x and y [T, L] and one name per character in class_names;"
                f" {arrays.name} has x {shape(arrays.x)}, y {shape(arrays.y)} and {num_classes} names; use --model mlp"
            )
        if arrays.x.min() < 0 or arrays.x.max() >= num_classes:
            raise UsageError(
                f"data: characters must be 0..{num_classes - 1}; got {arrays.x.min()}..{arrays.x.max()}"
            )
        return
    user_data.class_labels(
        arrays, named, "use --model gru" if user_data.is_sequences(arrays) else own
    )
    of_row = arrays.x.shape[1:]
    images = len(of_row) == 3
    if not MODELS[config.model].takes_rows:
        if not images:
            raise UsageError(
                f"{named} takes images [T, H, W, D], x is {shape(arrays.x)}; use x[..., None], or {own}"
            )
        user_data.refuse_channels_first(arrays, named)
    if not of_row or not arrays.x[0].size:
        raise UsageError(
            f"{named} takes rows [T, D] of one value or more, x is {shape(arrays.x)}; use x[:, None]"
        )
    if config.normalise == "imagenet" and not (images and of_row[-1] in (1, 3)):
        raise UsageError(
            f"normalise imagenet takes 1 or 3 channels, x is {shape(arrays.x)}; use none or half"
        )
    if (channels := MODELS[config.model].channels) and of_row[-1] not in channels:
        allowed = " or ".join(map(str, channels))
        raise UsageError(
            f"{named} is for images of {allowed} channels, x is {shape(arrays.x)}; use another model"
        )


def check_pixel_settings(arrays: Arrays, config: Config) -> None:
    """Raises a UsageError if the config augments or normalises rows that are of another kind."""
    if config.normalise == "columns" and arrays.table is not None:
        raise UsageError(
            "normalise columns has no effect on a table, whose transformer scales it; use none"
        )
    if config.normalise == "columns" and (
        user_data.is_images(arrays) or user_data.is_sequences(arrays) or arrays.x.ndim < 2
    ):
        raise UsageError(
            f"normalise columns takes tables and float images, x is {shape(arrays.x)}; use none or half"
        )
    for name, value in (("augment", config.augment), ("normalise", config.normalise)):
        if value in ("none", "columns"):
            continue
        if arrays.x.ndim != 4:
            raise UsageError(
                f"{name} {value} is for images [T, H, W, D], x is {shape(arrays.x)}; use none"
            )
        user_data.refuse_channels_first(arrays, f"{name} {value}")


def check_groups(arrays: Arrays, config: Config) -> None:
    """Raises a UsageError if a table's groups have no effect."""
    has_groups = arrays.table is not None and arrays.groups is not None
    if has_groups and "group" not in (config.partition, config.holdout):
        raise UsageError(
            f"group has no effect with partition {config.partition}; use partition group, or leave it out"
        )
