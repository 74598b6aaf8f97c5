"""FedAvgM and the adaptive servers: a server optimiser takes the averaged update as its gradient.

    u = sum_k s_k (theta_g - theta_k),   theta <- theta_g + optimiser(u),   that is   R = u + optimiser(u)

FedAvgM (Hsu et al., 2019, with Nesterov momentum as in their experiments): v <- beta v + u, step u + beta v. The
published FedVG code does the same with torch's SGD. It also applies it to running statistics, which makes variances
negative; in this module a server optimiser acts on trained tensors only.

FedAdagrad, FedYogi and FedAdam are Algorithm 2 of Reddi et al., "Adaptive Federated Optimization", ICLR 2021, with
Delta_t = -u. The moments have no bias correction, and tau is outside the root:

    m_t = beta_1 m_{t-1} + (1 - beta_1) Delta_t                            m_{-1} = 0
    v_t = v_{t-1} + Delta_t^2                                              FedAdagrad
    v_t = v_{t-1} - (1 - beta_2) Delta_t^2 sign(v_{t-1} - Delta_t^2)       FedYogi
    v_t = beta_2 v_{t-1} + (1 - beta_2) Delta_t^2                          FedAdam
    theta_{t+1} = theta_t + eta m_t / (sqrt(v_t) + tau)                    v_{-1} = tau^2

The algorithm requires v_{-1} >= tau^2. FedAdagrad has beta_1 = 0, as in that paper's experiments. In the published
FedVG code (`official`), v_{-1} = 0, and FedAdagrad uses beta_1 like the other two.

The rules differ by more than rounding. For an update of 1e-4 at the default settings, FedAdam's first step is 5.0
times the update by the paper and 10 times by the published code; `optax.adam`, which corrects the moments' bias, takes
91 times.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fedvg_jax.algorithms.base import PLAIN
from fedvg_jax.core import tree
from fedvg_jax.core.types import Algorithm, Hyper, Hyperparameter, NamedAlgorithm, Published

BETA = Hyperparameter(
    "fedavgm.momentum", 0.9, 0, 1, "Nesterov momentum beta of the server.", excludes_high=True
)
RATE = Hyperparameter("fedavgm.lr", 1.0, 0, doc="Learning rate of the server.", excludes_low=True)

ETA = Hyperparameter("fedopt.lr", 0.1, 0, doc="Learning rate of the server.", excludes_low=True)
B1 = Hyperparameter(
    "fedopt.b1",
    0.9,
    0,
    1,
    "Decay of the first moment (FedAdam, FedYogi). FedAdagrad has one only with reference adaptive-servers.",
    excludes_high=True,
)
B2 = Hyperparameter(
    "fedopt.b2", 0.999, 0, 1, "Decay of the second moment (FedAdam, FedYogi).", excludes_high=True
)
EPS = Hyperparameter(
    "fedopt.eps",
    1e-3,
    0,
    doc="Number tau that is added to the root of the second moment.",
    excludes_low=True,
)

ADAM = (ETA, B1, B2, EPS)


def fedopt(
    optimiser: Callable[[Hyper], optax.GradientTransformation],
    hyperparameters: tuple[Hyperparameter, ...] = (),
) -> Algorithm:
    """Returns FedAvg with an optax optimiser on the server.

    Args:
        optimiser: hyperparameters -> optimiser, which acts on u as on a gradient.
        hyperparameters: those that `optimiser` reads.
    """

    def init(hyper, params):
        """Returns the optimiser's state; no client state."""
        return optimiser(hyper).init(params), ()

    def residual(hyper, server, params, cohort):
        """Returns R = u + optimiser(u), where the optimiser's update is a descent step."""
        with jax.numpy_dtype_promotion("standard"):  # optax uses float32 counters
            updates, server = optimiser(hyper).update(cohort.update, server, params)
        return tree.add(cohort.update, updates), server

    return PLAIN._replace(init=init, residual=residual, hyperparameters=hyperparameters)


SecondMoment = Callable[[Hyper, Array, Array], Array]
"""(hyper, v_{t-1}, Delta_t^2) -> v_t of one tensor"""


