"""Winograd's minimal filtering F(m x m, r x r): m x m outputs of a convolution with n^2 products instead of m^2 r^2,
n = m + r - 1.

    y = A^T [ (G w G^T) . (B^T d B) ] A        d: the n x n pixels that reach m x m outputs

The dot is a matmul over channels at each of the n^2 places: with r = 3, 16 products for 36 (m = 2) or 36 for 144
(m = 4), with r = 5, 36 for 100 (m = 2). The result is that of the convolution up to rounding: in float32 about that of
one matmul where n = 4, three to five times as much where n = 6 and 32 channels or more, seven to eight times with 16.

Sources: A. Lavin, S. Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016; the matrices for given points
are Toom's and Cook's, as in B. Barabasz et al., Error Analysis and Improving the Accuracy of Winograd Convolution for
Deep Neural Networks, ACM TOMS 2020.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

THINNEST = 16
"""Channels in and out below which the sums cost more than the products they save."""

_FOURS_PAY = 0.6
"""Products of 4 x 4 outputs, of those of 2 x 2, up to which they are taken: a 3x3 kernel with its gradients takes 0.75
to 0.87 of the time where 0.56 are left; one core, 32 images."""

_FOURS_THINNEST = 32
"""Channels in and out from which planes take 4 x 4 outputs: with 32 and 64 the kernel with its gradients takes 0.72 of
the time of 2 x 2, with 16 and 32 all of it; a client on each of two cores."""

_POINTS = (0, 1, -1, 2, Fraction(-1, 2))
"""Where the polynomials are evaluated, besides infinity; these round less than 0, 1, -1, 2, -2."""


def pays(x: Array, w: Array, strides: Sequence[int], pads: Sequence[tuple[int, int]]) -> bool:
    """Whether `convolve` does this convolution, and is worth it: of one pixel only the middle tap is alive."""
    plain = w.shape[:2] == (3, 3) and tuple(strides) == (1, 1) and all(tuple(pad) == (1, 1) for pad in pads)
    return plain and min(x.shape[1:3]) > 1 and is_wide(x, w)


def is_wide(x: Array, w: Array) -> bool:
    """Whether there are channels enough, and more than 16 bits, which leave no room for more rounding."""
    return min(w.shape[2:]) >= THINNEST and jnp.finfo(x.dtype).bits >= 32


def products(size: Sequence[int], m: int = 2) -> int:
    """Products for each channel in and out, of a 3x3 kernel and m x m outputs."""
    return (m + 2) ** 2 * math.prod(-(-n // m) for n in size)


def outputs_at_once(size: Sequence[int]) -> int:
    """4 where they leave few outputs over, else 2."""
    return 4 if products(size, 4) <= _FOURS_PAY * products(size, 2) else 2


@functools.partial(jax.jit, static_argnames="precision")  # traced once for all layers of a shape
def convolve(x: Array, w: Array, precision=None) -> Array:
    """3x3, stride 1, padded by one pixel: x [N, H, W, C], w [3, 3, C, O] -> y [N, H, W, O]."""
    return (_by_matmuls if outputs_at_once(x.shape[1:3]) == 4 else _by_sums)(x, w, precision)


def _by_matmuls(x: Array, w: Array, precision) -> Array:
    """4 x 4 outputs at once. Their many sums are matmuls, with kron(B, B) and its like."""
    (n, height, width, channels), features = x.shape, w.shape[3]
    rows, columns = -(-height // 4), -(-width // 4)
    x = jnp.pad(x, ((0, 0), (1, 3 + 4 * rows - height), (1, 3 + 4 * columns - width), (0, 0)))
    patches = _tiles(_tiles(x, 2, 4, columns, 6), 2, 4, rows, 6).reshape(36, -1)
    patch, kernel, outputs = (jnp.asarray(np.kron(m, m), x.dtype) for m in matrices(4, 3))
    patches, kernels = _times(patch, patches, -1, channels), _times(kernel, w.reshape(9, -1), channels, features)
    places = lax.dot_general(patches, kernels, (((2,), (1,)), ((0,), (0,))), precision=precision)
    y = _times(outputs, places, n, rows, columns, features)
    y = y.reshape(4, 4, n, rows, columns, features).transpose(2, 3, 0, 4, 1, 5)
    return y.reshape(n, 4 * rows, 4 * columns, features)[:, :height, :width]


def _by_sums(x: Array, w: Array, precision) -> Array:
    """2 x 2 outputs at once. Sums of a few slices are written out."""
    (n, height, width, channels), features = x.shape, w.shape[3]
    patch, kernel, outputs = matrices(2, 3)
    rows, columns = -(-height // 2), -(-width // 2)  # an odd size has a border that is cut off
    x = jnp.pad(x, ((0, 0), (1, 1 + height % 2), (1, 1 + width % 2), (0, 0)))
    patches = [
        place
        for line in _combined(patch, [x[:, i : i + 2 * rows - 1 : 2] for i in range(4)])
        for place in _combined(patch, [line[:, :, j : j + 2 * columns - 1 : 2] for j in range(4)])
    ]
    kernels = [place for line in _combined(kernel, _split(w)) for place in _combined(kernel, _split(line))]

    def product(patch: Array, kernel: Array) -> Array:
        return lax.dot_general(patch.reshape(-1, channels), kernel, (((1,), (0,)), ((), ())), precision=precision)

    products = [product(*pair) for pair in zip(patches, kernels, strict=True)]
    lines = [_combined(outputs, products[j::4]) for j in range(4)]
    y = [jnp.stack(_combined(outputs, [line[i] for line in lines]), 1) for i in range(2)]
    y = [half.reshape(n, rows, columns, 2, features) for half in y]
    return jnp.stack(y, 2).reshape(n, 2 * rows, 2 * columns, features)[:, :height, :width]


def convolve_planes(x: Array, w: Array) -> Array:
    """Stride 1, padded before, an even size left: x [C, H, W, N], w [r, r, C, O] -> y [O, 4, t, t, H', W', N], the
    place in a 2 x 2 window, the window in a tile of t x t, the tile.

    The sums are matmuls too, with kron(B, B) and its like, so that nothing is computed twice on the way back.
    """
    (channels, height, width, images), (r, _, _, features) = x.shape, w.shape
    whole = (height - 2) % 4 == (width - 2) % 4 == 0
    m = 4 if r == 3 and whole and min(channels, features) >= _FOURS_THINNEST else 2
    size, rows, columns = m + r - 1, (height - r + 1) // m, (width - r + 1) // m
    patches = jnp.moveaxis(_tiles(_tiles(x, 1, m, rows, size), 3, m, columns, size), 0, 1)
    patch, kernel, outputs = (jnp.asarray(np.kron(part, part), x.dtype) for part in matrices(m, r))
    outputs = outputs.reshape(m // 2, 2, m // 2, 2, -1).transpose(1, 3, 0, 2, 4).reshape(m**2, -1)  # by window
    patches = _times(patch, patches.reshape(size**2, -1), channels, -1)
    kernels = _times(kernel, w.reshape(r**2, -1), channels, features)
    products = lax.dot_general(kernels, patches, (((1,), (1,)), ((0,), (0,))), precision=lax.Precision.HIGHEST)
    y = _times(outputs, products, -1).reshape(4, m // 2, m // 2, features, rows, columns, images)
    return jnp.moveaxis(y, 3, 0)


@functools.cache
def matrices(m: int, r: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """B^T [n, n], G [n, r] and A^T [m, n], n = m + r - 1, from n - 1 points a and infinity.

    With M(x) = prod_l (x - a_l): row i of B^T holds the coefficients of M(x) / (x - a_i), of G the powers of a_i over
    prod_{l != i} (a_i - a_l), column i of A^T the powers of a_i; infinity takes M(x) and the highest powers.

    >>> patch, kernel, outputs = matrices(2, 3)
    >>> outputs.tolist()
    [[1.0, 1.0, 1.0, 0.0], [0.0, 1.0, -1.0, 1.0]]
    """
    n, points = m + r - 1, [Fraction(point) for point in _POINTS[: m + r - 2]]
    patch, kernel = np.zeros((n, n)), np.zeros((n, r))
    for i, a in enumerate(points):
        others = [point for point in points if point != a]
        patch[i, :-1] = _polynomial(others)
        kernel[i] = [a**power / np.prod([a - point for point in others]) for power in range(r)]
    patch[-1], kernel[-1, -1] = _polynomial(points), 1
    outputs = np.array([[float(a**power) for a in points] + [float(power == m - 1)] for power in range(m)])
    return patch, kernel, outputs


def _polynomial(roots: Sequence[Fraction]) -> list[float]:
    """Coefficients of prod (x - root), the lowest power first."""
    found = [Fraction(1)]
    for root in roots:
        found = [up - root * down for up, down in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return [float(c) for c in found]


def _combined(matrix: np.ndarray, parts: Sequence[Array]) -> list[Array]:
    """matrix @ parts, a sum for each row."""
    return [sum(float(c) * part for c, part in zip(row, parts, strict=True) if c) for row in matrix]


def _tiles(x: Array, axis: int, m: int, count: int, size: int) -> Array:
    """[size, ...]: a pixel of each of the `count` tiles along `axis`, which begin m pixels apart and may overlap.

    Slices cut into pieces of m, for the gradient of a strided slice is spread out with zeros before it is added up.
    """
    firsts = range(0, size, m)
    missing = m * (count + len(firsts) - 1) - x.shape[axis]
    x = jnp.pad(x, [(0, missing if i == axis else 0) for i in range(x.ndim)])

    def cut(first: int) -> Array:
        pieces = lax.slice_in_dim(x, first, first + m * count, axis=axis)
        pieces = pieces.reshape(*x.shape[:axis], count, m, *x.shape[axis + 1 :])
        return jnp.moveaxis(lax.slice_in_dim(pieces, 0, min(m, size - first), axis=axis + 1), axis + 1, 0)

    return jnp.concatenate([cut(first) for first in firsts])


def _times(matrix: Array, x: Array, *shape: int) -> Array:
    """matrix @ x over the first axis of x, the others as `shape`."""
    found = jnp.matmul(matrix, x.reshape(len(x), -1), precision=lax.Precision.HIGHEST)
    return found.reshape(len(matrix), *shape)


def _split(w: Array) -> list[Array]:
    # not w[i], whose gradients are padded and added up
    return [part[0] for part in lax.split(w, [1] * len(w))]
