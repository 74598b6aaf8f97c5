"""The memory a run needs, estimated before it is allocated, and refused where the machine has less."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedvg_jax.config import Config, block_size, cohort_size, epochs_range
from fedvg_jax.core import hardware
from fedvg_jax.core.types import Executor, SimState, Tree, UsageError
from fedvg_jax.engine import schedule


def available() -> float:
    """Returns the bytes a run may take: of one accelerator, or of the host on a CPU; infinite where it is unknown."""
    known = hardware.current().memory_bytes
    return math.inf if known is None else known


def num_bytes(tree: Tree) -> int:
    """Bytes of arrays, or of their shapes; keys are two words."""
    leaves = jax.tree.leaves(tree)
    return sum(leaf.size * (leaf.dtype.itemsize if leaf.dtype.itemsize else 8) for leaf in leaves)


def estimate(
    config: Config, pool: Tree, pool_size: int, state: SimState, width: int, executor: Executor
) -> dict[str, int]:
    """Bytes that a run surely needs, by part. Activations, and copies that XLA makes, come on top.

    Args:
        pool: the data set as the device holds it, arrays or their shapes.
        pool_size: T, rows of the data set.
        state: of the simulation, arrays or their shapes.
        width: B, columns of the table of minibatches.
    """
    epochs = epochs_range(config)[1] + (config.algorithm == "elastic")
    capacity = schedule.capacity(pool_size, cohort_size(config), epochs, width)
    model = num_bytes(state.variables)
    return {
        "data": num_bytes(pool),
        "state of the server and the clients": 2 * num_bytes(state),  # the first state is kept beside the current one
        "models of a cohort": block_size(config) * model,
        "models in training": 2 * executor.num_lanes * model,  # parameters and their gradient
        "minibatches of a chunk": 2 * capacity * width * np.dtype(np.int32).itemsize,  # on the host and on the device
    }


def refuse_unfitting(config: Config, parts: Mapping[str, int]) -> None:
    """UsageError where the parts together are more than there is, unless `config.force`."""
    needed, limit = sum(parts.values()), available()
    if needed > limit and not config.force:
        largest = sorted(((size, name) for name, size in parts.items() if size > needed / 100), reverse=True)
        listed = ", ".join(f"{name} {_gib(size)}" for size, name in largest)
        raise UsageError(
            f"this run needs about {_gib(needed)} of memory by estimate ({listed}), and there is {_gib(limit)}; use"
            " smaller --hold, --batch-size, --local-epochs, --clients or --model, or --force to start it anyway"
        )


def of_program(compiled: Any) -> dict[str, int]:
    """Bytes of a compiled program, as XLA plans them; none where the back end does not say."""
    found = compiled.memory_analysis()
    if found is None:
        return {}
    outputs = found.output_size_in_bytes - found.alias_size_in_bytes
    return {
        "temporaries": found.temp_size_in_bytes,
        "arguments": found.argument_size_in_bytes,
        "results": max(0, outputs),
    }


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"
