"""Builds weightings, signals and groupings from their names in the config."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedvg_jax.config import Config
from fedvg_jax.config.options import FedVG
from fedvg_jax.config.weighting_grammar import Mean, Permuted, Rule, parse_multipliers, parse_weighting
from fedvg_jax.core import groups, norms, tree
from fedvg_jax.core import hardware as hw
from fedvg_jax.core.types import Algorithm, Grouping, Hyper, Signal, Task, UsageError, Variables, Weighting
from fedvg_jax.weightings import baselines, basic, family, signals
from fedvg_jax.weightings.fedvg import FLOOR, fedvg

FACTORS: dict[str, Callable[[int], float]] = {
    "l1": lambda size: 1 / size,
    "l2": lambda size: 1 / math.sqrt(size),
    "spectral": lambda size: 1 / math.sqrt(size),
    "spectral_l2": lambda size: 1 / math.sqrt(size),
}
"""Norm -> function (number of entries of a layer) -> factor that makes its norm one per element."""


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
        "generalised": lambda: make_generalised(config, task, gradient, hardware),
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
    return _build_fedvg(config, task, fedvg, gradient, hardware)


def make_generalised(
    config: Config, task: Task, gradient: Signal | None = None, hardware: hw.Hardware | None = None
) -> Weighting:
    """The generalised family with FedVG's options; `make_multipliers` has its factors of the tensors' norms.

    Args:
        config, task, gradient, hardware: as in `make_fedvg`.

    Raises:
        UsageError: see `make_fedvg`.
    """
    rule = functools.partial(family.generalised, link=config.fedvg.link)
    return _build_fedvg(config, task, rule, gradient, hardware)


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


def _build_fedvg(
    config: Config,
    task: Task,
    rule: Callable[..., Weighting],
    gradient: Signal | None = None,
    hardware: hw.Hardware | None = None,
) -> Weighting:
    """`rule` with the config's signal, groups and layers."""
    options, norm = config.fedvg, norm_name(config.fedvg)
    weighting = rule(
        signals.normed(gradient or make_signal(config, task, hardware), norms.BY_NAME[norm], hardware),
        _grouping(options),
        task.block_of,
        fedvg_layers(options, task),
        norms.JOINED[norm],
        # the Fisher signal is a squared gradient
        floor=FLOOR ** (2 if options.signal == "fisher" else 1),
    )
    return {"uniform": weighting, "layer": basic.with_own_statistics(weighting)}[options.stats]


def make_signal(config: Config, task: Task, hardware: hw.Hardware | None = None) -> Signal:
    """The signal before norms: tensors like the client's parameters."""
    options = config.fedvg
    groups_per_pass = functools.partial(hw.groups_per_scoring_pass, config.batch_size, config.model, hardware)
    named = {
        "gradient": signals.validation_gradient(task, options.mode == "train", groups_per_pass),
        "delta": signals.delta,
        "fisher": signals.fisher(task),
    }
    return named["delta" if options.norm == "delta" else options.signal]


def norm_name(options: FedVG) -> str:
    """Name of the norm. `delta`, the paper's name, is the L1 norm of the signal `delta`."""
    return "l1" if options.norm == "delta" else options.norm


def fedvg_layers(options: FedVG, task: Task) -> Sequence[groups.Layer]:
    """The layers that FedVG's G_k averages over, in the order of the history's `layer_shares`.

    Raises:
        UsageError: see `make_fedvg`.
    """
    shapes = _shapes(task)
    paths = tree.paths(shapes.params)
    included = {path for path in paths if re.search(options.include, path)}
    if not included:
        raise UsageError(f"fedvg.include {options.include} matches no tensor; there are {', '.join(paths)}")
    counted = included & _measurable(options, shapes)
    _check_groups(counted, included, _grouping(options)(shapes, task.block_of))
    return groups.layers(
        shapes.params,
        counted.__contains__,
        {"tensor": lambda path: path, "module": groups.module_of}[options.layer],
        FACTORS[norm_name(options)] if options.per_element else lambda size: 1.0,
    )


def layer_names(config: Config, task: Task) -> list[str]:
    """Names of the columns of the history's `layer_shares`; [] if the weighting is not of FedVG's family."""
    return (
        [layer.name for layer in fedvg_layers(config.fedvg, task)]
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


def _grouping(options: FedVG) -> Grouping:
    """The config's grouping. A vector has no spectral norm, so layerwise it takes the weight of its module's matrix."""
    by_module = options.layer == "module" or options.norm == "spectral"
    return (groups.BY_NAME | ({"layerwise": groups.modulewise} if by_module else {}))[options.granularity]


def _measurable(options: FedVG, shapes: Variables) -> set[str]:
    """Paths of the tensors for which the norm is defined."""
    leaves = zip(tree.paths(shapes.params), jax.tree.leaves(shapes.params), strict=True)
    return {path for path, leaf in leaves if leaf.ndim > 1 or options.norm != "spectral"}


def _check_groups(counted: set[str], included: set[str], by_group: Variables) -> None:
    group_of = dict(zip(tree.paths(by_group.params), jax.tree.leaves(by_group.params), strict=True))
    measured = {group_of[path] for path in counted}
    missing = sorted(path for path in included if group_of[path] not in measured)
    if missing:
        raise UsageError(
            f"fedvg.norm spectral needs a matrix in every group, and there is none for {', '.join(missing)};"
            " use --fedvg.norm spectral_l2, --fedvg.granularity modelwise, or --fedvg.include to leave them out"
        )
