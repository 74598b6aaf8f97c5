"""QSGD: every entry of a tensor is rounded at random to one of s levels of the tensor's norm, without bias.

    Q(v_i) = ||v||_2 sgn(v_i) (l_i + b_i) / s,   l_i = floor(a_i),   P(b_i = 1) = a_i - l_i,   a_i = s |v_i| / ||v||_2

An entry takes a sign and one of s + 1 levels, of fixed width; a tensor its norm. Derivatives are those of the mean of
Q(v), which is v.

Source: Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD: Communication-Efficient SGD via Gradient Quantization and
Encoding", NeurIPS 2017, without its Elias code.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedvg_jax.core import norms, tree
from fedvg_jax.core.types import Hyper, Send, Tree, UsageError


def qsgd(levels: int = 4) -> Send:
    """Returns stochastic uniform quantisation with s = `levels` levels of each tensor's L2 norm; clients keep nothing.

    >>> arrived, _ = qsgd(1).apply({}, jax.random.key(0), {"w": jnp.array([0.0, -3.0])}, ())
    >>> arrived["w"].tolist()
    [0.0, -3.0]
    """
    if levels < 1:
        raise UsageError(f"qsgd: levels must be at least 1; got {levels}")

    def quantise(key: Array, v: Array) -> Array:
        norm = norms.l2(v).astype(v.dtype)
        scaled = levels * jnp.abs(v) / jnp.where(norm > 0, norm, 1)
        level = jnp.floor(scaled)
        level += jax.random.bernoulli(key, scaled - level).astype(v.dtype)
        return v + lax.stop_gradient(norm * jnp.sign(v) * level / levels - v)

    def apply(hyper: Hyper, key: Array, delta: Tree, memory: Tree) -> tuple[Tree, Tree]:
        leaves, structure = jax.tree.flatten(delta)
        keys = [jax.random.fold_in(key, number) for number in range(len(leaves))]
        return structure.unflatten(map(quantise, keys, leaves)), memory

    def num_bytes(params: Tree) -> int:
        bits = tree.size(params) * (1 + levels.bit_length())
        return -(-bits // 8) + sum(leaf.dtype.itemsize for leaf in jax.tree.leaves(params))

    return Send(lambda hyper, params: (), apply, num_bytes)
