"""LeNet5 with BatchNorm, the reference code's small network."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
from jax import lax

from fedvg_jax.models.conv import max_pool
from fedvg_jax.models.layers import conv, dense, flatten
from fedvg_jax.models.norm import BatchNorm


class LeNet5(nn.Module):
    """5x5 convolutions 6 and 16, each BatchNorm, ReLU, max-pool; dense 120, 84. 62,050 parameters at 3 x 32 x 32."""

    num_classes: int
    conv: Callable = lax.conv_general_dilated

    @nn.compact
    def __call__(self, x, mask, train: bool):
        x = conv(x, 6, 5, "conv1", self.conv)
        x = max_pool(nn.relu(BatchNorm(name="bn1")(x, mask, train)), 2)
        x = conv(x, 16, 5, "conv2", self.conv)
        x = max_pool(nn.relu(BatchNorm(name="bn2")(x, mask, train)), 2)
        x = nn.relu(dense(flatten(x), 120, "fc1"))
        x = nn.relu(dense(x, 84, "fc2"))
        return dense(x, self.num_classes, "classifier")
