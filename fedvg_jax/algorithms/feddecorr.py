"""FedDecorr: a penalty on correlated features keeps skewed local data from collapsing them to few dimensions.

    loss <- loss + beta (1 / d^2) ||K||_F^2

with the correlation matrix K [d, d] of the d features over the B rows of the minibatch. For standardised features
Z [B, d], K = Z^T Z / B has the norm of Z Z^T / B, which is [B, B]: minibatches have fewer rows than networks features.

Source: Shi et al., "Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated Learning",
ICLR 2023, equations 6 and 7, with weights n_k / sum_j n_j. Features are the input of the network's last layer.

The derivative by a feature is about 1 / sqrt(var + eps). The published code has eps = 1e-8: a ReLU that is barely
active in a minibatch then has derivatives up to 1e4, which amplify rounding. After a round of 8 clients of the digits,
1 and 4 lanes differ by 1.4e-3 in float32, by 1.5e-8 at eps = 1e-5, and by 0 under FedAvg.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fedvg_jax.algorithms.base import PLAIN, features_of, forward
from fedvg_jax.core.types import (
    Algorithm,
    Anchor,
    Hyper,
    Hyperparameter,
    NamedAlgorithm,
    Task,
    Tree,
)

BETA = Hyperparameter("feddecorr.beta", 0.1, 0, doc="Weight of the penalty.")

EPS = 1e-8
"""eps of the published code, added to the variance of a feature, which a ReLU that is never active has at 0."""


def feddecorr() -> Algorithm:
    """Returns FedDecorr, which reads `feddecorr.beta`. At beta = 0 it is FedAvg."""
    return PLAIN._replace(loss=loss, reads_features=True, hyperparameters=(BETA,))


def loss(
    hyper: Hyper,
    task: Task,
    params: Tree,
    stats: Tree,
    batch: Tree,
    mask: Array,
    key: Array,
    anchor: Anchor,
) -> tuple[Array, Tree]:
    """Returns the task's loss + beta (1 / d^2) ||K||_F^2."""
    outputs, new_stats = forward(task, params, stats, batch, mask, key)
    return outputs.loss + hyper[BETA.name] * mean_squared_correlation(
        features_of(outputs), mask
    ), new_stats


def mean_squared_correlation(features: Array, mask: Array) -> Array:
    """Returns (1 / d^2) ||K||_F^2 [] of features [B, d] over the rows of a mask [B].

    >>> x = jnp.array([[1.0, 2.0, 1.0], [2.0, 4.0, 0.0], [9.0, 9.0, 9.0]])
    >>> mean_squared_correlation(x, jnp.arange(3) < 2).round(3)  # all correlations are 1 or -1
    Array(1., dtype=float32)
    """
    count = jnp.maximum(mask.sum(), 1).astype(features.dtype)
    rows = mask[:, None]
    mean = jnp.where(rows, features, 0).sum(0, keepdims=True) / count
    centred = jnp.where(rows, features - mean, 0)
    scaled = centred * jax.lax.rsqrt((centred**2).sum(0, keepdims=True) / count + EPS)
    return ((scaled @ scaled.T / count / features.shape[-1]) ** 2).sum()


ENTRY = NamedAlgorithm("FedDecorr", feddecorr, (BETA,))
