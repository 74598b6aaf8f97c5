"""Layers that several networks share, and normalisation with statistics that exclude padded rows.

Convolutions and dense layers start with torch's default initialisation, U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for kernel
and bias, as the published models do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.core import tree
from fedvg_jax.core.types import Variables
from fedvg_jax.host import hardware as hw

_kernel_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def conv(x, features: int, kernel: int, name: str, padding: str = "VALID"):
    """Applies a square convolution with a bias and stride 1 to x [B, H, W, C] inside a compact module."""
    layer = nn.Conv(
        features,
        (kernel, kernel),
        padding=padding,
        kernel_init=_kernel_init,
        bias_init=uniform(kernel * kernel * x.shape[-1]),
        name=name,
    )
    return layer(x)


def plain_conv(
    x, features: int, kernel: int, stride: int, padding, init: Callable, name: str, groups: int = 1
):
    """Applies a square convolution without bias to x [B, H, W, C] inside a compact module, behind a fusion barrier."""
    layer = nn.Conv(
        features,
        (kernel, kernel),
        (stride, stride),
        padding,
        feature_group_count=groups,
        use_bias=False,
        kernel_init=init,
        name=name,
    )
    return fusion_barrier(layer(x))


def pool(x):
    """Returns the 2 x 2 maxima of x [B, H, W, C], stride 2."""
    return nn.max_pool(x, (2, 2), (2, 2))


def dense(
    x,
    features: int,
    name: str,
    kernel_init: Callable = _kernel_init,
    bias_init: Callable | None = None,
):
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
    `lax.optimization_barrier` is removed before fusion; a conditional branch that depends on data is not.

    Args:
        x: any float array.
    """
    if not hw.choices().fusion_barriers:
        return x
    first = x[(0,) * x.ndim]
    format_of_x = jnp.finfo(x.dtype)
    bits = format_of_x.nexp, format_of_x.nmant
    is_number = first == first  # noqa: PLR0124  false for NaN; the compiler cannot know
    return lax.cond(is_number, lambda x: x, lambda x: lax.reduce_precision(x, *bits), x)


def uniform(fan_in: int) -> Callable:
    """Returns the initialiser U(-1/sqrt(fan_in), 1/sqrt(fan_in))."""
    bound = fan_in**-0.5
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


# --- normalisation


class BatchNorm(nn.Module):
    """y = scale (x - mean) / sqrt(var + eps) + bias, with statistics over all axes except the channels.

    In training, mean and (biased) variance are computed over the batch's real rows, and they move the running ones:

        running <- (1 - momentum) running + momentum batch

    with the unbiased variance, a factor n / (n - 1), as in torch (Flax's BatchNorm uses the biased one). A batch
    without real rows leaves the running statistics unchanged.
    """

    momentum: float = 0.1
    eps: float = 1e-5
    is_frozen: bool = False
    """Whether training uses the running statistics, too, and leaves them as they are."""

    @nn.compact
    def __call__(self, x: Array, mask: Array, train: bool) -> Array:
        """Normalises x.

        Args:
            x: [B, ..., C].
            mask: bool, the real rows [B]; or [G, B] for G groups of rows, each with separate statistics in training,
                which then do not move the running ones.
            train: whether to use, and move towards, the statistics of the batch.
        """
        features = x.shape[-1:]
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, features, jnp.float32)
        running_var = self.variable("batch_stats", "var", jnp.ones, features, jnp.float32)
        dtype, x = x.dtype, tree.wide(x)  # sums over a batch lose too much in 16 bits
        scale, bias = _scale_and_bias(self, features)

        def normalised(x: Array, mean: Array, var: Array) -> Array:
            gain = scale * lax.rsqrt(var + self.eps)
            return _scaled(x, gain, bias - mean * gain)

        def of_group(x: Array, mask: Array) -> Array:
            # an empty group by its padding: statistics of no row would make it grow in every layer, up to inf
            mean, var, _ = _statistics(x, mask | ~mask.any(keepdims=True))
            return normalised(x, mean, var)

        train = train and not self.is_frozen
        if train and mask.ndim == 2:
            groups = x.reshape(*mask.shape, *x.shape[1:])
            return jax.vmap(of_group)(groups, mask).reshape(x.shape).astype(dtype)
        if train:
            mean, var, count = _statistics(x, mask)
            if not self.is_initializing():
                momentum = jnp.where(count > 0, self.momentum, 0.0).astype(x.dtype)
                unbiased = var * count / jnp.maximum(count - 1, 1)
                running_mean.value += momentum * (mean - running_mean.value)
                running_var.value += momentum * (unbiased - running_var.value)
        else:
            mean = running_mean.value
            var = running_var.value
        return normalised(x, mean, var).astype(dtype)


