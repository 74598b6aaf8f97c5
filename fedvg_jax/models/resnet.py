"""Residual networks (He et al. 2016) as in torchvision ("v1.5": a bottleneck strides in its 3x3 convolution).

Paths follow torchvision's names: `layer1_0/conv1/kernel` is `layer1.0.conv1.weight`, `layer2_0/downsample_1/scale` is
`layer2.0.downsample.1.weight`, and `classifier` is `fc`. Normalisation layers are called `bn` for every kind of
normalisation, as in torchvision.

Initialisation is torchvision's: convolutions N(0, 2 / fan_out); normalisation scale 1 and bias 0, also at the end of a
residual block; the head torch's default.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import flax.linen as nn

from fedvg_jax.core.groups import first_component
from fedvg_jax.models.layers import BatchNorm, GroupNorm, dense, plain_conv, rgb

NORMS = {"batch": BatchNorm, "frozen": partial(BatchNorm, is_frozen=True), "group": GroupNorm}

_kaiming = nn.initializers.variance_scaling(2, "fan_out", "normal")


class Residual(nn.Module):
    """y = relu(x + f(x)), where f is a chain of convolutions, each normalised, with ReLU in between.

    Where the shapes of x and f(x) differ, x passes through a strided 1x1 convolution and normalisation.
    """

    layers: Sequence[tuple[int, int, int]]
    """(features, kernel, stride) of each convolution."""
    norm: str
    """A name of `NORMS`."""

    @nn.compact
    def __call__(self, x, mask, train: bool):
        """Returns the activations after the block, [B, H, W, channels]."""
        norm = NORMS[self.norm]
        y = x
        for i, layer in enumerate(self.layers, 1):
            y = nn.relu(y) if i > 1 else y
            y = norm(name=f"bn{i}")(_conv(y, *layer, f"conv{i}"), mask, train)
        if x.shape != y.shape:
            stride = max(stride for _, _, stride in self.layers)
            x = _conv(x, y.shape[-1], 1, stride, "downsample_0")
            x = norm(name="downsample_1")(x, mask, train)
        return nn.relu(x + y)


class ResNet(nn.Module):
    """Stem, stages of residual blocks with `width`, 2 `width`, ... features, global mean, dense layer.

    Every stage except the first halves the image. Grayscale images become three equal channels.

    Args:
        num_classes: C.
        depths: residual blocks of each stage.
        bottleneck: whether a block is 1x1, 3x3 and 1x1 with four times the features, instead of two 3x3.
        width: features of the first stage.
        stem: "imagenet", 7x7 stride 2 and 3x3 max-pool stride 2; or "cifar", 3x3.
        norm: a name of `NORMS`.
    """

    num_classes: int
    depths: Sequence[int]
    bottleneck: bool = False
    width: int = 64
    stem: str = "imagenet"
    norm: str = "batch"

    @nn.compact
    def __call__(self, x, mask, train: bool):
        """Returns the scores of the classes, [B, C], of images [B, H, W, D]."""
        is_imagenet = {"imagenet": True, "cifar": False}[self.stem]
        x = _conv(rgb(x), self.width, *((7, 2) if is_imagenet else (3, 1)), "conv1")
        x = nn.relu(NORMS[self.norm](name="bn1")(x, mask, train))
        if is_imagenet:  # flax declares padding as str, and takes pairs too
            x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))  # pyright: ignore[reportArgumentType]
        for stage, depth in enumerate(self.depths):
            for i in range(depth):
                layers = self._layers(self.width * 2**stage, 2 if stage and not i else 1)
                x = Residual(layers, self.norm, name=f"layer{stage + 1}_{i}")(x, mask, train)
        return dense(x.mean((1, 2)), self.num_classes, "classifier")

    def _layers(self, features: int, stride: int) -> Sequence[tuple[int, int, int]]:
        if self.bottleneck:
            return (features, 1, 1), (features, 3, stride), (4 * features, 1, 1)
        return (features, 3, stride), (features, 3, 1)


def resnet18(num_classes: int, **options) -> ResNet:
    """Returns ResNet-18: 11,181,642 parameters at 10 classes."""
    return ResNet(num_classes, (2, 2, 2, 2), **options)


def resnet34(num_classes: int, **options) -> ResNet:
    """Returns ResNet-34: 21,289,802 parameters at 10 classes."""
    return ResNet(num_classes, (3, 4, 6, 3), **options)


def resnet50(num_classes: int, **options) -> ResNet:
    """Returns ResNet-50: 23,528,522 parameters at 10 classes."""
    return ResNet(num_classes, (3, 4, 6, 3), bottleneck=True, **options)


def blocks_residual(path: str) -> str:
    """Returns the block of a tensor: its residual block, `stem` or `classifier`.

    >>> blocks_residual("layer2_0/bn1/scale"), blocks_residual("conv1/kernel")
    ('layer2_0', 'stem')
    """
    first = first_component(path)
    return "stem" if first in ("conv1", "bn1") else first


def blocks_stage(path: str) -> str:
    """Returns the block of a tensor in the reference code's six: `base` (the stem), `layer1` to `layer4`, `classifier`.

    >>> blocks_stage("layer2_0/bn1/scale"), blocks_stage("conv1/kernel")
    ('layer2', 'base')
    """
    block = blocks_residual(path)
    return "base" if block == "stem" else block.split("_")[0]


def _conv(x, features: int, kernel: int, stride: int, name: str):
    """Applies a convolution without bias, padded by half its kernel on both sides as in torch, which "SAME" is not."""
    return plain_conv(x, features, kernel, stride, [(kernel // 2, kernel // 2)] * 2, _kaiming, name)
