"""The convolution every model uses: live-tap patches and one matmul, put in through Flax's `conv_general_dilated` hook;
on the CPU Winograd's products for 3x3 kernels, and on images of two or three pixels a matmul for each tap.

Same parameters and results as `lax.conv_general_dilated` (NHWC, HWIO), up to rounding. XLA's CPU back end runs the
gradients of its own convolution 12 to 28 times slower inside a loop, and one batched over clients becomes a grouped
convolution; patches and a matmul are fast in both places.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedvg_jax.models.conv import taps, winograd

# above this many pixels the patches' memory traffic outweighs what the matmul gains on an accelerator
_GEMM_PIXELS = 64 * 64

_WINDOWS = 1.5
"""Slices of the image, of one for each tap, up to which whole patches are copied: with its gradient, a 7x7 stride 2
kernel on 3 channels takes 0.76 of the time at 28 to 64 pixels, a 3x3 kernel 0.97 at 32; one core, 16 to 32 images."""


def by_name(name: str) -> Callable:
    """The function for Flax's hook: "lax", "gemm", "winograd" (fewest products: also tap by tap, or gemm), or
    "auto": winograd on the CPU, elsewhere gemm for images up to 64 x 64."""
    found = {"lax": lax.conv_general_dilated, "gemm": gemm_conv, "winograd": winograd_conv, "auto": _auto}
    return found[name]


def _auto(x: Array, w: Array, *args, **kwargs) -> Array:
    small = x.shape[1] * x.shape[2] <= _GEMM_PIXELS
    elsewhere = gemm_conv if small else lax.conv_general_dilated
    return (winograd_conv if jax.default_backend() == "cpu" else elsewhere)(x, w, *args, **kwargs)


def winograd_conv(x: Array, w: Array, window_strides, padding, precision=None, **kwargs) -> Array:
    """`gemm_conv`, with fewer products where the kernel is 3 x 3 or most of it meets padding."""
    size, kernel, pads = x.shape[1:3], w.shape[:2], _pads(x, w, window_strides, padding)
    if _is_plain(**kwargs) and min(w.shape[2:]) >= winograd.THINNEST:
        filtered = winograd.pays(x, w, window_strides, pads)
        if taps.pays(size, kernel, window_strides, pads, winograd.products(size) if filtered else math.inf):
            return taps.convolve(x, w, tuple(window_strides), tuple(map(tuple, pads)), precision)
        if filtered:
            return winograd.convolve(x, w, precision)
    return gemm_conv(x, w, window_strides, padding, precision=precision, **kwargs)


def gemm_conv(
    x: Array,
    w: Array,
    window_strides,
    padding,
    lhs_dilation=None,
    rhs_dilation=None,
    dimension_numbers=None,
    feature_group_count: int = 1,
    precision=None,
    **_,
) -> Array:
    """y[n, p, q, o] = sum_ijc x[n, p s + i - pad, q s + j - pad, c] w[i, j, c, o], x NHWC, w HWIO.

    Taps that only ever meet padding are left out: exact, and most of the work of a 3x3 kernel on a 1x1 image.

    Raises:
        ValueError: for dilated or grouped convolutions, which need conv = lax.
    """
    if not _is_plain(lhs_dilation, rhs_dilation, feature_group_count=feature_group_count):
        raise ValueError("conv 'gemm' does neither dilation nor groups; use conv 'lax' for this model")
    size, kernel = x.shape[1:3], w.shape[:2]
    pads = _pads(x, w, window_strides, padding)
    out = [taps.outputs(*dim) for dim in zip(size, kernel, window_strides, pads, strict=True)]
    (a, b), (c, d) = live = live_taps(kernel, size, window_strides, pads)
    x, w = _margins(x, live, out, window_strides, pads), w[a:b, c:d]
    return _direct(x, w, out, window_strides, precision)


def live_taps(kernel, size, strides, pads) -> list[tuple[int, int]]:
    """Of every dimension, the first and one past the last tap that ever meets a real pixel."""
    met = [[tap.index for tap in taps.taps(*dim)] for dim in zip(size, kernel, strides, pads, strict=True)]
    return [(min(indices), max(indices) + 1) for indices in met]


def _is_plain(lhs_dilation=None, rhs_dilation=None, dimension_numbers=None, feature_group_count: int = 1, **_) -> bool:
    dilated = any(d is not None and np.any(np.not_equal(d, 1)) for d in (lhs_dilation, rhs_dilation))
    return not dilated and feature_group_count == 1


def _pads(x: Array, w: Array, strides, padding) -> list[tuple[int, int]]:
    return lax.padtype_to_pads(x.shape[1:3], w.shape[:2], strides, padding) if isinstance(padding, str) else padding


def _margins(x: Array, live, out, strides, pads) -> Array:
    """x padded to just what the live taps read; a tap range that never reads the border crops instead."""
    margins = [
        (pad[0] - first, (o - 1) * s + last - pad[0] - n, 0)
        for (first, last), o, s, pad, n in zip(live, out, strides, pads, x.shape[1:3], strict=True)
    ]
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *margins, (0, 0, 0)])


def _direct(x: Array, w: Array, out, strides, precision) -> Array:
    """One row of patches per output pixel, times the kernel as a matrix."""
    small = sum(out) < _WINDOWS * w.shape[0] * w.shape[1]
    windows = jax.default_backend() == "cpu" and x.shape[3] < winograd.THINNEST and small
    patches = (_by_output if windows else _by_tap)(x, w.shape[:2], out, strides)
    return _matmul(patches, w.reshape(-1, w.shape[3]), precision)


def _by_tap(x: Array, kernel, out, strides) -> Array:
    """[N, P, Q, r s C]: a strided slice of the image for every tap."""
    rows, columns = (s * (o - 1) + 1 for o, s in zip(out, strides, strict=True))
    seen = [
        x[:, i : i + rows : strides[0], j : j + columns : strides[1]]
        for i in range(kernel[0])
        for j in range(kernel[1])
    ]
    return seen[0] if len(seen) == 1 else jnp.concatenate(seen, -1)


def _by_output(x: Array, kernel, out, strides) -> Array:
    """[N, P, Q, r s C]: a slice for every column of outputs, and of those, height before width, one for every row.

    Every patch is copied in two stretches, not in pieces of as many numbers as there are channels.
    """
    n, _, width, channels = x.shape
    piece, lines = kernel[1] * channels, x.reshape(n, -1, width * channels)
    begins = [strides[1] * channels * q for q in range(out[1])]
    columns = jnp.stack([lines[:, :, begin : begin + piece] for begin in begins], 1).reshape(n, out[1], -1)
    begins = [strides[0] * piece * p for p in range(out[0])]
    return jnp.stack([columns[:, :, begin : begin + kernel[0] * piece] for begin in begins], 1)


def _matmul(x: Array, w: Array, precision) -> Array:
    # by rows: of four axes, XLA on the CPU would transpose one factor of the kernel's gradient in memory
    rows = lax.dot_general(x.reshape(-1, len(w)), w, (((1,), (0,)), ((), ())), precision=precision)
    return rows.reshape(*x.shape[:3], -1)
