"""Convolution as patches and one matmul (im2col), without the taps that only ever meet padding.

Same parameters and results as `lax.conv_general_dilated` (NHWC, HWIO), up to rounding. XLA's CPU back end runs the
gradients of its convolution 12 to 28 times slower inside a loop, and batched over clients it becomes a grouped
convolution. Patches and a matmul are fast in both cases.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.models.conv import taps
from fedvg_jax.models.conv.taps import Pads, Size


def convolve(x: Array, w: Array, strides: Size, pads: Pads, precision=None) -> Array:
    """Convolves x with w by one matmul.

        y[n, p, q, o] = sum_ijc x[n, p s + i - pad, q s + j - pad, c] w[i, j, c, o]

    Taps that only ever meet padding are left out. That is exact, and saves most of the work of a 3x3 kernel on a
    1 x 1 image.

    Args:
        x: [N, H, W, C] images.
        w: [r, s, C, O] kernel.
        strides: of height and width.
        pads: (before, after) of height and width.
        precision: of the matmul, as `lax.dot_general` takes it.

    Returns:
        [N, P, Q, O].
    """
    slices, w = slices_and_kernel(x, w, strides, pads)
    patches = slices[0] if len(slices) == 1 else jnp.concatenate(slices, -1)
    matrix = w.reshape(-1, w.shape[-1])
    # as a matrix of rows: with four axes, XLA on the CPU transposes one factor of the kernel's gradient in memory
    y = lax.dot(patches.reshape(-1, len(matrix)), matrix, precision=precision)
    return y.reshape(*patches.shape[:3], -1)


def slices_and_kernel(x: Array, w: Array, strides: Size, pads: Pads) -> tuple[list[Array], Array]:
    """Returns the pixels [N, P, Q, C] under every live tap, and their part of the kernel.

    The images are padded to what the live taps read; where they never read the border, it is cropped.
    """
    margins = []
    spans = []
    outputs = []
    for size, kernel, stride, pad in zip(x.shape[1:3], w.shape[:2], strides, pads, strict=True):
        live = [tap.index for tap in taps.live_taps(size, kernel, stride, pad)]
        begin = min(live)
        end = max(live) + 1
        last = (taps.output_size(size, kernel, stride, pad) - 1) * stride
        margins.append((pad[0] - begin, last + end - pad[0] - size, 0))
        spans.append(slice(begin, end))
        outputs.append([slice(tap, tap + last + 1, stride) for tap in range(end - begin)])
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *margins, (0, 0, 0)])
    rows, columns = outputs
    slices = [x[:, row, column] for row in rows for column in columns]
    return slices, w[tuple(spans)]
