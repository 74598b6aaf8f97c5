"""Data sets from Python arrays, of any rank and dtype, and the checks that a model can take them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedvg_jax.config import MODELS, Config
from fedvg_jax.core.types import UsageError
from fedvg_jax.data.arrays import MAX_CLASSES, Arrays, with_groups

_RENUMBERED = "np.unique(y, return_inverse=True)[1]"


def as_arrays(data: Arrays | tuple) -> Arrays:
    """Returns a user's data as `Arrays`.

    Args:
        data: `Arrays`, or a pair (x, y) of arrays with the same leading axis T, of any rank and any boolean, integer
            or floating dtype. Integers y [T] >= 0 are class labels. Those of `Arrays` with `class_names` are labels of
            any rank, such as the next characters [T, L] of sequences. Their `groups` may be any integers or strings.

    Raises:
        UsageError: no such pair, no rows, different numbers of rows or groups, or values that no device dtype can hold.

    >>> as_arrays((np.ones((4, 3)), np.array([0, 2, 1, 0]))).class_names
    ('0', '1', '2')
    """
    if not isinstance(data, Arrays):
        if not isinstance(data, tuple) or len(data) != 2:
            raise UsageError(f"data must be arrays (x, y), or fedvg_jax.data.Arrays; got {type(data).__name__}")
        x, y = _as_array(data[0], "x"), _as_array(data[1], "y")
        data = Arrays("data", x, y, _class_names(y), len(x) if x.ndim else 0)
    data = data._replace(x=_checked(data.x, "x"), y=_checked(data.y, "y"))
    if len(data.x) != len(data.y) or not len(data.x):
        raise UsageError(f"data: x has {len(data.x)} rows and y {len(data.y)}; both need the same number, 1 or more")
    if data.class_names:
        labels = integer_labels(data, "class_names", "leave class_names empty")
        if labels.min() < 0 or labels.max() >= len(data.class_names):
            last = len(data.class_names) - 1
            raise UsageError(
                f"data: labels must be 0..{last}, one for each class name; got {labels.min()}..{labels.max()}"
            )
        data = data._replace(y=labels)
    return data if data.groups is None else with_groups(data, np.asarray(data.groups), "data")


def class_labels(arrays: Arrays, consumer: str, instead: str) -> np.ndarray:
    """Returns int32 [T] class labels.

    Args:
        arrays: the data set.
        consumer: what needs the labels, for the error.
        instead: what to use without labels, for the error.

    Raises:
        UsageError: the data set has no class labels.
    """
    if arrays.y.ndim != 1:
        raise _no_labels(arrays, consumer, "integers [T] from 0", instead)
    return integer_labels(arrays, consumer, instead, "integers [T] from 0")


def integer_labels(arrays: Arrays, consumer: str, instead: str, needed: str = "integers [T, ...] from 0") -> np.ndarray:
    """Returns int32 labels [T], or [T, L] of sequences.

    Args:
        arrays: the data set.
        consumer: what needs the labels, for the error.
        instead: what to use without labels, for the error.
        needed: shape and dtype, for the error.

    Raises:
        UsageError: y has no integers, or there are no names of classes.
    """
    if not np.issubdtype(arrays.y.dtype, np.integer) or not arrays.class_names:
        raise _no_labels(arrays, consumer, needed, instead)
    return arrays.y.astype(np.int32)


def _no_labels(arrays: Arrays, consumer: str, needed: str, instead: str) -> UsageError:
    others = f"{_RENUMBERED} numbers other values, y.argmax(1) one-hot rows"
    return UsageError(
        f"{consumer} needs class labels, {needed} to {MAX_CLASSES - 1}; y of {arrays.name} is {_shape(arrays.y)};"
        f" {others}; otherwise {instead}"
    )


def check_model_fits(arrays: Arrays, config: Config) -> None:
    """Raises a UsageError if the config's model cannot take these data."""
    own = "give run(..., task=fedvg_jax.linen_task(...)) for a model and loss of your own"
    if MODELS[config.model].is_sequence:
        _check_sequences(arrays, config)
        return
    named = f"model {config.model}"
    class_labels(arrays, named, "use --model gru" if is_sequences(arrays) else own)
    shape = arrays.x.shape[1:]
    images = len(shape) == 3
    if not MODELS[config.model].takes_rows:
        if not images:
            raise UsageError(f"{named} takes images [T, H, W, D], x is {_shape(arrays.x)}; use x[..., None], or {own}")
        _refuse_channels_first(arrays, named)
    if not shape or not arrays.x[0].size:
        raise UsageError(f"{named} takes rows [T, D] of one value or more, x is {_shape(arrays.x)}; use x[:, None]")
    if config.normalise == "imagenet" and not (images and shape[-1] in (1, 3)):
        raise UsageError(f"normalise imagenet takes 1 or 3 channels, x is {_shape(arrays.x)}; use none or half")
    if (channels := MODELS[config.model].channels) and shape[-1] not in channels:
        allowed = " or ".join(map(str, channels))
        raise UsageError(f"{named} is for images of {allowed} channels, x is {_shape(arrays.x)}; use another model")


def _refuse_channels_first(arrays: Arrays, consumer: str) -> None:
    """Raises a UsageError for rows [1, S, S], [3, H, W] or [4, H, W], as few images are."""
    first, *others = arrays.x.shape[1:]
    is_grey = first == 1 and len({*others}) == 1
    if (is_grey or first in (3, 4)) and min(others) > 4:
        raise UsageError(
            f"{consumer} takes images [T, H, W, D], and the channels of x seem to be first, {_shape(arrays.x)}; use"
            " np.moveaxis(x, 1, -1)"
        )


