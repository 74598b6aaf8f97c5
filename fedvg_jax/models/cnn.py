"""Plain convolutional networks without normalisation."""

from __future__ import annotations

import flax.linen as nn

from fedvg_jax.models.conv.layout import Layout, images_first
from fedvg_jax.models.layers import Conv, dense


class CNN(nn.Module):
    """FedAvg's two 5x5 convolutions (McMahan et al. 2017): 32, 64, dense 512. 878,538 parameters at 3 x 32 x 32."""

    num_classes: int
    layout: Layout = images_first()

    @nn.compact
    def __call__(self, x, mask, train: bool):
        at = self.layout
        x = at.enter(x)
        x = nn.relu(at.pool(Conv(32, 5, at, pooled=True, name="conv1")(x)))
        x = nn.relu(at.pool(Conv(64, 5, at, pooled=True, name="conv2")(x)))
        x = nn.relu(dense(at.flatten(x), 512, "fc1"))
        return dense(x, self.num_classes, "classifier")


class TinyCNN(nn.Module):
    """Two padded 3x3 convolutions for 8x8 images: 16, 32, dense 64."""

    num_classes: int
    layout: Layout = images_first()

    @nn.compact
    def __call__(self, x, mask, train: bool):
        at = self.layout
        x = at.enter(x)
        x = nn.relu(at.pool(Conv(16, 3, at, "SAME", pooled=True, name="conv1")(x)))
        x = nn.relu(at.pool(Conv(32, 3, at, "SAME", pooled=True, name="conv2")(x)))
        x = nn.relu(dense(at.flatten(x), 64, "fc1"))
        return dense(x, self.num_classes, "classifier")
