"""Layers that several networks share.

Convolutions and dense layers start with torch's default initialisation, U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for kernel
and bias, as the published models do.
"""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.host import hardware as hw

_kernel_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def conv(x, features: int, kernel: int, name: str, padding: str = "VALID"):
    """Applies a square convolution with a bias and stride 1 to x [B, H, W, C] inside a compact module."""
    bias_init, size = uniform(kernel * kernel * x.shape[-1]), (kernel, kernel)
    return nn.Conv(features, size, padding=padding, kernel_init=_kernel_init, bias_init=bias_init, name=name)(x)


def plain_conv(x, features: int, kernel: int, stride: int, padding, init: Callable, name: str, groups: int = 1):
    """Applies a square convolution without bias to x [B, H, W, C] inside a compact module, behind a fusion barrier."""
    size, strides = (kernel, kernel), (stride, stride)
    layer = nn.Conv(
        features, size, strides, padding, feature_group_count=groups, use_bias=False, kernel_init=init, name=name
    )
    return fusion_barrier(layer(x))


def pool(x):
    """Returns the 2 x 2 maxima of x [B, H, W, C], stride 2."""
    return nn.max_pool(x, (2, 2), (2, 2))


def dense(x, features: int, name: str, kernel_init: Callable = _kernel_init, bias_init: Callable | None = None):
    """Applies a dense layer to x [..., D] inside a compact module.

    Args:
        x: [..., D].
        features: size of the last axis of the result.
        name: of the layer, in the path of its parameters.
        kernel_init: defaults to torch's.
        bias_init: defaults to torch's.
    """
    bias_init = bias_init or uniform(x.shape[-1])
    return nn.Dense(features, kernel_init=kernel_init, bias_init=bias_init, name=name)(x)


def rgb(x):
    """Returns grayscale images [..., 1] with three equal channels, and other images unchanged."""
    return jnp.broadcast_to(x, (*x.shape[:-1], 3)) if x.shape[-1] == 1 else x


def fusion_barrier(x: Array) -> Array:
    """Returns x; on a CPU, XLA fuses neither x nor its gradient into the operations that consume it.

    XLA considers sums cheap. Without a barrier it recomputes the gradient of a residual stream in every network block,
    from the terms of all later blocks, and that of a normalisation for every patch of a convolution.
    `lax.optimization_barrier` is removed before fusion; a conditional whose branch depends on data is not.

    Args:
        x: any float array.
    """
    if not hw.choices().fusion_barriers:
        return x
    first, own = x[(0,) * x.ndim], jnp.finfo(x.dtype)
    is_number = first == first  # noqa: PLR0124  false for NaN; the compiler cannot know
    return lax.cond(is_number, lambda x: x, lambda x: lax.reduce_precision(x, own.nexp, own.nmant), x)


def uniform(fan_in: int) -> Callable:
    """Returns the initialiser U(-1/sqrt(fan_in), 1/sqrt(fan_in))."""
    bound = fan_in**-0.5
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)
