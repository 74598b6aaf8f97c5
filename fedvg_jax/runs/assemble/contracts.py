"""Checks before training: of a caller's model, weighting or algorithm, and of settings and data beside them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedvg_jax.config import Config, client_chunk_size, cohort_size, flatten
from fedvg_jax.config.checks import problems_of_algorithm
from fedvg_jax.config.fidelity import departs, listed
from fedvg_jax.config.options import choice
from fedvg_jax.config.uses import unmet
from fedvg_jax.core import cache, checks, tree, types
from fedvg_jax.core.checks import dependencies
from fedvg_jax.core.types import (
    Algorithm,
    Batch,
    Data,
    Hyper,
    Task,
    Tree,
    UsageError,
    Variables,
    Weighting,
)
from fedvg_jax.data import user_data
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions.client_rows import Partition
from fedvg_jax.engine import local_training
from fedvg_jax.host import hardware as hw
from fedvg_jax.models.task import MOST_COUNTED, recorded_features
from fedvg_jax.runs.assemble.given import Given
from fedvg_jax.runs.assemble.programs import Program
from fedvg_jax.runs.record import history
from fedvg_jax.runs.record.history import CLIENT_ACCURACIES, CONFUSION

_CLIENTS = 3
_ROWS = 7
"""Of the batch of a trial. A mask [3] would fit 3 channels in place of the rows."""


# --- tasks


def check_task(task: Task, pool: Any) -> None:
    """Checks the shapes and dtypes of a task's functions against `types.Task`, without computing anything.

    Args:
        task: the model and its loss.
        pool: the examples, leaves [T, ...].

    Raises:
        UsageError: a function returns another shape, dtype or structure, or ignores the mask. The message names the
            function and the leaf.

    >>> from fedvg_jax.core.types import Batch
    >>> halves = Task(lambda key: Variables({"w": jnp.ones(2, int)}, {}), *[None] * 5)
    >>> check_task(halves, Batch(jnp.ones((4, 2)), jnp.ones(4)))
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: task.init: params leaf 'w' is int32 of shape (2,); expected floats of shape (2,)
    """
    checks.num_rows(pool, "pool")
    model = _shapes_of(task.init, "task.init", jax.random.key(0))
    if not isinstance(model, Variables) or not jax.tree.leaves(model.params):
        raise UsageError(
            f"task.init returned a {type(model).__name__}; expected Variables(params, stats) with a tensor"
        )
    is_frozen = task.is_frozen or (lambda path: False)
    trained = {
        path: leaf for path, leaf in tree.by_path(model.params).items() if not is_frozen(path)
    }
    checks.floating(trained, "task.init: params")
    checks.floating(model.stats, "task.init: stats")
    checks.takes_key(task.loss)
    batch, mask = _shapes_of_batch(pool)

    def trial(model: Variables, batch: Any, mask: jax.Array) -> tuple[jax.Array, Any]:
        loss, stats = task.loss(*model, batch, mask, True)
        return jnp.asarray(loss), stats

    loss, stats = _shapes_of(trial, "task.loss", model, batch, mask)
    checks.expect(loss, checks.floats(), "task.loss: loss", any_float=True)
    checks.expect(stats, model.stats, "task.loss: stats")
    _check_reads_mask(task, model, batch, mask)
    _leading(_shapes_of(task.predict, "task.predict", *model, batch), _ROWS, "task.predict: output")


def _shapes_of(function: Callable, what: str, *arguments: Any) -> Any:
    with checks.calling(what):
        return jax.eval_shape(function, *arguments)


def _call(what: str, function: Callable, *arguments: Any, count: int | None = None) -> Any:
    """Returns what a function of the caller's returns; the first argument may be the hyperparameters.

    Raises:
        UsageError: it fails, or returns another number of results than `count`.
    """
    with checks.calling(what, *arguments[:1]):
        returned = function(*arguments)
        if count is not None and len(returned) != count:
            raise ValueError(f"it returned {len(returned)} results; expected {count}")
    return returned


def _leading(pytree: Any, count: int, what: str) -> None:
    """Raises UsageError for the first leaf without the leading axis of that length."""
    for path, leaf in tree.by_path(pytree).items():
        if jnp.shape(leaf)[:1] != (count,):
            raise UsageError(
                f"{what} leaf '{path}' has shape {jnp.shape(leaf)}; expected ({count}, ...)"
            )


def _check_reads_mask(task: Task, model: Variables, batch: Any, mask: Any) -> None:
    """Raises UsageError for a loss or a measure of the rows that does not depend on the mask, in evaluation mode."""

    def results(model: Variables, batch: Any, mask: jax.Array) -> dict[str, Any]:
        measured = task.measure(*model, batch, mask) if task.measure else ()
        return {"loss": jnp.asarray(task.loss(*model, batch, mask, False)[0]), "measure": measured}

    with checks.calling("task.loss or task.measure in evaluation mode"):
        read, _ = dependencies(results, model, batch, mask)
    for name, (_, of_batch, of_mask) in read.items():
        if any(jax.tree.leaves(of_batch)) and not of_mask:
            raise UsageError(
                f"task.{name} does not depend on mask, bool [B], so that padded rows would count; add up values of real"
                " rows, jnp.where(mask, values, 0)"
            )


def _shapes_of_batch(pool: Any) -> tuple[Any, Any]:
    """Returns the shapes and dtypes of a batch of a few rows and of its mask."""
    return jax.eval_shape(lambda pool: tree.gather(pool, jnp.arange(_ROWS, dtype=jnp.int32)), pool)


def check_scores(task: Task, pool: Any, consumer: str, instead: str, num_classes: int) -> None:
    """Checks that a task's output is a score of every class, so that its argmax is a label.

    Args:
        task: the model and its loss.
        pool: the examples, leaves [T, ...], with labels `y` [T], or [T, L] of sequences.
        consumer: what needs the scores, for the error.
        instead: what to use without them, for the error.
        num_classes: classes of the labels.

    Raises:
        UsageError: it is not: scores are [B, C], or [B, L, C] of sequences, with C >= `num_classes`.

    >>> from fedvg_jax.core.types import Batch
    >>> predict = lambda params, stats, batch: batch.x @ params["w"]
    >>> logit = Task(lambda key: Variables({"w": jnp.ones(2)}, {}), None, predict, *[None] * 3)
    >>> check_scores(logit, Batch(jnp.ones((9, 2)), jnp.zeros(9, int)), "weighting val_accuracy", "use val_loss", 2)
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: weighting val_accuracy needs floats [7, C] of task.predict for 7 rows, C >= 2 classes; got \
float32 of shape (7,); use val_loss
    """
    batch = _shapes_of_batch(pool)[0]
    output = jax.eval_shape(task.predict, *jax.eval_shape(task.init, jax.random.key(0)), batch)
    is_floats = isinstance(output, jax.ShapeDtypeStruct) and jnp.issubdtype(
        output.dtype, jnp.floating
    )
    if not (is_floats and output.shape[:-1] == batch.y.shape and output.shape[-1] >= num_classes):
        needed = (
            f"floats [{', '.join(map(str, batch.y.shape))}, C] of task.predict for {_ROWS} rows"
        )
        got = checks.described(output)
        raise UsageError(
            f"{consumer} needs {needed}, C >= {num_classes} classes; got {got}; {instead}"
        )


def check_forward(task: Task, pool: Tree) -> None:
    """Computes `task.forward`, if there is one, and `task.loss` on the first rows, with initial variables.

    Raises:
        UsageError: their losses differ, as where only one of them was replaced.
    """
    if task.forward is None:
        return
    batch, forward = jax.tree.map(lambda leaf: jnp.asarray(leaf[:_CLIENTS]), pool), task.forward
    mask = jnp.ones(len(jax.tree.leaves(batch)[0]), bool)

    def losses(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        model = task.init(key)
        return task.loss(*model, batch, mask, True)[0], forward(*model, batch, mask, True)[0].loss

    with checks.calling("task.forward"):
        own, of_forward = map(float, hw.jit_once(losses)(jax.random.key(0)))
    if not np.isclose(own, of_forward, rtol=1e-3, equal_nan=True):
        raise UsageError(
            f"task.forward has the loss {of_forward:.6g} where task.loss has {own:.6g}, on the same rows; replace both"
        )


# --- weightings


def check_weighting(
    weighting: Weighting, task: Task, data: Data, hyper: Hyper, *, in_chunks: bool = False
) -> None:
    """Checks the functions of a weighting against `types.Weighting`, on three clients of shapes alone.

    Args:
        weighting: the weighting to check.
        task: the model and its loss.
        data: the pool and the tables of rows.
        hyper: the hyperparameters of the run.
        in_chunks: whether cohorts come in several client chunks, so that the weights must be the sum of the terms.

    Raises:
        UsageError: a function takes other arguments or fails; the weights are not floats [K] in a pytree like the
            variables; the score is not [K] and the details not [K, ...], of real numbers or booleans; a detail has a
            name of the history's own; or terms are needed, and there are none. The message names the leaf.

    >>> from fedvg_jax.weightings import basic
    >>> from fedvg_jax.core.types import Batch
    >>> task = Task(lambda key: Variables({"w": jnp.ones(2)}, {}), *[None] * 5)
    >>> total = basic.uniform()._replace(weigh=lambda hyper, ones, view: basic.broadcast_weights(ones.sum(), view))
    >>> check_weighting(total, task, Data(Batch(jnp.ones((4, 2)), jnp.ones(4)), *[jnp.zeros((1, 2), int)] * 3), {})
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: weighting.weigh: weights leaf 'params/w' is float32 of shape (); expected floats of shape (3,)
    """
    if in_chunks and not weighting.terms:
        raise UsageError(
            "--client-chunk needs a weighting with terms; set weighting.terms, or use --client-chunk 0"
        )
    few = data._replace(scoring=data.scoring[:1], val=data.val[:1])
    jax.eval_shape(
        functools.partial(_run_weighting, weighting, task), jax.random.key(0), few, dict(hyper)
    )


def _run_weighting(
    weighting: Weighting, task: Task, key: jax.Array, data: Data, hyper: Hyper
) -> Tree:
    """Calls every function of the weighting as a round does, checks what it returns, and returns the weights."""
    model = task.init(key)
    hyper = tree.arrays(dict(hyper), tree.dtype(model))
    clients, each = tree.repeat(model, _CLIENTS), jnp.arange(_CLIENTS, dtype=jnp.int32)
    described = tree.take(data.described.weighting, each)
    returned = types.ClientReturn(clients, each, clients.params, each, described)
    view = types.ServerView(model, clients, each, data, each >= 0)
    measured = _call(
        "weighting.signal",
        lambda h: jax.lax.map(lambda one: weighting.signal(h, one, data), returned),
        hyper,
    )
    measured = (
        _recall(weighting.state, hyper, model, measured, view) if weighting.state else measured
    )
    weights = _call("weighting.weigh", weighting.weigh, hyper, measured, view)
    like = jax.tree.map(lambda _: checks.floats(_CLIENTS), model)
    checks.expect(weights, like, "weighting.weigh: weights", any_float=True)
    with checks.calling("weighting.score or weighting.detail"):
        score, detail = jnp.asarray(weighting.score(measured)), weighting.detail(measured)
    names = list(detail) if isinstance(detail, dict) else [None]
    if any(not isinstance(name, str) or history.is_reserved(name) for name in names):
        raise UsageError(
            f"weighting.detail must be a dict with names that the history has not; got {detail!r:.99}"
        )
    checks.expect(
        jax.ShapeDtypeStruct(score.shape, jnp.float32), checks.floats(_CLIENTS), "weighting.score"
    )
    _leading(detail, _CLIENTS, "weighting.detail")
    return weights


def _recall(
    state: types.WeightingState, hyper: Hyper, model: Variables, measured: Tree, view: Any
) -> Tree:
    """Checks a weighting's state, which keeps its shapes, and returns the signals to weigh clients by."""
    made = _call("weighting.state.init", state.init, hyper, model.params, count=2)
    server, client = tree.arrays(tuple(made), tree.dtype(model))
    recall, clients = jax.vmap(state.recall, (None, 0, 0, None)), tree.repeat(client, _CLIENTS)
    measured, after = _call(
        "weighting.state.recall", recall, hyper, measured, clients, server, count=2
    )
    checks.expect(tree.entry_shapes(after), client, "weighting.state.recall: state", any_float=True)
    updated = _call("weighting.state.update", state.update, hyper, server, measured, view)
    checks.expect(updated, server, "weighting.state.update: state", any_float=True)
    return measured


