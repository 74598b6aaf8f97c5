"""Operations on images inside the program: scaling and normalising always, augmentation while a client trains."""

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
    "columns": None,
}
"""Name -> mean and standard deviation of each channel of pixels in [0, 1]. imagenet: torchvision's, for its ImageNet
weights; half: that of timm's ViTs; none: the published code does not normalise; columns: scaled before,
by `user_data.scaled_columns`."""


def scale(x: Array, dtype, statistics: str = "none") -> Array:
    """Returns (x / 255 - mean) / deviation for uint8 pixels; inputs of other dtypes are not divided by 255.

    With the statistics of three channels, a grayscale image becomes three channels.

    Args:
        x: [..., H, W, D].
        dtype: of the result.
        statistics: a name of `STATISTICS`.

    >>> scale(jnp.full((1, 1, 1, 1), 255, jnp.uint8), jnp.float32, "half").tolist()
    [[[[1.0]]]]
    """
    x = x.astype(dtype) / 255 if x.dtype == jnp.uint8 else x.astype(dtype)
    moments = STATISTICS[statistics]
    if moments is None:
        return x
    mean, deviation = (jnp.asarray(s, dtype).reshape(*[1] * (x.ndim - 1), -1) for s in moments)
    return (x - mean) / deviation


def flip(key: Array, x: Array) -> Array:
    """Mirrors each image of x [B, H, W, D] left to right with probability 1/2."""
    is_mirrored = jax.random.bernoulli(key, shape=(len(x), 1, 1, 1))
    return jnp.where(is_mirrored, x[:, :, ::-1], x)


def crop(key: Array, x: Array, pad: int = 4) -> Array:
    """Shifts each image of x [B, H, W, D] by -pad to pad pixels in both directions, filling with black."""
    padded = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    corners = jax.random.randint(key, (len(x), 2), 0, 2 * pad + 1)
    return jax.vmap(lambda image, corner: lax.dynamic_slice(image, (*corner, 0), x.shape[1:]))(padded, corners)


def _augment_images(augment: Callable[[Array, Array], Array], key: Array, batch: Batch) -> Batch:
    return batch._replace(x=augment(key, batch.x))


def _flip_and_crop(key: Array, x: Array) -> Array:
    flip_key, crop_key = jax.random.split(key)
    return crop(crop_key, flip(flip_key, x))


AUGMENTATIONS: dict[str, Augment | None] = {
    "none": None,
    "flip": partial(_augment_images, flip),
    "crop": partial(_augment_images, crop),
    "flip_crop": partial(_augment_images, _flip_and_crop),
}
