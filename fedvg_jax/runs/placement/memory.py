"""Estimates the memory of a run before it is allocated, and refuses runs that need more than the machine has."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedvg_jax.config import Config, block_size, cohort_size
from fedvg_jax.core.types import Executor, SimState, Tree, UsageError
from fedvg_jax.host import hardware as hw
from fedvg_jax.runs.placement import client_memories

STATE = "state of the server and the clients"
"""The part of an estimate that memories of clients are in."""


def num_bytes(tree: Tree) -> int:
    """Returns the bytes of a pytree of arrays or shapes; a random key has 8."""
    leaves = jax.tree.leaves(tree)
    return sum(leaf.size * (leaf.dtype.itemsize if leaf.dtype.itemsize else 8) for leaf in leaves)


def estimate(
    config: Config, pool: Tree, table: tuple[int, int], state: SimState, executor: Executor, base: Tree = None
) -> dict[str, int]:
    """Returns a lower bound of the bytes of a run, by part: without activations and XLA's copies.

    Args:
        pool: pytree of arrays [T, ...] or shapes, as the device holds the data set.
        table: F and B, rows and columns of a chunk's table of minibatches.
        state: of the simulation, arrays or shapes; of memories, each device holds its part.
        executor: gives the number of clients in training at once.
        base: the frozen tensors of the model.
    """
    model = num_bytes(state.variables)
    memories = num_bytes(state.clients)
    own_memories = memories // client_memories.num_parts(executor.rows)
    of_cohort = {}
    if executor.rows is not None and memories:  # before and after the round, on every device
        num_rows = jax.tree.leaves(state.clients)[0].shape[0]
        of_cohort = {"memories of a cohort": 2 * cohort_size(config) * (memories // num_rows)}
    return {
        "data": num_bytes(pool),
        STATE: 2 * (num_bytes(state) - memories + own_memories),  # the first state is kept as well
        **of_cohort,
        "models of a cohort": block_size(config) * model,
        "models in training": 2 * executor.num_lanes * model,  # parameters and their gradient
        "minibatches of a chunk": 2 * math.prod(table) * np.dtype(np.int32).itemsize,  # on the host and on the device
        "frozen tensors": num_bytes(base),
    }


def refuse_unfitting(config: Config, parts: Mapping[str, int]) -> None:
    """Raises UsageError if the parts add up to more than the memory of the hardware, unless `config.force` is set."""
    needed, limit = sum(parts.values()), hw.current().memory_bytes
    if limit is not None and needed > limit and not config.force:
        largest = sorted(((size, name) for name, size in parts.items() if size > needed / 100), reverse=True)
        listed = ", ".join(f"{name} {_gib(size)}" for size, name in largest)
        is_movable = config.placement == "device" and largest[0][1] in ("data", STATE)
        first = "--placement host, or smaller" if is_movable else "smaller"
        raise UsageError(
            f"this run needs about {_gib(needed)} of memory by estimate ({listed}), and there is {_gib(limit)}; use"
            f" {first} --hold, --batch-size, --local-epochs, --clients or --model, or --force to start it anyway"
        )


@functools.lru_cache(16)
def program_bytes(compiled: Any) -> dict[str, int]:
    """Returns the bytes of a compiled program by part, as XLA plans them; empty where the back end has no plan."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return {}
    outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return {
        "temporaries": analysis.temp_size_in_bytes,
        "arguments": analysis.argument_size_in_bytes,
        "results": max(0, outputs),
    }


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"
