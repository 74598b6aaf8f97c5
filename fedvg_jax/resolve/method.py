"""The method of a run, of settings and a caller: algorithm, weighting, rules, optimiser and their hyperparameters."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np
import optax

from fedvg_jax.algorithms.base import sends_messages
from fedvg_jax.config import SETTINGS, WEIGHTINGS, Config, client_chunk_size, cohort_size, methods
from fedvg_jax.config.checks import FLOAT32, unmet, with_passed
from fedvg_jax.config.declare import listed, suggestion
from fedvg_jax.config.methods import (
    HYPERPARAMETERS,
    NATIVE,
    Mean,
    Permuted,
    Rule,
    parse_weighting,
    weighting_names,
)
from fedvg_jax.config.options import (
    algorithm_of,
    as_reference,
    choice,
    local,
    option_arguments,
    traced_values,
)
from fedvg_jax.core import checks
from fedvg_jax.core.types import (
    Algorithm,
    Hyper,
    Hyperparameter,
    NamedWeighting,
    Selection,
    Task,
    UsageError,
    Weighting,
)
from fedvg_jax.engine import attacks, local_training, privacy, robust, selection
from fedvg_jax.host import hardware as hw
from fedvg_jax.models import transforms
from fedvg_jax.models.networks import costs
from fedvg_jax.resolve.custom import Custom, new_functions
from fedvg_jax.resolve.data import corrupt_clients
from fedvg_jax.runs.experiment import Method
from fedvg_jax.weightings import baselines, basic, recorded


def make_method(config: Config, custom: Custom) -> Method:
    """Returns the method of a run.

    Args:
        config: checked settings.
        custom: objects that take the place of settings.

    Raises:
        UsageError: parts of the method contradict each other.
    """
    records = listed(config.record)
    algorithm = make_algorithm(config, custom)
    rule = custom.aggregate or SETTINGS["robust"].made(config)
    _refuse_contradictions(config, custom, algorithm, rule)
    is_attacked = custom.attack is not None or config.attack != "none"
    corrupt = corrupt_clients(config, is_attacked)
    attack = custom.attack or SETTINGS["attack"].made(config)
    # a custom task may have negative losses, which val_loss turns into no weights
    by_loss = "val_loss" in named_weightings(config, custom, algorithm)
    return Method(
        algorithm=algorithm,
        weighting=functools.partial(_weighting, config, custom.weighting, algorithm),
        optimiser=make_optimiser(config),
        aggregate=rule,
        disturb=attacks.disturbance(attack, corrupt, config.clients) if attack else None,
        corrupt_clients=tuple(corrupt.tolist()),
        selection=make_selection(config, custom.selection),
        augment=transforms.AUGMENTATIONS[config.augment],
        num_tuning_steps=config.tuning.steps,
        server_stats=as_reference(config, "server-stats"),
        weighs_untrained=as_reference(config, "untrained"),
        has_custom_weights=custom.weighting is not None or (custom.task is not None and by_loss),
        measures=tuple(name for name in records if name in recorded.MEASURES),
        sensitivity=_sensitivity(config, custom, algorithm),
        scores_applied=config.buffered.score == "applied",
    )


def make_algorithm(config: Config, custom: Custom) -> Algorithm:
    """Returns the algorithm with its compression; UsageError where there are two."""
    algorithm = custom.algorithm or algorithm_of(config)
    send = custom.send or SETTINGS["send"].made(config)
    if send is None:
        return algorithm
    if algorithm.send is not None:
        raise UsageError("send and algorithm.send both compress updates; leave one out")
    return algorithm._replace(send=send)


def make_selection(config: Config, custom: Selection | None) -> Selection | None:
    """Returns the selection of cohorts; None for uniform cohorts.

    Raises:
        UsageError: the settings draw cohorts in another way.
    """
    name, num_candidates = choice(config, "selection")
    num_candidates = num_candidates or min(config.clients, 2 * cohort_size(config))
    named = selection.BY_NAME[name]
    chosen = custom or (named and named.made(num_candidates))
    if chosen and (as_reference(config, "cohorts") or config.buffered.size):
        raise UsageError(
            "a selection cannot be used with reference cohorts or buffered.size, which draw the clients themselves;"
            " leave one out"
        )
    return chosen


def _refuse_contradictions(
    config: Config, custom: Custom, algorithm: Algorithm, rule: robust.Rule
) -> None:
    """Raises UsageError where algorithm, local tensors, robust rule and cohorts do not fit together."""
    settings = {name: getattr(config, name) for name in ("robust", "algorithm", "weighting")}
    rule_name, name, weighting = with_passed(settings, custom.names).values()
    local_name = f"local {config.local}" if config.local else name
    is_robust, is_personal = rule is not robust.weighted_mean, algorithm.personal is not None
    is_local = bool(config.local) or is_personal
    is_chunked = client_chunk_size(config) < cohort_size(config)
    has_weights = custom.weighting or config.weighting not in ("uniform", "samples", "native")
    ignores = robust.facts(rule).ignores_weights
    robust_name = f"robust {rule_name}"
    problems = (
        (is_robust and sends_messages(algorithm), robust_name, f"messages that {name} averages"),
        (is_robust and is_chunked, robust_name, "client_chunk: it needs all models of a cohort"),
        (has_weights and ignores, robust_name, f"weighting {weighting}, which it ignores"),
        (config.local and is_personal, local_name, f"personal models of {name}"),
        (is_local and as_reference(config, "server-stats"), local_name, "reference server-stats"),
        (is_local and is_robust, local_name, f"{robust_name}, which has one model"),
    )
    for holds, one, other in problems:
        if holds:
            raise UsageError(f"{one} cannot be used with {other}; leave one out")


def _sensitivity(
    config: Config, custom: Custom, algorithm: Algorithm
) -> privacy.Sensitivity | None:
    """Returns how much one client can change the aggregate; None without differential privacy."""
    if config.dp.clip == 0:
        return None
    if custom.weighting:
        return privacy.tensorwise
    weighting = algorithm.native_weighting if config.weighting == NATIVE else config.weighting
    if weighting == "uniform":
        return privacy.fixed
    entries = named_weightings(config, custom, algorithm).values()
    granularities = {
        SETTINGS[entry.granularity].get(config) for entry in entries if entry.granularity
    }
    return privacy.modelwise if granularities <= {"modelwise"} else privacy.tensorwise


ADAM_EPS_ROOT = 1e-36
"""Added to Adam's second moment, because its root has no finite gradient at 0. Over 1e6 gradients from 1e-24 to 10 it
changes no bit of an update in float32; 1e-30 changes updates by up to 2.4e-7 of their size if gradients are below 1e-8.
"""


def make_optimiser(config: Config) -> local_training.Optimiser:
    """Returns the clients' optimiser with momentum, weight decay and learning rate schedule of the config."""
    factor = SETTINGS["lr_schedule"].made(config)

    def optimiser(hyper: Hyper, round):
        rate = hyper["lr"] * factor(hyper, round.astype(hyper["lr"].dtype))
        if config.optimiser == "adamw":
            return optax.adamw(rate, eps_root=ADAM_EPS_ROOT, weight_decay=hyper["weight_decay"])
        if config.optimiser == "adam":
            rule = optax.adam(rate, eps_root=ADAM_EPS_ROOT)
        else:
            rule = optax.sgd(rate, hyper["momentum"] if config.momentum else None)
        if not config.weight_decay:
            return rule
        return optax.chain(optax.add_decayed_weights(hyper["weight_decay"]), rule)

    return optimiser


