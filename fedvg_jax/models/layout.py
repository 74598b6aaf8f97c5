"""How a batch of images lies in memory while a small network works on it.

XLA runs a loop over the innermost axis with vector instructions. With 6 or 16 channels innermost most of a vector is
empty, and BatchNorm, ReLU and pooling cost more than the convolutions; with the images of the batch innermost they do
not, and the patches of a convolution are plain copies. Both layouts hold the same parameters and give the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.models import conv


class Layout(NamedTuple):
    """Axes 1 and 2 are height and width in every layout."""

    images: int
    """axis of the images"""
    channels: int
    """axis of the channels"""
    convolve: Callable[[Array, Array, str], Array]
    """(x, kernel [k, k, C, O], "VALID" or "SAME") -> y, stride 1"""

    def enter(self, x: Array) -> Array:
        """[B, H, W, C] in this layout."""
        moved = jnp.moveaxis(x, (0, 3), (self.images, self.channels))
        return moved if moved is x else lax.optimization_barrier(moved)  # else XLA moves it anew for every patch

    def flatten(self, x: Array) -> Array:
        """[B, H W C], in that order."""
        return jnp.moveaxis(x, (self.images, self.channels), (0, 3)).reshape(x.shape[self.images], -1)

    def per_channel(self, vector: Array) -> Array:
        """[C], to be broadcast."""
        return jnp.expand_dims(vector, [axis for axis in range(4) if axis != self.channels])


def images_first(conv_fn: Callable = lax.conv_general_dilated) -> Layout:
    """[B, H, W, C], the usual one, around a function of the signature of `lax.conv_general_dilated`."""

    def convolve(x: Array, w: Array, padding: str) -> Array:
        return conv_fn(x, w, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    return Layout(0, 3, convolve)


def images_last() -> Layout:
    """[C, H, W, B]."""
    return Layout(3, 0, _convolve_planes)


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


def _convolve_planes(x: Array, w: Array, padding: str) -> Array:
    """y[o, p, q, n] = sum_ijc w[i, j, c, o] x[c, p + i, q + j, n]: one matmul with the patches, which are copied along
    columns first and then, all columns at once, along rows."""
    pads = lax.padtype_to_pads(x.shape[1:3], w.shape[:2], (1, 1), padding)
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    height, width = (n - k + 1 for n, k in zip(x.shape[1:3], w.shape[:2], strict=True))
    columns = jnp.concatenate([x[:, :, j : j + width] for j in range(w.shape[1])])
    patches = jnp.concatenate([columns[:, i : i + height] for i in range(w.shape[0])])
    y = lax.dot_general(w.reshape(-1, w.shape[3]), patches.reshape(len(patches), -1), (((0,), (0,)), ((), ())))
    return y.reshape(w.shape[3], height, width, x.shape[3])
