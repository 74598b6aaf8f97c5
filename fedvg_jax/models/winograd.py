"""Winograd's minimal filtering F(2x2, r x r): 2 x 2 outputs of a convolution with (r + 1)^2 products instead of 4 r^2.

    y = A^T [ (G w G^T) . (B^T d B) ] A        d: the r + 1 pixels squared that reach 2 x 2 outputs

The dot is a matmul over channels at each of the (r + 1)^2 places: 16 products for 36 with r = 3, 36 for 100 with r = 5.
The result is that of the convolution up to rounding, which the sums make a few times larger.

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

_POINTS = (0, 1, -1, 2, Fraction(-1, 2))
"""Where the polynomials are evaluated, besides infinity; these round less than 0, 1, -1, 2, -2."""


def pays(x: Array, w: Array, strides: Sequence[int], pads: Sequence[tuple[int, int]]) -> bool:
    """Whether `convolve` does this convolution, and is worth it: of one pixel only the middle tap is alive."""
    plain = w.shape[:2] == (3, 3) and tuple(strides) == (1, 1) and all(tuple(pad) == (1, 1) for pad in pads)
    return plain and min(x.shape[1:3]) > 1 and is_wide(x, w)


def is_wide(x: Array, w: Array) -> bool:
    """Whether there are channels enough, and more than 16 bits, which leave no room for more rounding."""
    return min(w.shape[2:]) >= THINNEST and jnp.finfo(x.dtype).bits >= 32


def products(size: Sequence[int]) -> int:
    """Products of `convolve` for each channel in and out."""
    return 16 * math.prod(-(-n // 2) for n in size)


@functools.partial(jax.jit, static_argnames="precision")  # traced once for all layers of a shape
def convolve(x: Array, w: Array, precision=None) -> Array:
    """3x3, stride 1, padded by one pixel: x [N, H, W, C], w [3, 3, C, O] -> y [N, H, W, O]."""
    (n, height, width, channels), features = x.shape, w.shape[3]
    patch, kernel, outputs = matrices(len(w))
    rows, columns = -(-height // 2), -(-width // 2)  # 2x2 outputs; an odd size has a border that is cut off
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
    """Stride 1, padded before: x [C, H, W, N], w [r, r, C, O] -> y [O, 4, H', W', N], the four of each 2 x 2 outputs.

    The sums are matmuls too, with kron(B, B) and its like, so that nothing is computed twice on the way back.
    """
    (channels, height, width, images), (r, _, _, features) = x.shape, w.shape
    size, rows, columns = r + 1, (height - r + 1) // 2, (width - r + 1) // 2
    lines = jnp.stack([x[:, i : i + 2 * rows - 1 : 2] for i in range(size)])
    patches = jnp.stack([lines[:, :, :, j : j + 2 * columns - 1 : 2] for j in range(size)], 1)
    patch, kernel, outputs = (jnp.asarray(np.kron(m, m), x.dtype) for m in matrices(r))
    patches, kernels = (_times(patch, patches, channels, -1), _times(kernel, w, channels, features))
    products = lax.dot_general(kernels, patches, (((1,), (1,)), ((0,), (0,))), precision=lax.Precision.HIGHEST)
    return _times(outputs, products.reshape(size, size, -1), features, rows, columns, images).swapaxes(0, 1)


@functools.cache
def matrices(r: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """B^T [n, n], G [n, r] and A^T [2, n], n = r + 1, from n - 1 points a and infinity.

    With M(x) = prod_l (x - a_l): row i of B^T holds the coefficients of M(x) / (x - a_i), of G the powers of a_i over
    prod_{l != i} (a_i - a_l), column i of A^T the powers of a_i; infinity takes M(x) and the highest powers.

    >>> patch, kernel, outputs = matrices(3)
    >>> outputs.tolist()
    [[1.0, 1.0, 1.0, 0.0], [0.0, 1.0, -1.0, 1.0]]
    """
    n, points = r + 1, [Fraction(point) for point in _POINTS[:r]]
    patch, kernel = np.zeros((n, n)), np.zeros((n, r))
    for i, a in enumerate(points):
        others = [point for point in points if point != a]
        patch[i, :-1] = _polynomial(others)
        kernel[i] = [a**power / np.prod([a - point for point in others]) for power in range(r)]
    patch[-1], kernel[-1, -1] = _polynomial(points), 1
    outputs = np.array([[1.0] * r + [0], [*map(float, points), 1]])
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


def _times(matrix: Array, x: Array, *shape: int) -> Array:
    """matrix @ x over the first two axes of x, the others as `shape`."""
    found = jnp.matmul(matrix, x.reshape(matrix.shape[1], -1), precision=lax.Precision.HIGHEST)
    return found.reshape(len(matrix), *shape)


def _split(w: Array) -> list[Array]:
    # not w[i], whose gradients are padded and added up
    return [part[0] for part in lax.split(w, [1] * len(w))]
