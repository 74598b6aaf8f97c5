"""Checks of a user's own model, weighting or algorithm before training: a trial on a few rows, or of shapes alone."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedvg_jax.core import checks, tree
from fedvg_jax.core.dependence import reads
from fedvg_jax.core.types import (
    Algorithm,
    Anchor,
    ClientReturn,
    Cohort,
    Data,
    Hyper,
    Probe,
    Send,
    ServerView,
    Task,
    Tree,
    UsageError,
    Variables,
    Weighting,
)
from fedvg_jax.engine import local_training
from fedvg_jax.host import hardware as hw
from fedvg_jax.models.conv.rewrite import MAX_TAPS, remaining_operations
from fedvg_jax.models.features import recorded_features
from fedvg_jax.runs.assemble import registry
from fedvg_jax.runs.record import history
from fedvg_jax.weightings import streaming

_CLIENTS = 3
_ROWS = 7
"""Of the batch of a trial. A mask [3] would fit 3 channels in place of the rows."""

_ARGUMENTS = {
    "signal": ("hyper", "client", "data"),
    "weigh": ("hyper", "signals", "view"),
    "score": ("signals",),
    "detail": ("signals",),
}
"""Function of a weighting -> its arguments."""


def check_kinds(task: Any, algorithm: Any, weighting: Any) -> None:
    """Raises UsageError unless each argument is None or of its kind; a weighting may be a function task -> `Weighting`.

    >>> check_kinds(None, "fedavg", None)
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: algorithm must be an Algorithm, got a str; use Config(algorithm=...) for one by name
    """
    given = {"task": task, "algorithm": algorithm, "weighting": weighting}
    for (name, value), kind in zip(given.items(), (Task, Algorithm, Weighting), strict=True):
        if value is None or isinstance(value, kind) or (kind is Weighting and callable(value)):
            continue
        by_name = "use linen_task, or Config(model=...)" if kind is Task else f"use Config({name}=...) for one by name"
        article, hint = "an" if kind is Algorithm else "a", _call_hint(value, by_name)
        raise UsageError(f"{name} must be {article} {kind.__name__}, got a {type(value).__name__}; {hint}")


def check_task(task: Task, pool: Any) -> None:
    """Checks the shapes and dtypes of a task's functions against `types.Task`, without computing anything.

    Args:
        task: the model and its loss.
        pool: the examples, leaves [T, ...].

    Raises:
        UsageError: a function returns another shape, dtype or structure. The message names the function and the leaf.

    >>> from fedvg_jax.core.types import Batch
    >>> halves = Task(lambda key: Variables({"w": jnp.ones(2, int)}, {}), *[None] * 5)
    >>> check_task(halves, Batch(jnp.ones((4, 2)), jnp.ones(4)))
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: task.init: params leaf 'w' is int32 of shape (2,); expected floats of shape (2,)
    """
    checks.num_rows(pool, "pool")
    with checks.calling("task.init"):
        model = jax.eval_shape(task.init, jax.random.key(0))
    if not isinstance(model, Variables):
        raise UsageError(f"task.init returned {type(model).__name__}; expected fedvg_jax.Variables(params, stats)")
    if not jax.tree.leaves(model.params):
        raise UsageError("task.init returned params without a leaf; expected a pytree of float arrays")
    is_frozen = task.is_frozen or (lambda path: False)
    trained = {path: leaf for path, leaf in tree.by_path(model.params).items() if not is_frozen(path)}
    checks.floating(trained, "task.init: params")
    checks.floating(model.stats, "task.init: stats")
    checks.takes_key(task.loss)

    def trial(model: Variables, batch: Any, mask: jax.Array) -> tuple[jax.Array, Any]:
        returned = task.loss(model.params, model.stats, batch, mask, True)
        loss, stats = _tuple_of(2, returned, "task.loss", "the pair (loss, stats)")
        return jnp.asarray(loss), stats

    batch, mask = _shapes_of_batch(pool)
    called_with = f"which is called with a batch of {_ROWS} rows and mask of shape {mask.shape},"
    with checks.without_notes(), checks.calling(f"task.loss, {called_with}"):
        loss, stats = jax.eval_shape(trial, model, batch, mask)
    _check_scalar(loss, "task.loss")
    checks.same_arrays(stats, model.stats, "task.loss: stats", "task.init's stats")
    _check_reads_mask(task, model, batch, mask)
    with checks.calling("task.predict"):
        outputs = jax.eval_shape(task.predict, *model, batch)
    if outputs is not None:
        _leading(outputs, _ROWS, "task.predict: output", "rows of the batch")


def _check_reads_mask(task: Task, model: Variables, batch: Any, mask: Any) -> None:
    """Raises UsageError for a loss or a measure of the rows that does not depend on the mask, in evaluation mode."""

    def results(model: Variables, batch: Any, mask: jax.Array) -> dict[str, Any]:
        measured = task.measure(*model, batch, mask) if task.measure else ()
        return {"loss": jnp.asarray(task.loss(*model, batch, mask, False)[0]), "measure": measured}

    with checks.without_notes(), checks.calling("task.loss or task.measure in evaluation mode"):
        read, _ = reads(results, model, batch, mask)
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
    """Checks that a task's output is a score of every class, whose argmax is a label.

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
    fedvg_jax.UsageError: weighting val_accuracy needs scores [B, C] from task.predict, C >= 2 classes; got float32 of \