def reads_rows(weighting: Weighting, task: Task, data: Data, hyper: Hyper) -> bool:
    """Returns whether the weights depend on any row of the pool, by their trace."""

    def weights(pool: Tree, key: jax.Array, tables: Data, hyper: Hyper) -> dict[str, Tree]:
        return {"weights": _run_weighting(weighting, task, key, tables._replace(pool=pool), hyper)}

    read, _ = dependencies(
        weights, data.pool, jax.random.key(0), data._replace(pool=None), dict(hyper)
    )
    return any(jax.tree.leaves(read["weights"][0]))


def refuse_wrong_weights(records: Sequence[Mapping[str, Any]]) -> None:
    """Raises UsageError for the first round with wrong weights.

    Args:
        records: of rounds, with `invalid_weights` where the weights of a tensor are negative or do not sum to 1.

    >>> refuse_wrong_weights([{"round": 2, "invalid_weights": [1.5, 0.0]}])
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: round 2: weights sum to 1.5, the least is 0; expected numbers >= 0 with sum 1 in every \
tensor, which negative measurements, such as losses, do not give
    """
    for record in records:
        if "invalid_weights" in record:
            total, least = record["invalid_weights"]
            raise UsageError(
                f"round {record['round']}: weights sum to {total:.6g}, the least is {least:.3g}; expected numbers >= 0"
                " with sum 1 in every tensor, which negative measurements, such as losses, do not give"
            )


