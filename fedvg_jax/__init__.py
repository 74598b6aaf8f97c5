"""Federated learning with validation-gradient weights (FedVG) in JAX and Flax.

Public names are imported when they are first used, so that `import fedvg_jax` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedvg_jax import algorithms as algorithms
    from fedvg_jax import data as data
    from fedvg_jax import executors as executors
    from fedvg_jax import models as models
    from fedvg_jax import weightings as weightings
    from fedvg_jax.api import evaluate, init_state, make_schedule, max_steps, run, run_sweep, sgd, stack_schedules
    from fedvg_jax.config import Config
    from fedvg_jax.core import norms as norms
    from fedvg_jax.core import tree as tree
    from fedvg_jax.core.types import (
        Algorithm,
        Batch,
        Data,
        Executor,
        Hyperparameter,
        Schedule,
        SimState,
        Task,
        UsageError,
        Variables,
        Weighting,
    )
    from fedvg_jax.data.arrays import Arrays
    from fedvg_jax.engine.differentiable import hypergradient, over_rounds, unrolled
    from fedvg_jax.engine.federated_round import make_round
    from fedvg_jax.models.adapt import linen_task, nnx_task
    from fedvg_jax.runs.contracts import check_task, check_weighting
    from fedvg_jax.runs.record.checkpoint import best_variables, final_variables
    from fedvg_jax.runs.record.history import DivergedError, History
    from fedvg_jax.runs.record.verification import MisfitError
    from fedvg_jax.runs.simulation import Simulation, simulation
    from fedvg_jax.runs.sweep_folder import Failure
    from fedvg_jax.runs.sweeps import SweepResult
    from fedvg_jax.weightings import (
        aggregate,
        fisher_trace,
        generalised_weights,
        gradient_norms,
        inverse_norm_weights,
        joint_fisher,
        sampled_joint_fisher,
        validation_gradients,
    )

__version__ = "0.1.0"

_MODULES = {
    "Algorithm": "core.types",
    "Arrays": "data.arrays",
    "Batch": "core.types",
    "Config": "config",
    "Data": "core.types",
    "DivergedError": "runs.record.history",
    "Executor": "core.types",
    "Failure": "runs.sweep_folder",
    "History": "runs.record.history",
    "Hyperparameter": "core.types",
    "MisfitError": "runs.record.verification",
    "Schedule": "core.types",
    "SimState": "core.types",
    "Simulation": "runs.simulation",
    "SweepResult": "runs.sweeps",
    "Task": "core.types",
    "UsageError": "core.types",
    "Variables": "core.types",
    "Weighting": "core.types",
    "aggregate": "weightings",
    "algorithms": "algorithms",
    "best_variables": "runs.record.checkpoint",
    "check_task": "runs.contracts",
    "check_weighting": "runs.contracts",
    "data": "data",
    "evaluate": "api",
    "executors": "executors",
    "final_variables": "runs.record.checkpoint",
    "fisher_trace": "weightings",
    "generalised_weights": "weightings",
    "gradient_norms": "weightings",
    "hypergradient": "engine.differentiable",
    "init_state": "api",
    "inverse_norm_weights": "weightings",
    "joint_fisher": "weightings",
    "linen_task": "models.adapt",
    "make_round": "engine.federated_round",
    "make_schedule": "api",
    "max_steps": "api",
    "models": "models",
    "nnx_task": "models.adapt",
    "norms": "core.norms",
    "over_rounds": "engine.differentiable",
    "run": "api",
    "run_sweep": "api",
    "sampled_joint_fisher": "weightings",
    "sgd": "api",
    "simulation": "runs.simulation",
    "stack_schedules": "api",
    "tree": "core.tree",
    "unrolled": "engine.differentiable",
    "validation_gradients": "weightings",
    "weightings": "weightings",
}
"""public name -> the module that defines it; a namespace is a module itself"""

_NAMESPACES = {"algorithms", "data", "executors", "models", "norms", "tree", "weightings"}

__all__ = [
    "Algorithm",
    "Arrays",
    "Batch",
    "Config",
    "Data",
    "DivergedError",
    "Executor",
    "Failure",
    "History",
    "Hyperparameter",
    "MisfitError",
    "Schedule",
    "SimState",
    "Simulation",
    "SweepResult",
    "Task",
    "UsageError",
    "Variables",
    "Weighting",
    "aggregate",
    "algorithms",
    "best_variables",
    "check_task",
    "check_weighting",
    "data",
    "evaluate",
    "executors",
    "final_variables",
    "fisher_trace",
    "generalised_weights",
    "gradient_norms",
    "hypergradient",
    "init_state",
    "inverse_norm_weights",
    "joint_fisher",
    "linen_task",
    "make_round",
    "make_schedule",
    "max_steps",
    "models",
    "nnx_task",
    "norms",
    "over_rounds",
    "run",
    "run_sweep",
    "sampled_joint_fisher",
    "sgd",
    "simulation",
    "stack_schedules",
    "tree",
    "unrolled",
    "validation_gradients",
    "weightings",
]


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module 'fedvg_jax' has no attribute {name!r}")
    module = importlib.import_module(f"fedvg_jax.{_MODULES[name]}")
    value = module if name in _NAMESPACES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