def fedadagrad(official: bool = False) -> Algorithm:
    """Returns FedAdagrad, which reads `fedopt.lr` (eta) and `fedopt.eps` (tau), as `official` also `fedopt.b1`."""

    def second_moment(hyper, v, squared):
        return v + squared

    return fedopt(
        adaptive(second_moment, official, momentum=official), (ETA, *[B1] * official, EPS)
    )


def fedyogi(official: bool = False) -> Algorithm:
    """Returns FedYogi, which reads `fedopt.lr` (eta), `fedopt.b1`, `fedopt.b2` and `fedopt.eps` (tau)."""

    def second_moment(hyper, v, squared):
        return v - (1 - hyper[B2.name]) * squared * jnp.sign(v - squared)

    return fedopt(adaptive(second_moment, official), ADAM)


def fedadam(official: bool = False) -> Algorithm:
    """Returns FedAdam, which reads `fedopt.lr` (eta), `fedopt.b1`, `fedopt.b2` and `fedopt.eps` (tau)."""

    def second_moment(hyper, v, squared):
        return hyper[B2.name] * v + (1 - hyper[B2.name]) * squared

    return fedopt(adaptive(second_moment, official), ADAM)


def adaptive(
    second_moment: SecondMoment, official: bool = False, momentum: bool = True
) -> Callable[[Hyper], optax.GradientTransformation]:
    """Returns the server step of Algorithm 2 as a descent on u = -Delta; see the equations at the top of this module.

    Args:
        second_moment: v_t of one tensor.
        official: whether v_{-1} is 0; otherwise it is tau^2.
        momentum: whether beta_1 is `hyper["fedopt.b1"]`; otherwise it is 0.

    >>> hyper = {"fedopt.lr": 0.1, "fedopt.eps": 0.5}
    >>> rule = adaptive(lambda hyper, v, squared: v + squared, momentum=False)(hyper)
    >>> u = {"w": jnp.array([-1.2])}
    >>> updates, state = rule.update(u, rule.init(u))
    >>> updates["w"].round(4).tolist()  # 0.1 x 1.2 / (sqrt(0.25 + 1.44) + 0.5)
    [0.06669999659061432]
    """

    def optimiser(hyper):
        b1 = hyper[B1.name] if momentum else 0.0
        start = 0.0 if official else hyper[EPS.name] ** 2

        def init(params):
            second = jax.tree.map(lambda p: jnp.full_like(p, start), params)
            return tree.zeros_like(params), second

        def update(updates, state, params=None):
            first, second = state
            first = jax.tree.map(lambda m, u: b1 * m + (1 - b1) * u, first, updates)
            second = jax.tree.map(lambda v, u: second_moment(hyper, v, u * u), second, updates)
            step = jax.tree.map(
                lambda m, v: -hyper[ETA.name] * m / (_root(v) + hyper[EPS.name]), first, second
            )
            return step, (first, second)

        return optax.GradientTransformation(init, update)

    return optimiser


def fedavgm() -> Algorithm:
    """Returns FedAvgM, which reads `fedavgm.momentum` (beta) and `fedavgm.lr`. At beta = 0 and rate 1 it is FedAvg."""

    def optimiser(hyper):
        return optax.sgd(hyper[RATE.name], hyper[BETA.name], nesterov=True)

    return fedopt(optimiser, (BETA, RATE))


def _root(v: Array) -> Array:
    """Returns sqrt(v) with gradient 0 at v = 0, where it would be infinite."""
    return jnp.where(v > 0, jnp.sqrt(jnp.where(v > 0, v, 1)), 0)


FEDAVGM = NamedAlgorithm("FedAvgM", fedavgm, (BETA, RATE))
_PUBLISHED = {"adaptive-servers": Published({"official": True})}
FEDADAM = NamedAlgorithm("FedAdam", fedadam, ADAM, published=_PUBLISHED)
FEDYOGI = NamedAlgorithm("FedYogi", fedyogi, ADAM, published=_PUBLISHED)
FEDADAGRAD = NamedAlgorithm("FedAdagrad", fedadagrad, (ETA, B1, EPS), published=_PUBLISHED)