shape (7,) for B = 7; use val_loss
    """
    batch = _shapes_of_batch(pool)[0]
    output = _shape_of_output(task, batch)
    is_floats = isinstance(output, jax.ShapeDtypeStruct) and jnp.issubdtype(output.dtype, jnp.floating)
    if is_floats and output.shape[:-1] == batch.y.shape and output.shape[-1] >= num_classes:
        return
    axes = ", ".join(["B", *map(str, batch.y.shape[1:]), "C"])
    needed = f"scores [{axes}] from task.predict, C >= {num_classes} classes"
    got = None if output is None else f"a {type(output).__name__}"
    if isinstance(output, jax.ShapeDtypeStruct):
        got = f"{output.dtype} of shape {output.shape} for B = {_ROWS}"
    raise UsageError(f"{consumer} needs {needed}; got {got}; {instead}")


def label_hint(task: Task, pool: Any) -> str:
    """Returns that labels reach the number of a task's outputs, where a loss is not finite; "" if they do not."""
    y, output = np.asarray(getattr(pool, "y", None)), _shape_of_output(task, _shapes_of_batch(pool)[0])
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer) or len(np.shape(output)) != 2:
        return ""
    largest, count = int(np.max(y)), output.shape[-1]
    remedy = "use y - 1" if largest == count and np.min(y) == 1 else f"give it {largest + 1}"
    few = (
        f"labels reach {largest} and the model has {count} outputs, for 0..{count - 1}: if these are classes, {remedy}"
    )
    return few if 1 < count <= largest else ""


def slow_hint(task: Task, pool: Any) -> str:
    """Returns which operations of a task are slow in the loop of local steps, on a CPU; "" if there are none."""
    model, (batch, mask) = jax.eval_shape(task.init, jax.random.key(0)), _shapes_of_batch(pool)
    found = hw.current().is_cpu and remaining_operations(lambda *args: task.loss(*args, True), *model, batch, mask)
    limits = (
        f"kernels and windows of at most {MAX_TAPS} entries, floats of one dtype, and no jax.custom_vjp around them"
    )
    return f"slow in a loop on a CPU: {'; '.join(found)}; fast are {limits}" if found else ""


def shapes_of_sums(task: Task, pool: Any) -> Any:
    """Returns the shapes and dtypes of what `task.measure` returns; `pool` is as in `check_task`."""
    model = jax.eval_shape(task.init, jax.random.key(0))
    return jax.eval_shape(task.measure, *model, *_shapes_of_batch(pool))


def _shape_of_output(task: Task, batch: Any) -> Any:
    return jax.eval_shape(task.predict, *jax.eval_shape(task.init, jax.random.key(0)), batch)


def weighting_of(factory: Callable[[Task], Weighting], task: Task) -> Weighting:
    """Returns the weighting that a user's function makes for the task.

    Raises:
        UsageError: `factory` is not a function of the task, or returns something else.

    >>> weighting_of(lambda task: "samples", None)
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: weighting(task) returned str; expected fedvg_jax.core.types.Weighting
    """
    try:
        checks.takes(factory, ("task",), "weighting")
    except UsageError as error:
        hint = _call_hint(factory, "give a Weighting, or a function task -> Weighting")
        raise UsageError(f"{error}; {hint}") from None
    with checks.calling("weighting(task)"):
        weighting = factory(task)
    if not isinstance(weighting, Weighting):
        kind = type(weighting).__name__
        raise UsageError(f"weighting(task) returned {kind}; expected fedvg_jax.core.types.Weighting")
    return weighting


