"""Winograd's minimal filtering F(m x m, r x r) of a convolution.

An m x m output tile takes n^2 products instead of m^2 r^2, where n = m + r - 1:

    y = A^T [ (G w G^T) . (B^T d B) ] A        d: the n x n pixels that an m x m output tile depends on

The elementwise product "." is a matmul over channels at each of the n^2 positions. For r = 3 that is 16 products
instead of 36 (m = 2), or 36 instead of 144 (m = 4); for r = 5, 36 instead of 100 (m = 2).

F(m, r) filters one axis only, with n products instead of m r, and the other axis is copied as patches. For r = 5, that
is 9 products instead of 25 (m = 5), or 8 instead of 20 (m = 4): as many as 36 instead of 100, in larger matmuls over
r C values, on smaller arrays.

The result equals the convolution up to rounding. In float32 the error is about as large as one matmul's where n = 4;
where n = 6, it is three to five times as large with 32 channels or more, and seven to eight times with 16. On one axis
it is four to five times as large where n = 8, and ten to fifteen times where n = 9.

Sources: A. Lavin, S. Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016. The matrices for given points
are Toom's and Cook's, as in B. Barabasz et al., Error Analysis and Improving the Accuracy of Winograd Convolution for
Deep Neural Networks, ACM TOMS 2020.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.polynomial.polynomial import polyfromroots

from fedvg_jax.models.conv.taps import Pads, Size, pad_images

MIN_CHANNELS = 16
"""Channels in and out below which the transforms cost more than the products they save."""

_MAX_PRODUCT_RATIO = 0.6
"""4 x 4 output tiles are used if they need at most this fraction of the products of 2 x 2 tiles. At a fraction of 0.56
a 3x3 kernel with its gradients takes 0.75 to 0.87 of the time; one core, 32 images."""

_MIN_CHANNELS_4X4 = 32
"""Channels in and out from which images-last convolutions use 4 x 4 output tiles: with 32 and 64 the kernel with its
gradients takes 0.72 of the time of 2 x 2, with 16 and 32 the same time; a client on each of two cores."""

_POINTS = np.array([0, 1, -1, 2, -0.5, -2, 0.5, 4])
"""Where the polynomials are evaluated, besides infinity; n - 1 of them, the first first. The first five round less than
0, 1, -1, 2, -2."""

_ROWS = (5, 4)
"""Rows of an output tile of a filter on one axis, the best first. A 5x5 kernel of 32 and 64 channels with its gradients
takes 0.69 of the time of 2 x 2 tiles with 5 rows; the CNN's scoring takes 0.68 on one core, 0.80 with a client on each
of two; 32 images."""


def is_faster(x: Array, w: Array, strides: Size, pads: Pads) -> bool:
    """Returns whether `convolve` supports this convolution and saves work; on one pixel only the middle tap is live."""
    is_supported = (w.shape[:2], strides, pads) == ((3, 3), (1, 1), ((1, 1), (1, 1)))
    return is_supported and min(x.shape[1:3]) > 1 and is_eligible(x, w)


def is_eligible(x: Array, w: Array) -> bool:
    """Returns whether there are enough channels, and more than 16 bits, which leave no room for more rounding."""
    return min(w.shape[2:]) >= MIN_CHANNELS and jnp.finfo(x.dtype).bits >= 32


def num_products(size: Size, m: int = 2) -> int:
    """Returns the products per channel in and out of a 3x3 kernel with m x m output tiles.

    >>> num_products((4, 4)), num_products((4, 4), m=4)
    (64, 36)
    """
    return (m + 2) ** 2 * math.prod(-(-n // m) for n in size)


def tile_size(size: Size) -> int:
    """Returns the side m of the output tiles: 4 where the last tiles are mostly full, else 2."""
    return 4 if num_products(size, 4) <= _MAX_PRODUCT_RATIO * num_products(size, 2) else 2


@functools.partial(jax.jit, static_argnames="precision")  # traced once for all layers of a shape
def convolve(x: Array, w: Array, precision=None) -> Array:
    """Convolves x with w with stride 1 and one pixel of padding on each side.

    Args:
        x: [N, H, W, C] images.
        w: [3, 3, C, O] kernel.
        precision: of the matmuls over channels, as `lax.dot_general` takes it.

    Returns:
        [N, H, W, O].
    """
    by_tiles = _convolve_4x4 if tile_size(x.shape[1:3]) == 4 else _convolve_2x2
    return by_tiles(x, w, precision)


def _convolve_4x4(x: Array, w: Array, precision) -> Array:
    """Returns `convolve` by 4 x 4 output tiles. The transforms have many terms: matmuls with kron(B^T, B^T) etc."""
    (n, height, width, channels), features = x.shape, w.shape[3]
    rows = -(-height // 4)
    columns = -(-width // 4)
    x = pad_images(x, (1, 3 + 4 * rows - height), (1, 3 + 4 * columns - width))
    by_column = _overlapping_tiles(x, 2, 4, columns, 6)
    patches = _overlapping_tiles(by_column, 2, 4, rows, 6)
    of_patch, of_kernel, of_output = _transforms_of_squares(4, 3, x.dtype)
    patches = _matmul_axis_0(of_patch, patches, -1, channels)
    kernels = _matmul_axis_0(of_kernel, w, channels, features)
    products = _matmuls(patches, kernels, 2, precision)
    y = _matmul_axis_0(of_output, products, n, rows, columns, features)
    y = y.reshape(4, 4, n, rows, columns, features).transpose(2, 3, 0, 4, 1, 5)
    return y.reshape(n, 4 * rows, 4 * columns, features)[:, :height, :width]


def _convolve_2x2(x: Array, w: Array, precision) -> Array:
    """Returns `convolve` by 2 x 2 output tiles. The transforms have few terms, written out as sums of slices."""
    (n, height, width, channels), features = x.shape, w.shape[3]
    of_patch, of_kernel, of_output = transform_matrices(2, 3)
    # of an odd size, the last row or column is cut off at the end
    rows = -(-height // 2)
    columns = -(-width // 2)
    x = pad_images(x, (1, 1 + height % 2), (1, 1 + width % 2))
    lines = [x[:, i : i + 2 * rows - 1 : 2] for i in range(4)]
    patches = []
    for line in _linear_combinations(of_patch, lines):
        pixels = [line[:, :, j : j + 2 * columns - 1 : 2] for j in range(4)]
        patches += _linear_combinations(of_patch, pixels)
    kernels = []
    for line in _linear_combinations(of_kernel, entries(w)):
        kernels += _linear_combinations(of_kernel, entries(line))
    products = [
        lax.dot(patch.reshape(-1, channels), kernel, precision=precision)
        for patch, kernel in zip(patches, kernels, strict=True)
    ]
    lines = [_linear_combinations(of_output, products[j::4]) for j in range(4)]
    y = [jnp.stack(_linear_combinations(of_output, line), 1) for line in zip(*lines, strict=True)]
    y = [half.reshape(n, rows, columns, 2, features) for half in y]
    y = jnp.stack(y, 2).reshape(n, 2 * rows, 2 * columns, features)
    return y[:, :height, :width]


def convolve_images_last(x: Array, w: Array) -> Array:
    """Convolves x with w with stride 1, for 2 x 2 pooling; positions in the output tiles have separate axes.

    Args:
        x: [C, H, W, N] images, already padded; the output's height and width must be even.
        w: [r, r, C, O] kernel, r = 3 or 5.

    Returns:
        [4, t, t, O, H', W', N]: position in the pooling window, window in the output tile, tile; an output tile has
        t x t windows. Or [m, O, H', W, N], row in the output tile, tile; the width is not in tiles.
    """
    r = len(w)
    height = x.shape[1] - r + 1
    for rows in _ROWS:
        if r == 5 and height % rows == 0:
            return _convolve_rows(x, w, rows)
    return _convolve_squares(x, w)


def _convolve_rows(x: Array, w: Array, m: int) -> Array:
    """Returns `convolve_images_last` by F(m, r) on the height, with patches along the width, [m, O, H / m, W, N].

        y = A^T [ sum_jc (G w)[j, c] . (B^T d)[j, c] ]

    with the n rows d that m rows of the output depend on.
    """
    (channels, height, width, images), (r, _, _, features) = x.shape, w.shape
    size = m + r - 1
    count = (height - r + 1) // m
    width = width - r + 1
    of_patch, of_kernel, of_output = (
        jnp.asarray(matrix, x.dtype) for matrix in transform_matrices(m, r)
    )
    tiles = _overlapping_tiles(x, 1, m, count, size)
    tiles = _matmul_axis_0(of_patch, tiles, *tiles.shape[1:])
    patches = jnp.concatenate([tiles[:, :, :, j : j + width] for j in range(r)], 1)
    patches = patches.reshape(size, r * channels, -1)
    kernels = _matmul_axis_0(of_kernel, w, r * channels, features)
    products = _matmuls(kernels, patches, 1, lax.Precision.HIGHEST)
    return _matmul_axis_0(of_output, products, features, count, width, images)


def _convolve_squares(x: Array, w: Array) -> Array:
    """Returns `convolve_images_last` by F(m x m, r x r), where t = m / 2.

    The transforms are matmuls with kron(B^T, B^T) etc., so the backward pass computes nothing twice.
    """
    (channels, height, width, images), (r, _, _, features) = x.shape, w.shape
    fits_4x4 = (height - 2) % 4 == (width - 2) % 4 == 0
    m = 4 if r == 3 and fits_4x4 and min(channels, features) >= _MIN_CHANNELS_4X4 else 2
    t = m // 2
    size = m + r - 1
    rows = (height - r + 1) // m
    columns = (width - r + 1) // m
    by_row = _overlapping_tiles(x, 1, m, rows, size)
    patches = jnp.moveaxis(_overlapping_tiles(by_row, 3, m, columns, size), 0, 1)
    of_patch, of_kernel, of_output = _transforms_of_squares(m, r, x.dtype)
    # rows ordered by position in the pooling window first
    of_output = of_output.reshape(t, 2, t, 2, -1).transpose(1, 3, 0, 2, 4)
    of_output = of_output.reshape(m**2, -1)
    patches = _matmul_axis_0(of_patch, patches, channels, -1)
    kernels = _matmul_axis_0(of_kernel, w, channels, features)
    products = _matmuls(kernels, patches, 1, lax.Precision.HIGHEST)
    y = _matmul_axis_0(of_output, products, -1)
    return y.reshape(4, t, t, features, rows, columns, images)


def _transforms_of_squares(m: int, r: int, dtype) -> list[Array]:
    """Returns kron(B^T, B^T), kron(G, G) and kron(A^T, A^T)."""
    return [jnp.asarray(np.kron(matrix, matrix), dtype) for matrix in transform_matrices(m, r)]


@functools.cache
def transform_matrices(m: int, r: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns B^T [n, n], G [n, r] and A^T [m, n], n = m + r - 1, from n - 1 points a_i and infinity.

    With M(x) = prod_l (x - a_l): row i of B^T holds the coefficients of M(x) / (x - a_i); row i of G the powers of a_i,
    divided by prod_{l != i} (a_i - a_l); column i of A^T the powers of a_i. Infinity takes M(x) and the highest powers.

    >>> of_patch, of_kernel, of_output = transform_matrices(2, 3)
    >>> of_output.tolist()
    [[1.0, 1.0, 1.0, 0.0], [0.0, 1.0, -1.0, 1.0]]
    """
    points = _POINTS[: m + r - 2]  # dyadic, as all products of them: exact in floats
    finite = [[*polyfromroots(points[points != a]), 0] for a in points]
    scales = (points[:, None] - points + np.eye(len(points))).prod(1)
    of_kernel = np.vander(points, r, increasing=True) / scales[:, None]
    of_output = np.vander(points, m, increasing=True)
    of_patch = np.vstack([finite, polyfromroots(points)])
    of_kernel = np.vstack([of_kernel, np.eye(r)[-1]])
    of_output = np.vstack([of_output, np.eye(m)[-1]])
    return of_patch, of_kernel, of_output.T


def _linear_combinations(matrix: np.ndarray, arrays: Sequence[Array]) -> list[Array]:
    """Returns matrix @ arrays, a written-out sum for each row."""
    sums = []
    for row in matrix:
        terms = (float(c) * array for c, array in zip(row, arrays, strict=True) if c)
        sums.append(sum(terms))
    return sums


def _overlapping_tiles(x: Array, axis: int, m: int, count: int, size: int) -> Array:
    """Returns [size, ...]: entry i holds pixel i of each of the `count` tiles along `axis`.

    The tiles begin m pixels apart and have `size` pixels. They are cut from contiguous slices, reshaped into pieces of
    m, because the gradient of a strided slice is interleaved with zeros before it is added up.
    """
    firsts = range(0, size, m)
    missing = m * (count + len(firsts) - 1) - x.shape[axis]
    margins = [(0, 0)] * x.ndim
    margins[axis] = 0, missing
    x = jnp.pad(x, margins)

    def pixels_from(first: int) -> Array:
        pieces = lax.slice_in_dim(x, first, first + m * count, axis=axis)
        pieces = pieces.reshape(*x.shape[:axis], count, m, *x.shape[axis + 1 :])
        pixels = lax.slice_in_dim(pieces, 0, min(m, size - first), axis=axis + 1)
        return jnp.moveaxis(pixels, axis + 1, 0)

    return jnp.concatenate([pixels_from(first) for first in firsts])


def _matmul_axis_0(matrix: Array, x: Array, *shape: int) -> Array:
    """Returns the matrix times x, whose first axes are one axis of the matrix's columns, with these other axes."""
    rows = x.reshape(matrix.shape[1], -1)
    return jnp.matmul(matrix, rows, precision=lax.Precision.HIGHEST).reshape(len(matrix), *shape)


def _matmuls(a: Array, b: Array, axis: int, precision) -> Array:
    """Returns the product of every entry of axis 0, over `axis` of a and axis 1 of b, which are the channels."""
    return lax.dot_general(a, b, (((axis,), (1,)), ((0,), (0,))), precision=precision)


def entries(x: Array, axis: int = 0) -> list[Array]:
    """Returns the entries of an axis. They are split, because the gradient of an index pads with zeros and adds."""
    parts = lax.split(x, [1] * x.shape[axis], axis)
    return [lax.squeeze(part, (axis,)) for part in parts]
