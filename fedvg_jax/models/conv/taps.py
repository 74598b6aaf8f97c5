"""A convolution tap by tap, for images so small that most of their patches would be padding.

    y[:, p, q] += x[:, p s + i - pad, q s + j - pad] w[i, j]        over the outputs (p, q) whose pixel is real

A 3x3 kernel has 16 such products of 36 on 2 x 2 pixels, 49 of 81 on 3 x 3. Only zeros are left out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

_PAYS = 0.7
"""Products left, of those of patches, up to which a small matmul for each tap beats one for all. A 3x3 kernel with its
gradients takes 0.58 of the time where 0.44 are left, 0.85 at 0.69 and 1.04 at 0.84; one core, 32 images."""

Size = Sequence[int]
Pads = Sequence[tuple[int, int]]


class Tap(NamedTuple):
    """One tap in one dimension, with the outputs for which it meets a real pixel."""

    index: int
    first: int
    count: int


def taps(n: int, k: int, stride: int, pad: tuple[int, int]) -> list[Tap]:
    """Those of a kernel of size k that ever meet one of n pixels.

    >>> taps(2, 3, 1, (1, 1))
    [Tap(index=0, first=1, count=1), Tap(index=1, first=0, count=2), Tap(index=2, first=0, count=1)]
    """
    met = [[o for o in range(outputs(n, k, stride, pad)) if 0 <= o * stride + i - pad[0] < n] for i in range(k)]
    return [Tap(i, seen[0], len(seen)) for i, seen in enumerate(met) if seen]


def outputs(n: int, k: int, stride: int, pad: tuple[int, int]) -> int:
    """Size of what a kernel of size k makes of n pixels."""
    return (n + sum(pad) - k) // stride + 1


def pays(size: Size, kernel: Size, strides: Size, pads: Pads, instead: float = math.inf) -> bool:
    """Whether `convolve` beats one matmul with patches, and has no more products than `instead`."""
    patches = math.prod(outputs(*dim) * len(taps(*dim)) for dim in zip(size, kernel, strides, pads, strict=True))
    return products(size, kernel, strides, pads) <= min(_PAYS * patches, instead)


def products(size: Size, kernel: Size, strides: Size, pads: Pads) -> int:
    """Pairs of an output and a tap that meets a real pixel: products for each channel in and out."""
    dims = zip(size, kernel, strides, pads, strict=True)
    return math.prod(sum(tap.count for tap in taps(*dim)) for dim in dims)


@functools.partial(jax.jit, static_argnames=("strides", "pads", "precision"))  # traced once for all layers of a shape
def convolve(x: Array, w: Array, strides: tuple[int, int], pads: tuple[tuple[int, int], ...], precision=None) -> Array:
    """x [N, H, W, C], w [r, s, C, O] -> y [N, P, Q, O]."""
    dims = list(zip(x.shape[1:3], w.shape[:2], strides, pads, strict=True))
    size = [outputs(*dim) for dim in dims]

    def product(row: Tap, column: Tap) -> Array:
        met = (row, column)
        begins = [tap.first * s + tap.index - pad[0] for tap, s, pad in zip(met, strides, pads, strict=True)]
        ends = [a + (tap.count - 1) * s + 1 for a, tap, s in zip(begins, met, strides, strict=True)]
        pixels = x[:, *map(slice, begins, ends, strides)]
        matrix = w[row.index, column.index]
        y = lax.dot_general(pixels.reshape(-1, len(matrix)), matrix, (((1,), (0,)), ((), ())), precision=precision)
        around = [(tap.first, n - tap.first - tap.count) for tap, n in zip(met, size, strict=True)]
        return jnp.pad(y.reshape(*pixels.shape[:3], -1), ((0, 0), *around, (0, 0)))

    return sum(product(row, column) for row in taps(*dims[0]) for column in taps(*dims[1]))
