"""Stores of results that are costly to make, such as compiled programs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from fedvg_jax.core import value_keys

T = TypeVar("T")

MOST = 16
"""Results of a store; the least recently used is dropped first."""


class stored(Generic[T]):
    """A function with a store of its results by arguments, which are compared as `value_keys` does.

    >>> @stored
    ... def total(numbers):
    ...     return sum(numbers)
    >>> total((1, 2)), total((1, 2)), total([1, 2]), total.store.cache_info().hits
    (3, 3, 3, 1)
    """

    def __init__(self, function: Callable[..., T]):
        self.function = function
        self.store = functools.lru_cache(MOST)(lambda keyed: function(*keyed.arguments))

    def __call__(self, *arguments: Any) -> T:
        """Returns the stored result, or a new one."""
        return self.store(_Keyed(arguments))


class _Keyed:
    """Arguments with their key at the time of a call."""

    def __init__(self, arguments: tuple):
        self.arguments, self.key = arguments, value_keys.key_of(arguments)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keyed) and self.key == other.key
