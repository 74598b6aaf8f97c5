"""Builds weightings, signals and groupings from their names in the config."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fedvg_jax.config import Config
from fedvg_jax.config.options import FedVG
from fedvg_jax.config.weighting_grammar import Mean, Permuted, Rule, parse_multipliers, parse_weighting
from fedvg_jax.core import hardware as hw
from fedvg_jax.core import tree
from fedvg_jax.core.types import Algorithm, Hyper, Signal, Task, UsageError, Variables, Weighting
from fedvg_jax.weightings import baselines, basic, family
from fedvg_jax.weightings.fedvg import fedvg
from fedvg_jax.weightings.norm_parts import layers_of


def make_weighting(
    config: Config,
    task: Task,
    algorithm: Algorithm,
    gradient: Signal | None = None,
    others: Mapping[str, Callable[[], Weighting]] = {},
    hardware: hw.Hardware | None = None,
) -> Weighting:
    """The weighting that `config.weighting` names.

    Args:
        config: the settings of the weighting.
        task: the model and its loss.
        algorithm: its `native_weighting` is the weighting "native".
        gradient: replaces FedVG's signal before norms, `make_signal`.
        others: name -> function without arguments that makes the weighting of that name, in place of the built-in one.
        hardware: what it will run on; defaults to `hardware.current()`.

    Raises:
        UsageError: the weighting is "native", and `algorithm.native_weighting` names none; or see `make_fedvg`.
    """
    named = {
        "samples": basic.samples,
        "uniform": basic.uniform,
        "fedvg": lambda: make_fedvg(config, task, gradient, hardware),
        "inverse_samples": baselines.inverse_samples,
        "val_loss": lambda: baselines.val_loss(task),
        "val_accuracy": lambda: baselines.val_accuracy(task),
        "fltrust": lambda: baselines.fltrust(task),
        "generalised": lambda: family.generalised(
            task, link=config.fedvg.link, **_fedvg_options(config, gradient, hardware)
        ),
        "fitted": lambda: baselines.fitted(task, config.fedvg.fit_steps),
        **others,
    }

    def native() -> Weighting:
        return named[_native_name(algorithm, named)]()

    return _build_rule(parse_weighting(config.weighting), {**named, "native": native})


def make_fedvg(
    config: Config, task: Task, gradient: Signal | None = None, hardware: hw.Hardware | None = None
) -> Weighting:
    """FedVG's weighting with the config's signal, norm, layers, granularity and scoring mode.

    Args:
        config: the settings of the weighting.
        task: the model and its loss; with `gradient`, only its `init` and `block_of` are used.
        gradient: replaces the config's signal before norms.
        hardware: what it will run on; defaults to `hardware.current()`.

    Raises:
        UsageError: `fedvg.include` matches no tensor, or a group has no matrix for the spectral norm.
    """
    return fedvg(task, **_fedvg_options(config, gradient, hardware))


def make_multipliers(config: Config, task: Task) -> Hyper:
    """The factors of the tensors' norms as the hyperparameter `multipliers`; {} for other weightings.

    Raises:
        UsageError: a pattern matches no tensor.
    """
    if "generalised" not in config.weighting:
        return {}
    params = _shapes(task).params
    paths, patterns = tree.paths(params), parse_multipliers(config.fedvg.multipliers)
    for pattern, _ in patterns:
        if not any(re.search(pattern, path) for path in paths):
            raise UsageError(f"fedvg.multipliers {pattern} matches no tensor; there are {', '.join(paths)}")
    factors = [next((factor for pattern, factor in patterns if re.search(pattern, path)), 1.0) for path in paths]
    return {"multipliers": jax.tree.structure(params).unflatten([jnp.float32(factor) for factor in factors])}


def _fedvg_options(config: Config, gradient: Signal | None, hardware: hw.Hardware | None) -> dict[str, Any]:
    """The arguments of `fedvg` beside the task."""
    options = config.fedvg
    return _layer_options(options) | {
        "signal": gradient or ("delta" if options.norm == "delta" else options.signal),
        "mode": options.mode,
        "stats": options.stats,
        "groups_per_pass": functools.partial(hw.groups_per_scoring_pass, config.batch_size, config.model, hardware),
        "hardware": hardware,
    }


def _layer_options(options: FedVG) -> dict[str, Any]:
    """The arguments of `layers_of` beside the task. Norm `delta`, the paper's name, is the L1 norm of the signal."""
    return {
        "norm": "l1" if options.norm == "delta" else options.norm,
        "granularity": options.granularity,
        "layer": options.layer,
        "include": options.include,
        "per_element": options.per_element,
    }


def layer_names(config: Config, task: Task) -> list[str]:
    """Names of the columns of the history's `layer_shares`; [] if the weighting is not of FedVG's family."""
    return (
        [layer.name for layer in layers_of(task, **_layer_options(config.fedvg))]
        if re.search("fedvg|generalised", config.weighting)
        else []
    )


def _build_rule(rule: Rule, named: dict[str, Callable[[], Weighting]]) -> Weighting:
    match rule:
        case Permuted(of):
            return baselines.permuted(_build_rule(of, named))
        case Mean(first, second):
            return basic.mix(_build_rule(first, named), _build_rule(second, named))
    return named[rule]()


def _native_name(algorithm: Algorithm, named: Mapping[str, Any]) -> str:
    """Returns `algorithm.native_weighting`, a key of `named`."""
    name = algorithm.native_weighting
    if not isinstance(name, str) or name not in named:
        raise UsageError(
            f"algorithm.native_weighting must be one of {', '.join(named)}; got {str(name)[:100]!r}; set one of these,"
            " or use another weighting than native"
        )
    return name


def _shapes(task: Task) -> Variables:
    with jax.enable_x64(False):  # models start in single precision
        return jax.eval_shape(task.init, jax.eval_shape(jax.random.key, 0))  # a key's shape, without drawing it
