"""Convolution and dense layers with torch's default initialisation, U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for both
kernel and bias, which the published models start from; shapes of images."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

_kernel_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def conv(x, features: int, kernel: int, name: str, conv_fn: Callable = lax.conv_general_dilated, padding="VALID"):
    """A square convolution of x [B, H, W, C] inside a compact module."""
    size = (kernel, kernel)
    bias_init = _uniform(kernel * kernel * x.shape[-1])
    layer = nn.Conv(features, size, padding=padding, conv_general_dilated=conv_fn, kernel_init=_kernel_init,
                    bias_init=bias_init, name=name)  # fmt: skip
    return layer(x)


def dense(x, features: int, name: str, kernel_init: Callable = _kernel_init, bias_init: Callable | None = None):
    """A dense layer of x [..., D] inside a compact module."""
    bias_init = bias_init or _uniform(x.shape[-1])
    return nn.Dense(features, kernel_init=kernel_init, bias_init=bias_init, name=name)(x)


def flatten(x):
    """[B, ...] -> [B, D]"""
    return x.reshape(x.shape[0], -1)


def rgb(x):
    """Grayscale images [..., 1] as three equal channels; others as they are."""
    return jnp.broadcast_to(x, (*x.shape[:-1], 3)) if x.shape[-1] == 1 else x


def _uniform(fan_in: int) -> Callable:
    bound = fan_in**-0.5
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)
