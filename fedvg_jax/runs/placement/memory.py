"""Refuses runs whose compiled program needs more memory than the machine has."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax

from fedvg_jax.config import Config
from fedvg_jax.core.types import Tree, UsageError
from fedvg_jax.host import hardware as hw


def num_bytes(tree: Tree) -> int:
    """Returns the bytes of a pytree of arrays or shapes; a random key has 8."""
    leaves = jax.tree.leaves(tree)
    return sum(leaf.size * (leaf.dtype.itemsize if leaf.dtype.itemsize else 8) for leaf in leaves)


def refuse_unfitting(config: Config, parts: Mapping[str, int]) -> None:
    """Raises UsageError if the parts add up to more than the memory of the hardware, unless `config.force` is set."""
    needed, limit = sum(parts.values()), hw.current().memory_bytes
    if limit is not None and needed > limit and not config.force:
        largest = sorted(((size, name) for name, size in parts.items() if size > needed / 100), reverse=True)
        listed = ", ".join(f"{name} {_gib(size)}" for size, name in largest)
        raise UsageError(
            f"this run needs about {_gib(needed)} of memory ({listed}), and there is {_gib(limit)}; use --placement"
            " host, smaller --hold, --batch-size, --local-epochs, --clients or --model, or --force to start it anyway"
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
