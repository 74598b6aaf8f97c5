"""Executors: how the clients of a cohort are run. All give the same result."""

from fedvg_jax.engine.differentiable import unrolled
from fedvg_jax.engine.executors import lanes, sharded, vmapped

__all__ = ["lanes", "sharded", "unrolled", "vmapped"]
