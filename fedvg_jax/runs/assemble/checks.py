"""Checks that what a run is given does what the settings ask of it, and that its data do."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from fedvg_jax.config import Config, block_size, cohort_size, flatten
from fedvg_jax.config.checks import problems_of_algorithm
from fedvg_jax.config.methods import AlgorithmFacts
from fedvg_jax.config.options import choice, stop_target
from fedvg_jax.config.uses import unmet
from fedvg_jax.core import reuse
from fedvg_jax.core.types import Algorithm, Batch, Data, Hyper, Task, Tree, UsageError
from fedvg_jax.data import user_data
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions.client_rows import Partition
from fedvg_jax.models.task import MOST_COUNTED
from fedvg_jax.paper.fidelity import departs, listed
from fedvg_jax.runs.assemble import contracts, programs
from fedvg_jax.runs.assemble.given import Given
from fedvg_jax.runs.record.history import CLIENT_ACCURACIES, CONFUSION

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
        if settings[name] not in (defaults[name], "columns") and unmet(config, name) is None:
            raise UsageError(f"{name} {settings[name]} has no effect beside task=; leave it out, set it in the task")
    _check_sums(config, task, pool)


def _check_sums(config: Config, task: Task, pool: Any) -> None:
    """Raises UsageError where the confusion matrix is recorded and a task does not count one."""
    if CONFUSION not in listed(config.record):
        return
    sums = contracts.shapes_of_sums(task, pool)
    if not isinstance(sums, dict) or CONFUSION not in sums:
        raise UsageError(f"record {CONFUSION} needs '{CONFUSION}' of task.measure, [C * C] counts; leave it out")


def check_given(
    config: Config, given: Given, program: programs.Program, pool: Batch, arrays: Arrays, tables: Data, hyper: Hyper
) -> None:
    """Raises UsageError if a given weighting or algorithm breaks its contract, or accuracies cannot be computed.

    Args:
        tables: the rows that a round reads.
    """
    task, own_algorithm = given.task, given.algorithm
    if given.weighting:
        if (rule := choice(config, "robust")[0]) not in ("mean", "clipped_mean"):
            raise UsageError(f"robust {rule} ignores weighting=; use clipped_mean, or leave one out")
        if program.weighting.num_clients not in (None, config.clients):
            wanted = f"{program.weighting.num_clients} clients; the run has {config.clients}"
            raise UsageError(f"weightings.given has the weights of {wanted}")
        in_blocks = block_size(config) < cohort_size(config)
        arguments = program.weighting, program.task, tables, hyper
        check = functools.partial(contracts.check_weighting, *arguments, in_blocks=in_blocks)
        program.keep(("weighting", in_blocks, *reuse.key_of_shapes(tables)), check)
    algorithm = None if given.weighting else program.algorithm
    _check_accuracies(config, algorithm, task and program.task, pool, arrays)
    sees_minibatches = task is not None and program.algorithm.loss is not None
    if sees_minibatches:
        contracts.check_forward(program.task, tables.pool)
    if own_algorithm or sees_minibatches:
        messages = contracts.check_algorithm(
            program.algorithm,
            program.task,
            tables.pool,
            hyper,
            num_clients=config.clients,
            stats_too=departs(config, "server-stats"),
        )
        sends, keeps = bool(jax.tree.leaves(messages)), program.algorithm.personal is not None
        facts = AlgorithmFacts("", sends_messages=sends, has_personal_models=keeps)
        for message in problems_of_algorithm(config, "the algorithm", facts) if own_algorithm else ():
            raise UsageError(message)
    name = "the algorithm" if own_algorithm else f"algorithm {config.algorithm}"
    key = "features", *reuse.key_of_shapes((tables.pool, hyper))
    check_features = functools.partial(contracts.check_features, program.algorithm, program.task)
    program.keep(key, lambda: check_features(tables.pool, hyper, name))


def _check_accuracies(
    config: Config, algorithm: Algorithm | None, task: Task | None, pool: Batch, arrays: Arrays
) -> None:
    """Checks that accuracies can be computed where a named weighting or a record needs them.

    Args:
        config: settings.
        algorithm: whose native weighting is used where the config names it; None for a user's weighting.
        task: a user's task; None for the config's model, whose outputs are scores of the classes.
        pool: the rows of all tables.
        arrays: the data set.

    Raises:
        UsageError: the data have no class labels, or the task's outputs are not scores of the classes.
    """
    consumers = []
    if algorithm:
        is_native = "native" in config.weighting and algorithm.native_weighting == "val_accuracy"
        if is_native or "val_accuracy" in config.weighting:
            consumers.append(("weighting val_accuracy", "use val_loss"))
    recorded = [name for name in ("client_accuracy", *CLIENT_ACCURACIES) if name in listed(config.record)]
    consumers += [(f"record {name}", "use client_val_loss") for name in recorded]
    num_classes = len(arrays.class_names)
    if CONFUSION in listed(config.record) and num_classes > MOST_COUNTED:
        raise UsageError(f"record confusion is for at most {MOST_COUNTED:,} classes; got {num_classes:,}; leave it out")
    for consumer, instead in consumers:
        user_data.class_labels(arrays, consumer, instead, of_rows=False)
        if task:
            contracts.check_scores(task, pool, consumer, instead, len(arrays.class_names))


def check_target(config: Config, task: Task, pool: Tree) -> None:
    """Raises UsageError where evaluations of a task have no metric of the name in `stop_at`."""
    wanted = stop_target(config)
    if wanted is None:
        return
    sums = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), contracts.shapes_of_sums(task, pool))
    names = [f"val_{name}" for name in task.metrics(sums)]
    if wanted.metric not in names:
        raise UsageError(f"stop_at {wanted.metric} is not measured by this task; use one of {', '.join(names)}")


def check_clients(config: Config, parts: Partition, algorithm: Algorithm) -> None:
    """Raises UsageError where accuracies by client are recorded, and clients have no test rows or no such models."""
    by_client = [name for name in CLIENT_ACCURACIES if name in listed(config.record)]
    if by_client and len(parts.test) != len(parts.train):
        instead = "give those of each" if config.holdout == "client" else "use --holdout client"
        raise UsageError(f"record {by_client[0]} needs test rows of every client, and they are one set; {instead}")
