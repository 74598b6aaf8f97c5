"""Builds algorithms, models, weightings, optimisers, hooks and executors from their names in the config."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedvg_jax import algorithms
from fedvg_jax.config import (
    MODELS,
    SETTINGS,
    WEIGHTINGS,
    Config,
    client_chunk_size,
    methods,
    num_corrupt,
)
from fedvg_jax.config.fidelity import departs
from fedvg_jax.config.methods import weighting_names
from fedvg_jax.config.options import local, lora
from fedvg_jax.config.weighting_grammar import Mean, Permuted, Rule, parse_weighting
from fedvg_jax.core import checks, trained_part, tree
from fedvg_jax.core.trained_part import NOTHING, LocalPart, local_part
from fedvg_jax.core.types import (
    Algorithm,
    Executor,
    Hyper,
    Signal,
    Task,
    UsageError,
    Variables,
    Weighting,
)
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.engine import attacks, executors, local_training
from fedvg_jax.host import hardware as hw
from fedvg_jax.models import adapters, pretrained, task as tasks, transforms
from fedvg_jax.models.conv.rewrite import fast_task
from fedvg_jax.models.networks import costs, referenced
from fedvg_jax.runs.assemble import fit
from fedvg_jax.runs.record import checkpoint, digests
from fedvg_jax.weightings import baselines, basic
from fedvg_jax.weightings.fedvg import layers_of


def with_send(config: Config, algorithm: Algorithm) -> Algorithm:
    """Returns the algorithm with the compression that the config names; UsageError where it has one of its own."""
    send = SETTINGS["send"].made(config)
    if send is None:
        return algorithm
    if algorithm.send is not None:
        raise UsageError(
            f"send {config.send} and algorithm.send both compress updates; leave one out"
        )
    return algorithm._replace(send=send)


def probe_ratio(config: Config, algorithm: Algorithm) -> float:
    """Returns the share of a client's rows that the algorithm's probe reads; 0 for an algorithm without one.

    Args:
        config: its `elastic.ratio` is that of every probe, also of a user's own.
        algorithm: of the run.
    """
    return 0.0 if algorithm.probe is algorithms.no_probe else config.elastic.ratio


def make_task(config: Config, arrays: Arrays) -> Task:
    """Returns the config's model for the images and classes of a data set."""
    check_images(config, arrays)
    return named_task(config, arrays.x.shape[1:], len(arrays.class_names))


def check_images(config: Config, arrays: Arrays) -> None:
    """Raises UsageError if the config's model cannot take these images."""
    fit.check_pixel_settings(arrays, config)
    fit.check_model_fits(arrays, config)
    shape, least = arrays.x.shape[1:], MODELS[config.model].smallest
    if min(shape[:2]) < least:
        got = f"{arrays.name} has {shape[0]} x {shape[1]}"
        raise UsageError(
            f"model {config.model} needs images of {least} x {least} or more; {got}; use another --model"
        )


def named_task(
    config: Config, shape: tuple[int, ...], num_classes: int, base: Variables | None = None
) -> Task:
    """Returns the config's model as a task.

    Args:
        shape: of a row: [H, W, D] of an image, [D] of a table, or [L] of a sequence for a sequence model.
        num_classes: C, classes or characters.
        base: frozen tensors of the model, arrays or shapes; the task is then of its trained part.
    """
    network = MODELS[config.model]
    settings = {name.removesuffix("_layers"): getattr(config, name) for name in network.settings}
    module = referenced(network.make)(num_classes, **network.options, **settings)
    if network.is_sequence:
        task = tasks.next_character(module, num_classes, shape[0], block_of(config))
    else:
        task = tasks.classification(module, num_classes, shape, block_of(config), config.normalise)
    task = fast_task(task, config.conv) if network.has_convolutions else task
    task = transforms.compute_in(task, config.precision)
    if config.lora:
        rank, layers = lora(config)
        task = adapters.with_adapters(task, rank, layers or adapters.EXCEPT_HEAD)
    if max_rows := costs(config.model).microbatch_rows:
        return transforms.accumulate_gradients(task, max_rows, base, trained_part.bind)
    return trained_part.bind(task, base)


