"""Finds the kernels of a network that have dead taps: taps that only ever meet padding, so that their gradient is 0.

`core.gradient_support` leaves dead taps out of what clients carry, send and average.
"""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
from jax import Array

from fedvg_jax.core.gradient_support import Box
from fedvg_jax.core.types import Tree
from fedvg_jax.models.conv import taps


def record_live_taps(init: Callable[[Array], Tree]) -> tuple[Callable[[Array], Tree], Callable[[], dict[str, Box]]]:
    """Returns `init`, which now also records live taps, and a function that returns the record.

    The record is made whenever `init` is traced, which a run does anyway. Asking for it before that traces `init`.

    Only 2-d `nn.Conv` layers with explicit strides and padding are examined; all taps of other layers count as live.

    Args:
        init: key -> variables, calling modules on inputs of the shapes they will get.

    Returns:
        The recording `init`; and () -> path of a kernel -> range (begin, end) of live taps along height and width, for
        the kernels with dead taps.
    """
    records: list[dict[str, Box]] = []

    def recording_init(key: Array) -> Tree:
        full: dict[str, Box] = {}
        used: dict[str, list[Box]] = {}

        def record(call, args, kwargs, context):
            layer = context.module
            if type(layer) is nn.Conv and context.method_name == "__call__":
                path = "/".join((*layer.path, "kernel"))
                full[path] = [(0, num_taps) for num_taps in _kernel_size(layer)]
                used[path] = [*used.get(path, []), _live_box(layer, args[0].shape) or full[path]]
            return call(*args, **kwargs)

        with nn.intercept_methods(record):
            variables = init(key)
        boxes = {path: [_hull(ranges) for ranges in zip(*uses, strict=True)] for path, uses in used.items()}
        records.append({path: box for path, box in boxes.items() if box != full[path]})
        return variables

    def live_boxes() -> dict[str, Box]:
        if not records:
            jax.eval_shape(recording_init, jax.random.key(0))
        return records[0]

    return recording_init, live_boxes


def _live_box(layer: nn.Conv, shape: tuple[int, ...]) -> Box | None:
    """Returns the live taps for one input shape of a layer; None where they are not examined."""
    size, strides, padding = _kernel_size(layer), layer.strides, layer.padding
    pads = [pad for pad in padding if isinstance(pad, (list, tuple))] if isinstance(padding, (list, tuple)) else []
    is_explicit = isinstance(padding, (list, tuple)) and len(pads) == len(padding)
    if not isinstance(strides, tuple):
        return None
    if not (is_explicit and len(size) == 2 and layer.kernel_dilation == layer.input_dilation == 1):
        return None
    return taps.live_box(shape[-3:-1], size, strides, [(before, after) for before, after in pads])


def _kernel_size(layer: nn.Conv) -> tuple[int, ...]:
    """Returns the number of taps along each axis."""
    return (layer.kernel_size,) if isinstance(layer.kernel_size, int) else tuple(layer.kernel_size)


def _hull(ranges) -> tuple[int, int]:
    """Returns the smallest range that covers all of them."""
    return min(begin for begin, _ in ranges), max(end for _, end in ranges)