# --- algorithms


def check_algorithm(
    algorithm: Algorithm,
    task: Task,
    pool: Tree,
    hyper: Hyper,
    *,
    num_clients: int = _CLIENTS,
    stats_too: bool = False,
    described: Tree = (),
) -> Tree:
    """Checks the functions of an algorithm against `types.Algorithm`, on three clients of shapes alone.

    Args:
        algorithm: the algorithm to check.
        task: the model and its loss.
        pool: the examples, leaves [T, ...].
        hyper: the hyperparameters of the run.
        num_clients: N.
        stats_too: whether the server treats running statistics like parameters.
        described: what a client describes, arrays or shapes.

    Returns:
        The shapes of the two messages of `report`.

    Raises:
        UsageError: a function takes other arguments, fails, or returns another structure, shape or dtype. The message
            names the function and the leaf.

    >>> from fedvg_jax.algorithms import fedavg
    >>> task = Task(lambda key: Variables({"w": jnp.ones(2)}, {}), *[None] * 5)
    >>> total = fedavg()._replace(residual=lambda hyper, server, params, cohort: ({"w": params["w"].sum()}, server))
    >>> check_algorithm(total, task, jnp.ones((4, 2)), {"lr": 0.1})
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: algorithm.residual: R leaf 'w' is float32 of shape (); expected floats of shape (2,)
    """
    trial = functools.partial(_run_algorithm, algorithm, task, num_clients, stats_too)
    return jax.eval_shape(trial, jax.random.key(0), pool, dict(hyper), described)