def scoring_task(config: Config, *arguments: Any) -> Task | None:
    """Returns `named_task` with the convolutions of scoring passes; None where training has the same."""
    conv = _scoring_conv(config)
    return None if conv is None else named_task(dataclasses.replace(config, conv=conv), *arguments)


def _scoring_conv(config: Config) -> str | None:
    """Returns the convolution of scoring passes; None if it is the same as in training."""
    is_chosen = (
        config.conv == "auto" and config.lanes != "all" and MODELS[config.model].has_convolutions
    )
    return hw.choices().scoring_conv if is_chosen else None


def make_variables(
    config: Config, init: Callable[[jax.Array], Variables], initial: Variables | None = None
) -> Variables:
    """Returns the initial model: random from the seed, given, of another run, or a file's weights with a random head.

    Args:
        init: key -> variables, not jitted: `Task.init`.
        initial: given variables.

    Raises:
        UsageError: there are two sources, or `initial` has other tensors, shapes or dtypes than the model.
    """
    key = jax.random.key(config.seed)
    if config.lora and initial is None:
        drawn = init(key)
        plain = make_variables(
            dataclasses.replace(config, lora=""), lambda key: adapters.removed(drawn)
        )
        return adapters.filled(drawn, plain)
    if initial is not None:
        if config.init:
            raise UsageError(
                "initial gives the initial model, and so does init of the config; use one"
            )
        if not isinstance(initial, tuple) or len(initial) != 2:
            raise UsageError(
                f"initial must be Variables(params, stats); got a {type(initial).__name__}"
            )
        checks.expect(Variables(*initial), jax.eval_shape(init, key), "initial")
        return jax.tree.map(jnp.array, Variables(*initial))
    if config.init is None:
        return draw(init, key)
    shapes = jax.eval_shape(init, key)
    if digests.is_run(config.init):
        return jax.tree.map(jnp.array, checkpoint.final_variables(config.init, shapes))
    if not isinstance(shapes.params, Mapping) or pretrained.HEAD not in shapes.params:
        raise UsageError(
            f"init FILE needs a model with a layer {pretrained.HEAD}; give initial= for your own task"
        )
    read = pretrained.load(config.init, shapes, config.model)
    head = hw.jit_once(lambda key: init(key).params[pretrained.HEAD])(key)
    return read._replace(params={**read.params, pretrained.HEAD: head})


def draw(init: Callable[[jax.Array], Variables], key: jax.Array) -> Variables:
    """Returns an initial model, after a short compilation; arguments as in `make_variables`."""
    return hw.jit_once(init, tree.size(jax.eval_shape(init, key)))(key)


def block_of(config: Config) -> Callable[[str], str]:
    """Returns the function path of a tensor -> name of its block, for the config's model."""
    network = MODELS[config.model]
    return referenced((network.stage_of if departs(config, "block") else None) or network.block_of)


def make_is_trained(config: Config, task: Task) -> trained_part.IsTrained | None:
    """Returns which tensors of a whole model are trained; None for all, as they are.

    Raises:
        UsageError: none is.
    """
    pattern = config.train or (adapters.WITH_HEAD if config.lora else "")
    return trained_part.chooser(task, pattern) if pattern or task.is_frozen else None


def make_local(config: Config) -> LocalPart:
    """Returns the part of the model that stays with each client."""
    share, pattern = local(config)
    return local_part(pattern, share) if pattern else NOTHING


