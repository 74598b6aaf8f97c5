"""What a caller passes in place of what the config names.

Hyperparameters of a run come from the config, from the declarations of algorithm and weighting, and from the caller.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from fedvg_jax.algorithms import no_correction, no_probe, no_report, no_residual, no_state
from fedvg_jax.config import SETTINGS, Config
from fedvg_jax.config.checks import FLOAT32
from fedvg_jax.config.declare import python_scalar, suggestion
from fedvg_jax.config.methods import HYPERPARAMETERS
from fedvg_jax.core import checks
from fedvg_jax.core.identity import Identity, identify
from fedvg_jax.core.types import (
    Algorithm,
    Hyper,
    Hyperparameter,
    Metric,
    Selection,
    Task,
    UsageError,
    Variables,
    Weighting,
)
from fedvg_jax.data import user_data
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.runs.assemble import registry
from fedvg_jax.runs.record import folder as run_folder

T = TypeVar("T")

_ABSENT_PARTS = (no_correction, no_state, no_probe, no_report, no_residual)
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
        own = {
            n: value
            for n, value in self._asdict().items()
            if value is not None and n not in ("hyper", "initial")
        }
        return {
            name: getattr(value, "__name__", "").replace("<lambda>", "")
            for name, value in own.items()
        }


FUNCTIONS = ("task", "algorithm", "weighting", "selection")
"""Arguments that hold functions."""


def identities(given: Given, metrics: Mapping[str, Metric]) -> dict[str, Identity]:
    """Returns the identities of what a caller passed: of given arguments by name, of metrics by "metric NAME"."""
    values = {name: value for name, value in given._asdict().items() if value is not None}
    if given.data is not None:
        values["data"] = user_data.as_arrays(given.data)
    if given.hyper:
        values["hyper"] = {name: python_scalar(value) for name, value in given.hyper.items()}
    values |= {f"{run_folder.METRIC} {name}": metric.function for name, metric in metrics.items()}
    return {name: identify(value) for name, value in values.items()}


def code_of(given: Given, metrics: Mapping[str, Metric]) -> dict[str, str]:
    """Returns the digests that a run's manifest has of functions from Python, which `sources` does not cover."""
    only = Given(**{name: getattr(given, name) for name in FUNCTIONS})
    return {name: identity.digest for name, identity in identities(only, metrics).items()}


def traced_anew(given: Given) -> Given:
    """Returns what a call is given, with new functions; see `new_functions`.

    Raises:
        UsageError: a task, an algorithm or a weighting is something else.
    """
    check_kinds(given.task, given.algorithm, given.weighting)
    return given._replace(**{name: new_functions(getattr(given, name)) for name in FUNCTIONS})


def check_kinds(task: Any, algorithm: Any, weighting: Any) -> None:
    """Raises UsageError unless each argument is None or of its kind; a weighting may be a function task -> `Weighting`.

    >>> check_kinds(None, "fedavg", None)
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: algorithm must be a fedvg_jax.Algorithm, got a str; Config(...) takes names
    """
    for name, value, kind in (
        ("task", task, Task),
        ("algorithm", algorithm, Algorithm),
        ("weighting", weighting, Weighting),
    ):
        if not (
            value is None or isinstance(value, kind) or (kind is Weighting and callable(value))
        ):
            got = type(value).__name__
            raise UsageError(
                f"{name} must be a fedvg_jax.{kind.__name__}, got a {got}; Config(...) takes names"
            )


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


