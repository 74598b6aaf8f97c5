"""Convolutions and poolings of images that lie innermost in memory, [C, H, W, B].

XLA's CPU back end vectorises loops over the innermost axis. With 6 or 16 channels innermost most of a vector is empty,
and BatchNorm, ReLU and pooling cost more than the convolutions. With the images of the minibatch innermost the vectors
are full, and the patches of a convolution are plain copies.

A convolution may put the positions in a pooling window, or in a tile of the output, on separate axes, before that
of the channels. Pooling is then a maximum of whole slices; moving them behind it would be a copy in every backward
pass:

    [4, t, t, C, H / 2t, W / 2t, B]     position in the 2x2 pooling window, window in the output tile
    [m, C, H / m, W, B]                 row in the output tile

With many channels it uses Winograd's products, with few a kernel four times as wide.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.models.conv import winograd

_MAX_FEATURES = 32
"""Output channels up to which the patches of a 5x5 kernel cost more than the zeros that the wider kernel adds. With the
wider kernel a training step takes 0.7 of the time (LeNet5: 6 and 16 channels), 0.94 (32, the CNN's first layer) and 1.1
(64, its second layer); one core, batches of 30."""

_MIN_KERNEL = 5
"""Widened 5x5 kernels are 31 % zeros, 3x3 kernels 44 %: tinycnn's step takes 1.1 to 1.3 of the time with them."""


def convolve(x: Array, w: Array, precision=None) -> Array:
    """Convolves padded x [C, H, W, B] with w [r, s, C, O] at stride 1, for any use of the output or for `max_pool`.

    Args:
        precision: of the matmuls, as `lax.dot_general` takes it; Winograd's are in full precision.

    Returns:
        [O, P, Q, B], or more axes as the module says.
    """
    (_, height, width, _), (k, columns, _, features) = x.shape, w.shape
    is_odd_square = k == columns and k % 2 == 1
    if not is_odd_square or height % 2 or width % 2:  # the output has no whole 2x2 windows
        return _convolve(x, w, precision)
    if k in (3, 5) and winograd.is_eligible(x, w):
        return winograd.convolve_images_last(x, w)
    if k >= _MIN_KERNEL and features <= _MAX_FEATURES:
        return _convolve_widened(x, w, precision)
    return _convolve(x, w, precision)


def max_pool(x: Array) -> Array:
    """Returns the 2 x 2 maxima [C, H / 2, W / 2, B], stride 2, of what `convolve` returns, or of [C, H, W, B].

    A last row or column that fills no window is dropped.
    """
    pools = {7: _max_of_windows, 5: _max_of_tiles, 4: _max_of_pixels}
    return pools[x.ndim](x)


def first_max(a: Array, b: Array) -> Array:
    """Returns the entries' maximum; of equal values the first takes the gradient, and a NaN is propagated, as in torch.

    The gradient selects one of the two, also where a compiler computes `a` and `b` again in the backward pass and
    rounds them otherwise. The gradients of `jnp.max` and `jnp.maximum` compare the inputs with the maximum: after such
    rounding no input may equal it, and the gradient is 0 / 0.

    >>> import jax
    >>> jax.grad(lambda pair: first_max(*pair))((2.0, 2.0))
    (Array(1., dtype=float32, weak_type=True), Array(0., dtype=float32, weak_type=True))
    """
    return jnp.where((b > a) | jnp.isnan(b), b, a)


def _convolve(x: Array, w: Array, precision) -> Array:
    """Convolves padded x [C, H, W, B] with w [r, s, C, O] by one matmul with the patches.

        y[o, p, q, n] = sum_ijc w[i, j, c, o] x[c, p + i, q + j, n]

    The patches are copied along columns first and then, all columns at once, along rows.
    """
    rows, columns, _, features = w.shape
    height = x.shape[1] - rows + 1
    width = x.shape[2] - columns + 1
    along_columns = jnp.concatenate([x[:, :, j : j + width] for j in range(columns)])
    patches = jnp.concatenate([along_columns[:, i : i + height] for i in range(rows)])
    matrix = w.reshape(-1, features)
    patches = patches.reshape(len(patches), -1)
    y = lax.dot_general(matrix, patches, (((0,), (0,)), ((), ())), precision=precision)
    return y.reshape(features, height, width, x.shape[3])


def _convolve_widened(x: Array, w: Array, precision) -> Array:
    """Convolves padded x with w, the outputs of a 2x2 pooling window on axis 0.

        y[2 a + b, o, p, q, n] = sum_ijc w[i, j, c, o] x[c, 2 p + a + i, 2 q + b + j, n]

    As `_convolve`, with every 2 x 2 pixels as four channels: a k x k kernel, shifted to four places with a border of
    zeros on two sides, is one kernel of (k + 1) / 2 x (k + 1) / 2 such pixels with four times the output channels.
    """
    (channels, height, width, images), (k, _, _, features) = x.shape, w.shape
    taps = (k + 1) // 2
    rows = height // 2
    columns = width // 2
    pixels = x.reshape(channels, rows, 2, columns, 2, images).transpose(2, 4, 0, 1, 3, 5)
    places = (0, 1), (1, 0)  # zeros before and behind the kernel
    shifted = [jnp.pad(w, (a, b, (0, 0), (0, 0))) for a in places for b in places]
    kernel = jnp.stack(shifted, -2).reshape(taps, 2, taps, 2, channels, 4 * features)
    kernel = kernel.transpose(0, 2, 1, 3, 4, 5)
    pixels = pixels.reshape(4 * channels, rows, columns, images)
    y = _convolve(pixels, kernel.reshape(taps, taps, 4 * channels, 4 * features), precision)
    return y.reshape(4, 1, 1, features, *y.shape[1:])


def _max_of_windows(x: Array) -> Array:
    """Returns the maxima [C, t H, t W, B] of pooling windows [4, t, t, C, H, W, B]."""
    maxima = functools.reduce(first_max, winograd.entries(x))
    t, _, channels, height, width, images = maxima.shape
    return maxima.transpose(2, 3, 0, 4, 1, 5).reshape(channels, t * height, t * width, images)


def _max_of_tiles(x: Array) -> Array:
    """Returns the 2 x 2 maxima [C, m T / 2, W / 2, B] of T tiles of m rows, [m, C, T, W, B]."""
    m, channels, num_tiles, width, images = x.shape
    period = 1 + m % 2  # tiles after which a window begins with the first row of a tile
    columns = x.reshape(m, channels, num_tiles // period, period, width // 2, 2, images)
    by_tile = [winograd.entries(row, 2) for row in winograd.entries(columns)]
    rows = [by_tile[i][tile] for tile in range(period) for i in range(m)]
    maxima = [
        functools.reduce(first_max, [*winograd.entries(upper, 3), *winograd.entries(lower, 3)])
        for upper, lower in zip(rows[::2], rows[1::2], strict=True)
    ]
    return jnp.stack(maxima, 2).reshape(channels, m * num_tiles // 2, width // 2, images)


def _max_of_pixels(x: Array) -> Array:
    """Returns the 2 x 2 maxima of [C, H, W, B].

    By reshape: its backward pass is several times cheaper on a CPU than the one of a windowed reduction.
    """
    channels, height, width, images = x.shape
    rows = height // 2
    columns = width // 2
    windows = x[:, : 2 * rows, : 2 * columns].reshape(channels, rows, 2, columns, 2, images)
    pixels = [windows[:, :, i, :, j] for i in range(2) for j in range(2)]
    return functools.reduce(first_max, pixels)
