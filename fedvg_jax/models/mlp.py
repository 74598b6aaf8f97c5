"""A multilayer perceptron on flattened images."""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn

from fedvg_jax.models.layers import dense


class MLP(nn.Module):
    """Dense layers with ReLU in between; without hidden layers it is logistic regression."""

    num_classes: int
    hidden: Sequence[int] = (200, 200)
    """Widths of the hidden layers."""

    @nn.compact
    def __call__(self, x, mask, train: bool):
        """Returns the scores of the classes, [B, C], of images [B, H, W, D]."""
        x = x.reshape(x.shape[0], -1)
        for i, width in enumerate(self.hidden):
            x = nn.relu(dense(x, width, f"fc{i + 1}"))
        return dense(x, self.num_classes, "classifier")