def is_images(arrays: Arrays) -> bool:
    """Returns whether the rows are images, uint8 [T, H, W, D]."""
    return arrays.x.ndim == 4 and arrays.x.dtype == np.uint8


def is_sequences(arrays: Arrays) -> bool:
    """Returns whether the rows are sequences of named characters with a label at every place, both integers [T, L]."""
    has_integers = all(np.issubdtype(array.dtype, np.integer) for array in (arrays.x, arrays.y))
    return has_integers and arrays.x.ndim == 2 and arrays.x.shape == arrays.y.shape and bool(arrays.class_names)


def check_rows_are_images(arrays: Arrays, setting: str, instead: str) -> None:
    """Raises a UsageError if a setting changes pixels and there are none."""
    if arrays.x.ndim == 4:
        _refuse_channels_first(arrays, setting)
    if not is_images(arrays):
        raise UsageError(f"{setting} is for images, uint8 [T, H, W, D]; {arrays.name} is {_shape(arrays.x)}; {instead}")


def _check_sequences(arrays: Arrays, config: Config) -> None:
    """Raises a UsageError if the config's model needs sequences of characters and the data have none."""
    num_classes = len(arrays.class_names)
    if not is_sequences(arrays):
        raise UsageError(
            f"model {config.model} takes sequences, integers x and y [T, L] and one name per character in class_names;"
            f" {arrays.name} has x {_shape(arrays.x)}, y {_shape(arrays.y)} and {num_classes} names; use --model mlp"
        )
    if arrays.x.min() < 0 or arrays.x.max() >= num_classes:
        raise UsageError(f"data: characters must be 0..{num_classes - 1}; got {arrays.x.min()}..{arrays.x.max()}")


def check_pixel_settings(arrays: Arrays, config: Config) -> None:
    """Raises a UsageError if the config augments or normalises rows that are of another kind."""
    if config.normalise == "columns" and (is_images(arrays) or is_sequences(arrays) or arrays.x.ndim < 2):
        raise UsageError(f"normalise columns takes tables and float images, x is {_shape(arrays.x)}; use none or half")
    for name, value in (("augment", config.augment), ("normalise", config.normalise)):
        if value in ("none", "columns"):
            continue
        if arrays.x.ndim != 4:
            raise UsageError(f"{name} {value} is for images [T, H, W, D], x is {_shape(arrays.x)}; use none")
        _refuse_channels_first(arrays, f"{name} {value}")


def scaled_columns(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns float32 (x - mean) / deviation, of every column over some rows; a constant column becomes 0 there.

    Args:
        x: [T, ..., D]; a column is one of the D entries of the last axis.
        rows: int [n], numbers of the rows that mean and deviation are taken of.

    >>> scaled_columns(np.array([[0.0, 7.0], [4.0, 7.0], [8.0, 7.0]]), np.array([0, 1])).tolist()
    [[-1.0, 0.0], [1.0, 0.0], [3.0, 0.0]]
    """
    some = np.asarray(x[rows], np.float64)
    axes = tuple(range(x.ndim - 1))
    mean, deviation = some.mean(axes), some.std(axes)
    is_constant = deviation <= 1e-9 * np.abs(mean)  # the deviation of equal numbers may be rounded to more than 0
    return ((x - mean) / np.where(is_constant, 1, deviation)).astype(np.float32)


def _as_array(values: Any, name: str) -> np.ndarray:
    if np.ma.is_masked(values):
        raise UsageError(f"data: {name} has masked rows; fill them with {name}.filled(...), or remove them")
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:  # torch's for a tensor that requires a gradient
        raise UsageError(f"data: {name} must be an array [T, ...], every row of one shape; {error}") from error


def _checked(array, name: str) -> np.ndarray:
    array = _as_array(array, name)
    array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if not array.ndim or array.dtype.kind not in "biuf":
        got = _shape(array) + (f"; labels are {_RENUMBERED}" if name == "y" and array.ndim == 1 else "")
        raise UsageError(f"data: {name} must be an array [T, ...] of booleans, integers or floats; got {got}")
    if array.dtype.itemsize > 4 and array.dtype.kind in "iu" and array.size:
        largest = max(-int(array.min()), int(array.max()))  # Python integers, because |-2**63| is not an int64
        if largest >= 2**31:
            raise UsageError(f"data: integers of {name} must be below 2**31 in absolute value; got {largest}")
    if array.dtype.kind == "f":
        if array.dtype.itemsize > 8:
            raise UsageError(f"data: {name} must have at most 64 bits; got {array.dtype}; use {name}.astype('float32')")
        finite = np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
        if not finite.all():
            raise UsageError(f"data: row {finite.argmin()} of {name} is not finite; correct or remove it")
        most = float(np.finfo(np.float32).max)
        if array.dtype.itemsize == 8 and array.size and max(-array.min(), array.max()) > most:
            raise UsageError(f"data: floats of {name} must be at most {most:.3g}, the largest float32; rescale them")
    return array


def _class_names(y: np.ndarray) -> tuple[str, ...]:
    """Returns the names 0..max if y can be class labels, otherwise none."""
    labels = y.ndim == 1 and y.size and y.dtype.kind in "iu" and y.min() >= 0 and y.max() < MAX_CLASSES
    return tuple(map(str, range(int(y.max()) + 1))) if labels else ()


def _shape(array: np.ndarray) -> str:
    return f"{array.dtype} {list(array.shape)}"
