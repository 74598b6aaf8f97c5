"""Stores of results that are costly to make, such as compiled programs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MOST = 16
"""Results of a store; the least recently used is dropped first."""


class stored(Generic[T]):
    """A function with a store of its results by arguments.

    Results of arguments without a hash, such as a user's object, are not stored.

    >>> @stored
    ... def total(numbers):
    ...     return sum(numbers)
    >>> total((1, 2)), total((1, 2)), total([1, 2]), total.store.cache_info().hits
    (3, 3, 3, 1)
    """

    def __init__(self, function: Callable[..., T]):
        self.function, self.store = function, functools.lru_cache(MOST)(function)

    def __call__(self, *arguments: Any) -> T:
        """Returns the stored result, or a new one."""
        try:
            hash(arguments)
        except TypeError:
            return self.function(*arguments)
        return self.store(*arguments)
