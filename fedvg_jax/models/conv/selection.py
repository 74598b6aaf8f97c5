"""Which convolution and which memory layout a `--conv NAME` stands for, on a given hardware."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from jax import Array, lax

from fedvg_jax.core import hardware as hw
from fedvg_jax.models.conv import layout as layouts
from fedvg_jax.models.conv import patches, taps, winograd


def convolution(name: str, hardware: hw.Hardware | None = None) -> Callable:
    """Returns the convolution called `name`, with the signature of `lax.conv_general_dilated`.

    Args:
        name: "lax", "gemm", "winograd", or "auto": the choice of `hardware.auto_conv` for the image size.
        hardware: what it will run on; defaults to `hardware.current()`.
    """
    if name == "lax":
        return lax.conv_general_dilated
    named = {"gemm": patches.gemm_conv, "winograd": winograd_conv, "auto": _auto_conv}
    return functools.partial(named[name], hardware=hardware)


def layout(name: str, hardware: hw.Hardware | None = None) -> layouts.Layout:
    """Returns the memory layout for `--conv NAME`, with its convolution.

    Args:
        name: "planes" for images last, "auto" for the hardware's layout, or a name that `convolution` knows.
        hardware: what it will run on; defaults to `hardware.current()`.
    """
    if name == "planes" or (name == "auto" and hw.choices(hardware).layout == "images_last"):
        return layouts.images_last()
    return layouts.images_first(convolution(name, hardware))


def winograd_conv(
    x: Array, w: Array, window_strides, padding, precision=None, hardware: hw.Hardware | None = None, **kwargs
) -> Array:
    """Convolves x with w with the fewest products of three: by taps, by Winograd's minimal filtering, or by patches.

    Args and Returns as `patches.gemm_conv`.
    """
    size, kernel, pads = x.shape[1:3], w.shape[:2], patches.explicit_pads(x, w, window_strides, padding)
    if patches.is_plain(**kwargs) and min(w.shape[2:]) >= winograd.MIN_CHANNELS:
        filtered = winograd.is_faster(x, w, window_strides, pads)
        limit = winograd.num_products(size) if filtered else math.inf
        if taps.is_faster(size, kernel, window_strides, pads, limit):
            return taps.convolve(x, w, tuple(window_strides), tuple(map(tuple, pads)), precision)
        if filtered:
            return winograd.convolve(x, w, precision)
    return patches.gemm_conv(x, w, window_strides, padding, precision=precision, hardware=hardware, **kwargs)


def _auto_conv(x: Array, w: Array, *args, hardware: hw.Hardware | None = None, **kwargs) -> Array:
    """Convolves x with w as the hardware prefers for images of this size."""
    name = hw.auto_conv(x.shape[1] * x.shape[2], hardware)
    return convolution(name, hardware)(x, w, *args, **kwargs)
