"""The features of a data set by a model, written as an .npz file that `--dataset npz` reads."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedvg_jax.config import MODELS, Config
from fedvg_jax.core.types import Batch, Task, UsageError, Variables
from fedvg_jax.data.arrays import Arrays, Size, check_rows_are_images
from fedvg_jax.host import files
from fedvg_jax.resolve import model as models

ROWS = 64
"""Rows of a pass through the network."""


def write(
    path: Path,
    config: Config,
    arrays: Arrays,
    size: Size | None = None,
    dtype: type[np.floating] = np.float16,
) -> None:
    """Writes the features of every row, its label and the class names.

    The features are the input of the model's last layer, with running statistics of BatchNorm. The file appears when it
    is complete; an interrupted call leaves none.

    Args:
        path: the .npz file, which must not exist.
        config: names the model, its weights, `normalise` and `precision`.
        arrays: the data set; rows of the official training set become x_train, the others x_test.
        size: (H, W) that images are resized to, bilinearly; None keeps their size.
        dtype: of the features.

    Raises:
        UsageError: `path` exists or cannot be written, the model cannot take the rows, or features exceed `dtype`.
    """
    if os.path.lexists(path):
        raise UsageError(f"out {path}: the file exists; name another, or remove it")
    target = files.export_target(path, "out")
    if arrays.table is not None:
        raise UsageError("features are of arrays, and not of tables; use images or an .npz")
    task, row_shape = _task(config, arrays, size)
    variables = models.make_variables(config, task.init)
    extract = _extractor(task, variables, row_shape)
    passes = []
    for first in range(0, len(arrays.y), ROWS):
        with np.errstate(over="ignore"):
            values = extract(arrays.x[first : first + ROWS]).astype(dtype)
        if not np.isfinite(values).all():
            raise UsageError(
                f"features of rows {first} and following exceed {np.dtype(dtype)}; use --float32"
            )
        passes.append(values)
    x, y, split = np.concatenate(passes), arrays.y, arrays.num_train
    members = {"x_train": x[:split], "y_train": y[:split]}
    members["class_names"] = np.array(arrays.class_names)
    if len(y) > split:
        members |= {"x_test": x[split:], "y_test": y[split:]}
    if arrays.groups is not None:
        members["groups"] = arrays.groups
    with files.writing(path, "--out"), files.drafting(target) as draft, draft.open("wb") as stream:
        np.savez(stream, **members)  # pyright: ignore[reportArgumentType]


def _task(config: Config, arrays: Arrays, size: Size | None) -> tuple[Task, tuple[int, ...]]:
    """Returns the model as a task, and the shape of the rows that it takes."""
    if MODELS[config.model].is_sequence:
        raise UsageError(
            f"model {config.model} has features of characters, not of rows; use a model of images or tables"
        )
    shape = arrays.x.shape[1:]
    if size:
        check_rows_are_images(arrays, "image_size", "leave it out")
        shape = (*size, shape[-1])
    resized = arrays._replace(
        x=np.broadcast_to(np.zeros((), arrays.x.dtype), (len(arrays.x), *shape))
    )
    return models.make_task(config, resized), shape


def _extractor(
    task: Task, variables: Variables, shape: tuple[int, ...]
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the function rows [n, ...] -> features float32 [n, F], for n up to `ROWS`."""
    assert task.forward is not None, "every named model has it"
    forward = task.forward

    @jax.jit
    def features(variables: Variables, x: jax.Array) -> jax.Array:
        if x.shape[1:] != shape:  # rounded, as images that are resized before they are stored
            scaled = jax.image.resize(x.astype(jnp.float32), (len(x), *shape), "bilinear")
            x = jnp.clip(jnp.round(scaled), 0, 255).astype(jnp.uint8)
        batch = Batch(x, jnp.zeros(len(x), jnp.int32))
        outputs, _ = forward(*variables, batch, jnp.ones(len(x), bool), False)
        assert outputs.features is not None, "a model has a layer with parameters"
        return outputs.features.reshape(len(x), -1).astype(jnp.float32)

    def extract(x: np.ndarray) -> np.ndarray:
        padding = [(0, ROWS - len(x)), *[(0, 0)] * (x.ndim - 1)]
        return np.asarray(features(variables, np.pad(x, padding)))[: len(x)]

    return extract
