"""Plain convolutional networks without normalisation."""

from __future__ import annotations

import flax.linen as nn

from fedvg_jax.models.conv.layout import Layout, images_first
from fedvg_jax.models.layers import Conv, dense


class CNN(nn.Module):
    """FedAvg's CNN (McMahan et al. 2017): 5x5 convolutions with 32 and 64 channels, dense 512.

    878,538 parameters at 3 x 32 x 32 and 10 classes.
    """

    num_classes: int
    layout: Layout = images_first()

    @nn.compact
    def __call__(self, x, mask, train: bool):
        """Returns the scores of the classes, [B, C], of images [B, H, W, D]."""
        layout = self.layout
        x = layout.from_nhwc(x)
        x = nn.relu(layout.pool(Conv(32, 5, layout, pooled=True, name="conv1")(x)))
        x = nn.relu(layout.pool(Conv(64, 5, layout, pooled=True, name="conv2")(x)))
        x = nn.relu(dense(layout.flatten(x), 512, "fc1"))
        return dense(x, self.num_classes, "classifier")


class TinyCNN(nn.Module):
    """Two padded 3x3 convolutions with 16 and 32 channels, dense 64; for 8 x 8 images."""

    num_classes: int
    layout: Layout = images_first()

    @nn.compact
    def __call__(self, x, mask, train: bool):
        """Returns the scores of the classes, [B, C], of images [B, H, W, D]."""
        layout = self.layout
        x = layout.from_nhwc(x)
        x = nn.relu(layout.pool(Conv(16, 3, layout, "SAME", pooled=True, name="conv1")(x)))
        x = nn.relu(layout.pool(Conv(32, 3, layout, "SAME", pooled=True, name="conv2")(x)))
        x = nn.relu(dense(layout.flatten(x), 64, "fc1"))
        return dense(x, self.num_classes, "classifier")