def _run_algorithm(
    algorithm: Algorithm,
    task: Task,
    num_clients: int,
    stats_too: bool,
    key: jax.Array,
    pool: Tree,
    hyper: Hyper,
    described: Tree,
) -> Tree:
    """Calls every function of the algorithm as a round does, checks what it returns, and returns the messages."""
    model = task.init(key)
    hyper = tree.arrays(dict(hyper), tree.dtype(model))
    theta = model if stats_too else model.params

    def call(name: str, *arguments: Any, count: int | None = None) -> Any:
        return _call(f"algorithm.{name}", getattr(algorithm, name), hyper, *arguments, count=count)

    initial = call("init", theta, count=2)
    with checks.calling("algorithm.init"):
        server, client = tree.arrays(tuple(initial), tree.dtype(model))
    anchor, minibatch = (
        types.Anchor(model.params, server, client, described),
        tree.gather(pool, jnp.zeros(2, jnp.int32)),
    )
    of_params = tree.params_of(anchor)
    for name in ("correct", "personal") if algorithm.personal else ("correct",):
        grads = call(name, model.params, model.params, of_params)
        checks.expect(grads, model.params, f"algorithm.{name}: gradients", any_float=True)
    if algorithm.loss is not None:
        loss, stats = call("loss", task, *model, *minibatch, jax.random.key(0), of_params, count=2)
        checks.expect(loss, checks.floats(), "algorithm.loss: loss", any_float=True)
        checks.expect(stats, model.stats, "algorithm.loss: stats", any_float=True)
    if algorithm.send is not None:
        _check_send(algorithm.send, model.params, hyper, key)
    arguments = theta, anchor._replace(params=theta), jnp.ones((), tree.dtype(model))
    after, summed, averaged = call("report", *arguments, count=3)
    checks.expect(after, client, "algorithm.report: state")
    if jax.tree.leaves(averaged):
        with checks.calling(
            "algorithm.report: the message to be averaged, () or one entry for each tensor,"
        ):
            jax.tree.map(lambda _, entry: None, theta, averaged)
        checks.floating(averaged, "algorithm.report: the message to be averaged")
    measured = tree.arrays(
        call(
            "probe",
            types.Probe(
                task, model, lambda i: minibatch, jnp.int32(1), jnp.int32(0), local_training.counted
            ),
        )
    )
    probes = tree.repeat(measured if stats_too else tree.params_of(measured), _CLIENTS)
    weights = jax.tree.map(lambda leaf: jnp.ones(_CLIENTS, leaf.dtype), theta)
    cohort = types.Cohort(theta, summed, averaged, weights, probes, num_clients)
    residual, after = call("residual", server, theta, cohort, count=2)
    checks.expect(residual, theta, "algorithm.residual: R", any_float=True)
    checks.expect(after, server, "algorithm.residual: state")
    return summed, averaged