def _call_hint(given: Any, otherwise: str) -> str:
    """Returns the advice to call a function that needs no arguments and was passed without its parentheses."""
    try:
        inspect.signature(given).bind()
    except (TypeError, ValueError):
        return otherwise
    return f"did you mean {getattr(given, '__name__', 'it')}()?"


def check_weighting(
    weighting: Weighting,
    task: Task,
    data: Data,
    hyper: Hyper,
    *,
    in_blocks: bool = False,
    bind: Callable[[Tree], Any] | None = None,
) -> None:
    """Checks a weighting on three clients near the initial model and a few rows of D_val.

    Args:
        weighting: the weighting to check.
        task: the model and its loss.
        data: the pool and the tables of rows.
        hyper: the hyperparameters of the run.
        in_blocks: whether cohorts come in several blocks, so that the weights must be the sum of the terms.
        bind: as `programs.Program.bind`, where `data` has frozen tensors, on which the weighting may depend.

    Raises:
        UsageError: a function takes other arguments or fails; the weights are not floats >= 0 [K] that sum to 1, in a
            pytree like the variables; the score is not [K] and the details not [K, ...], of real numbers or booleans;
            a detail has a name of the history's own; or terms are needed, and there are none, or they do not add up to
            the weights. The message names the leaf.

    >>> from fedvg_jax.weightings import basic
    >>> from fedvg_jax.core.types import Batch
    >>> task = Task(lambda key: Variables({"w": jnp.ones(2)}, {}), *[None] * 5)
    >>> halves = basic.uniform()._replace(weigh=lambda hyper, one, view: basic.broadcast_weights(one / 2, view))
    >>> check_weighting(halves, task, Data(Batch(jnp.ones((4, 2)), jnp.ones(4)), *[jnp.zeros((1, 2), int)] * 3), {})
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: weighting.weigh: weights leaf 'params/w' of shape (3,) sums to 1.5; expected 1
    """
    for name, arguments in _ARGUMENTS.items():
        checks.takes(getattr(weighting, name), arguments, f"weighting.{name}")
    if in_blocks and not weighting.terms:
        raise UsageError("--hold needs a weighting with terms; set weighting.terms, or use --hold 0")
    model, few = registry.draw(task.init, jax.random.key(0)), data._replace(scoring=data.scoring[:1], val=data.val[:1])
    with checks.without_notes():
        trial = _jitted_trial(bind or weighting, in_blocks)
        weights, sums = jax.device_get(trial(model, few, dict(hyper)))
    checks.distributions(weights, _CLIENTS, "weighting.weigh: weights")
    for path, whole in tree.by_path(weights).items():
        if not np.allclose(whole, added := tree.by_path(sums)[path], rtol=1e-3, atol=1e-5):
            raise UsageError(
                f"weighting.terms: leaf '{path}' gives {added.round(2)}, weigh {whole.round(2)};"
                " both must give the same weights"
            )


def refuse_wrong_weights(records: Sequence[Mapping[str, Any]]) -> None:
    """Raises UsageError for the first round whose weights are wrong: a trial has three clients, a cohort others.

    Args:
        records: of rounds, with `misweighed` where the weights of a tensor are negative or do not sum to 1.

    >>> refuse_wrong_weights([{"round": 2, "misweighed": [1.5, 0.0]}])
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: round 2: weights sum to 1.5, the least is 0; expected numbers >= 0 with sum 1 in every \
tensor, for cohorts of every size, which negative measurements, such as losses, do not give
    """
    wrong = next((record for record in records if "misweighed" in record), None)
    if wrong is not None:
        total, least = wrong["misweighed"]
        raise UsageError(
            f"round {wrong['round']}: weights sum to {total:.6g}, the least is {least:.3g}; expected numbers >= 0 with"
            " sum 1 in every tensor, for cohorts of every size, which negative measurements, such as losses, do not"
            " give"
        )


