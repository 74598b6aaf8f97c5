"""Which taps of kernels meet an image at all."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
from jax import Array

from fedvg_jax.models.conv import live_taps
from fedvg_jax.types import Tree


def live_kernels(init: Callable[[Array], Tree]) -> dict[str, list[tuple[int, int]]]:
    """Path of every kernel with dead taps -> first and one past the last live tap of its height and width.

    Looks at 2-d `nn.Conv` with all of strides and padding written out; in any other layer everything counts as alive.

    Args:
        init: key -> variables, by calling the modules on inputs of the shapes they will see; it is only traced.
    """
    whole, seen = {}, {}

    def note(call, args, kwargs, context):
        layer = context.module
        if type(layer) is nn.Conv and context.method_name == "__call__":
            path = "/".join((*layer.path, "kernel"))
            whole[path] = [(0, taps) for taps in layer.kernel_size]
            seen[path] = [*seen.get(path, []), _seen(layer, args[0].shape) or whole[path]]
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        jax.eval_shape(lambda key: init(key), jax.random.key(0))  # a function that jax has not traced before
    joined = {path: [_hull(ends) for ends in zip(*boxes, strict=True)] for path, boxes in seen.items()}
    return {path: box for path, box in joined.items() if box != whole[path]}


def _seen(layer: nn.Conv, shape: tuple[int, ...]) -> list[tuple[int, int]] | None:
    """Live taps of one use of a layer; None where they are not looked for."""
    pads = layer.padding if isinstance(layer.padding, (list, tuple)) else [None]
    written_out = isinstance(layer.strides, tuple) and all(isinstance(pad, (list, tuple)) for pad in pads)
    if not (written_out and len(layer.kernel_size) == 2 and layer.kernel_dilation == layer.input_dilation == 1):
        return None
    return live_taps(layer.kernel_size, shape[-3:-1], layer.strides, pads)


def _hull(ends) -> tuple[int, int]:
    return min(begin for begin, _ in ends), max(end for _, end in ends)
