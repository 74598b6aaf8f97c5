"""Federated learning with validation-gradient weights (FedVG) in JAX and Flax.

Public names are imported when they are first used, so that `import fedvg_jax` stays light. Type checkers read them in
`__init__.pyi`.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

_NAMES = {
    "fedvg_jax": "algorithms compression data models weightings",
    "fedvg_jax.api": "evaluate make_schedule run run_sweep",
    "fedvg_jax.config": "Config",
    "fedvg_jax.core": "norms tree",
    "fedvg_jax.core.trained_part": "local_part trained_part",
    "fedvg_jax.core.types": "Algorithm Batch Data Executor Hyperparameter Metric Schedule Selection Send SimState Task "
    "UsageError Variables Weighting WeightingState",
    "fedvg_jax.data.arrays": "Arrays",
    "fedvg_jax.engine": "attacks executors robust selection virtual_time",
    "fedvg_jax.engine.descriptions": "describe_clients",
    "fedvg_jax.engine.differentiable": "hypergradient max_steps over_rounds stack_schedules unrolled",
    "fedvg_jax.engine.federated_round": "init_state make_round",
    "fedvg_jax.engine.local_training": "sgd",
    "fedvg_jax.engine.virtual_time": "Clock",
    "fedvg_jax.models.adapt": "linen_task nnx_task",
    "fedvg_jax.models.adapters": "lora",
    "fedvg_jax.engine.task_checks": "check_task",
    "fedvg_jax.resolve.experiment": "simulation",
    "fedvg_jax.runs.assemble.simulation": "Simulation",
    "fedvg_jax.runs.record.checkpoint": "best_variables final_variables",
    "fedvg_jax.runs.record.history": "DivergedError History StopRun",
    "fedvg_jax.study.named": "Method",
    "fedvg_jax.study.report": "Compared compare",
    "fedvg_jax.study.sweep_folder": "Failure SweepResult",
    "fedvg_jax.weightings": "aggregate generalised_weights gradient_norms inverse_norm_weights "
    "validation_gradients",
}
"""Module -> its public names. A name that the module does not define is a module below it."""

_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)  # noqa: PLE0605  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'fedvg_jax' has no attribute {name!r}")
    home = _HOMES[name]
    value = None if home == __name__ else getattr(importlib.import_module(home), name, None)
    globals()[name] = value = importlib.import_module(f"{home}.{name}") if value is None else value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