def _jitted_trial(
    weighting: Weighting | Callable[[Tree], Any], in_blocks: bool
) -> Callable[[Variables, Data, Hyper], tuple[Variables, Variables]]:
    def trial(model: Variables, data: Data, hyper: Hyper) -> tuple[Variables, Variables]:
        own = weighting if isinstance(weighting, Weighting) else weighting(data.base).weighting
        return _run_trial(own, in_blocks, model, data, hyper)

    return hw.jit_once(trial)


def _run_trial(
    weighting: Weighting, in_blocks: bool, model: Variables, data: Data, hyper: Hyper
) -> tuple[Variables, Variables]:
    """Returns the weights of three clients, after checking the shapes and dtypes of all that a weighting computes.

    With `in_blocks`, the sum of the weighting's terms is the second result; otherwise the weights again.
    """
    hyper = tree.arrays(dict(hyper), tree.dtype(model))
    client, view = _trial_clients(model, data)
    with checks.calling("weighting.signal", hyper=hyper):
        measured = jax.lax.map(lambda one: weighting.signal(hyper, one, data), client)
    _leading(measured, _CLIENTS, "weighting.signal, stacked:", "clients")
    with checks.calling("weighting.weigh", hyper=hyper, signals=measured):
        weights = weighting.weigh(hyper, measured, view)
    checks.same_structure(weights, view.variables, "weighting.weigh: weights", "the model's variables")
    checks.stacked(weights, "weighting.weigh: weights", _CLIENTS, per_tensor=True)
    with checks.calling("weighting.score", signals=measured):
        score = jnp.asarray(weighting.score(measured))
    if score.shape != (_CLIENTS,):
        raise UsageError(f"weighting.score has shape {score.shape}; expected ({_CLIENTS},), one number per client")
    _check_recordable(score, "weighting.score")
    with checks.calling("weighting.detail", signals=measured):
        detail = weighting.detail(measured)
    if not isinstance(detail, dict) or not all(isinstance(name, str) for name in detail):
        raise UsageError("weighting.detail must return a dict of arrays, name -> [K, ...], for K clients")
    for name, leaf in detail.items():
        _check_recordable(leaf, f"weighting.detail '{name}'")
    if hidden := next(filter(history.is_reserved, detail), None):
        raise UsageError(f"weighting.detail '{hidden}' is already a name of the history; give it another")
    _leading(detail, _CLIENTS, "weighting.detail", "clients")
    if not in_blocks:
        return weights, weights
    # terms read neither the clients' models nor the permutation
    all_present = view._replace(clients=None, shuffle=None)  # pyright: ignore[reportArgumentType]
    terms = [term.weigh(hyper, measured, all_present) for term in weighting.terms]
    shares = [term.share(hyper, measured, all_present) for term in weighting.terms]
    return weights, streaming.combine_terms(shares, terms)


def _check_recordable(leaf: Any, what: str) -> None:
    """Raises UsageError unless a leaf is an array that a record of the history can hold."""
    kind = getattr(leaf, "dtype", type(leaf).__name__)
    if not hasattr(leaf, "shape") or not any(jnp.issubdtype(kind, k) for k in (jnp.floating, jnp.integer, jnp.bool_)):
        raise UsageError(f"{what} is {kind}; expected an array of real numbers or booleans, for the history")


def _trial_clients(model: Variables, data: Data) -> tuple[ClientReturn, ServerView]:
    """Returns clients whose models are the global one plus noise: their reports, leaves [K, ...], and the returns."""
    keys = jax.random.split(jax.random.key(1), _CLIENTS)

    def moved(key: jax.Array, theta: jax.Array) -> jax.Array:
        return theta + 0.01 * jax.random.normal(key, theta.shape, theta.dtype)

    params = jax.vmap(lambda key: jax.tree.map(lambda theta: moved(key, theta), model.params))(keys)
    clients = Variables(params, tree.repeat(model.stats, _CLIENTS))
    deltas = jax.tree.map(lambda theta, client: theta[None] - client, model.params, params)
    client = ClientReturn(clients, jnp.arange(1, _CLIENTS + 1, dtype=jnp.int32), deltas)
    return client, ServerView(model, clients, jnp.arange(_CLIENTS, dtype=jnp.int32), data, jnp.ones(_CLIENTS, bool))


