"""The official splits of a data set that are pooled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from fedvg_jax.core.types import UsageError

T = TypeVar("T")

SPLITS = ("train", "training"), ("validation", "valid", "val", "dev"), ("test", "testing", "eval")
"""Names of the splits to pool, in this order. A set without any of them is pooled as a whole."""


def pooled_splits(splits: Mapping[str, T], source: object, wanted: str = "all") -> list[T]:
    """Returns the splits of names NAME,... in their order; "all" stands for `SPLITS` in its order.

    Raises:
        UsageError: there is no such split.
    """
    if wanted == "all":
        usual = [name for names in SPLITS for name in splits if name.lower() in names]
        return [splits[name] for name in usual or splits]
    names = [name.strip() for name in wanted.split(",")]
    if unknown := {*names} - {*splits}:
        raise UsageError(
            f"{source}: has no split {min(unknown)[:100]!r}; --splits takes all or some of {', '.join(splits)}"
        )
    return [splits[name] for name in names]
