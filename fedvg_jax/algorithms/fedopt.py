"""FedAvgM and the adaptive servers: the averaged update is a gradient, and the server has an optimiser.

    u = sum_k s_k (theta_g - theta_k),   theta <- theta_g + optimiser(u),   that is   R = u + optimiser(u)

FedAvgM (Hsu et al., 2019, with Nesterov's momentum as in their experiments): v <- beta v + u, step u + beta v. The
published FedVG code does the same with torch's SGD, but on running statistics too, which drives variances negative;
here a server optimiser acts on trained tensors only. FedAdam, FedYogi, FedAdagrad: Reddi et al., "Adaptive Federated
Optimization", ICLR 2021; optax's Adam and Yogi correct the moments' bias, which they do not.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import optax

from fedvg_jax import tree
from fedvg_jax.algorithms.neutral import no_correction, no_probe, no_report
from fedvg_jax.types import Algorithm, Cohort, Hyper, Tree


def fedopt(optimiser: Callable[[Hyper], optax.GradientTransformation]) -> Algorithm:
    """FedAvg with an optax optimiser on the server; `optimiser` makes it from the hyper-parameters."""

    def init(hyper: Hyper, params: Tree) -> tuple[Tree, Tree]:
        """The optimiser's state; no client memory."""
        return optimiser(hyper).init(params), ()

    def residual(hyper: Hyper, server: Tree, params: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        """R = u + optimiser(u), the optimiser's update being a descent step."""
        with jax.numpy_dtype_promotion("standard"):  # optax mixes its own float32 counters in
            updates, server = optimiser(hyper).update(cohort.update, server, params)
        return tree.add(cohort.update, updates), server

    return Algorithm(init, no_correction, no_report, residual, no_probe, native_weighting="samples")


def fedadam() -> Algorithm:
    """FedAdam; reads `server_lr`, `b1`, `b2`, `server_eps`."""
    return fedopt(lambda hyper: optax.adam(hyper["server_lr"], hyper["b1"], hyper["b2"], hyper["server_eps"], 1e-30))


def fedyogi() -> Algorithm:
    """FedYogi; reads `server_lr`, `b1`, `b2`, `server_eps`."""

    def optimiser(hyper: Hyper) -> optax.GradientTransformation:
        rule = optax.yogi(hyper["server_lr"], hyper["b1"], hyper["b2"], hyper["server_eps"])

        def init(params: Tree) -> optax.OptState:
            # optax begins the first moment at 1e-6 too, which moves what no client has moved
            return optax.tree.set(rule.init(params), mu=tree.zeros_like(params))

        return optax.GradientTransformation(init, rule.update)

    return fedopt(optimiser)


def fedadagrad() -> Algorithm:
    """FedAdagrad; reads `server_lr`, `server_eps`."""
    return fedopt(lambda hyper: optax.adagrad(hyper["server_lr"], 0.0, hyper["server_eps"]))


def fedavgm() -> Algorithm:
    """FedAvgM; reads `server_momentum` (beta) and `server_lr`. At beta = 0 and rate 1 it is FedAvg."""
    return fedopt(lambda hyper: optax.sgd(hyper["server_lr"], hyper["server_momentum"], nesterov=True))
