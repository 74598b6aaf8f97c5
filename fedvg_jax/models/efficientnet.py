"""EfficientNet-Lite0 (Tan and Le 2019, "Lite": ReLU6 in place of swish, no squeeze-and-excitation).

Paths follow the names of the package efficientnet-lite-pytorch: `block_3/expand_conv/kernel` is
`_blocks.3._expand_conv.weight`, and `classifier` is `_fc`. Normalisation layers are called `bn` for every kind of
normalisation.

Dropout and drop-connect, which the published training used, are left out: a step depends on its minibatch only.
Initialisation is the published one: convolutions N(0, 2 / fan_out), where a depthwise kernel's fan_out is its taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import flax.linen as nn
from jax import lax

from fedvg_jax.core.groups import first_component
from fedvg_jax.models import resnet
from fedvg_jax.models.layers import dense, plain_conv, rgb

NORMS = {name: partial(norm, eps=1e-3) for name, norm in resnet.NORMS.items()}
"""The published momentum of 0.01 suits thousands of steps. A client takes tens, which would leave most of the old
statistics, so it is torch's default."""

STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
"""(blocks, kernel, stride of the first block, expansion, features) of each stage of B0 and Lite0."""


class InvertedResidual(nn.Module):
    """y = project(depthwise(expand(x))), each normalised, the first two with ReLU6; x is added where shapes agree."""

    features: int
    kernel: int
    stride: int
    expansion: int
    """Channels between expand and project, per channel of x; 1 leaves out expand."""
    norm: str
    """A name of `NORMS`."""

    @nn.compact
    def __call__(self, x, mask, train: bool):
        """Returns the activations after the block, [B, H, W, features]."""
        norm = NORMS[self.norm]
        channels = self.expansion * x.shape[-1]
        y = x
        if self.expansion > 1:
            y = nn.relu6(norm(name="bn0")(_conv(y, channels, 1, 1, "expand_conv"), mask, train))
        y = _conv(y, channels, self.kernel, self.stride, "depthwise_conv", groups=channels)
        y = nn.relu6(norm(name="bn1")(y, mask, train))
        y = norm(name="bn2")(_conv(y, self.features, 1, 1, "project_conv"), mask, train)
        return x + y if x.shape == y.shape else y


class EfficientNet(nn.Module):
    """Stem of 3x3 and stride 2, stages of inverted residual blocks, 1x1 convolution, global mean, dense layer.

    Grayscale images become three equal channels.

    Args:
        num_classes: C.
        stages: as `STAGES`.
        stem: features of the stem.
        head: features of the last convolution, and of the global mean.
        norm: a name of `NORMS`.
    """

    num_classes: int
    stages: Sequence[tuple[int, int, int, int, int]] = STAGES
    stem: int = 32
    head: int = 1280
    norm: str = "batch"

    @nn.compact
    def __call__(self, x, mask, train: bool):
        """Returns the scores of the classes, [B, C], of images [B, H, W, D]."""
        norm = NORMS[self.norm]
        x = nn.relu6(norm(name="bn0")(_conv(rgb(x), self.stem, 3, 2, "conv_stem"), mask, train))
        number = 0
        for depth, kernel, stride, expansion, features in self.stages:
            for i in range(depth):
                settings = (features, kernel, 1 if i else stride, expansion, self.norm)
                x = InvertedResidual(*settings, name=f"block_{number}")(x, mask, train)
                number += 1
        x = nn.relu6(norm(name="bn1")(_conv(x, self.head, 1, 1, "conv_head"), mask, train))
        return dense(x.mean((1, 2)), self.num_classes, "classifier")


def efficientnet_lite0(num_classes: int, **options) -> EfficientNet:
    """Returns EfficientNet-Lite0: 3,383,818 parameters at 10 classes."""
    return EfficientNet(num_classes, **options)


def blocks(path: str) -> str:
    """Returns the block of a tensor: its inverted residual block, `stem`, `head` or `classifier`.

    >>> blocks("block_2/bn1/scale"), blocks("bn1/scale"), blocks("conv_stem/kernel")
    ('block_2', 'head', 'stem')
    """
    first = first_component(path)
    return {"conv_stem": "stem", "bn0": "stem", "conv_head": "head", "bn1": "head"}.get(
        first, first
    )


def _conv(x, features: int, kernel: int, stride: int, name: str, groups: int = 1):
    """Applies a convolution without bias, padded as TensorFlow's "SAME" for the size of x."""
    init = nn.initializers.normal((2 / (kernel**2 * features // groups)) ** 0.5)
    padding = lax.padtype_to_pads(x.shape[1:3], (kernel, kernel), (stride, stride), "SAME")
    return plain_conv(x, features, kernel, stride, padding, init, name, groups)