def _tuple_of(count: int, returned: Any, function: str, expected: str) -> tuple:
    """Returns what a function of the caller's returns as a tuple; UsageError unless it is one of `count`."""
    if not isinstance(returned, tuple | list) or isinstance(returned, Variables) or len(returned) != count:
        kind = type(returned).__name__
        got = f"a {kind} of {len(returned)}" if isinstance(returned, tuple | list) else kind
        raise UsageError(f"{function} returned {got}; expected {expected}")
    return tuple(returned)


def _leading(pytree: Any, count: int, what: str, axis: str) -> None:
    for path, leaf in tree.by_path(pytree).items():
        if leaf.shape[:1] != (count,):
            name = f" leaf '{path}'" if path else ""
            raise UsageError(f"{what}{name} has shape {leaf.shape}; expected ({count}, ...), for {count} {axis}")


# --- algorithms

_OF_ALGORITHM = {
    "init": ("hyper", "params"),
    "correct": ("hyper", "gradients", "params", "anchor"),
    "report": ("hyper", "params", "anchor", "displacement"),
    "residual": ("hyper", "server", "params", "cohort"),
    "probe": ("hyper", "probe"),
    "loss": ("hyper", "task", "params", "stats", "batch", "mask", "key", "anchor"),
    "personal": ("hyper", "gradients", "params", "anchor"),
}
"""Function of an algorithm -> its arguments."""


def check_algorithm(
    algorithm: Algorithm, task: Task, pool: Tree, hyper: Hyper, *, num_clients: int = _CLIENTS, stats_too: bool = False
) -> Tree:
    """Checks the functions of an algorithm against `types.Algorithm`, on three clients of shapes alone.

    Args:
        algorithm: the algorithm to check.
        task: the model and its loss.
        pool: the examples, leaves [T, ...].
        hyper: the hyperparameters of the run.
        num_clients: N.
        stats_too: whether the server treats running statistics like parameters.

    Returns:
        The shapes of the two messages of `report`.

    Raises:
        UsageError: a function takes other arguments, fails, or returns another structure, shape or dtype. The message
            names the function and the leaf.

    >>> from fedvg_jax.algorithms import fedavg
    >>> task = Task(lambda key: Variables({"w": jnp.ones(2)}, {}), *[None] * 5)
    >>> total = fedavg()._replace(residual=lambda hyper, server, params, cohort: (params["w"].sum(), server))
    >>> check_algorithm(total, task, jnp.ones((4, 2)), {"lr": 0.1})
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: algorithm.residual: R has no leaf 'w'; expected the structure of the params: w
    """
    for name, arguments in _OF_ALGORITHM.items():
        if name not in ("loss", "personal") or getattr(algorithm, name) is not None:
            checks.takes(getattr(algorithm, name), arguments, f"algorithm.{name}")
    trial = functools.partial(_run_algorithm, algorithm, task, num_clients, stats_too)
    with checks.without_notes():
        return jax.eval_shape(trial, jax.random.key(0), pool, dict(hyper))