def _check_send(send: types.Send, params: Tree, hyper: Hyper, key: jax.Array) -> None:
    """Raises UsageError unless what arrives is like the parameters, states fit and bytes are a number."""
    state = _call("algorithm.send.init", send.init, hyper, params)
    arguments = hyper, key, params, state
    arrived, after = _call("algorithm.send.apply", send.apply, *arguments, count=2)
    checks.expect(arrived, params, "algorithm.send.apply: delta", any_float=True)
    checks.expect(after, state, "algorithm.send.apply: state")
    size = _call("algorithm.send.num_bytes", lambda: send.num_bytes(params))
    if not isinstance(size, int) or size < 0:
        raise UsageError(
            f"algorithm.send.num_bytes returned {size!r:.99}; expected a whole number >= 0"
        )


def check_features(
    algorithm: Algorithm,
    task: Task,
    pool: Tree,
    hyper: Hyper,
    name: str = "the algorithm",
    described: Tree = (),
) -> None:
    """Raises UsageError where a loss reads features that no trained tensor affects, or that do not fix the output.

    Args:
        algorithm: its loss may read features.
        task: the model. Features that its `forward` has from elsewhere than a Linen layer need not fix the output.
        pool: the examples, leaves [T, ...].
        hyper: the hyperparameters of the run.
        name: of the algorithm, in errors.
        described: what a client describes, arrays or shapes.
    """
    if algorithm.loss is None or task.forward is None:
        return
    model, batch = jax.eval_shape(task.init, jax.random.key(0)), _shapes_of_batch(pool)[0]
    mask, recorded = jnp.ones(_ROWS, bool), []

    def forward(model: Variables, batch: Tree) -> dict[str, Tree]:
        with recorded_features(is_named=True) as last:
            outputs, stats = task.forward(*model, batch, mask, True)  # pyright: ignore[reportOptionalCall]
        recorded.append(last)
        others = outputs._replace(features=None), stats
        return {"features": outputs.features, "outputs": outputs.outputs, "others": others}

    def loss_of(
        features: jax.Array,
        others: tuple,
        model: Variables,
        batch: Tree,
        hyper: Hyper,
        described: Tree,
    ) -> dict[str, Tree]:
        replayed = task._replace(
            forward=lambda *_, **__: (others[0]._replace(features=features), others[1])
        )
        anchor = types.Anchor(model.params, *algorithm.init(hyper, model.params), described)
        return {
            "loss": algorithm.loss(hyper, replayed, *model, batch, mask, jax.random.key(0), anchor)[
                0
            ]
        }  # pyright: ignore

    read, shapes = dependencies(forward, model, batch)
    features, last = shapes["features"], recorded[0]
    arguments = features, shapes["others"], model, batch, tree.arrays(dict(hyper)), described
    if features is None or not dependencies(loss_of, *arguments)[0]["loss"][0]:
        return
    which, remedy = (
        f"the input of {last.layer or 'the last layer'}",
        "call the head as the last layer",
    )
    if not any(jax.tree.leaves(read["features"])):
        raise UsageError(
            f"{name} needs {which}, which nn.remat or nn.jit hides; call the head without"
        )
    if not any(jax.tree.leaves(read["features"][0].params)):
        raise UsageError(
            f"{name} would equal FedAvg: this model's features are {which}, which no trained tensor affects; use a"
            f" model with a hidden layer, such as mlp, or {remedy}"
        )
    read, _ = dependencies(forward, model, batch, given=last.name)
    if not any(jax.tree.leaves(read["features"])) and any(jax.tree.leaves(read["outputs"][1])):
        raise UsageError(
            f"{name} needs features that fix the output: this model's are {which}, beside which x affects the output;"
            f" {remedy}, or give task.forward Outputs.features"
        )