# --- weightings


def make_weighting(config: Config, task: Task, algorithm: Algorithm) -> Weighting:
    """Returns the weighting that `config.weighting` names.

    Args:
        config: the settings of the weighting.
        task: the model and its loss.
        algorithm: its `native_weighting` is the weighting "native".

    Raises:
        UsageError: the weighting is "native", and `algorithm.native_weighting` names none; `fedvg.include` matches no
            tensor; or a group has no matrix for the spectral norm.
    """
    most_rows = costs(config.model).rows_per_scoring_pass
    of_run = {
        "task": task,
        "exclude": local(config)[1],
        "groups_per_pass": functools.partial(
            hw.groups_per_scoring_pass, config.batch_size, most_rows
        ),
    }

    def build(rule: Rule) -> Weighting:
        match rule:
            case Permuted(inner):
                return baselines.permuted(build(inner))
            case Mean(first, second):
                return basic.mix(build(first), build(second))
        entry = WEIGHTINGS[_known(rule, algorithm)]
        arguments = option_arguments(config, entry.options)
        return entry.make(**arguments, **{name: of_run[name] for name in entry.takes})

    return build(parse_weighting(config.weighting))


def _known(name: str, algorithm: Algorithm) -> str:
    """Returns the name of a weighting, and `algorithm.native_weighting` for "native": a key of `WEIGHTINGS`."""
    name = algorithm.native_weighting if name == NATIVE else name
    if not isinstance(name, str) or name not in WEIGHTINGS:
        allowed, got = ", ".join(WEIGHTINGS), str(name)[:100]
        raise UsageError(f"algorithm.native_weighting must be one of {allowed}; got {got!r}")
    return name


