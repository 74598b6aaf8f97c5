"""LeNet5 with BatchNorm, the reference code's small network."""

from __future__ import annotations

import flax.linen as nn

from fedvg_jax.models.conv.layout import Layout, images_first
from fedvg_jax.models.layers import Conv, dense
from fedvg_jax.models.norm import BatchNorm


class LeNet5(nn.Module):
    """5x5 convolutions with 6 and 16 channels, each followed by BatchNorm, max-pool and ReLU; dense 120 and 84.

    62,050 parameters at 3 x 32 x 32 and 10 classes.
    """

    num_classes: int
    layout: Layout = images_first()

    @nn.compact
    def __call__(self, x, mask, train: bool):
        """Returns the scores of the classes, [B, C], of images [B, H, W, D]."""
        layout = self.layout
        x = layout.from_nhwc(x)
        x = Conv(6, 5, layout, pooled=True, name="conv1")(x)
        x = nn.relu(layout.pool(BatchNorm(rows=layout.images, channels=layout.channels, name="bn1")(x, mask, train)))
        x = Conv(16, 5, layout, pooled=True, name="conv2")(x)
        x = nn.relu(layout.pool(BatchNorm(rows=layout.images, channels=layout.channels, name="bn2")(x, mask, train)))
        x = nn.relu(dense(layout.flatten(x), 120, "fc1"))
        x = nn.relu(dense(x, 84, "fc2"))
        return dense(x, self.num_classes, "classifier")
