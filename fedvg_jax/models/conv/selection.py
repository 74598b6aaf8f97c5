"""Which convolution and which memory layout a `--conv NAME` stands for, on the current hardware."""

from __future__ import annotations

import math
from collections.abc import Callable

from jax import Array, lax

from fedvg_jax.core import hardware as hw
from fedvg_jax.models.conv import layout as layouts
from fedvg_jax.models.conv import patches, taps, winograd


def convolution(name: str) -> Callable:
    """Returns the convolution called `name`, with the signature of `lax.conv_general_dilated`.

    Args:
        name: "lax", "gemm", "winograd", or "auto": the choice of `hardware.auto_conv` for the image size.
    """
    lax_conv = lax.conv_general_dilated
    return {"lax": lax_conv, "gemm": patches.gemm_conv, "winograd": winograd_conv, "auto": _auto_conv}[name]


def layout(name: str) -> layouts.Layout:
    """Returns the memory layout for `--conv NAME`, with its convolution.

    Args:
        name: "planes" for images last, "auto" for the hardware's layout, or a name that `convolution` knows.
    """
    if name == "planes" or (name == "auto" and hw.choices().layout == "images_last"):
        return layouts.images_last()
    return layouts.images_first(convolution(name))


def winograd_conv(x: Array, w: Array, window_strides, padding, precision=None, **kwargs) -> Array:
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
    return patches.gemm_conv(x, w, window_strides, padding, precision=precision, **kwargs)


def _auto_conv(x: Array, w: Array, *args, **kwargs) -> Array:
    """Convolves x with w as the hardware prefers for images of this size."""
    return convolution(hw.auto_conv(x.shape[1] * x.shape[2]))(x, w, *args, **kwargs)
