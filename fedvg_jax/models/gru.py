"""A recurrent network that predicts the next character at every place of a sequence."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.models.layers import dense, uniform


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
        return dense(GatedRecurrence(self.hidden, name="gru")(embedded), self.num_classes, "classifier")


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
            own, past = jnp.split(gates, 3, -1), jnp.split(state @ kernel, 3, -1)
            reset, update = nn.sigmoid(own[0] + past[0]), nn.sigmoid(own[1] + past[1])
            candidate = jnp.tanh(own[2] + reset * (past[2] + bias[None]))
            state = (1 - update) * candidate + update * state
            return state, state

        start = jnp.zeros((x.shape[0], self.hidden), gates.dtype)
        return lax.scan(step, start, gates.swapaxes(0, 1))[1].swapaxes(0, 1)
