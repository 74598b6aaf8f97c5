"""FedDyn: a dynamic regulariser aligns the clients' optima with the server's.

    client   local loss + alpha <lambda_k - theta_g, theta> + (alpha / 2) ||theta||^2,  that is
             g <- clip(g + alpha (lambda_k + theta - theta_g)),       lambda_k <- lambda_k - (theta_g - theta_k)
    server   theta <- mean_k theta_k + mean of all N lambda,  that is  R = mean lambda

Source: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, with uniform weights. The variable
is lambda_k = -(their gradient memory) / alpha. The server stores the mean over all N clients and updates it by the sum
of the messages. The gradient is clipped to a global norm, as in the published FedVG code.

The published code differs in three ways. It omits alpha theta, so that the parameters grow. It averages by n_k. With
FedVG's weights it omits the average after the first round: theta <- theta_g + mean lambda.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fedvg_jax.algorithms.base import no_probe
from fedvg_jax.core import norms, tree
from fedvg_jax.core.types import (
    Algorithm,
    Anchor,
    Hyper,
    Hyperparameter,
    NamedAlgorithm,
    Published,
    Tree,
)

ALPHA = Hyperparameter(
    "feddyn.alpha", 0.1, 0, doc="Coefficient of the regulariser.", excludes_low=True
)
CLIP = Hyperparameter(
    "feddyn.clip",
    10.0,
    0,
    doc="Global norm to which a client's gradient is clipped.",
    excludes_low=True,
)


def feddyn(
    quadratic: bool = True, native_weighting: str = "uniform", averages: bool = True
) -> Algorithm:
    """Returns FedDyn, which reads `feddyn.alpha` and `feddyn.clip`.

    Args:
        quadratic: whether the regulariser includes (alpha / 2) ||theta||^2.
        native_weighting: the weighting that the name `native` selects.
        averages: whether the server averages the clients' models after the first round.
    """

    def correct(hyper, grads, params, anchor):
        """Returns clip(g + alpha (lambda_k + theta - theta_g))."""

        def regularised(g, dual, p, global_p):
            return g + hyper[ALPHA.name] * (dual - global_p + (p if quadratic else 0))

        return clipped(
            hyper[CLIP.name], jax.tree.map(regularised, grads, anchor.client, params, anchor.params)
        )

    def residual(hyper, server, params, cohort):
        """Returns R = mean lambda over all N clients; plus u where the server does not average."""
        dual, round = server
        dual = jax.tree.map(lambda h, m: h + m / cohort.num_clients, dual, cohort.summed)
        undoes_average = jnp.where(averages | (round == 0), 0.0, 1.0)
        residual = jax.tree.map(
            lambda h, u: h + undoes_average.astype(u.dtype) * u, dual, cohort.update
        )
        return residual, (dual, round + 1)

    return Algorithm(init, correct, report, residual, no_probe, native_weighting, (ALPHA, CLIP))


def init(hyper: Hyper, params: Tree) -> tuple[Tree, Tree]:
    """Returns the server's mean lambda = 0 with the number of the round, and lambda_k = 0."""
    return (tree.zeros_like(params), jnp.zeros((), jnp.int32)), tree.zeros_like(params)


def report(hyper: Hyper, params: Tree, anchor: Anchor, displacement) -> tuple[Tree, Tree, Tree]:
    """Returns the state lambda_k - delta_k, and the message -delta_k to be summed."""
    message = tree.sub(params, anchor.params)
    return tree.add(anchor.client, message), message, ()


def clipped(max_norm: Array, grads: Tree) -> Tree:
    """Returns the gradients scaled to a global norm of at most `max_norm`.

    >>> clipped(jnp.float32(1), {"w": jnp.array([3.0, 4.0])})["w"].round(3).tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    return tree.scale(max_norm / jnp.maximum(norms.joint_l2(grads), max_norm), grads)


ENTRY = NamedAlgorithm(
    "FedDyn",
    feddyn,
    (ALPHA, CLIP),
    published={
        "feddyn-regulariser": Published({"quadratic": False}),
        "feddyn-weights": Published({"native_weighting": "samples"}, weighting="native"),
        "feddyn-average": Published({"averages": False}, weighting="fedvg"),
    },
)
