"""Plain convolutional networks without normalisation."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
from jax import lax

from fedvg_jax.models.conv import max_pool
from fedvg_jax.models.layers import conv, dense, flatten


class CNN(nn.Module):
    """FedAvg's two 5x5 convolutions (McMahan et al. 2017): 32, 64, dense 512. 878,538 parameters at 3 x 32 x 32."""

    num_classes: int
    conv: Callable = lax.conv_general_dilated

    @nn.compact
    def __call__(self, x, mask, train: bool):
        x = max_pool(nn.relu(conv(x, 32, 5, "conv1", self.conv)), 2)
        x = max_pool(nn.relu(conv(x, 64, 5, "conv2", self.conv)), 2)
        x = nn.relu(dense(flatten(x), 512, "fc1"))
        return dense(x, self.num_classes, "classifier")


class TinyCNN(nn.Module):
    """Two padded 3x3 convolutions for 8x8 images: 16, 32, dense 64."""

    num_classes: int
    conv: Callable = lax.conv_general_dilated

    @nn.compact
    def __call__(self, x, mask, train: bool):
        x = max_pool(nn.relu(conv(x, 16, 3, "conv1", self.conv, "SAME")), 2)
        x = max_pool(nn.relu(conv(x, 32, 3, "conv2", self.conv, "SAME")), 2)
        x = nn.relu(dense(flatten(x), 64, "fc1"))
        return dense(x, self.num_classes, "classifier")
