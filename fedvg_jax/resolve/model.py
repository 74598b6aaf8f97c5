"""The model of a run: a named network or a custom task, its first variables, its trained and local parts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from fedvg_jax.config import MODELS, Config
from fedvg_jax.config.options import as_reference, local, lora
from fedvg_jax.core import checks, trained_part
from fedvg_jax.core.trained_part import NOTHING, LocalPart, local_part
from fedvg_jax.core.types import Task, UsageError, Variables
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.host import hardware as hw
from fedvg_jax.models import adapters, pretrained, task as tasks, transforms
from fedvg_jax.models.networks import costs, referenced
from fedvg_jax.resolve import fit
from fedvg_jax.runs.experiment import Model
from fedvg_jax.runs.record import checkpoint, stored


def make_model(
    config: Config, arrays: Arrays, task: Task | None = None, initial: Variables | None = None
) -> Model:
    """Returns the model of a run on a data set.

    Args:
        config: checked settings.
        arrays: the data set.
        task: in place of the network that the settings name.
        initial: the first variables, in place of the task's.

    Raises:
        UsageError: the network cannot take the data.
    """
    scored = None
    if task is None:
        check_images(config, arrays)
        of_data = arrays.x.shape[1:], len(arrays.class_names)
        make = functools.partial(named_task, config, *of_data)
        if conv := scoring_conv(config):
            scored = functools.partial(named_task, dataclasses.replace(config, conv=conv), *of_data)
    else:
        from fedvg_jax.models.conv.rewrite import fast_task

        make = functools.partial(trained_part.bind, fast_task(task))
    return Model(
        name="" if task else config.model,
        bound=make,
        initial=lambda init: make_variables(config, init, initial),
        scored=scored,
        trained=config.train or (adapters.WITH_HEAD if config.lora else ""),
        local=make_local(config),
        local_name=f"local {config.local}",
        has_initial=initial is not None,
    )


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
    if network.has_convolutions:
        from fedvg_jax.models.conv.rewrite import fast_task

        task = fast_task(task, config.conv)
    if config.precision != "default":
        task = transforms.compute_in(task, config.precision)
    if config.lora:
        rank, layers = lora(config)
        task = adapters.with_adapters(task, rank, layers or adapters.EXCEPT_HEAD)
    if max_rows := costs(config.model).microbatch_rows:
        return transforms.accumulate_gradients(task, max_rows, base)
    return trained_part.bind(task, base)


def scoring_conv(config: Config) -> str | None:
    """Returns the convolution of scoring passes; None if it is the same as in training."""
    is_chosen = config.conv == "auto" and MODELS[config.model].has_convolutions
    return hw.choices().scoring_conv if is_chosen else None


def make_variables(
    config: Config, init: Callable[[jax.Array], Variables], initial: Variables | None = None
) -> Variables:
    """Returns the initial model: random by the seed, the caller's, another run's, or a file's with a random head.

    Args:
        init: key -> variables, not jitted: `Task.init`.
        initial: variables of the caller.

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
        checks.expect(initial, jax.eval_shape(init, key), "initial")
        return jax.tree.map(jnp.array, initial)
    if config.init is None:
        return draw(init, key)
    shapes = jax.eval_shape(init, key)
    if stored.is_run(config.init):
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
    return hw.jit_once(init)(key)


def block_of(config: Config) -> Callable[[str], str]:
    """Returns the function path of a tensor -> name of its block, for the config's model."""
    network = MODELS[config.model]
    return referenced(
        (network.stage_of if as_reference(config, "block") else None) or network.block_of
    )


def make_local(config: Config) -> LocalPart:
    """Returns the part of the model that stays with each client."""
    share, pattern = local(config)
    return local_part(pattern, share) if pattern else NOTHING
