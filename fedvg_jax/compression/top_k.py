"""Top-k with error feedback: a client sends the largest entries, and adds what it left out to its next update.

    x = delta_k + e_k        sent = the k entries of x with the largest |x|, over all tensors        e_k <- x - sent

Source: Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, with one memory for each client.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from fedvg_jax.core import tree
from fedvg_jax.core.types import Hyper, Send, Tree, UsageError

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
    if not 0 < fraction <= 1:
        raise UsageError(f"top_k: fraction must be in (0, 1]; got {fraction}")

    def count(params: Tree) -> int:
        return max(1, round(fraction * tree.size(params)))

    def apply(hyper: Hyper, key: Array, delta: Tree, error: Tree) -> tuple[Tree, Tree]:
        values, restore = ravel_pytree(tree.add(delta, error))
        _, places = lax.top_k(jnp.abs(values), count(delta))
        sent = jnp.zeros_like(values).at[places].set(values[places])
        return restore(sent), restore(values - sent)

    def num_bytes(params: Tree) -> int:
        return count(params) * (INDEX_BYTES + max(leaf.dtype.itemsize for leaf in jax.tree.leaves(params)))

    return Send(lambda hyper, params: tree.zeros_like(params), apply, num_bytes)