def merge_hyperparameters(
    config: Config,
    algorithm: Algorithm,
    weighting: Weighting,
    given: Mapping[str, Any] | None = None,
    own: tuple[Algorithm | Weighting, ...] = (),
) -> Hyper:
    """Returns all hyperparameters of a run as float32 scalars.

    The value of a declared hyperparameter is the first that exists of: `given[name]`; the config's field, if a named
    algorithm or weighting declares it; the declared default.

    Args:
        config: its fields set the hyperparameters of local training and of built-in algorithms and weightings.
        algorithm, weighting: of the run.
        given: name -> value of hyperparameters that `own` declares.
        own: `algorithm` and `weighting`, as far as the user passed them as objects.

    Raises:
        UsageError: an unknown name, a value out of range, or a name with two meanings.

    >>> from fedvg_jax import algorithms, weightings
    >>> steps = Hyperparameter("boost", 2.0, low=1.0, doc="factor of the server's step")
    >>> fedboost = algorithms.fedavg()._replace(hyperparameters=(steps,))
    >>> hyper = merge_hyperparameters(Config(), fedboost, weightings.uniform(), {"boost": 3}, (fedboost,))
    >>> float(hyper["boost"])
    3.0
    >>> merge_hyperparameters(Config(), fedboost, weightings.uniform(), {"bost": 3}, (fedboost,))
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: unknown hyperparameter 'bost' of the given algorithm or weighting; did you mean 'boost'?
    """
    check_kind(given)
    declared = _declared(algorithm, weighting)
    values = registry.make_hyper(config)
    passed = {parameter for part in own for parameter in part.hyperparameters} - HYPERPARAMETERS
    new = {name: p.value for name, p in declared.items() if p in passed or name not in values}
    settable = {parameter.name for part in own for parameter in part.hyperparameters}
    for name, value in (given or {}).items():
        if name not in settable:
            hint = (
                "; it is a field of Config"
                if name in values
                else suggestion(name, sorted(settable))
            )
            raise UsageError(
                f"unknown hyperparameter '{name}' of the given algorithm or weighting{hint}"
            )
        new[name] = value
    return {
        **values,
        **{name: jnp.float32(checked(declared[name], value)) for name, value in new.items()},
    }


def check_kind(given: Any) -> None:
    """Raises UsageError for given values that are no dict."""
    if not isinstance(given or {}, Mapping):
        raise UsageError(f"hyper must be a dict, name -> value; got {type(given).__name__}")


def own_values(
    config: Config, algorithm: Algorithm, weighting: Weighting, hyper: Hyper
) -> dict[str, float]:
    """Returns the declared values that no field of the config determines, because a user's own functions declare them.

    Args:
        config: of the run.
        algorithm: of the run; its declarations count.
        weighting: of the run; likewise.
        hyper: all hyperparameters of the run.

    >>> from fedvg_jax import algorithms, weightings
    >>> fedboost = algorithms.fedavg()._replace(hyperparameters=(Hyperparameter("boost", 2.0),))
    >>> own_values(Config(), fedboost, weightings.samples(), {**registry.make_hyper(Config()), "boost": jnp.float32(3)})
    {'boost': 3.0}
    """
    own = {}
    for parameter in (*algorithm.hyperparameters, *weighting.hyperparameters):
        setting, value = SETTINGS.get(parameter.name), hyper[parameter.name]
        if setting is None or jnp.float32(setting.get(config)) != value:
            own[parameter.name] = float(value)
    return own


def checked(parameter: Hyperparameter, value: Any) -> float:
    """Returns `value` as a float.

    Raises:
        UsageError: it is not a finite number, not in the declared range, or zero or infinite in float32.

    >>> checked(Hyperparameter("p", 0.5, 0, 1, excludes_low=True), 0)
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: hyperparameter 'p' must be in (0, 1]; got 0
    """
    number = checks.in_range(parameter, value)
    if number and not FLOAT32[0] <= abs(number) <= FLOAT32[1]:
        raise UsageError(
            f"hyperparameter '{parameter.name}' must be a number that float32 can hold; got {value}"
        )
    return number


def _declared(algorithm: Algorithm, weighting: Weighting) -> dict[str, Hyperparameter]:
    """Returns name -> declaration, of the algorithm and the weighting together."""
    declared: dict[str, Hyperparameter] = {}
    for parameter in (*algorithm.hyperparameters, *weighting.hyperparameters):
        if declared.setdefault(parameter.name, parameter) != parameter:
            raise UsageError(
                f"hyperparameter '{parameter.name}' is declared twice, as {parameter.doc or parameter.value} and as"
                f" {declared[parameter.name].doc or declared[parameter.name].value}; rename one"
            )
        if parameter.name in registry.READ_BY_ROUNDS:
            raise UsageError(
                f"hyperparameter '{parameter.name}' is a setting of every run; give yours another name"
            )
    return declared
