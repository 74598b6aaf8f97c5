"""What is done to images inside the program: scaling and normalising always, augmentation while a client trains."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.core.types import Augment, Batch

STATISTICS: dict[str, tuple[tuple[float, ...], tuple[float, ...]] | None] = {
    "none": None,
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5,), (0.5,)),
}
"""name -> mean and deviation of each channel of pixels in [0, 1]: torchvision's for its ImageNet weights, and 1/2 for
timm's ViTs; none is the published code's."""


def scale(x: Array, dtype, statistics: str = "none") -> Array:
    """(x / 255 - mean) / deviation of uint8 pixels; numbers of any other dtype are taken as they are.

    Under three channels' statistics a grayscale image becomes three channels.

    >>> scale(jnp.full((1, 1, 1, 1), 255, jnp.uint8), jnp.float32, "half").tolist()
    [[[[1.0]]]]
    """
    x = x.astype(dtype) / 255 if x.dtype == jnp.uint8 else x.astype(dtype)
    if STATISTICS[statistics] is None:
        return x
    mean, deviation = (jnp.asarray(s, dtype).reshape(*[1] * (x.ndim - 1), -1) for s in STATISTICS[statistics])
    return (x - mean) / deviation


def flip(key: Array, x: Array) -> Array:
    """Every image [B, H, W, D] left to right with probability 1/2."""
    turned = jax.random.bernoulli(key, shape=(len(x), 1, 1, 1))
    return jnp.where(turned, x[:, :, ::-1], x)


def crop(key: Array, x: Array, pad: int = 4) -> Array:
    """Every image [B, H, W, D] moved by -pad to pad pixels each way, black where it leaves off."""
    padded = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    corners = jax.random.randint(key, (len(x), 2), 0, 2 * pad + 1)
    return jax.vmap(lambda image, at: lax.dynamic_slice(image, (*at, 0), x.shape[1:]))(padded, corners)


def _of_images(change: Callable[[Array, Array], Array], key: Array, batch: Batch) -> Batch:
    return batch._replace(x=change(key, batch.x))


def _both(key: Array, x: Array) -> Array:
    first, second = jax.random.split(key)
    return crop(second, flip(first, x))


AUGMENTATIONS: dict[str, Augment | None] = {
    "none": None,
    "flip": partial(_of_images, flip),
    "crop": partial(_of_images, crop),
    "flip_crop": partial(_of_images, _both),
}
