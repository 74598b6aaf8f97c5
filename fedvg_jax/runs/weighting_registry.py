"""Where the names of weightings, norms, signals and granularities become objects."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from fedvg_jax.config import Config
from fedvg_jax.config.options import FedVG
from fedvg_jax.config.weighting_grammar import Mean, Permuted, Rule, parse_multipliers, parse_weighting
from fedvg_jax.core import groups, hardware, norms, tree
from fedvg_jax.core.types import Algorithm, Grouping, Hyper, Signal, Task, UsageError, Variables, Weighting
from fedvg_jax.weightings import baselines, basic, family, signals
from fedvg_jax.weightings.fedvg import FLOOR, fedvg

FACTORS: dict[str, Callable[[int], float]] = {
    "l1": lambda size: 1 / size,
    "l2": lambda size: 1 / math.sqrt(size),
    "spectral": lambda size: 1 / math.sqrt(size),
    "spectral_l2": lambda size: 1 / math.sqrt(size),
}
"""norm -> entries of a layer -> what makes its norm one per element"""


def make_weighting(config: Config, task: Task, algorithm: Algorithm) -> Weighting:
    """The rule that `config.weighting` spells."""
    named = {
        "samples": basic.samples,
        "uniform": basic.uniform,
        "fedvg": lambda: make_fedvg(config, task),
        "inverse_samples": baselines.inverse_samples,
        "val_loss": lambda: baselines.val_loss(task),
        "val_accuracy": lambda: baselines.val_accuracy(task),
        "fltrust": lambda: baselines.fltrust(task),
        "generalised": lambda: make_generalised(config, task),
        "fitted": lambda: baselines.fitted(task, config.fedvg.fit_steps),
    }
    return _made(parse_weighting(config.weighting), named | {"native": named[algorithm.native_weighting]})


def make_fedvg(config: Config, task: Task) -> Weighting:
    """FedVG with its signal, norm, layers, granularity and scoring mode.

    Raises:
        UsageError: where no tensor counts, or where a group has no matrix for the spectral norm.
    """
    return _of_fedvg(config, task, fedvg)


def make_generalised(config: Config, task: Task) -> Weighting:
    """The family FedVG belongs to, with the same options; `make_multipliers` is for its hyper-parameters.

    Raises:
        UsageError: as `make_fedvg`.
    """
    return _of_fedvg(config, task, functools.partial(family.generalised, link=config.fedvg.link))


def make_multipliers(config: Config, task: Task) -> Hyper:
    """The factors of tensors' norms as a hyper-parameter, where the weighting reads any.

    Raises:
        UsageError: for a pattern that matches no tensor.
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


def _of_fedvg(config: Config, task: Task, rule: Callable[..., Weighting]) -> Weighting:
    """`rule` of FedVG's signal, groups and layers."""
    options, norm = config.fedvg, norm_name(config.fedvg)
    made = rule(
        signals.normed(make_signal(config, task), norms.BY_NAME[norm]),
        _grouping(options),
        task.block_of,
        fedvg_layers(options, task),
        norms.JOINED[norm],
        # what fisher measures is squared
        floor=FLOOR ** (2 if options.signal == "fisher" else 1),
    )
    return {"uniform": made, "layer": basic.with_own_statistics(made)}[options.stats]


def make_signal(config: Config, task: Task) -> Signal:
    """What is measured, tensors like the client's own."""
    options = config.fedvg
    groups_per_pass = hardware.groups_per_scoring_pass(config.batch_size)
    named = {
        "gradient": signals.validation_gradient(task, options.mode == "train", groups_per_pass),
        "delta": signals.delta,
        "fisher": signals.fisher(task),
    }
    return named["delta" if options.norm == "delta" else options.signal]


def norm_name(options: FedVG) -> str:
    """The norm; `delta`, the paper's name, is the L1 norm of what the signal of that name measures."""
    return "l1" if options.norm == "delta" else options.norm


def fedvg_layers(options: FedVG, task: Task) -> Sequence[groups.Layer]:
    """What FedVG's means are over, in the order of the history's `layer_shares`.

    Raises:
        UsageError: as `make_fedvg`.
    """
    shapes = _shapes(task)
    paths = tree.paths(shapes.params)
    included = {path for path in paths if re.search(options.include, path)}
    if not included:
        raise UsageError(f"fedvg.include {options.include} matches no tensor; there are {', '.join(paths)}")
    counted = included & _measurable(options, shapes)
    _refuse_groups_without(counted, included, _grouping(options)(shapes, task.block_of))
    return groups.layers(
        shapes.params,
        counted.__contains__,
        {"tensor": lambda path: path, "module": groups.module_of}[options.layer],
        FACTORS[norm_name(options)] if options.per_element else lambda size: 1.0,
    )


def layer_names(config: Config, task: Task) -> list[str]:
    """Of the columns of the history's `layer_shares`; none where the weighting is not of FedVG's family."""
    return (
        [layer.name for layer in fedvg_layers(config.fedvg, task)]
        if re.search("fedvg|generalised", config.weighting)
        else []
    )


def _made(rule: Rule, named: dict[str, Callable[[], Weighting]]) -> Weighting:
    match rule:
        case Permuted(of):
            return baselines.permuted(_made(of, named))
        case Mean(first, second):
            return basic.mix(_made(first, named), _made(second, named))
    return named[rule]()


def _shapes(task: Task) -> Variables:
    with jax.enable_x64(False):  # models start in single precision
        return jax.eval_shape(task.init, jax.random.key(0))


def _grouping(options: FedVG) -> Grouping:
    """A vector has no spectral norm: layerwise it takes the weight of its module's matrix."""
    by_module = options.layer == "module" or options.norm == "spectral"
    return (groups.BY_NAME | ({"layerwise": groups.modulewise} if by_module else {}))[options.granularity]


def _measurable(options: FedVG, shapes: Variables) -> set[str]:
    """Paths of the tensors that the norm is defined for."""
    leaves = zip(tree.paths(shapes.params), jax.tree.leaves(shapes.params), strict=True)
    return {path for path, leaf in leaves if leaf.ndim > 1 or options.norm != "spectral"}


def _refuse_groups_without(counted: set[str], included: set[str], by_group: Variables) -> None:
    group_of = dict(zip(tree.paths(by_group.params), jax.tree.leaves(by_group.params), strict=True))
    known = {group_of[path] for path in counted}
    lacking = sorted(path for path in included if group_of[path] not in known)
    if lacking:
        raise UsageError(
            f"fedvg.norm spectral needs a matrix in every group, and there is none for {', '.join(lacking)};"
            " use --fedvg.norm spectral_l2, --fedvg.granularity modelwise, or --fedvg.include to leave them out"
        )