def _run_algorithm(
    algorithm: Algorithm, task: Task, num_clients: int, stats_too: bool, key: jax.Array, pool: Tree, hyper: Hyper
) -> Tree:
    """Calls every function of the algorithm as a round does, checks what it returns, and returns the messages."""
    model = task.init(key)
    hyper = tree.arrays(dict(hyper), tree.dtype(model))
    theta, whose = (model, "the variables") if stats_too else (model.params, "the params")
    server, client = _returned(algorithm, "init", 2, "(the server's memory, the memory of one client)", hyper, theta)
    with checks.calling("algorithm.init", hyper=hyper):
        server, client = tree.arrays((server, client), tree.dtype(model))
    anchor, minibatch = Anchor(model.params, server, client), tree.gather(pool, jnp.zeros(2, jnp.int32))
    for name in ("correct", "personal") if algorithm.personal else ("correct",):
        with checks.calling(f"algorithm.{name}", hyper=hyper):
            grads = getattr(algorithm, name)(hyper, model.params, model.params, tree.params_of(anchor))
        checks.shaped_like(grads, model.params, f"algorithm.{name}: gradients", "the params")
        checks.floating(grads, f"algorithm.{name}: gradients")
    if algorithm.loss is not None:
        _check_loss(algorithm, task, model, minibatch, hyper, tree.params_of(anchor))
    if algorithm.send is not None:
        _check_send(algorithm.send, model.params, hyper, key)
    expected = "(the client's memory, message to be summed, message to be averaged)"
    arguments = (theta, anchor._replace(params=theta), jnp.ones((), tree.dtype(model)))
    memory, summed, averaged = _returned(algorithm, "report", 3, expected, hyper, *arguments)
    checks.same_arrays(memory, client, "algorithm.report: memory", "algorithm.init's memory of a client")
    _check_averaged(averaged, theta, whose)
    probe = Probe(task, model, lambda i: minibatch, jnp.int32(1), jnp.int32(0), local_training.counted)
    with checks.calling("algorithm.probe", hyper=hyper):
        measured = tree.arrays(algorithm.probe(hyper, probe))
    probes = tree.repeat(measured if stats_too else tree.params_of(measured), _CLIENTS)
    weights = jax.tree.map(lambda leaf: jnp.ones(_CLIENTS, leaf.dtype), theta)
    cohort = Cohort(theta, summed, averaged, weights, probes, num_clients)
    residual, memory = _returned(algorithm, "residual", 2, "(R, the server's memory)", hyper, server, theta, cohort)
    checks.shaped_like(residual, theta, "algorithm.residual: R", whose)
    checks.floating(residual, "algorithm.residual: R")
    checks.same_arrays(memory, server, "algorithm.residual: memory", "algorithm.init's memory of the server")
    return summed, averaged


