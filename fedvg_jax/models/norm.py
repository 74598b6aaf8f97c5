"""BatchNorm whose statistics leave out padded rows, with torch's rule for the running variance; GroupNorm."""

from __future__ import annotations

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.core.types import Variables


class BatchNorm(nn.Module):
    """y = scale (x - mean) / sqrt(var + eps) + bias over all axes but that of the channels.

    Training takes the statistics of the batch's real rows (biased variance) and moves the running ones,
    running <- (1 - momentum) running + momentum batch, with the unbiased variance n / (n - 1), as torch does
    (Flax's own takes the biased one). A batch without real rows moves nothing.
    """

    momentum: float = 0.1
    eps: float = 1e-5
    rows: int = 0
    """axis of the rows"""
    channels: int = -1
    """axis of the channels"""

    @nn.compact
    def __call__(self, x: Array, mask: Array, train: bool) -> Array:
        """x [B, ..., C], or as `rows` and `channels` say; mask [B] bool."""
        features = (x.shape[self.channels],)
        scale = self.param("scale", nn.initializers.ones, features, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, features, jnp.float32)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, features, jnp.float32)
        running_var = self.variable("batch_stats", "var", jnp.ones, features, jnp.float32)
        narrow, x = x.dtype, wide(x)  # statistics of halved numbers would be worth little
        scale, bias = wide(scale), wide(bias)
        if train:
            mean, var, count = _statistics(x, mask, self.rows, self.channels)
            if not self.is_initializing():
                moved = jnp.where(count > 0, self.momentum, 0.0).astype(x.dtype)
                unbiased = var * count / jnp.maximum(count - 1, 1)
                running_mean.value += moved * (mean - running_mean.value)
                running_var.value += moved * (unbiased - running_var.value)
        else:
            mean, var = running_mean.value, running_var.value
        gain = scale * lax.rsqrt(var + self.eps)
        return (x * _along(gain, x, self.channels) + _along(bias - mean * gain, x, self.channels)).astype(narrow)


class GroupNorm(nn.Module):
    """y = scale (x - mean) / sqrt(var + eps) + bias, mean and biased variance per row and group of channels.

    No running statistics, and a row depends on no other: the mask plays no part. 32 groups, or the largest divisor
    of 32 that divides the channels.
    """

    num_groups: int = 32
    eps: float = 1e-5

    @nn.compact
    def __call__(self, x: Array, mask: Array, train: bool) -> Array:
        """x [B, ..., C], mask [B] bool."""
        features = x.shape[-1:]
        scale = self.param("scale", nn.initializers.ones, features, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, features, jnp.float32)
        narrow, x, scale, bias = x.dtype, wide(x), wide(scale), wide(bias)
        groups = math.gcd(self.num_groups, x.shape[-1])
        y = x.reshape(x.shape[0], -1, groups, x.shape[-1] // groups)
        y = (y - y.mean((1, 3), keepdims=True)) * lax.rsqrt(y.var((1, 3), keepdims=True) + self.eps)
        return (y.reshape(x.shape) * _along(scale, x, -1) + _along(bias, x, -1)).astype(narrow)


def lone_row_is_undefined(init: Callable[[Array], Variables]) -> bool:
    """Whether a batch of one row gives some BatchNorm a single value, whose statistics are undefined in train mode.

    Several positions of an image are several values: a convolution's BatchNorm has a single one only on maps of 1 x 1.
    Where not all running statistics belong to a Linen BatchNorm, as in NNX modules, having any counts as undefined.

    Args:
        init: key -> variables, by calling modules on inputs of the shapes they will see.

    >>> module = nn.Sequential([nn.Dense(3), nn.BatchNorm(use_running_average=True)])
    >>> def init(key):
    ...     drawn = module.init(key, jnp.ones((1, 2)))
    ...     return Variables(drawn["params"], drawn["batch_stats"])
    >>> lone_row_is_undefined(init)
    True
    """
    values: dict[tuple[str, ...], int] = {}

    def note(call, args, kwargs, context):
        layer = context.module
        if isinstance(layer, (BatchNorm, nn.BatchNorm)) and context.method_name == "__call__":
            rows, channels = (layer.rows, layer.channels) if isinstance(layer, BatchNorm) else (0, layer.axis)
            shape = args[0].shape
            count = math.prod(shape) // (shape[rows] * shape[channels])
            values[layer.path] = min(count, values.get(layer.path, count))
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        stats = jax.eval_shape(lambda key: init(key), jax.random.key(0)).stats  # a new function is traced anew
    num_stats = len(jax.tree.leaves(stats))
    return num_stats > 0 and (num_stats != 2 * len(values) or min(values.values()) == 1)


def wide(x: Array) -> Array:
    """At least float32."""
    return x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x


def _statistics(x: Array, mask: Array, rows: int, channels: int) -> tuple[Array, Array, Array]:
    """Mean and biased variance [C] over the real rows and all positions, and how many values they are of."""
    weight = _along(mask.astype(x.dtype), x, rows)
    axes = tuple(axis for axis in range(x.ndim) if axis != channels % x.ndim)
    count = mask.sum().astype(x.dtype) * (x.size // (len(mask) * x.shape[channels]))
    n = jnp.maximum(count, 1)
    mean = (x * weight).sum(axes) / n
    return mean, (jnp.square(x - _along(mean, x, channels)) * weight).sum(axes) / n, count


def _along(vector: Array, x: Array, axis: int) -> Array:
    """`vector` on that axis of x, to be broadcast over the others."""
    return jnp.expand_dims(vector, [other for other in range(x.ndim) if other != axis % x.ndim])
