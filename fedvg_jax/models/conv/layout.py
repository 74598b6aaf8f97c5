"""How a minibatch of images lies in memory while a small network works on it.

XLA's CPU back end vectorises loops over the innermost axis. With 6 or 16 channels innermost most of a vector is empty,
and BatchNorm, ReLU and pooling cost more than the convolutions. With the images of the minibatch innermost the vectors
are full, and the patches of a convolution are plain copies. Both layouts hold the same parameters and give the same
result.

A convolution that is pooled next may put the positions in a pooling window, or in a tile of the output, on axes of
their own: pooling is then a maximum of whole slices. With many channels it uses Winograd's products, with few a kernel
four times as wide.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.models.conv import winograd

_MAX_FEATURES = 32
"""Output channels up to which the patches of a 5x5 kernel cost more than the zeros that the wider kernel adds. With the
wider kernel a training step takes 0.7 of the time (LeNet5: 6 and 16 channels), 0.94 (32, the CNN's first layer) and 1.1
(64, its second layer); one core, batches of 30."""

_MIN_KERNEL = 5
"""Widened 5x5 kernels are 31 % zeros, 3x3 kernels 44 %: tinycnn's step takes 1.1 to 1.3 of the time with them."""


class Layout(NamedTuple):
    """A memory layout and its operations. Axes 1 and 2 are height and width in every layout."""

    images: int
    """Axis of the images."""
    channels: int
    """Axis of the channels; counted from the end where windows may have axes before it."""
    from_nhwc: Callable[[Array], Array]
    """[B, H, W, C] -> the same images in this layout."""
    convolve: Callable[[Array, Array, str], Array]
    """(x, kernel [k, k, C, O], "VALID" or "SAME") -> y, stride 1."""
    convolve_pooled: Callable[[Array, Array, str], Array]
    """As `convolve`, for an output that goes to `pool`; y may have more axes, before that of the channels."""

    def flatten(self, x: Array) -> Array:
        """Returns [B, H W C], in that order in every layout."""
        return jnp.moveaxis(x, (self.images, self.channels), (0, 3)).reshape(x.shape[self.images], -1)

    def per_channel(self, vector: Array, like: Array) -> Array:
        """Returns `vector` [C] with the axes that broadcast it against `like`."""
        return jnp.expand_dims(vector, [axis for axis in range(like.ndim) if axis != self.channels % like.ndim])

    def pool(self, x: Array) -> Array:
        """Returns the 2 x 2 maximum, stride 2, of a convolution's output."""
        pools = {7: _max_of_windows, 5: _max_of_tiles}
        return pools[x.ndim](x) if x.ndim in pools else max_pool(x, 2)


def images_first(conv_fn: Callable = lax.conv_general_dilated) -> Layout:
    """Returns the usual layout [B, H, W, C], with a convolution of `lax.conv_general_dilated`'s signature."""

    def convolve(x: Array, w: Array, padding: str) -> Array:
        return conv_fn(x, w, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    return Layout(0, -1, lambda x: x, convolve, convolve)


def images_last() -> Layout:
    """Returns the layout [C, H, W, B], with convolutions by patches or, before pooling, in output tiles.

    A pooled convolution's y may have more axes, before that of the channels, where the transforms leave them; moving
    them behind it would be a copy in every backward pass:

        [4, t, t, C, H / 2t, W / 2t, B]     position in the 2x2 pooling window, window in the output tile
        [m, C, H / m, W, B]                 row in the output tile
    """

    def from_nhwc(x: Array) -> Array:
        # a loop: XLA recomputes a plain transposition for every patch that reads its result
        return lax.map(lambda c: jnp.moveaxis(x[..., c], 0, -1), jnp.arange(x.shape[-1]))

    def convolve_pooled(x: Array, w: Array, padding: str) -> Array:
        x = _pad(x, w, padding)
        is_odd_square = w.shape[0] == w.shape[1] and w.shape[0] % 2 == 1
        if not is_odd_square or x.shape[1] % 2 or x.shape[2] % 2:  # the output has no whole 2x2 windows
            return _convolve(x, w)
        if w.shape[0] in (3, 5) and winograd.is_eligible(x, w):
            return winograd.convolve_images_last(x, w)
        widened = w.shape[0] >= _MIN_KERNEL and w.shape[3] <= _MAX_FEATURES
        return _convolve_widened(x, w) if widened else _convolve(x, w)

    return Layout(-1, -4, from_nhwc, lambda x, w, padding: _convolve(_pad(x, w, padding), w), convolve_pooled)


def max_pool(x: Array, k: int) -> Array:
    """Returns the k x k maximum, stride k; borders that do not fill a window are dropped.

    By reshape: its backward pass is several times cheaper on a CPU than that of a windowed reduction. Of equal values
    the first takes the gradient.

    Args:
        x: [B, H, W, C], or any layout with height and width on axes 1 and 2.
    """
    first, h, w, last = x.shape
    windows = x[:, : h // k * k, : w // k * k].reshape(first, h // k, k, w // k, k, last)
    return functools.reduce(first_max, [windows[:, :, i, :, j] for i in range(k) for j in range(k)])


def first_max(a: Array, b: Array) -> Array:
    """Returns the entries' maximum; of equal values the first takes the gradient, and a NaN is propagated, as in torch.

    The gradient selects one of the two, also where a compiler computes `a` and `b` again in the backward pass and
    rounds them otherwise. Those of `jnp.max` and `jnp.maximum` compare the inputs with the maximum: after such rounding
    no input may equal it, and the gradient is 0 / 0.

    >>> import jax
    >>> jax.grad(lambda pair: first_max(*pair))((2.0, 2.0))
    (Array(1., dtype=float32, weak_type=True), Array(0., dtype=float32, weak_type=True))
    """
    return jnp.where((b > a) | jnp.isnan(b), b, a)


def _pad(x: Array, w: Array, padding: str) -> Array:
    """Returns x [C, H, W, B] with the zeros that `padding` means for kernel w."""
    return jnp.pad(x, ((0, 0), *lax.padtype_to_pads(x.shape[1:3], w.shape[:2], (1, 1), padding), (0, 0)))


def _convolve(x: Array, w: Array) -> Array:
    """Convolves padded x [C, H, W, B] with w [r, s, C, O] by one matmul with the patches.

        y[o, p, q, n] = sum_ijc w[i, j, c, o] x[c, p + i, q + j, n]

    The patches are copied along columns first and then, all columns at once, along rows.
    """
    height, width = (n - k + 1 for n, k in zip(x.shape[1:3], w.shape[:2], strict=True))
    columns = jnp.concatenate([x[:, :, j : j + width] for j in range(w.shape[1])])
    patches = jnp.concatenate([columns[:, i : i + height] for i in range(w.shape[0])])
    y = lax.dot_general(w.reshape(-1, w.shape[3]), patches.reshape(len(patches), -1), (((0,), (0,)), ((), ())))
    return y.reshape(w.shape[3], height, width, x.shape[3])


def _convolve_widened(x: Array, w: Array) -> Array:
    """Convolves padded x with w, the outputs of a 2x2 pooling window on axis 0.

        y[2 a + b, o, p, q, n] = sum_ijc w[i, j, c, o] x[c, 2 p + a + i, 2 q + b + j, n]

    As `_convolve`, with every 2 x 2 pixels as four channels: a k x k kernel, shifted to four places with a border of
    zeros on two sides, is one kernel of (k + 1) / 2 x (k + 1) / 2 such pixels with four times the output channels.
    """
    (channels, height, width, images), (k, _, _, features) = x.shape, w.shape
    taps = (k + 1) // 2
    pixels = x.reshape(channels, height // 2, 2, width // 2, 2, images).transpose(2, 4, 0, 1, 3, 5)
    shifted = [jnp.pad(w, ((a, 1 - a), (b, 1 - b), (0, 0), (0, 0))) for a in range(2) for b in range(2)]
    kernel = jnp.stack(shifted, -2).reshape(taps, 2, taps, 2, channels, 4 * features).transpose(0, 2, 1, 3, 4, 5)
    pixels = pixels.reshape(4 * channels, height // 2, width // 2, images)
    y = _convolve(pixels, kernel.reshape(taps, taps, 4 * channels, 4 * features))
    return y.reshape(4, 1, 1, features, *y.shape[1:])


def _max_of_windows(x: Array) -> Array:
    """Returns the maxima [C, t H, t W, B] of pooling windows [4, t, t, C, H, W, B]."""
    maxima = functools.reduce(first_max, _entries(x, 0))
    t, _, channels, height, width, images = maxima.shape
    return maxima.transpose(2, 3, 0, 4, 1, 5).reshape(channels, t * height, t * width, images)


def _max_of_tiles(x: Array) -> Array:
    """Returns the 2 x 2 maxima [C, m T / 2, W / 2, B] of T tiles of m rows, [m, C, T, W, B]."""
    m, channels, num_tiles, width, images = x.shape
    period = 1 + m % 2  # tiles after which a window begins with the first row of a tile
    columns = x.reshape(m, channels, num_tiles // period, period, width // 2, 2, images)
    by_tile = [_entries(row, 2) for row in _entries(columns, 0)]
    rows = [by_tile[i][tile] for tile in range(period) for i in range(m)]
    maxima = [
        functools.reduce(first_max, [*_entries(upper, 3), *_entries(lower, 3)])
        for upper, lower in zip(rows[::2], rows[1::2], strict=True)
    ]
    return jnp.stack(maxima, 2).reshape(channels, m * num_tiles // 2, width // 2, images)


def _entries(x: Array, axis: int) -> list[Array]:
    """Returns the entries of an axis. They are split, because the gradient of an index pads with zeros and adds."""
    return [lax.squeeze(part, (axis,)) for part in lax.split(x, [1] * x.shape[axis], axis)]
