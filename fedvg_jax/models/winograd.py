"""Winograd's minimal filtering F(2x2, 3x3): a 3x3 convolution with 16 products for 4 outputs instead of 36.

    y = A^T [ (G w G^T) . (B^T d B) ] A        d: a 4x4 patch of the image, for the 2x2 outputs in its middle

    B^T d = (d0 - d2, d1 + d2, d2 - d1, d1 - d3)        A^T m = (m0 + m1 + m2, m1 - m2 - m3)
    G w = (w0, (w0 + w1 + w2) / 2, (w0 - w1 + w2) / 2, w2)

along each dimension; the dot is a matmul over channels at each of the 16 places. The result is that of the convolution
up to rounding, which the sums of four make a few times larger.

Source: A. Lavin, S. Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

THINNEST = 16
"""Channels in and out below which the sums cost more than the products they save."""


def pays(x: Array, w: Array, strides: Sequence[int], pads: Sequence[tuple[int, int]]) -> bool:
    """Whether `convolve` does this convolution, and is worth it: of one pixel only the middle tap is alive, and numbers
    of 16 bits leave no room for more rounding."""
    plain = w.shape[:2] == (3, 3) and tuple(strides) == (1, 1) and all(tuple(pad) == (1, 1) for pad in pads)
    wide = min(w.shape[2:]) >= THINNEST and min(x.shape[1:3]) > 1
    return plain and wide and jnp.finfo(x.dtype).bits >= 32


def convolve(x: Array, w: Array, precision=None) -> Array:
    """3x3, stride 1, padded by one pixel: x [N, H, W, C], w [3, 3, C, O] -> y [N, H, W, O]."""
    (n, height, width, channels), features = x.shape, w.shape[3]
    rows, columns = -(-height // 2), -(-width // 2)  # 2x2 outputs; an odd size has a border that is cut off
    x = jnp.pad(x, ((0, 0), (1, 1 + height % 2), (1, 1 + width % 2), (0, 0)))
    patches = [
        patch
        for line in _patches([x[:, i : i + 2 * rows - 1 : 2] for i in range(4)])
        for patch in _patches([line[:, :, j : j + 2 * columns - 1 : 2] for j in range(4)])
    ]
    kernels = [kernel for line in _kernels(_split(w)) for kernel in _kernels(_split(line))]

    def product(patch: Array, kernel: Array) -> Array:
        return lax.dot_general(patch.reshape(-1, channels), kernel, (((1,), (0,)), ((), ())), precision=precision)

    products = [product(*pair) for pair in zip(patches, kernels, strict=True)]
    lines = [_outputs(products[j::4]) for j in range(4)]
    y = [jnp.stack(_outputs([line[i] for line in lines]), 1) for i in range(2)]
    y = [half.reshape(n, rows, columns, 2, features) for half in y]
    return jnp.stack(y, 2).reshape(n, 2 * rows, 2 * columns, features)[:, :height, :width]


def _patches(d: Sequence[Array]) -> list[Array]:
    """B^T d"""
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _split(w: Array) -> list[Array]:
    # not w[i], whose gradients are padded and added up
    return [part[0] for part in lax.split(w, [1] * len(w))]


def _kernels(w: Array | Sequence[Array]) -> list[Array]:
    """G w"""
    return [w[0], (w[0] + w[1] + w[2]) / 2, (w[0] - w[1] + w[2]) / 2, w[2]]


def _outputs(m: Sequence[Array]) -> list[Array]:
    """A^T m"""
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]
