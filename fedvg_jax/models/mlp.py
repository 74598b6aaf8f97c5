"""A multilayer perceptron on flattened images, and a linear classifier."""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp

from fedvg_jax.models.layers import dense, uniform


class MLP(nn.Module):
    """Dense layers with ReLU in between."""

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


class Linear(nn.Module):
    """Logistic regression."""

    num_classes: int

    @nn.compact
    def __call__(self, x, mask, train: bool):
        """Returns the scores of the classes, [B, C], of rows [B, ...]."""
        return NarrowDense(self.num_classes, name="classifier")(x.reshape(x.shape[0], -1))


class NarrowDense(nn.Module):
    """x W^T + b with torch's initialisation, for few features.

    W is [F, D], as in torch. In that shape XLA's CPU back end takes 0.63 of the time for a step of 10 features.
    """

    features: int

    @nn.compact
    def __call__(self, x):
        """Returns [..., F] of x [..., D]."""
        weight = self.param("weight", uniform(x.shape[-1]), (self.features, x.shape[-1]), jnp.float32)
        bias = self.param("bias", uniform(x.shape[-1]), (self.features,), jnp.float32)
        y = x @ weight.T
        return y + jnp.broadcast_to(bias, y.shape)
