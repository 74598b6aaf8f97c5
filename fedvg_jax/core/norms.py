"""Norms of one tensor: tensor -> non-negative scalar, in at least float32. Each has gradient 0, never NaN, at 0."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from fedvg_jax.core import tree
from fedvg_jax.core.types import Norm, Tree
from fedvg_jax.host import hardware as hw

__all__ = ["l1", "l2", "spectral", "spectral_l2"]


def l1(x: Array) -> Array:
    """Returns sum |x|, the published norm."""
    x = tree.wide(x)
    return jnp.sum(x * jnp.sign(x))  # sign(0) = 0, whereas jnp.abs has derivative +1 at 0


def l2(x: Array) -> Array:
    """Returns sqrt(sum x^2).

    Squares must be normal numbers: in float32 entries below 1e-19 count as 0, and a norm above 1.8e19 is infinite.
    """
    return optax.safe_norm(tree.wide(x).reshape(-1), 0.0)


def joint_l2(tensors: Tree) -> Array:
    """Returns the L2 norm of all entries of a pytree together.

    `optax.tree.norm` has gradient NaN where all entries are 0.

    >>> float(joint_l2({"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}))
    5.0
    """
    return l2(jnp.stack([l2(x) for x in jax.tree.leaves(tensors)]))


def spectral(x: Array) -> Array:
    """Returns the largest singular value of a tensor as a matrix [product of leading axes, last axis].

    It is 0 for a vector and for a tensor without entries.

    A kernel [h, w, in, out] has the singular values of torch's [out, in h w]. The computation is exact, from the
    eigenvectors of the smaller Gram matrix. For [4608, 512] it takes 25 ms on a CPU core, an SVD 50 ms. Power iteration
    takes 3 to 15 ms, but needs a tolerance and slows down for close singular values. The gradient is u v'; if the
    largest singular value is repeated, u and v are one of its pairs of vectors.

    >>> float(spectral(jnp.array([[3.0, 0.0], [0.0, -4.0], [0.0, 0.0]])))
    4.0
    """
    x = tree.wide(x)  # LAPACK has no half precision
    return _largest(x.reshape(-1, x.shape[-1])) if x.ndim > 1 and x.size else jnp.zeros((), x.dtype)


def spectral_l2(x: Array) -> Array:
    """Returns `spectral` of matrices and `l2` of vectors, as the published code's spectral norm."""
    return spectral(x) if x.ndim > 1 else l2(x)


def largest(x: Array) -> Array:
    """Returns max x for x >= 0: the spectral norm of a block-diagonal matrix, from the norms of its blocks.

    The first of equal values takes the gradient. By its index: the gradient of `jnp.max` is 0 / 0 where a compiler
    computes x again in the backward pass and rounds it otherwise, so that no entry equals the maximum.
    """
    return x.reshape(-1)[jnp.argmax(x)]


BY_NAME = {"l1": l1, "l2": l2, "spectral": spectral, "spectral_l2": spectral_l2}

JOINED = {"l1": l1, "l2": l2, "spectral": largest, "spectral_l2": largest}
"""Name -> norm of a layer from the norms of its tensors."""


SEGMENT_ROW = 1024
"""Entries that one block of a GPU adds up in `tensor_norms`; every tensor is padded to a multiple of it."""


def tensor_norms(norm: Norm) -> Callable[[Tree], Tree]:
    """Returns the function from a pytree of tensors to the norm [] of each.

    L1 and L2 norms of all tensors can be one reduction, see `hardware.Choices.norms`.

    >>> tensor_norms(l1)({"a": jnp.array([1.0, -2.0]), "b": jnp.array([[3.0]])})
    {'a': Array(3., dtype=float32), 'b': Array(3., dtype=float32)}
    """
    is_segmented = norm in (l1, l2) and hw.choices().norms == "segmented"
    return lambda tensors: (
        _segmented(norm, tensors) if is_segmented else jax.tree.map(norm, tensors)
    )


def _segmented(norm: Norm, tensors: Tree) -> Tree:
    """Returns the L1 or L2 norm of every tensor by one reduction over rows of all of them, and one over rows."""
    leaves, structure = jax.tree.flatten(jax.tree.map(tree.wide, tensors))
    if len({leaf.dtype for leaf in leaves}) != 1:
        return jax.tree.map(norm, tensors)
    entry = (lambda x: x * jnp.sign(x)) if norm is l1 else jnp.square
    num_rows = [-(-leaf.size // SEGMENT_ROW) for leaf in leaves]
    padded = []
    for leaf, count in zip(leaves, num_rows, strict=True):
        padded += [leaf.reshape(-1), jnp.zeros(count * SEGMENT_ROW - leaf.size, leaf.dtype)]
    rows = entry(jnp.concatenate(padded).reshape(-1, SEGMENT_ROW)).sum(1)
    tensor_of_row = np.repeat(np.arange(len(leaves), dtype=np.int32), num_rows)
    is_of_tensor = (
        np.arange(len(leaves), dtype=np.int32)[:, None] == jnp.asarray(tensor_of_row)[None]
    )
    sums = jnp.where(is_of_tensor, rows[None], 0).sum(1)
    if norm is l2:  # with gradient 0 at the zero tensor
        is_zero = sums == 0  # False for NaN, which stays NaN
        sums = jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, sums)))
    return jax.tree.unflatten(structure, list(sums))


@jax.custom_jvp
def _largest(a: Array) -> Array:
    return _top(a)[0]


@_largest.defjvp
def _largest_jvp(primals, tangents):
    sigma, u, v = _top(*primals)
    return sigma, jnp.einsum("i,ij,j->", u, tangents[0], v, precision=lax.Precision.HIGHEST)


def _top(a: Array) -> tuple[Array, Array, Array]:
    """Returns the largest singular value [] and its vectors u, v; u = 0 for the zero matrix."""
    if a.shape[0] < a.shape[1]:
        sigma, v, u = _top(a.T)
        return sigma, u, v
    # the Gram matrix squares the entries, and the squares must not underflow
    # cancels in the results, and so in their derivatives
    scale = lax.stop_gradient(jnp.max(jnp.abs(a)))
    b = a / jnp.where(scale > 0, scale, 1)
    v = jnp.linalg.eigh(jnp.matmul(b.T, b, precision=lax.Precision.HIGHEST))[1][:, -1]
    w = jnp.matmul(b, v, precision=lax.Precision.HIGHEST)
    length = l2(w)
    return length * scale, w / jnp.where(length > 0, length, 1), v