# --- settings beside what a caller brings, and data that they need

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
            raise UsageError(
                f"{name} {settings[name]} has no effect beside task=; leave it out, set it in the task"
            )
    if CONFUSION in listed(config.record):
        sums = jax.eval_shape(
            task.measure, *jax.eval_shape(task.init, jax.random.key(0)), *_shapes_of_batch(pool)
        )
        if not isinstance(sums, dict) or CONFUSION not in sums:
            raise UsageError(
                f"record {CONFUSION} needs '{CONFUSION}' of task.measure, [C * C] counts; leave it out"
            )


def check_given(
    config: Config,
    given: Given,
    program: Program,
    pool: Batch,
    arrays: Arrays,
    tables: Data,
    hyper: Hyper,
) -> None:
    """Raises UsageError if a given weighting or algorithm breaks its contract, or accuracies cannot be computed.

    Args:
        tables: the rows that a round reads.
    """
    task, own_algorithm = given.task, given.algorithm
    described = tree.entry_shapes(tables.described.algorithm)
    if given.weighting:
        if (rule := choice(config, "robust")[0]) not in ("mean", "clipped_mean"):
            raise UsageError(
                f"robust {rule} ignores weighting=; use clipped_mean, or leave one out"
            )
        if program.weighting.num_clients not in (None, config.clients):
            wanted = f"{program.weighting.num_clients} clients; the run has {config.clients}"
            raise UsageError(f"weightings.given has the weights of {wanted}")
        in_chunks = client_chunk_size(config) < cohort_size(config)
        arguments = program.weighting, program.task, tables, hyper
        check = functools.partial(check_weighting, *arguments, in_chunks=in_chunks)
        program.cached(("weighting", in_chunks, *cache.key_of_shapes(tables)), check)
    algorithm = None if given.weighting else program.algorithm
    _check_accuracies(config, algorithm, task and program.task, pool, arrays)
    sees_minibatches = task is not None and program.algorithm.loss is not None
    if sees_minibatches:
        check_forward(program.task, tables.pool)
    if own_algorithm or sees_minibatches:
        messages = check_algorithm(
            program.algorithm,
            program.task,
            tables.pool,
            hyper,
            num_clients=config.clients,
            stats_too=departs(config, "server-stats"),
            described=described,
        )
        problems = problems_of_algorithm(
            config, program.algorithm, "the algorithm", lambda: bool(jax.tree.leaves(messages))
        )
        for message in problems if own_algorithm else ():
            raise UsageError(message)
    name = "the algorithm" if own_algorithm else f"algorithm {config.algorithm}"
    key = "features", *cache.key_of_shapes((tables.pool, hyper))
    program.cached(
        key,
        lambda: check_features(
            program.algorithm, program.task, tables.pool, hyper, name, described
        ),
    )


def _check_accuracies(
    config: Config, algorithm: Algorithm | None, task: Task | None, pool: Batch, arrays: Arrays
) -> None:
    """Checks that accuracies can be computed where a named weighting or a record needs them.

    Args:
        config: settings.
        algorithm: has the native weighting, if the config names it; None for a user's weighting.
        task: a user's task; None for the config's model, which returns scores of the classes.
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
    recorded = [
        name for name in ("client_accuracy", *CLIENT_ACCURACIES) if name in listed(config.record)
    ]
    consumers += [(f"record {name}", "use client_val_loss") for name in recorded]
    num_classes = len(arrays.class_names)
    if CONFUSION in listed(config.record) and num_classes > MOST_COUNTED:
        raise UsageError(
            f"record confusion is for at most {MOST_COUNTED:,} classes; got {num_classes:,}; leave it out"
        )
    for consumer, instead in consumers:
        user_data.class_labels(arrays, consumer, instead, of_rows=False)
        if task:
            check_scores(task, pool, consumer, instead, len(arrays.class_names))


def check_clients(config: Config, parts: Partition) -> None:
    """Raises UsageError where accuracies by client are recorded, and clients have no test rows of their own."""
    by_client = [name for name in CLIENT_ACCURACIES if name in listed(config.record)]
    if by_client and len(parts.test) != len(parts.train):
        instead = "give each client's" if config.holdout == "client" else "use --holdout client"
        raise UsageError(
            f"record {by_client[0]} needs test rows of every client, and they are one set; {instead}"
        )
