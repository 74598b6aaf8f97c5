"""FedDisco: clients with a label distribution close to the global one weigh more, beside their number of rows.

    p_k = ReLU(n_k / sum_j n_j - a d_k + b) / sum_j ReLU(n_j / sum_i n_i - a d_j + b),    d_k = || D_k - D ||_2

with the label distribution D_k of client k's training rows, the global one D, and sums over the participating clients
of the cohort. D is uniform, as the paper assumes of the test set. Where no client has a positive value, the weights are
n_k / sum_j n_j. Every client sends its label counts once, before the first round.

Source: Ye et al., "FedDisco: Federated Learning with Discrepancy-Aware Collaboration", ICML 2023.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedvg_jax.core import tree
from fedvg_jax.core.types import (
    ClientRows,
    Hyper,
    Hyperparameter,
    NamedWeighting,
    ServerView,
    Tree,
    Variables,
    Weighting,
)
from fedvg_jax.weightings import signals
from fedvg_jax.weightings.basic import broadcast_shares, shares

A = Hyperparameter("feddisco.a", 0.5, 0, doc="Weight a of the distance of label distributions.")
B = Hyperparameter("feddisco.b", 0.1, doc="Number b added to every client's value.")


def feddisco() -> Weighting:
    """Returns FedDisco's weights, which read `feddisco.a` and `feddisco.b`. At a = b = 0 they are n_k / sum_j n_j.

    The score is the distance d_k.
    """

    def signal(hyper, client, data):
        dtype = tree.wide_dtype(client.variables.params)
        counts = client.described.astype(dtype)
        frequencies = counts / jnp.maximum(counts.sum(), 1)  # zeros without a row
        distance = jnp.sqrt(((frequencies - 1 / len(counts)) ** 2).sum())
        return signals.num_samples(hyper, client, data), distance

    return Weighting(
        signal,
        weigh,
        score=lambda measured: measured[1],
        hyperparameters=(A, B),
        describe=ClientRows.label_counts,
    )


def weigh(hyper: Hyper, measured: Tree, view: ServerView) -> Variables:
    """Returns p_k for every tensor."""
    num_samples, distances = measured
    sizes = shares(num_samples.astype(distances.dtype), view.participating)
    a, b = (hyper[parameter.name].astype(sizes.dtype) for parameter in (A, B))
    values = jnp.where(view.participating, jax.nn.relu(sizes - a * distances + b), 0)
    values = jnp.where(values.sum() > 0, values, sizes)
    return broadcast_shares(values, view)


ENTRY = NamedWeighting(
    feddisco, "FedDisco", hyperparameters=(A, B), takes=(), reads_rows=False, streams=False
)
