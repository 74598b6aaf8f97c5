"""What a caller passes in place of what the config names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax

from fedvg_jax.algorithms import no_correction, no_memory, no_probe, no_report, no_residual
from fedvg_jax.core.types import Algorithm, Selection, Task, Variables, Weighting
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.runs.assemble import contracts

T = TypeVar("T")

_ABSENT_PARTS = (no_correction, no_memory, no_probe, no_report, no_residual)
"""Functions that the round recognises; they read nothing beside their arguments."""


class Given(NamedTuple):
    """The arguments of `fedvg_jax.run` that take the place of what the config names."""

    data: Arrays | tuple | None = None
    partition: tuple | Sequence | None = None
    task: Task | None = None
    algorithm: Algorithm | None = None
    weighting: Weighting | Callable[[Task], Weighting] | None = None
    selection: Selection | None = None
    hyper: Mapping[str, float] | None = None
    initial: Variables | None = None

    @property
    def replaced(self) -> dict[str, str]:
        """What takes the place of settings, with the names of functions; "" for what has none."""
        own = {n: value for n, value in self._asdict().items() if value is not None and n not in ("hyper", "initial")}
        return {name: getattr(value, "__name__", "").replace("<lambda>", "") for name, value in own.items()}


def traced_anew(given: Given) -> Given:
    """Returns what a call is given, with new functions; see `new_functions`.

    Raises:
        UsageError: a task, an algorithm or a weighting is something else.
    """
    contracts.check_kinds(given.task, given.algorithm, given.weighting)
    names = ("task", "algorithm", "weighting", "selection")
    return given._replace(**{name: new_functions(getattr(given, name)) for name in names})


def new_functions(bundle: T) -> T:
    """Returns a named tuple of functions with a new function in place of each.

    JAX traces a function once and finds the result by the function's identity. A function may read values that change
    between two calls of `fedvg_jax.run`, so each call traces functions of its own. One that the caller passes to
    `jax.jit` before is taken from there.

    >>> double = lambda x: 2 * x
    >>> (own,) = new_functions((double,))
    >>> own is double, own(3)
    (False, 6)
    """
    if isinstance(bundle, tuple):
        parts = map(new_functions, bundle)
        return type(bundle)(*parts) if hasattr(bundle, "_fields") else tuple(parts)  # pyright: ignore
    if not callable(bundle) or any(bundle is part for part in _ABSENT_PARTS):
        return bundle
    function = bundle.__wrapped__ if isinstance(bundle, jax.stages.Wrapped) else bundle  # pyright: ignore

    @functools.wraps(function, updated=())
    def call(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **keywords)

    return call  # pyright: ignore[reportReturnType]
