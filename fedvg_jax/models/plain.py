"""Networks without blocks: an MLP and a linear classifier, small CNNs, and a GRU that predicts characters."""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.models.layers import BatchNorm, conv, dense, pool, uniform


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


class GRU(nn.Module):
    """Embedding, one layer of gated recurrent units, and a dense layer at every place."""

    num_classes: int
    """C, different characters."""
    width: int = 32
    """Size of a character's embedding."""
    hidden: int = 64
    """H, gated recurrent units."""

    @nn.compact
    def __call__(self, x, mask, train: bool):
        """Returns the scores of the next character, [B, L, C], of numbers of characters [B, L]."""
        embedded = nn.Embed(self.num_classes, self.width, name="embed")(x)
        return dense(
            GatedRecurrence(self.hidden, name="gru")(embedded), self.num_classes, "classifier"
        )


class GatedRecurrence(nn.Module):
    """Gated recurrent units along the second axis, from state 0.

        r_t = sigma(W_r x_t + b_r + U_r h_{t-1})
        z_t = sigma(W_z x_t + b_z + U_z h_{t-1})
        n_t = tanh(W_n x_t + b_n + r_t * (U_n h_{t-1} + c))
        h_t = (1 - z_t) * n_t + z_t * h_{t-1}

    The equations are torch's `GRU`, without its biases of U_r and U_z, which b_r and b_z make redundant. All start from
    torch's U(-1/sqrt(H), 1/sqrt(H)).

    Source: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", EMNLP 2014.
    """

    hidden: int

    @nn.compact
    def __call__(self, x):
        """Returns the states h [B, L, H] of inputs x [B, L, E]."""
        init = uniform(self.hidden)
        gates = dense(x, 3 * self.hidden, "input", init, init)  # one matmul for all places
        kernel = self.param("recurrent", init, (self.hidden, 3 * self.hidden), jnp.float32)
        bias = self.param("candidate_bias", init, (self.hidden,), jnp.float32)

        def step(state: Array, gates: Array) -> tuple[Array, Array]:
            present = jnp.split(gates, 3, -1)
            past = jnp.split(state @ kernel, 3, -1)
            reset = nn.sigmoid(present[0] + past[0])
            update = nn.sigmoid(present[1] + past[1])
            candidate = jnp.tanh(present[2] + reset * (past[2] + bias[None]))
            state = (1 - update) * candidate + update * state
            return state, state

        start = jnp.zeros((len(x), self.hidden), gates.dtype)
        return lax.scan(step, start, gates.swapaxes(0, 1))[1].swapaxes(0, 1)


class MLP(nn.Module):
    """Dense layers with ReLU in between."""

    num_classes: int
    hidden: Sequence[int] = (200, 200)
    """Widths of the hidden layers."""

    @nn.compact
    def __call__(self, x, mask, train: bool):
        """Returns the scores of the classes, [B, C], of images [B, H, W, D]."""
        x = x.reshape(len(x), -1)
        for i, width in enumerate(self.hidden):
            x = nn.relu(dense(x, width, f"fc{i + 1}"))
        return dense(x, self.num_classes, "classifier")


class Linear(nn.Module):
    """Logistic regression."""

    num_classes: int

    @nn.compact
    def __call__(self, x, mask, train: bool):
        """Returns the scores of the classes, [B, C], of rows [B, ...]."""
        return NarrowDense(self.num_classes, name="classifier")(x.reshape(len(x), -1))


class NarrowDense(nn.Module):
    """x W^T + b with torch's initialisation, for few features.

    W is [F, D], as in torch. In that shape XLA's CPU back end takes 0.63 of the time for a step of 10 features.
    """

    features: int

    @nn.compact
    def __call__(self, x):
        """Returns [..., F] of x [..., D]."""
        init = uniform(x.shape[-1])
        weight = self.param("weight", init, (self.features, x.shape[-1]), jnp.float32)
        bias = self.param("bias", init, (self.features,), jnp.float32)
        y = x @ weight.T
        return y + jnp.broadcast_to(bias, y.shape)
