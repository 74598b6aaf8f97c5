"""Objects that a caller passes in place of settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

import jax

from fedvg_jax.config import checks
from fedvg_jax.config.declare import python_scalar
from fedvg_jax.core.types import (
    Algorithm,
    Metric,
    Selection,
    Send,
    Task,
    UsageError,
    Variables,
    Weighting,
    named,
)
from fedvg_jax.data import user_data
from fedvg_jax.data.partitions.partitioners import Partitioner
from fedvg_jax.engine import attacks, contracts, robust
from fedvg_jax.runs.record import folder as run_folder

if TYPE_CHECKING:
    from fedvg_jax.engine.virtual_time import Clock

T = TypeVar("T")
F = TypeVar("F", bound=Callable)

KEPT = (*contracts.RECOGNISED, robust.weighted_mean)
"""Functions that the round recognises by identity; they read nothing beside their arguments."""


WeightingOrFactory = Weighting | Callable[[Task], Weighting]
"""A weighting, or a function that makes it for the task of the run."""


class Objects(TypedDict, total=False):
    """The arguments of `run`, `run_sweep` and `simulation` in place of settings; the first of them describes each."""

    data: Any
    label: str | None
    group: str | None
    transformer: Any
    partition: Partitioner | tuple | Sequence | None
    task: Task | None
    algorithm: Algorithm | None
    weighting: WeightingOrFactory | None
    selection: Selection | None
    aggregate: robust.Rule | None
    send: Send | None
    attack: attacks.Attack | None
    hyper: Mapping[str, float] | None
    clock: Clock | None
    initial: Variables | None


def names_objects(function: F) -> F:
    """Gives a function of `**objects` a signature with their names, which help and completion read."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    for name, reference in Objects.__annotations__.items():
        text = reference.__forward_arg__
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=text)
        )
    function.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return function


class Custom(NamedTuple):
    """The objects that take the place of settings, with the data as the readers return them."""

    data: Any = None
    partition: Partitioner | tuple | Sequence | None = None
    task: Task | None = None
    algorithm: Algorithm | None = None
    weighting: WeightingOrFactory | None = None
    selection: Selection | None = None
    aggregate: robust.Rule | None = None
    send: Send | None = None
    attack: attacks.Attack | None = None
    hyper: Mapping[str, float] | None = None
    clock: Clock | None = None
    initial: Variables | None = None

    @property
    def names(self) -> dict[str, str]:
        """Returns argument -> name of the object that takes the place of a setting; "" for one without a name."""
        objects = {name: getattr(self, name) for name in checks.PASSED}
        return {
            name: getattr(value, "__name__", "").replace("<lambda>", "")
            for name, value in objects.items()
            if value is not None
        }


def custom_of(
    data: Any = None,
    label: str | None = None,
    group: str | None = None,
    transformer: Any = None,
    **objects: Any,
) -> Custom:
    """Returns what a call passes, see `Objects`; raises UsageError for an argument of another name."""
    for name in objects:
        named(Objects.__annotations__, name, "argument")
    return Custom(user_data.of_call(data, label, group, transformer), **objects)


def digests_of(custom: Custom, metrics: Mapping[str, Metric]) -> dict[str, str]:
    """Returns the digests of what a caller passed: of arguments by name, of metrics by "metric NAME"."""
    from fedvg_jax.core.identity import identify

    values = {name: value for name, value in custom._asdict().items() if value is not None}
    if custom.data is not None:
        values["data"] = user_data.as_arrays(custom.data)
    if custom.hyper:
        values["hyper"] = {name: python_scalar(value) for name, value in custom.hyper.items()}
    values |= {f"{run_folder.METRIC} {name}": metric.function for name, metric in metrics.items()}
    return {name: identify(value) for name, value in values.items()}


def code_of(custom: Custom, metrics: Mapping[str, Metric]) -> dict[str, str]:
    """Returns the digests that a run's manifest has of functions from Python, which `sources` does not cover."""
    return digests_of(Custom(**{name: getattr(custom, name) for name in checks.FUNCTIONS}), metrics)


def traced_anew(custom: Custom) -> Custom:
    """Returns the objects of a call, with new functions; see `new_functions`.

    Raises:
        UsageError: an argument is of another kind.
    """
    for name, kind in KINDS.items():
        value = getattr(custom, name)
        if value is not None and not isinstance(value, kind):
            got = type(value).__name__
            raise UsageError(f"{name} cannot be a {got}; give an object, and names to Config(...)")
    anew = {name: new_functions(getattr(custom, name)) for name in checks.FUNCTIONS}
    return custom._replace(**anew)


KINDS = {
    "task": Task,
    "algorithm": Algorithm,
    "weighting": Weighting | Callable,
    "selection": Selection,
    "aggregate": Callable,
    "send": Send,
    "attack": Callable,
    "hyper": Mapping,
}
"""Argument -> its type. A weighting may also be a function task -> `Weighting`."""


def new_functions(bundle: T) -> T:
    """Returns a named tuple of functions with a new function in place of each.

    JAX traces a function once and finds the result by the function's identity. A function may read values that change
    between two calls of `fedvg_jax.run`, so each call traces new functions. One that the caller passes to
    `jax.jit` before is taken from there.

    >>> double = lambda x: 2 * x
    >>> (anew,) = new_functions((double,))
    >>> anew is double, anew(3)
    (False, 6)
    """
    if isinstance(bundle, tuple):
        parts = map(new_functions, bundle)
        return type(bundle)(*parts) if hasattr(bundle, "_fields") else tuple(parts)  # pyright: ignore
    if not callable(bundle) or any(bundle is part for part in KEPT):
        return bundle
    function = bundle.__wrapped__ if isinstance(bundle, jax.stages.Wrapped) else bundle  # pyright: ignore

    @functools.wraps(function, updated=())
    def call(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **keywords)

    return call  # pyright: ignore[reportReturnType]
