"""Number formats of a model's arithmetic; parameters, running statistics, norms and averages stay float32."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedvg_jax.core import tree
from fedvg_jax.core.types import Outputs, Task, Tree

NAMES = ("default", "highest", "bfloat16")
"""default: float32, with matmul factors rounded as the device prefers (TF32 on a GPU); highest: float32 throughout;
bfloat16: forward and backward pass in bfloat16."""


def compute_in(task: Task, name: str) -> Task:
    """Returns `task` with its forward and backward pass in that format; losses and statistics come out in float32.

    So do outputs and features of `forward`.

    Args:
        task: with float32 parameters.
        name: one of `NAMES`.
    """
    if name == "default":
        return task
    convert = _to_bfloat16 if name == "bfloat16" else _unchanged
    matmul_precision = _highest if name == "highest" else contextlib.nullcontext

    def forward(params: Tree, stats: Tree, *args, **key) -> tuple[Outputs, Tree]:
        assert task.forward is not None  # every named model has one
        with matmul_precision():
            outputs, new = task.forward(convert(params), stats, *args, **key)
        dtype = tree.dtype(params)
        wide = jax.tree.map(lambda x: x.astype(dtype), outputs)
        return wide, jax.tree.map(lambda new, old: new.astype(old.dtype), new, stats)

    def loss(params: Tree, stats: Tree, batch: Tree, mask, train: bool) -> tuple[jax.Array, Tree]:
        outputs, new = forward(params, stats, batch, mask, train)
        return outputs.loss, new

    def in_format(f: Callable) -> Callable:
        def run(params: Tree, *args):
            with matmul_precision():
                return f(convert(params), *args)

        return run

    return task._replace(loss=loss, forward=forward, predict=in_format(task.predict), measure=in_format(task.measure))


def _highest():
    return jax.default_matmul_precision("highest")


def _to_bfloat16(params: Tree) -> Tree:
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)


def _unchanged(params: Tree) -> Tree:
    return params
