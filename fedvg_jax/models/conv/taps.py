"""Convolution tap by tap, for images so small that most of their patches would be padding.

    y[:, p, q] += x[:, p s + i - pad, q s + j - pad] w[i, j]        for the outputs (p, q) with a real pixel

A 3x3 kernel needs 16 such products instead of 36 on 2 x 2 pixels, and 49 instead of 81 on 3 x 3. The result is exact:
only products with padding are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

_MAX_PRODUCT_RATIO = 0.7
"""Fraction of the patches' products up to which one small matmul per tap beats one matmul for all taps. A 3x3 kernel
with its gradients takes 0.58 of the time at a fraction of 0.44, 0.85 at 0.69 and 1.04 at 0.84; one core, 32 images."""

Size = Sequence[int]
Pads = Sequence[tuple[int, int]]


class Tap(NamedTuple):
    """One live tap of a kernel in one dimension, and the outputs for which it meets a real pixel."""

    index: int
    """Position in the kernel."""
    count: int
    """How many outputs; they are consecutive."""
    pixels: slice
    """The pixels that these outputs take from it."""
    margin: tuple[int, int]
    """How many outputs are before and behind these."""


def live_taps(size: int, kernel: int, stride: int, pad: tuple[int, int]) -> list[Tap]:
    """Returns the live taps in one dimension: those that meet a real pixel for some output.

    Args:
        size: number of pixels.
        kernel: number of taps.
        stride: pixels between two outputs.
        pad: padding before and after the pixels.

    >>> [(tap.index, tap.count, tap.margin) for tap in live_taps(2, 3, 1, (1, 1))]
    [(0, 1, (1, 0)), (1, 2, (0, 0)), (2, 1, (0, 1))]
    """
    num_outputs = output_size(size, kernel, stride, pad)
    live = []
    for tap in range(kernel):
        first_pixel = tap - pad[0]
        met = [o for o in range(num_outputs) if 0 <= first_pixel + o * stride < size]
        if met:
            begin = first_pixel + met[0] * stride
            last = first_pixel + met[-1] * stride
            margin = met[0], num_outputs - 1 - met[-1]
            live.append(Tap(tap, len(met), slice(begin, last + 1, stride), margin))
    return live


def pad_images(x: Array, height: Sequence[int], width: Sequence[int]) -> Array:
    """Returns x [N, H, W, C], or [C, H, W, N], with so many zeros before and behind the pixels."""
    return jnp.pad(x, ((0, 0), height, width, (0, 0)))


def output_size(size: int, kernel: int, stride: int, pad: tuple[int, int]) -> int:
    """Returns the number of outputs in one dimension; arguments as in `live_taps`."""
    return (size + sum(pad) - kernel) // stride + 1


def is_faster(size: Size, kernel: Size, strides: Size, pads: Pads, limit: float) -> bool:
    """Returns whether `convolve` beats one matmul with patches and needs at most `limit` products.

    Products are counted per channel in and out: pairs of an output and a tap that meets a real pixel.
    """
    products = of_patches = 1
    for side in zip(size, kernel, strides, pads, strict=True):
        live = live_taps(*side)
        products *= sum(tap.count for tap in live)
        of_patches *= len(live) * output_size(*side)
    return products <= min(_MAX_PRODUCT_RATIO * of_patches, limit)


@functools.partial(
    jax.jit, static_argnames=("strides", "pads", "precision")
)  # traced once for all layers of a shape
def convolve(x: Array, w: Array, strides: Size, pads: Pads, precision=None) -> Array:
    """Convolves x with w, one matmul per pair of live taps.

    Args:
        x: [N, H, W, C] images.
        w: [r, s, C, O] kernel.
        strides: of height and width.
        pads: (before, after) of height and width.
        precision: of the matmuls, as `lax.dot_general` takes it.

    Returns:
        [N, P, Q, O].
    """
    rows, columns = map(live_taps, x.shape[1:3], w.shape[:2], strides, pads)

    def product(row: Tap, column: Tap) -> Array:
        pixels = x[:, row.pixels, column.pixels]
        matrix = w[row.index, column.index]
        y = lax.dot(pixels.reshape(-1, len(matrix)), matrix, precision=precision)
        return pad_images(y.reshape(*pixels.shape[:3], -1), row.margin, column.margin)

    return sum(product(row, column) for row in rows for column in columns)  # pyright: ignore[reportReturnType]  # at least one tap is live
