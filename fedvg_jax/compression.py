"""What clients send of their updates: factories of `Send`.

QSGD: every entry of a tensor is rounded at random to one of s levels of the tensor's norm, without bias.

    Q(v_i) = ||v||_2 sgn(v_i) (l_i + b_i) / s,   l_i = floor(a_i),   P(b_i = 1) = a_i - l_i,   a_i = s |v_i| / ||v||_2

An entry takes a sign and one of s + 1 levels, of fixed width; a tensor takes its norm. The derivative is the derivative
of the mean of Q(v), which is v.

Source: Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD: Communication-Efficient SGD via Gradient Quantization and
Encoding", NeurIPS 2017, without its Elias code.

Top-k with error feedback: a client sends the largest entries, and adds what it left out to its next update.

    x = delta_k + e_k        sent = the k entries of x with the largest |x|, over all tensors        e_k <- x - sent

Source: Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, with one residual for each client.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from fedvg_jax.core import norms, tree
from fedvg_jax.core.types import Argument, Choice, Range, Send

__all__ = ["BY_NAME", "qsgd", "top_k"]

# --- QSGD


def qsgd(levels: int = 4) -> Send:
    """Returns stochastic uniform quantisation with s = `levels` levels of each tensor's L2 norm; clients keep nothing.

    >>> arrived, _ = qsgd(1).apply({}, jax.random.key(0), {"w": jnp.array([0.0, -3.0])}, ())
    >>> arrived["w"].tolist()
    [0.0, -3.0]
    """
    LEVELS.require("qsgd: levels", levels)

    def quantise(key, v):
        norm = norms.l2(v).astype(v.dtype)
        scaled = levels * jnp.abs(v) / jnp.where(norm > 0, norm, 1)
        level = jnp.floor(scaled)
        level += jax.random.bernoulli(key, scaled - level).astype(v.dtype)
        return v + lax.stop_gradient(norm * jnp.sign(v) * level / levels - v)

    def apply(hyper, key, delta, state):
        leaves, structure = jax.tree.flatten(delta)
        keys = [jax.random.fold_in(key, number) for number in range(len(leaves))]
        return structure.unflatten(map(quantise, keys, leaves)), state

    def num_bytes(params):
        bits = tree.size(params) * (1 + levels.bit_length())
        return -(-bits // 8) + sum(leaf.dtype.itemsize for leaf in jax.tree.leaves(params))

    return Send(lambda hyper, params: (), apply, num_bytes, f"qsgd:{levels}")


# --- top-k


INDEX_BYTES = 4
"""Of the position of an entry, int32."""


def top_k(fraction: float = 0.01) -> Send:
    """Returns top-k with error feedback, where k = max(1, round(fraction d)) of the d numbers of an update are sent.

    Args:
        fraction: in (0, 1].

    >>> compress = top_k(0.5)
    >>> arrived, error = compress.apply({}, None, {"w": jnp.array([1.0, -3.0])}, {"w": jnp.array([0.5, 0.0])})
    >>> arrived["w"].tolist(), error["w"].tolist()
    ([0.0, -3.0], [1.5, 0.0])
    """
    fraction = FRACTION.require("top_k: fraction", fraction)

    def count(params):
        return max(1, round(fraction * tree.size(params)))

    def apply(hyper, key, delta, error):
        values, restore = ravel_pytree(tree.add(delta, error))
        _, places = lax.top_k(jnp.abs(values), count(delta))
        sent = jnp.zeros_like(values).at[places].set(values[places])
        return restore(sent), restore(values - sent)

    def num_bytes(params):
        return count(params) * (
            INDEX_BYTES + max(leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
        )

    text = f"topk:{fraction}"
    return Send(lambda hyper, params: tree.zeros_like(params), apply, num_bytes, text)


FRACTION, LEVELS = Range(0, 1, excludes_low=True), Range(1)

BY_NAME = {
    "none": None,
    "topk": Choice(top_k, Argument(0.01, FRACTION)),
    "qsgd": Choice(qsgd, Argument(4, LEVELS)),
}
"""The compressions that the setting `send` names."""