def round_options(config: Config, task: Task, local: LocalPart) -> dict[str, Any]:
    """Returns the keyword arguments of `make_round` that the config adds to its algorithm and weighting."""
    return {
        "aggregate": SETTINGS["robust"].made(config),
        "disturb": SETTINGS["attack"].made(config)(corrupt_clients(config), config.clients),
        "refine": baselines.server_steps(task, config.tuning.steps)
        if config.tuning.steps
        else None,
        "augment": transforms.AUGMENTATIONS[config.augment],
        "stats_too": departs(config, "server-stats"),
        "weigh_untrained": departs(config, "untrained"),
        "local": local,
    }


def corrupt_clients(config: Config) -> np.ndarray:
    """Returns the ids of the corrupt clients."""
    return attacks.corrupt_clients(config.seed, config.clients, num_corrupt(config))


def make_hyper(config: Config) -> Hyper:
    """Returns the hyperparameters that the config has a field for, as float32 scalars."""
    values = {
        name: value
        for setting in SETTINGS.values()
        for name, value in setting.scalars(config).items()
    }
    return jax.device_put(
        {name: np.float32(value) for name, value in values.items()}
    )  # jnp.float32 runs a program


ADAM_EPS_ROOT = 1e-36
"""Added to Adam's second moment, because its root has no finite gradient at 0. Over 1e6 gradients from 1e-24 to 10 it
changes no bit of an update in float32; 1e-30 changes updates by up to 2.4e-7 of their size if gradients are below 1e-8.
"""

READ_BY_ROUNDS = {name for setting in SETTINGS.values() for name in setting.traced_names} - {
    *methods.SETTINGS
}
"""Hyperparameters that are read beside algorithms and weightings, as lr, dp.clip and clip_norm; none declares them."""


def make_optimiser(config: Config) -> local_training.Optimiser:
    """Returns the clients' optimiser with momentum, weight decay and learning rate schedule of the config."""
    factor = SETTINGS["lr_schedule"].made(config)

    def optimiser(hyper: Hyper, round):
        rate = hyper["lr"] * factor(hyper, round.astype(hyper["lr"].dtype))
        if config.optimiser == "adamw":
            return optax.adamw(rate, eps_root=ADAM_EPS_ROOT, weight_decay=hyper["weight_decay"])
        momentum = hyper["momentum"] if config.momentum else None
        rule = (
            optax.adam(rate, eps_root=ADAM_EPS_ROOT)
            if config.optimiser == "adam"
            else optax.sgd(rate, momentum)
        )
        return (
            optax.chain(optax.add_decayed_weights(hyper["weight_decay"]), rule)
            if config.weight_decay
            else rule
        )

    return optimiser


# --- weightings


def make_weighting(
    config: Config, task: Task, algorithm: Algorithm, gradient: Signal | None = None
) -> Weighting:
    """Returns the weighting that `config.weighting` names.

    Args:
        config: the settings of the weighting.
        task: the model and its loss; with `gradient`, only its `init` and `block_of` are used.
        algorithm: its `native_weighting` is the weighting "native".
        gradient: replaces the gradient that FedVG measures.

    Raises:
        UsageError: the weighting is "native", and `algorithm.native_weighting` names none; `fedvg.include` matches no
            tensor; or a group has no matrix for the spectral norm.
    """

    def build(rule: Rule) -> Weighting:
        match rule:
            case Permuted(inner):
                return baselines.permuted(build(inner))
            case Mean(first, second):
                return basic.mix(build(first), build(second))
        name = _native_name(algorithm) if rule == "native" else rule
        entry = WEIGHTINGS[name]
        options = _fedvg_options(config, gradient) if entry.options else {}
        return entry.make(*[task] * entry.reads_rows, **options)

    return build(parse_weighting(config.weighting))


def _fedvg_options(config: Config, gradient: Signal | None) -> dict[str, Any]:
    """Returns the arguments of `fedvg` beside the task."""
    options, most_rows = config.fedvg, costs(config.model).rows_per_scoring_pass
    return _layer_options(config) | {
        "signal": "delta"
        if "delta" in (options.norm, options.signal)
        else gradient or options.signal,
        "mode": options.mode,
        "groups_per_pass": functools.partial(
            hw.groups_per_scoring_pass, config.batch_size, most_rows
        ),
    }


