"""The hyperparameters of a run: of settings, of what algorithm and weighting declare, and of the caller."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from fedvg_jax.config import Config, methods
from fedvg_jax.config.checks import FLOAT32
from fedvg_jax.config.declare import suggestion
from fedvg_jax.config.methods import HYPERPARAMETERS
from fedvg_jax.config.options import SCALARS
from fedvg_jax.core import checks
from fedvg_jax.core.types import Algorithm, Hyper, Hyperparameter, UsageError, Weighting

_DEFAULTS = Config()

READ_BY_ROUNDS = {
    name
    for setting in SCALARS
    if setting.name not in methods.SETTINGS
    for name in setting.scalars(_DEFAULTS)
}
"""Hyperparameters that are read beside algorithms and weightings, as lr, dp.clip and clip_norm; none declares them."""


def make_hyper(
    config: Config,
    algorithm: Algorithm,
    weighting: Weighting,
    given: Mapping[str, Any] | None = None,
    settable: Collection[str] = (),
) -> tuple[Hyper, dict[str, float]]:
    """Returns all hyperparameters of a run as float32 scalars, and the declared values that no setting determines.

    The value of a declared hyperparameter is the first that exists of: `given[name]`; its setting, if a built-in
    algorithm or weighting declares it so; the declared default.

    Args:
        config: its fields set the hyperparameters of local training and of built-in algorithms and weightings.
        algorithm, weighting: of the run.
        given: name -> value.
        settable: names that may be given, because a caller's object declares them.

    Raises:
        UsageError: an unknown name, a value out of range, or a name with two meanings.

    >>> from fedvg_jax import algorithms, weightings
    >>> steps = Hyperparameter("boost", 2.0, low=1.0, doc="factor of the server's step")
    >>> fedboost = algorithms.fedavg()._replace(hyperparameters=(steps,))
    >>> make_hyper(Config(), fedboost, weightings.uniform(), {"boost": 3}, ["boost"])[1]
    {'boost': 3.0}
    >>> make_hyper(Config(), fedboost, weightings.uniform(), {"bost": 3}, ["boost"])
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: unknown hyperparameter 'bost' of the objects given; did you mean 'boost'?
    """
    given, values, custom = given or {}, scalars(config), {}
    if unknown := [name for name in given if name not in settable]:
        hint = suggestion(unknown[0], sorted(settable))
        raise UsageError(f"unknown hyperparameter '{unknown[0]}' of the objects given{hint}")
    for name, parameter in _declared(algorithm, weighting).items():
        of_setting = values.get(name)
        if name not in given and of_setting is not None and parameter in HYPERPARAMETERS:
            continue
        values[name] = np.float32(checked(parameter, given.get(name, parameter.value)))
        if of_setting is None or of_setting != values[name]:
            custom[name] = float(values[name])
    return jax.device_put(values), custom  # jnp.float32 would run a program for each


def scalars(config: Config) -> dict[str, np.float32]:
    """Returns the hyperparameters that settings have."""
    values = (setting.scalars(config).items() for setting in SCALARS)
    return {name: np.float32(value) for name, value in itertools.chain(*values)}


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
        name, other = parameter.name, declared.setdefault(parameter.name, parameter)
        if other != parameter:
            raise UsageError(f"hyperparameter '{name}' is declared twice; rename one")
        if name in READ_BY_ROUNDS:
            raise UsageError(
                f"hyperparameter '{name}' is a setting of every run; give yours another name"
            )
    return declared
