"""The convolution with the fewest products for the images and kernel at hand (`--conv winograd`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jax import Array

from fedvg_jax.models.conv import patches, taps, winograd


def convolve(x: Array, w: Array, strides: Sequence[int], pads: Sequence[tuple[int, int]], precision=None) -> Array:
    """Convolves x with w by taps, by Winograd's minimal filtering, or by patches; Args and Returns as theirs."""
    if min(w.shape[2:]) >= winograd.MIN_CHANNELS:
        size, filtered = x.shape[1:3], winograd.is_faster(x, w, strides, pads)
        limit = winograd.num_products(size) if filtered else math.inf
        if taps.is_faster(size, w.shape[:2], strides, pads, limit):
            return taps.convolve(x, w, tuple(strides), tuple(map(tuple, pads)), precision)
        if filtered:
            return winograd.convolve(x, w, precision)
    return patches.convolve(x, w, strides, pads, precision)
