"""Small convolutional networks: LeNet5 with BatchNorm, and two without normalisation."""

from __future__ import annotations

import flax.linen as nn

from fedvg_jax.models.layers import BatchNorm, conv, dense, pool


class LeNet5(nn.Module):
    """5x5 convolutions with 6 and 16 channels, each followed by BatchNorm, max-pool and ReLU; dense 120 and 84.

    62,050 parameters at 3 x 32 x 32 and 10 classes.
    """

    num_classes: int

    @nn.compact
    def __call__(self, x, mask, train: bool):
        """Returns the scores of the classes, [B, C], of images [B, H, W, D]."""
        x = BatchNorm(name="bn1")(conv(x, 6, 5, "conv1"), mask, train)
        x = nn.relu(pool(x))
        x = BatchNorm(name="bn2")(conv(x, 16, 5, "conv2"), mask, train)
        x = nn.relu(pool(x))
        x = nn.relu(dense(x.reshape(len(x), -1), 120, "fc1"))
        x = nn.relu(dense(x, 84, "fc2"))
        return dense(x, self.num_classes, "classifier")


class CNN(nn.Module):
    """FedAvg's CNN (McMahan et al. 2017): 5x5 convolutions with 32 and 64 channels, dense 512.

    878,538 parameters at 3 x 32 x 32 and 10 classes.
    """

    num_classes: int

    @nn.compact
    def __call__(self, x, mask, train: bool):
        """Returns the scores of the classes, [B, C], of images [B, H, W, D]."""
        x = nn.relu(pool(conv(x, 32, 5, "conv1")))
        x = nn.relu(pool(conv(x, 64, 5, "conv2")))
        x = nn.relu(dense(x.reshape(len(x), -1), 512, "fc1"))
        return dense(x, self.num_classes, "classifier")


class TinyCNN(nn.Module):
    """Two padded 3x3 convolutions with 16 and 32 channels, dense 64; for 8 x 8 images."""

    num_classes: int

    @nn.compact
    def __call__(self, x, mask, train: bool):
        """Returns the scores of the classes, [B, C], of images [B, H, W, D]."""
        x = nn.relu(pool(conv(x, 16, 3, "conv1", "SAME")))
        x = nn.relu(pool(conv(x, 32, 3, "conv2", "SAME")))
        x = nn.relu(dense(x.reshape(len(x), -1), 64, "fc1"))
        return dense(x, self.num_classes, "classifier")
