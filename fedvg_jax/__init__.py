"""Federated learning with validation-gradient weights (FedVG) in JAX and Flax.

The names below are the library's promises; they are imported when first used, so that `import fedvg_jax` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedvg_jax.config import Config
    from fedvg_jax.core.types import UsageError
    from fedvg_jax.engine.differentiable import hypergradient, over_rounds, unrolled
    from fedvg_jax.engine.federated_round import make_round
    from fedvg_jax.models.adapt import linen_task, nnx_task
    from fedvg_jax.runs.checkpoint import best_variables
    from fedvg_jax.runs.contracts import check_task, check_weighting
    from fedvg_jax.runs.history import DivergedError, History
    from fedvg_jax.runs.loop import run
    from fedvg_jax.weightings.aggregation import aggregate
    from fedvg_jax.weightings.family import generalised_weights
    from fedvg_jax.weightings.fedvg import inverse_norm_weights
    from fedvg_jax.weightings.fisher import fisher_trace, joint_fisher, sampled_joint_fisher
    from fedvg_jax.weightings.signals import gradient_norms, validation_gradients

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
    "DivergedError": "runs.history",
    "History": "runs.history",
    "UsageError": "core.types",
    "aggregate": "weightings.aggregation",
    "best_variables": "runs.checkpoint",
    "check_task": "runs.contracts",
    "check_weighting": "runs.contracts",
    "fisher_trace": "weightings.fisher",
    "generalised_weights": "weightings.family",
    "gradient_norms": "weightings.signals",
    "hypergradient": "engine.differentiable",
    "inverse_norm_weights": "weightings.fedvg",
    "joint_fisher": "weightings.fisher",
    "linen_task": "models.adapt",
    "make_round": "engine.federated_round",
    "nnx_task": "models.adapt",
    "over_rounds": "engine.differentiable",
    "run": "runs.loop",
    "sampled_joint_fisher": "weightings.fisher",
    "unrolled": "engine.differentiable",
    "validation_gradients": "weightings.signals",
}


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'fedvg_jax' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedvg_jax.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
