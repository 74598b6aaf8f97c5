"""How a batch of images lies in memory while a small network works on it.

XLA runs a loop over the innermost axis with vector instructions. With 6 or 16 channels innermost most of a vector is
empty, and BatchNorm, ReLU and pooling cost more than the convolutions; with the images of the batch innermost they do
not, and the patches of a convolution are plain copies. Both layouts hold the same parameters and give the same result.

A convolution that is pooled next may come in blocks, the 4 positions of a 2x2 window on an axis of their own: four
outputs share one patch, and pooling is a maximum over that axis. Many channels come so by Winograd's products, in tiles
of t x t windows, few ones by a kernel four times as wide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.models.conv import patches as conv
from fedvg_jax.models.conv import winograd

_THIN = 32
"""Output channels up to which a 5x5 kernel's patches cost more than the zeros that blocks add. A step of training in
blocks takes, of its time in planes, 0.7 (LeNet5: 6 and 16 channels), 0.94 (32 in the CNN's first layer) and 1.1 (64 in
its second); one core, batches of 30."""

_SMALLEST_KERNEL = 5
"""5x5 kernels become 31 % zeros, 3x3 kernels 44 %, and tinycnn's step takes 1.1 to 1.3 of its time in planes."""


class Layout(NamedTuple):
    """Axes 1 and 2 are height and width in every layout."""

    images: int
    """axis of the images"""
    channels: int
    """axis of the channels"""
    enter: Callable[[Array], Array]
    """[B, H, W, C] in this layout"""
    convolve: Callable[[Array, Array, str], Array]
    """(x, kernel [k, k, C, O], "VALID" or "SAME") -> y, stride 1"""
    convolve_pooled: Callable[[Array, Array, str], Array]
    """the same for what `pool` sees next; y may come in blocks"""

    def flatten(self, x: Array) -> Array:
        """[B, H W C], in that order."""
        return jnp.moveaxis(x, (self.images, self.channels), (0, 3)).reshape(x.shape[self.images], -1)

    def per_channel(self, vector: Array, like: Array) -> Array:
        """[C], to be broadcast."""
        return jnp.expand_dims(vector, [axis for axis in range(like.ndim) if axis != self.channels % like.ndim])

    def pool(self, x: Array) -> Array:
        """2 x 2 maximum, stride 2, of a convolution's output."""
        return _pooled(x) if x.ndim == 7 else max_pool(x, 2)


def images_first(conv_fn: Callable = lax.conv_general_dilated) -> Layout:
    """[B, H, W, C], the usual one, around a function of the signature of `lax.conv_general_dilated`."""

    def convolve(x: Array, w: Array, padding: str) -> Array:
        return conv_fn(x, w, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    return Layout(0, -1, lambda x: x, convolve, convolve)


def images_last() -> Layout:
    """[C, H, W, B]; in blocks [C, 4, t, t, H / 2 t, W / 2 t, B]: position in a window, window in a tile, tile."""

    def enter(x: Array) -> Array:
        # a loop, for XLA would transpose anew for every patch that reads the result of a plain transposition
        return lax.map(lambda c: jnp.moveaxis(x[..., c], 0, -1), jnp.arange(x.shape[-1]))

    def convolve_pooled(x: Array, w: Array, padding: str) -> Array:
        x = _padded(x, w, padding)
        square = w.shape[0] == w.shape[1] and w.shape[0] % 2 == 1
        if not square or x.shape[1] % 2 or x.shape[2] % 2:  # no whole 2x2 outputs
            return _in_planes(x, w)
        if w.shape[0] in (3, 5) and winograd.is_wide(x, w):
            return winograd.convolve_planes(x, w)
        return _in_blocks(x, w) if w.shape[0] >= _SMALLEST_KERNEL and w.shape[3] <= _THIN else _in_planes(x, w)

    return Layout(-1, 0, enter, lambda x, w, padding: _in_planes(_padded(x, w, padding), w), convolve_pooled)


def by_name(name: str) -> Layout:
    """The layout for `--conv NAME`; "auto" is planes on the CPU and otherwise what `conv.by_name` takes for it."""
    if name == "planes" or (name == "auto" and jax.default_backend() == "cpu"):
        return images_last()
    return images_first(conv.by_name(name))


def max_pool(x: Array, k: int) -> Array:
    """k x k maximum, stride k, borders that do not fill a window dropped; by reshape, whose backward is several times
    cheaper on the CPU than that of a windowed reduction."""
    first, h, w, last = x.shape
    return x[:, : h // k * k, : w // k * k].reshape(first, h // k, k, w // k, k, last).max((2, 4))


def _padded(x: Array, w: Array, padding: str) -> Array:
    return jnp.pad(x, ((0, 0), *lax.padtype_to_pads(x.shape[1:3], w.shape[:2], (1, 1), padding), (0, 0)))


def _in_planes(x: Array, w: Array) -> Array:
    """y[o, p, q, n] = sum_ijc w[i, j, c, o] x[c, p + i, q + j, n]: one matmul with the patches, which are copied along
    columns first and then, all columns at once, along rows."""
    height, width = (n - k + 1 for n, k in zip(x.shape[1:3], w.shape[:2], strict=True))
    columns = jnp.concatenate([x[:, :, j : j + width] for j in range(w.shape[1])])
    patches = jnp.concatenate([columns[:, i : i + height] for i in range(w.shape[0])])
    y = lax.dot_general(w.reshape(-1, w.shape[3]), patches.reshape(len(patches), -1), (((0,), (0,)), ((), ())))
    return y.reshape(w.shape[3], height, width, x.shape[3])


def _in_blocks(x: Array, w: Array) -> Array:
    """y[o, 2 a + b, p, q, n] = sum_ijc w[i, j, c, o] x[c, 2 p + a + i, 2 q + b + j, n].

    As in `_in_planes`, on pixels taken two by two as channels: a k x k kernel with a border of zeros on two of its
    sides, in four places, is one of (k + 1) / 2 pixels and four times the outputs.
    """
    (channels, height, width, images), (k, _, _, features) = x.shape, w.shape
    taps = (k + 1) // 2
    pixels = x.reshape(channels, height // 2, 2, width // 2, 2, images).transpose(2, 4, 0, 1, 3, 5)
    placed = [jnp.pad(w, ((a, 1 - a), (b, 1 - b), (0, 0), (0, 0))) for a in range(2) for b in range(2)]
    kernel = jnp.stack(placed, -1).reshape(taps, 2, taps, 2, channels, features * 4).transpose(0, 2, 1, 3, 4, 5)
    pixels = pixels.reshape(4 * channels, height // 2, width // 2, images)
    y = _in_planes(pixels, kernel.reshape(taps, taps, 4 * channels, features * 4))
    return y.reshape(features, 4, 1, 1, *y.shape[1:])


def _pooled(x: Array) -> Array:
    """[C, 4, t, t, H, W, B] as [C, t H, t W, B]."""
    greatest = x.max(1)
    channels, t, _, height, width, images = greatest.shape
    return greatest.transpose(0, 3, 1, 4, 2, 5).reshape(channels, t * height, t * width, images)
