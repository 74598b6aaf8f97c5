"""Which taps of kernels meet an image at all."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
from jax import Array

from fedvg_jax.core.types import Tree
from fedvg_jax.models.conv.patches import live_taps

Boxes = dict[str, list[tuple[int, int]]]
"""Path of a kernel -> first and one past the last live tap of its height and width."""


def watched(init: Callable[[Array], Tree]) -> tuple[Callable[[Array], Tree], Callable[[], Boxes]]:
    """`init`, and a function that tells which kernels have dead taps, with their live ones.

    Looks at 2-d `nn.Conv` with all of strides and padding written out; in any other layer everything counts as alive.
    That is seen whenever `init` is traced, which a run does anyway; if it has not been, it is traced when asked.

    Args:
        init: key -> variables, by calling modules on inputs of the shapes they will see.
    """
    found: list[Boxes] = []

    def watching(key: Array) -> Tree:
        whole, uses = {}, {}

        def note(call, args, kwargs, context):
            layer = context.module
            if type(layer) is nn.Conv and context.method_name == "__call__":
                path = "/".join((*layer.path, "kernel"))
                whole[path] = [(0, taps) for taps in layer.kernel_size]
                uses[path] = [*uses.get(path, []), _seen(layer, args[0].shape) or whole[path]]
            return call(*args, **kwargs)

        with nn.intercept_methods(note):
            variables = init(key)
        joined = {path: [_hull(ends) for ends in zip(*boxes, strict=True)] for path, boxes in uses.items()}
        found.append({path: box for path, box in joined.items() if box != whole[path]})
        return variables

    def live_kernels() -> Boxes:
        if not found:
            jax.eval_shape(watching, jax.random.key(0))
        return found[0]

    return watching, live_kernels


def _seen(layer: nn.Conv, shape: tuple[int, ...]) -> list[tuple[int, int]] | None:
    """Live taps of one use of a layer; None where they are not looked for."""
    pads = layer.padding if isinstance(layer.padding, (list, tuple)) else [None]
    written_out = isinstance(layer.strides, tuple) and all(isinstance(pad, (list, tuple)) for pad in pads)
    if not (written_out and len(layer.kernel_size) == 2 and layer.kernel_dilation == layer.input_dilation == 1):
        return None
    return live_taps(layer.kernel_size, shape[-3:-1], layer.strides, pads)


def _hull(ends) -> tuple[int, int]:
    return min(begin for begin, _ in ends), max(end for _, end in ends)