def _layer_options(config: Config) -> dict[str, Any]:
    """Returns the arguments of `layers_of` beside the task. Norm `delta` is the paper's name for the signal's L1."""
    options = config.fedvg
    return {
        "norm": "l1" if options.norm == "delta" else options.norm,
        "granularity": options.granularity,
        "layer": options.layer,
        "include": options.include,
        "exclude": local(config)[1],
    }


def layer_names(config: Config, task: Task) -> list[str]:
    """Returns the columns of the history's `layer_shares`; [] if the weighting is not of FedVG's family."""
    if not any(
        name in WEIGHTINGS and WEIGHTINGS[name].options
        for name in weighting_names(config.weighting)
    ):
        return []
    return [layer.name for layer in layers_of(task, **_layer_options(config))]


def _native_name(algorithm: Algorithm) -> str:
    """Returns `algorithm.native_weighting`, a key of `WEIGHTINGS`."""
    name = algorithm.native_weighting
    if not isinstance(name, str) or name not in WEIGHTINGS:
        raise UsageError(
            f"algorithm.native_weighting must be one of {', '.join(WEIGHTINGS)}; got {str(name)[:100]!r}"
        )
    return name


# --- executors


def make_executor(config: Config, devices: Sequence[Any] | None = None) -> Executor:
    """Returns the executor for the settings `lanes` and `devices`.

    Args:
        config: its `lanes` is a number per device, "all", or "auto": as `hardware.Choices.max_lanes`.
        devices: jax's devices; defaults to the devices of all processes.
    """
    count = num_devices(config)
    if config.lanes == "all":
        return executors.vmapped()
    chosen = hw.choices()
    max_lanes = chosen.max_lanes if config.lanes == "auto" else int(config.lanes)
    num_lanes = min(max_lanes, -(-client_chunk_size(config) // count))
    num_mapped = (
        1 if _scoring_conv(config) else max(num_lanes, costs(config.model).clients_per_scoring_pass)
    )
    if count > 1:
        return executors.sharded(count, num_lanes, devices, num_mapped)
    return executors.lanes(num_lanes, num_mapped)


def num_devices(config: Config) -> int:
    """Returns how many devices share a cohort: at most one for each client.

    Args:
        config: its `devices` is a number, or "auto": as `hardware.auto_devices` in every process.

    Raises:
        UsageError: for more devices or processes than there are, or than clients in a cohort; for devices that are no
            multiple of the processes; for several CPU devices of a process in double precision.
    """
    hardware = hw.current()
    available, processes, size = (
        hardware.num_devices,
        hardware.num_processes,
        client_chunk_size(config),
    )
    double = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]  jax adds it at run time
    most = processes * hw.auto_devices(costs(config.model).client_bytes, double)
    if processes > 1 and config.lanes == "all":
        raise UsageError(
            f"lanes all runs on one device only; got {processes} processes; use --lanes auto"
        )
    if processes > size:
        raise UsageError(
            f"{processes} processes are more than the {size} clients held at a time; start fewer"
        )
    if config.devices == "auto":
        return min(most, processes * -(-size // processes))
    wanted = int(config.devices)
    if wanted > processes and double and not hw.choices().is_float64_safe_on_many_devices:
        raise UsageError(
            f"devices {wanted}: float64 on several CPU devices may be wrong; use --devices 1, or no JAX_ENABLE_X64"
        )
    if wanted > min(available, size) or wanted % processes:
        raise UsageError(
            f"devices {wanted}: jax has {available}, {processes} process(es) share them, and {size} clients are"
            " held at a time; use --devices auto, or set JAX_NUM_CPU_DEVICES before jax starts"
        )
    return wanted
