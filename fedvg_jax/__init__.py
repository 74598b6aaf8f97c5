"""Federated learning with validation-gradient weights (FedVG) in JAX and Flax.

The names below are the library's promises; they are imported when first used, so that `import fedvg_jax` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedvg_jax.checkpoint import best_variables
    from fedvg_jax.config import Config
    from fedvg_jax.contracts import check_task, check_weighting
    from fedvg_jax.differentiable import hypergradient, over_rounds, unrolled
    from fedvg_jax.family import generalised_weights
    from fedvg_jax.fisher import fisher_trace, joint_fisher, sampled_joint_fisher
    from fedvg_jax.history import DivergedError, History
    from fedvg_jax.loop import run
    from fedvg_jax.models.adapt import linen_task, nnx_task
    from fedvg_jax.round import make_round
    from fedvg_jax.signals import gradient_norms, validation_gradients
    from fedvg_jax.types import UsageError
    from fedvg_jax.weighting import aggregate, inverse_norm_weights

__version__ = "0.1.0"

__all__ = [
    "Config",
    "DivergedError",
    "History",
    "UsageError",
    "aggregate",
    "best_variables",
    "check_task",
    "check_weighting",
    "fisher_trace",
    "generalised_weights",
    "gradient_norms",
    "hypergradient",
    "inverse_norm_weights",
    "joint_fisher",
    "linen_task",
    "make_round",
    "nnx_task",
    "over_rounds",
    "run",
    "sampled_joint_fisher",
    "unrolled",
    "validation_gradients",
]

_HOME = {
    "Config": "config",
    "DivergedError": "history",
    "History": "history",
    "UsageError": "types",
    "aggregate": "weighting",
    "best_variables": "checkpoint",
    "check_task": "contracts",
    "check_weighting": "contracts",
    "fisher_trace": "fisher",
    "generalised_weights": "family",
    "gradient_norms": "signals",
    "hypergradient": "differentiable",
    "inverse_norm_weights": "weighting",
    "joint_fisher": "fisher",
    "linen_task": "models.adapt",
    "make_round": "round",
    "nnx_task": "models.adapt",
    "over_rounds": "differentiable",
    "run": "loop",
    "sampled_joint_fisher": "fisher",
    "unrolled": "differentiable",
    "validation_gradients": "signals",
}


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'fedvg_jax' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedvg_jax.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
