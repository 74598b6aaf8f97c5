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
    files.export_target(path, "out")  # refuses a folder that cannot be written to
    if arrays.table is not None or MODELS[config.model].is_sequence:
        raise UsageError(
            f"model {config.model}: features are of images or arrays, not of a table or characters"
        )
    shape = arrays.x.shape[1:]
    if size:
        check_rows_are_images(arrays, "image_size", "leave it out")
        shape = (*size, shape[-1])
    of_shape = arrays._replace(x=np.zeros((1, *shape), arrays.x.dtype))
    task = models.make_model(config, of_shape).bound(None)
    variables = models.make_variables(config, task.init)
    extract = _extractor(task, shape)
    passes = []
    for first in range(0, len(arrays.y), ROWS):
        # first rows again fill the last pass, so that there is one program
        rows = np.arange(first, first + ROWS) % len(arrays.y)
        with np.errstate(over="ignore"):
            values = np.asarray(extract(variables, arrays.x[rows])).astype(dtype)
        if not np.isfinite(values).all():
            raise UsageError(
                f"features of rows {first} and following exceed {np.dtype(dtype)}; use --float32"
            )
        passes.append(values)
    y, split = arrays.y, arrays.num_train
    x = np.concatenate(passes)[: len(y)]
    class_names = np.array(arrays.class_names)
    members = {"x_train": x[:split], "y_train": y[:split], "class_names": class_names}
    if len(y) > split:
        members |= {"x_test": x[split:], "y_test": y[split:]}
    if arrays.groups is not None:
        members["groups"] = arrays.groups
    with files.writing(path, "--out"), files.drafting(path) as draft, draft.open("wb") as stream:
        np.savez(stream, **members)  # pyright: ignore[reportArgumentType]


def _extractor(task: Task, shape: tuple[int, ...]) -> Callable[[Variables, np.ndarray], jax.Array]:
    """Returns the function (variables, rows [n, ...]) -> features float32 [n, F]; images are resized to `shape`."""
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

    return features
