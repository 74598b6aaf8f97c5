"""The model of a run: a named network or a custom task, its first variables, its trained and local parts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping

import jax
import jax.numpy as jnp

from fedvg_jax.config import MODELS, Config, flatten
from fedvg_jax.config.checks import unmet
from fedvg_jax.config.declare import listed
from fedvg_jax.config.options import as_reference, local, lora
from fedvg_jax.core import checks, trained_part
from fedvg_jax.core.trained_part import NOTHING, LocalPart, local_part
from fedvg_jax.core.types import Batch, Task, UsageError, Variables
from fedvg_jax.data.arrays import Arrays, class_labels, is_sequences, refuse_channels_first, shape
from fedvg_jax.engine import task_checks
from fedvg_jax.host import hardware as hw
from fedvg_jax.models import adapters, pretrained, task as tasks, transforms
from fedvg_jax.models.networks import costs, referenced
from fedvg_jax.runs.experiment import Model, Population
from fedvg_jax.runs.record import checkpoint, stored
from fedvg_jax.runs.record.history import CLIENT_ACCURACIES, CONFUSION


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
        is_drawn=initial is None and config.init is None,
    )


def check_images(config: Config, arrays: Arrays) -> None:
    """Raises UsageError if the config's model cannot take these data."""
    named, model = f"model {config.model}", MODELS[config.model]
    num_classes, of_row = len(arrays.class_names), arrays.x.shape[1:]
    instead = (
        "use another model, or give run(..., task=fedvg_jax.linen_task(...)) for one of your own"
    )
    if model.is_sequence:
        is_fitting = is_sequences(arrays)
        if not is_fitting or arrays.x.min() < 0 or arrays.x.max() >= num_classes:
            raise UsageError(
                f"{named} takes sequences, integers x and y [T, L] below {num_classes}, the number of class_names;"
                f" {arrays.name} has x {shape(arrays.x)}; {instead}"
            )
        return
    class_labels(arrays, named, instead)
    is_image, channels, needed = len(of_row) == 3, model.channels, ""
    if is_image and not model.takes_rows:
        refuse_channels_first(arrays, named)
    if not (is_image or model.takes_rows):
        needed = "images [T, H, W, D]"
    elif not of_row or not arrays.x[0].size:
        needed = "rows [T, D] of one value or more"
    elif config.normalise == "imagenet" and not (is_image and of_row[-1] in (1, 3)):
        needed = "images of 1 or 3 channels for normalise imagenet"
    elif channels and of_row[-1] not in channels:
        needed = f"images of {' or '.join(map(str, channels))} channels"
    elif min(of_row[:2]) < model.smallest:
        needed = f"images of {model.smallest} x {model.smallest} or more"
    if needed:
        raise UsageError(f"{named} takes {needed}, x is {shape(arrays.x)}; {instead}")


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
        return hw.jit_once(init)(key)  # after a short compilation
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


# --- objects of a caller, and what settings ask of them

MODEL_SETTINGS = ("precision", "normalise", "conv", "norm_layers", "lora")
"""Settings that only the building of the config's model reads."""


def check_settings_of_task(config: Config, task: Task, pool: Batch) -> None:
    """Checks that a user's task does what the settings ask of it.

    A resumed run keeps the settings that it started with, so those that have no effect are not refused there.

    Raises:
        UsageError: a setting would build the config's model and has no effect, or needs a sum that the task does not
            have.
    """
    if config.resume is not None:
        return
    settings, defaults = flatten(config), flatten(Config())
    for name in MODEL_SETTINGS:
        if settings[name] != defaults[name] and unmet(config, name) is None:
            raise UsageError(
                f"{name} {settings[name]} has no effect beside task=; leave it out, set it in the task"
            )
    if CONFUSION in listed(config.record):
        variables = jax.eval_shape(task.init, jax.random.key(0))
        sums = jax.eval_shape(task.measure, *variables, *task_checks.shapes_of_batch(pool))
        if not isinstance(sums, dict) or CONFUSION not in sums:
            raise UsageError(
                f"record {CONFUSION} needs '{CONFUSION}' of task.measure, [C * C] counts; leave it out"
            )


def check_accuracies(
    config: Config, weightings: Collection[str], task: Task | None, population: Population
) -> None:
    """Checks that accuracies can be computed where a named weighting or a record needs them.

    Args:
        config: settings.
        weightings: names of those that the run's consists of.
        task: a caller's task; None for the config's model, which returns scores of the classes.
        population: of the run.

    Raises:
        UsageError: the data have no class labels, or the task's outputs are not scores of the classes.
    """
    arrays = population.arrays
    instead, num_classes = "use client_val_loss or val_loss", len(arrays.class_names)
    readers = {"client_accuracy", "val_accuracy", *CLIENT_ACCURACIES}
    for consumer in sorted(readers.intersection([*listed(config.record), *weightings])):
        class_labels(arrays, consumer, instead, of_rows=False)
        if task:
            task_checks.check_scores(task, population.pool, consumer, instead, num_classes)