def check_forward(task: Task, pool: Tree) -> None:
    """Computes `task.forward`, if there is one, and `task.loss` on the first rows, with initial variables.

    Raises:
        UsageError: their losses differ, as where only one of them was replaced.
    """
    if task.forward is None:
        return
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf[:_CLIENTS]), pool)
    mask, forward = jnp.ones(len(jax.tree.leaves(batch)[0]), bool), task.forward

    def losses(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        model = task.init(key)
        return task.loss(*model, batch, mask, True)[0], forward(*model, batch, mask, True)[0].loss

    with checks.calling("task.forward"):
        own, of_forward = map(float, hw.jit_once(losses)(jax.random.key(0)))
    if not np.isclose(own, of_forward, rtol=1e-3, equal_nan=True):
        raise UsageError(
            f"task.forward has the loss {of_forward:.6g} where task.loss has {own:.6g}, on the same rows; algorithms"
            " with a loss of their own use forward: replace it together with the loss"
        )


def check_features(algorithm: Algorithm, task: Task, pool: Tree, hyper: Hyper, name: str = "the algorithm") -> None:
    """Raises UsageError where a loss reads features that no trained tensor affects, or that do not fix the output.

    Args:
        algorithm: whose loss may read features.
        task: the model. Features that its `forward` has from elsewhere than a Linen layer need not fix the output.
        pool: the examples, leaves [T, ...].
        hyper: the hyperparameters of the run.
        name: of the algorithm, in errors.
    """
    if algorithm.loss is None or task.forward is None:
        return
    leaves, structure = jax.tree.flatten((_shapes_of_batch(pool)[0], tree.arrays(dict(hyper))))
    shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
    with checks.without_notes():
        if problem := _problem_of_features(algorithm, task, structure, shapes):
            raise UsageError(f"{name} {problem}")


def _problem_of_features(algorithm: Algorithm, task: Task, structure: Any, leaves: tuple) -> str:
    """Returns what is wrong with the features that a loss reads, "" if nothing is, by traces of the forward pass."""
    model, (batch, hyper) = jax.eval_shape(task.init, jax.random.key(0)), structure.unflatten(leaves)
    mask, recorded = jnp.ones(_ROWS, bool), []

    def forward(model: Variables, batch: Tree) -> dict[str, Tree]:
        with recorded_features(is_named=True) as last:
            outputs, stats = task.forward(*model, batch, mask, True)  # pyright: ignore[reportOptionalCall]
        recorded.append(last)
        others = outputs._replace(features=None), stats
        return {"features": outputs.features, "outputs": outputs.outputs, "others": others}

    def loss_of(features: jax.Array, others: tuple, model: Variables, batch: Tree, hyper: Hyper) -> dict[str, Tree]:
        known = task._replace(forward=lambda *_, **__: (others[0]._replace(features=features), others[1]))
        anchor = Anchor(model.params, *algorithm.init(hyper, model.params))
        return {"loss": algorithm.loss(hyper, known, *model, batch, mask, jax.random.key(0), anchor)[0]}  # pyright: ignore

    read, shapes = reads(forward, model, batch)
    features, last = shapes["features"], recorded[0]
    if features is None or not reads(loss_of, features, shapes["others"], model, batch, hyper)[0]["loss"][0]:
        return ""
    which, remedy = f"the input of {last.layer or 'the last layer'}", "call the head as the last layer"
    if not any(jax.tree.leaves(read["features"])):
        return f"needs {which}, which nn.remat or nn.jit hides; call the head without"
    if not any(jax.tree.leaves(read["features"][0].params)):
        return (
            f"would equal FedAvg: this model's features are {which}, which no trained tensor affects; use a model with"
            f" a hidden layer, such as mlp, or {remedy}"
        )
    read, _ = reads(forward, model, batch, given=last.name)
    if any(jax.tree.leaves(read["features"])) or not any(jax.tree.leaves(read["outputs"][1])):
        return ""  # they are not those of the layer, or the output reads the batch through them only
    return (
        f"needs features that fix the output: this model's are {which}, beside which x affects the output; {remedy}, or"
        " give task.forward Outputs.features"
    )


def _check_scalar(loss: Any, what: str) -> None:
    """Raises UsageError unless a loss is one float."""
    if jnp.shape(loss) or not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        got = f"{jnp.result_type(loss)} of shape {jnp.shape(loss)}"
        raise UsageError(f"{what} returned a loss {got}; expected one float, of shape ()")


def _check_loss(
    algorithm: Algorithm, task: Task, model: Variables, minibatch: tuple, hyper: Hyper, anchor: Anchor
) -> None:
    """Raises UsageError unless the algorithm's loss is one number of the parameters' dtype, and the statistics fit."""
    arguments = (*model, *minibatch, jax.random.key(0), anchor)
    loss, stats = _returned(algorithm, "loss", 2, "(loss, stats)", hyper, task, *arguments)
    _check_scalar(loss, "algorithm.loss")
    checks.shaped_like(stats, model.stats, "algorithm.loss: stats", "those before")


def _check_send(send: Send, params: Tree, hyper: Hyper, key: jax.Array) -> None:
    """Raises UsageError unless what arrives is like the parameters, memories fit and bytes are a number."""
    with checks.calling("algorithm.send", hyper=hyper):
        memory = send.init(hyper, params)
        arrived, after = _tuple_of(2, send.apply(hyper, key, params, memory), "algorithm.send", "(delta, memory)")
        size = send.num_bytes(params)
    checks.shaped_like(arrived, params, "algorithm.send: delta", "the params")
    checks.same_arrays(after, memory, "algorithm.send: memory", "its init")
    if not isinstance(size, int) or size < 0:
        raise UsageError(f"algorithm.send: num_bytes returned {size!r:.99}; expected a whole number >= 0")


def _returned(algorithm: Algorithm, name: str, count: int, expected: str, hyper: Hyper, *arguments: Any) -> tuple:
    """Returns what a function of the algorithm returns, a tuple of `count`.

    Raises:
        UsageError: it fails, or returns something else.
    """
    with checks.calling(f"algorithm.{name}", hyper=hyper):
        returned = getattr(algorithm, name)(hyper, *arguments)
    return _tuple_of(count, returned, f"algorithm.{name}", expected)


def _check_averaged(message: Tree, theta: Tree, whose: str) -> None:
    """Raises UsageError unless a message is empty or has an entry of floats for each tensor."""
    if not jax.tree.leaves(message):
        return
    try:
        jax.tree.map(lambda _, entry: None, theta, message)
    except (TypeError, ValueError):
        raise UsageError(
            f"algorithm.report: the message to be averaged has {', '.join(tree.paths(message))}; expected (), or an"
            f" entry for each leaf of {whose}: {', '.join(tree.paths(theta))}"
        ) from None
    checks.floating(message, "algorithm.report: the message to be averaged")
