"""Convolution and dense layers with torch's default initialisation, U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for both
kernel and bias, which the published models start from; shapes of images."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.models.conv.layout import Layout

_kernel_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


class Conv(nn.Module):
    """A square convolution with a bias, in any layout; parameters as `flax.linen.Conv`."""

    features: int
    kernel: int
    layout: Layout
    padding: str = "VALID"
    pooled: bool = False
    """whether `layout.pool` sees the result next, before or after what works value by value or channel by channel"""

    @nn.compact
    def __call__(self, x):
        shape = (self.kernel, self.kernel, x.shape[self.layout.channels], self.features)
        kernel = self.param("kernel", _kernel_init, shape, jnp.float32)
        bias = self.param("bias", _uniform(shape[0] * shape[1] * shape[2]), (self.features,), jnp.float32)
        convolve = self.layout.convolve_pooled if self.pooled else self.layout.convolve
        y = convolve(x, kernel, self.padding)
        return y + self.layout.per_channel(bias, y)


def dense(x, features: int, name: str, kernel_init: Callable = _kernel_init, bias_init: Callable | None = None):
    """A dense layer of x [..., D] inside a compact module."""
    bias_init = bias_init or _uniform(x.shape[-1])
    return nn.Dense(features, kernel_init=kernel_init, bias_init=bias_init, name=name)(x)


def rgb(x):
    """Grayscale images [..., 1] as three equal channels; others as they are."""
    return jnp.broadcast_to(x, (*x.shape[:-1], 3)) if x.shape[-1] == 1 else x


def computed_once(x: Array) -> Array:
    """x. On the CPU neither it nor its gradient is fused into what follows.

    Sums are cheap to XLA: it would compute the gradient of a residual stream again in every block, from the parts of
    all later ones, and that of a normalisation again for every patch of a convolution. `lax.optimization_barrier` is
    gone before it fuses; a choice that only the data can make is not.
    """
    if jax.default_backend() != "cpu":
        return x
    first, own = x[(0,) * x.ndim], jnp.finfo(x.dtype)
    return lax.cond(first == first, lambda x: x, lambda x: lax.reduce_precision(x, own.nexp, own.nmant), x)


def _uniform(fan_in: int) -> Callable:
    bound = fan_in**-0.5
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)
