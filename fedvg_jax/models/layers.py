"""Convolution and dense layers with torch's default initialisation, U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for both
kernel and bias, which the published models start from."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
from jax import lax

_kernel_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def conv(x, features: int, kernel: int, name: str, conv_fn: Callable = lax.conv_general_dilated, padding="VALID"):
    """A square convolution of x [B, H, W, C] inside a compact module."""
    size = (kernel, kernel)
    bias_init = _uniform(kernel * kernel * x.shape[-1])
    layer = nn.Conv(features, size, padding=padding, conv_general_dilated=conv_fn, kernel_init=_kernel_init,
                    bias_init=bias_init, name=name)  # fmt: skip
    return layer(x)


def dense(x, features: int, name: str):
    """A dense layer of x [B, D] inside a compact module."""
    return nn.Dense(features, kernel_init=_kernel_init, bias_init=_uniform(x.shape[-1]), name=name)(x)


def flatten(x):
    """[B, ...] -> [B, D]"""
    return x.reshape(x.shape[0], -1)


def _uniform(fan_in: int) -> Callable:
    bound = fan_in**-0.5
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)