def named_weightings(
    config: Config, custom: Custom, algorithm: Algorithm
) -> dict[str, NamedWeighting]:
    """Returns the weightings that the run's consists of, by name; {} for a custom one."""
    names = () if custom.weighting else weighting_names(config.weighting)
    known = [_known(name, algorithm) for name in names]
    return {name: WEIGHTINGS[name] for name in known}


def _weighting(config: Config, custom: Any, algorithm: Algorithm, task: Task) -> Weighting:
    """Returns the weighting of a run for the task of scoring; a custom one may be a function of the task."""
    if custom is None:
        return make_weighting(config, task, algorithm)
    if isinstance(custom, Weighting):
        return custom
    with checks.calling("weighting(task)"):
        weighting = custom(task)
    if not isinstance(weighting, Weighting):
        got = type(weighting).__name__
        raise UsageError(f"weighting(task) returned a {got}; expected a Weighting")
    return new_functions(weighting)


# --- hyperparameters


def make_hyper(
    config: Config,
    algorithm: Algorithm,
    weighting: Weighting,
    passed: Mapping[str, Any] | None = None,
    settable: Collection[str] = (),
) -> tuple[Hyper, dict[str, float]]:
    """Returns all hyperparameters of a run as float32 scalars, and the declared values that no setting determines.

    The value of a declared hyperparameter is the first that exists of: `passed[name]`; its setting, if a built-in
    algorithm or weighting declares it so and the settings name that; the declared default.

    Args:
        config: its fields set the hyperparameters of local training and of built-in algorithms and weightings.
        algorithm, weighting: of the run.
        passed: name -> value, of the caller.
        settable: names that may be passed, because a caller's object declares them.

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
    fedvg_jax.UsageError: unknown hyperparameter 'bost' of the objects; did you mean 'boost'?
    """
    passed, values, custom = passed or {}, scalars(config), {}
    for name in passed:
        if name not in settable:
            hint = suggestion(name, sorted(settable))
            raise UsageError(f"unknown hyperparameter '{name}' of the objects{hint}")
    of_rounds = values.keys() - methods.SETTINGS.keys()
    for name, parameter in _declared(algorithm, weighting, of_rounds).items():
        of_setting = values.get(name)
        is_set = parameter in HYPERPARAMETERS and unmet(config, name) is None
        if is_set and name not in passed:
            continue
        values[name] = np.float32(checked(parameter, passed.get(name, parameter.value)))
        if of_setting != values[name]:
            custom[name] = float(values[name])
    return jax.device_put(values), custom  # jnp.float32 would run a program for each


def scalars(config: Config) -> dict[str, np.float32]:
    """Returns the hyperparameters that settings have."""
    return {name: np.float32(value) for name, value in traced_values(config).items()}


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


def _declared(
    algorithm: Algorithm, weighting: Weighting, of_rounds: Collection[str]
) -> dict[str, Hyperparameter]:
    """Returns name -> declaration, of the algorithm and the weighting together.

    Args:
        algorithm, weighting: of a run.
        of_rounds: hyperparameters that are read beside them, such as lr and dp.clip; none declares these.
    """
    declared: dict[str, Hyperparameter] = {}
    for parameter in (*algorithm.hyperparameters, *weighting.hyperparameters):
        name, other = parameter.name, declared.setdefault(parameter.name, parameter)
        if other != parameter:
            raise UsageError(f"hyperparameter '{name}' is declared twice; rename one")
        if name in of_rounds:
            raise UsageError(
                f"hyperparameter '{name}' is a setting of every run; give yours another name"
            )
    return declared