class GroupNorm(nn.Module):
    """y = scale (x - mean) / sqrt(var + eps) + bias, with mean and biased variance per row and group of channels.

    There are no running statistics and no row depends on another, so the mask is ignored. The number of groups is the
    greatest common divisor of `num_groups` and the number of channels.
    """

    num_groups: int = 32
    eps: float = 1e-5

    @nn.compact
    def __call__(self, x: Array, mask: Array, train: bool) -> Array:
        """Normalises x [B, ..., C]; mask [B] bool and train are ignored."""
        dtype = x.dtype
        x = tree.wide(x)
        scale, bias = _scale_and_bias(self, x.shape[-1:])
        groups = math.gcd(self.num_groups, x.shape[-1])
        y = x.reshape(len(x), -1, groups, x.shape[-1] // groups)
        y = (y - y.mean((1, 3), keepdims=True)) * lax.rsqrt(y.var((1, 3), keepdims=True) + self.eps)
        return _scaled(y.reshape(x.shape), scale, bias).astype(dtype)


def lone_row_is_undefined(init: Callable[[Array], Variables]) -> bool:
    """Returns whether one row gives some BatchNorm a single value: its statistics are undefined in train mode.

    Several positions of an image are several values: a convolution's BatchNorm has a single one only on maps of 1 x 1.
    A frozen one needs no statistics of its batch. Where not all running statistics belong to a Linen BatchNorm, as in
    NNX modules, having any counts as undefined.

    Args:
        init: key -> variables, by calling modules on inputs of the shapes they will see.

    >>> module = nn.Sequential([nn.Dense(3), nn.BatchNorm(use_running_average=True)])
    >>> def init(key):
    ...     drawn = module.init(key, jnp.ones((1, 2)))
    ...     return Variables(drawn["params"], drawn["batch_stats"])
    >>> lone_row_is_undefined(init)
    True
    """
    values = {}

    def note(call, args, kwargs, context):
        layer = context.module
        if isinstance(layer, (BatchNorm, nn.BatchNorm)) and context.method_name == "__call__":
            shape = args[0].shape
            channels = getattr(layer, "axis", -1)
            is_frozen = getattr(layer, "is_frozen", False)
            count = math.inf if is_frozen else math.prod(shape) // (shape[0] * shape[channels])
            values[layer.path] = min(count, values.get(layer.path, math.inf))
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        stats = jax.eval_shape(lambda key: init(key), jax.random.key(0)).stats  # noqa: PLW0108  a new function is traced anew
    return len(jax.tree.leaves(stats)) != 2 * len(values) or 1 in values.values()


def _scale_and_bias(module: nn.Module, features: Sequence[int]) -> tuple[Array, ...]:
    """Returns the parameters of a normalisation, in at least float32, inside its compact module."""
    scale = module.param("scale", nn.initializers.ones, features, jnp.float32)
    bias = module.param("bias", nn.initializers.zeros, features, jnp.float32)
    return tree.wide(scale), tree.wide(bias)


def _statistics(x: Array, mask: Array) -> tuple[Array, Array, Array]:
    """Returns mean [C], biased variance [C] and the number of values [], over the real rows and all positions."""
    weight = jnp.expand_dims(mask.astype(x.dtype), range(1, x.ndim))
    axes = tuple(range(x.ndim - 1))
    count = mask.sum().astype(x.dtype) * (x.size // (len(mask) * x.shape[-1]))
    n = jnp.maximum(count, 1)
    mean = (x * weight).sum(axes) / n
    return mean, (jnp.square(x - _per_channel(mean, x)) * weight).sum(axes) / n, count


def _scaled(x: Array, gain: Array, offset: Array) -> Array:
    """Returns x [..., C] times gain [C] plus offset [C]."""
    return x * _per_channel(gain, x) + _per_channel(offset, x)


def _per_channel(vector: Array, x: Array) -> Array:
    """Returns `vector` [C] as [1, ..., C], with the rank of x."""
    return jnp.expand_dims(vector, range(x.ndim - 1))
