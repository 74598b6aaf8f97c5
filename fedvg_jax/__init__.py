"""Federated learning with validation-gradient weights (FedVG) in JAX and Flax.

The names below are the library's promises; they are imported when first used, so that `import fedvg_jax` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedvg_jax.config import Config
    from fedvg_jax.history import History
    from fedvg_jax.loop import run
    from fedvg_jax.models.adapt import linen_task, nnx_task
    from fedvg_jax.signals import gradient_norms, validation_gradients
    from fedvg_jax.types import UsageError
    from fedvg_jax.weighting import aggregate, inverse_norm_weights

__version__ = "0.1.0"

__all__ = [
    "Config",
    "History",
    "UsageError",
    "aggregate",
    "gradient_norms",
    "inverse_norm_weights",
    "linen_task",
    "nnx_task",
    "run",
    "validation_gradients",
]

_HOME = {
    "Config": "config",
    "History": "history",
    "UsageError": "types",
    "aggregate": "weighting",
    "gradient_norms": "signals",
    "inverse_norm_weights": "weighting",
    "linen_task": "models.adapt",
    "nnx_task": "models.adapt",
    "run": "loop",
    "validation_gradients": "signals",
}


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'fedvg_jax' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedvg_jax.{_HOME[name]}"), name)
