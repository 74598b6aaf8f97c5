"""Vision transformers (Dosovitskiy et al. 2021): ViT-S/16 as in timm, ViT-B/16 as in torchvision.

Both are the same network: pre-norm encoder, LayerNorm with eps 1e-6, exact GELU, queries, keys and values in one
tensor, learned class token and position embeddings, a final LayerNorm of the class token before the head, no dropout.
They differ in their initialisation, `SCHEMES`; the head has torch's default in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.core.groups import first_component
from fedvg_jax.models.layers import dense, fusion_barrier, rgb

_init = nn.initializers
_zeros = _init.zeros

# torch's trunc_normal_ truncates at +-2, which is 100 deviations here: effectively a normal distribution
_small = _init.normal(0.02)


OfDense = tuple[Callable, ...]
"""Initialisers of a dense layer (kernel, bias), or () for torch's default U(+-1/sqrt(fan_in))."""


class Scheme(NamedTuple):
    """Initialisers."""

    patch: OfDense
    token: Callable
    qkv: OfDense
    proj: OfDense
    mlp: OfDense


SCHEMES = {
    "timm": Scheme((), _init.normal(1e-6), (_small, _zeros), (_small, _zeros), (_small, _zeros)),
    "torchvision": Scheme(
        patch=(_init.variance_scaling(1, "fan_in", "normal"), _zeros),
        token=_zeros,
        qkv=(_init.xavier_uniform(), _zeros),
        proj=(_init.variance_scaling(1 / 3, "fan_in", "uniform"), _zeros),
        mlp=(_init.xavier_uniform(), _init.normal(1e-6)),
    ),
}


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); x [B T, D] holds the T tokens of each image consecutively."""

    heads: int
    tokens: int
    scheme: str

    @nn.compact
    def __call__(self, x):
        """Returns the tokens after the block, [B T, D]."""
        init = SCHEMES[self.scheme]
        width = x.shape[-1]
        x = fusion_barrier(x)
        qkv = dense(_norm(x, "norm1"), 3 * width, "qkv", *init.qkv)
        y = attention(qkv.reshape(-1, self.tokens, 3 * width), self.heads).reshape(-1, width)
        x = fusion_barrier(x + dense(y, width, "proj", *init.proj))
        y = _gelu(dense(_norm(x, "norm2"), 4 * width, "fc1", *init.mlp))
        return x + dense(y, width, "fc2", *init.mlp)


class ViT(nn.Module):
    """A vision transformer on images of any size, which it resizes to `image_size` x `image_size`.

    Grayscale images become three equal channels.

    Args:
        num_classes: C.
        patch: side of a patch in pixels; must divide image_size.
        width: D, a multiple of `heads`.
        depth: encoder blocks.
        heads: attention heads.
        image_size: pixels per side.
        scheme: initialisation, a name of `SCHEMES`.
    """

    num_classes: int
    patch: int = 16
    width: int = 384
    depth: int = 12
    heads: int = 6
    image_size: int = 224
    scheme: str = "timm"

    @nn.compact
    def __call__(self, x, mask, train: bool):
        """Returns the scores of the classes, [B, C], of images [B, H, W, D]."""
        init = SCHEMES[self.scheme]
        x = patches(rgb(resize(x, self.image_size)), self.patch)
        x = dense(x, self.width, "patch_embed", *init.patch)
        token = self.param("cls_token", init.token, (1, 1, self.width), jnp.float32)
        x = jnp.concatenate([jnp.broadcast_to(token, (len(x), 1, self.width)), x], 1)
        x = x + self.param("pos_embed", _small, (1, *x.shape[1:]), jnp.float32)
        images, tokens, _ = x.shape
        x = x.reshape(-1, self.width)
        for i in range(self.depth):
            x = Block(self.heads, tokens, self.scheme, name=f"block_{i}")(x)
        token = x.reshape(images, tokens, self.width)[:, 0]
        return dense(_norm(token, "norm"), self.num_classes, "classifier")


def vit_s16(num_classes: int, **options) -> ViT:
    """Returns ViT-S/16 with timm's initialisation: 21,667,204 parameters at 4 classes."""
    return ViT(num_classes, **options)


def vit_b16(num_classes: int, **options) -> ViT:
    """Returns ViT-B/16 with torchvision's initialisation: 85,804,039 parameters at 7 classes."""
    return ViT(num_classes, width=768, heads=12, scheme="torchvision", **options)


def blocks(path: str) -> str:
    """Returns the block of a tensor: its encoder block, `classifier` for the head, or `base`.

    >>> blocks("block_3/qkv/kernel"), blocks("pos_embed")
    ('block_3', 'base')
    """
    first = first_component(path)
    return first if first.startswith("block_") or first == "classifier" else "base"


def resize(x: Array, size: int) -> Array:
    """Resizes x [B, H, W, C] to size x size, bilinear and antialiased, as torchvision's Resize of a tensor."""
    return jax.image.resize(x, (len(x), size, size, x.shape[-1]), "bilinear")


def patches(x: Array, patch: int) -> Array:
    """Returns the patches [B, (H / patch) (W / patch), patch patch C] of x [B, H, W, C], row by row."""
    n, height, width, channels = x.shape
    x = x.reshape(n, height // patch, patch, width // patch, patch, channels).swapaxes(2, 3)
    return x.reshape(n, -1, patch * patch * channels)


def attention(qkv: Array, heads: int) -> Array:
    """Returns softmax(q k' / sqrt(d)) v of every head, [B, T, D].

    Args:
        qkv: [B, T, 3 D], the last axis is (q, k, v) x heads x d.
        heads: number of heads, D = heads x d.
    """
    n, tokens, width = qkv.shape
    parts = lax.split(qkv, [width // 3] * 3, 2)  # slices would have padded gradients to add up
    q, k, v = (part.reshape(n, tokens, heads, -1) for part in parts)
    scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) * q.shape[-1] ** -0.5
    return jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores), v).reshape(n, tokens, width // 3)


@jax.checkpoint
def _gelu(x: Array) -> Array:
    """Returns the exact GELU; only x is kept for the backward pass."""
    return nn.gelu(x, approximate=False)


def _norm(x: Array, name: str) -> Array:
    return nn.LayerNorm(epsilon=1e-6, use_fast_variance=False, name=name)(x)
