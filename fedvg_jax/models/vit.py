"""Vision transformers (Dosovitskiy et al. 2021): ViT-S/16 as in timm, ViT-B/16 as in torchvision.

Both are one network: pre-norm encoder, LayerNorm eps 1e-6, exact GELU, queries, keys and values in one tensor,
learned class token and position embeddings, the class token's final LayerNorm into the head, no dropout. They differ
in how they start from scratch, `SCHEMES`; the head is torch's default in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.models.layers import computed_once, dense, rgb

_init = nn.initializers
_zeros = _init.zeros

# torch's trunc_normal_ cuts at +-2, which is 100 deviations here: a normal
_small = _init.normal(0.02)


class Scheme(NamedTuple):
    """Initialisers; of a dense layer, those of kernel and bias, nothing for torch's default U(+-1/sqrt(fan_in))."""

    patch: tuple[Callable, ...]
    token: Callable
    position: Callable
    qkv: tuple[Callable, ...]
    proj: tuple[Callable, ...]
    mlp: tuple[Callable, ...]


SCHEMES = {
    "timm": Scheme((), _init.normal(1e-6), _small, (_small, _zeros), (_small, _zeros), (_small, _zeros)),
    "torchvision": Scheme(
        patch=(_init.variance_scaling(1, "fan_in", "normal"), _zeros),
        token=_zeros,
        position=_small,
        qkv=(_init.xavier_uniform(), _zeros),
        proj=(_init.variance_scaling(1 / 3, "fan_in", "uniform"), _zeros),
        mlp=(_init.xavier_uniform(), _init.normal(1e-6)),
    ),
}


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); x [B T, D], the T tokens of one image after those of another."""

    heads: int
    tokens: int
    scheme: str

    @nn.compact
    def __call__(self, x):
        init, width = SCHEMES[self.scheme], x.shape[-1]
        x = computed_once(x)
        qkv = dense(_norm(x, "norm1"), 3 * width, "qkv", *init.qkv)
        y = attention(qkv.reshape(-1, self.tokens, 3 * width), self.heads).reshape(-1, width)
        x = computed_once(x + dense(y, width, "proj", *init.proj))
        y = _gelu(dense(_norm(x, "norm2"), 4 * width, "fc1", *init.mlp))
        return x + dense(y, width, "fc2", *init.mlp)


class ViT(nn.Module):
    """Images of any size, resized to `image_size` squared inside the program; grayscale becomes three channels.

    Args:
        patch: pixels a side; divides image_size.
        width: D; `heads` divides it.
        scheme: how it starts, "timm" or "torchvision".
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
        init = SCHEMES[self.scheme]
        x = dense(patches(rgb(resize(x, self.image_size)), self.patch), self.width, "patch_embed", *init.patch)
        token = self.param("cls_token", init.token, (1, 1, self.width), jnp.float32)
        x = jnp.concatenate([jnp.broadcast_to(token, (len(x), 1, self.width)), x], 1)
        x = x + self.param("pos_embed", init.position, (1, *x.shape[1:]), jnp.float32)
        images, tokens, _ = x.shape
        x = x.reshape(-1, self.width)
        for i in range(self.depth):
            x = Block(self.heads, tokens, self.scheme, name=f"block_{i}")(x)
        token = x.reshape(images, tokens, self.width)[:, 0]
        return dense(_norm(token, "norm"), self.num_classes, "classifier")


def vit_s16(num_classes: int, **options) -> ViT:
    """21,667,204 parameters at 4 classes."""
    return ViT(num_classes, **options)


def vit_b16(num_classes: int, **options) -> ViT:
    """85,804,039 parameters at 7 classes."""
    return ViT(num_classes, width=768, heads=12, scheme="torchvision", **options)


def blocks(path: str) -> str:
    """Every encoder block is a block, the head is `classifier`, the rest `base`."""
    first = path.split("/")[0]
    return first if first.startswith("block_") or first == "classifier" else "base"


def resize(x: Array, size: int) -> Array:
    """Bilinear to size x size, antialiased where it shrinks, as torchvision's Resize of a tensor; x [B, H, W, C]."""
    return jax.image.resize(x, (len(x), size, size, x.shape[-1]), "bilinear")


def patches(x: Array, patch: int) -> Array:
    """[B, H, W, C] -> [B, (H / patch) (W / patch), patch patch C], rows of the image first."""
    n, height, width, channels = x.shape
    x = x.reshape(n, height // patch, patch, width // patch, patch, channels).swapaxes(2, 3)
    return x.reshape(n, -1, patch * patch * channels)


def attention(qkv: Array, heads: int) -> Array:
    """softmax(q k' / sqrt(d)) v for each head; qkv [B, T, 3 D], the last axis (q, k, v) x heads x d -> [B, T, D]."""
    n, tokens, width = qkv.shape
    parts = lax.split(qkv, [width // 3] * 3, 2)  # gradients of slices would be padded and added up
    q, k, v = (part.reshape(n, tokens, heads, -1) for part in parts)
    scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) * q.shape[-1] ** -0.5
    return jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores), v).reshape(n, tokens, width // 3)


@jax.checkpoint
def _gelu(x: Array) -> Array:
    """Exact; of x nothing else is kept for the backward pass."""
    return nn.gelu(x, approximate=False)


def _norm(x: Array, name: str) -> Array:
    return nn.LayerNorm(epsilon=1e-6, use_fast_variance=False, name=name)(x)
