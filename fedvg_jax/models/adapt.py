"""Makes a `Task` of a user's Linen or NNX module and a loss per example. Neither images nor classes are assumed.

    task = linen_task(Net(), lambda output, y: (output - y) ** 2, x[:1])

The module is called as `module(x)` with x [B, ...], and with those following arguments that its `__call__` has:
`mask` [B] bool, the real rows; `train`, `training` or `is_training`; `deterministic` or `use_running_average`, their
negation.

Modules may draw random numbers in local training. Without a key, as where D_val is scored with the batch statistics of
training, Dropout is the identity and any other random layer uses a fixed key.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedvg_jax.core import checks, groups, tree
from fedvg_jax.core.types import Batch, Metric, Outputs, Task, Tree, UsageError, Variables
from fedvg_jax.models.task import BlockOf, mean_over_rows, recorded_features

PerExample = Callable[[Tree, Array], Array]
"""(the module's output for one example, its y) -> scalar."""

Metrics = Mapping[str, PerExample | Metric]
"""name -> metric"""

Apply = Callable[..., tuple[Tree, Tree]]
"""(params, stats, x, mask, train, key or None) -> (outputs [B, ...], new stats)."""


def linen_task(
    module: nn.Module,
    loss: PerExample,
    example,
    *,
    metrics: Metrics | None = None,
    block_of: BlockOf | None = None,
) -> Task:
    """Returns the task of minimising the mean of loss(module(x)_i, y_i) over the real rows of a batch.

    Args:
        module: x [B, ...] -> outputs, a pytree with leading axis B. Its params are trained and its batch_stats
            averaged; other collections, which it may only read, are constants.
        loss: (output, y) of one example -> scalar.
        example: one or more examples x [B, ...], for shape and dtype; e.g. `x[:1]`.
        metrics: name -> function of one example, as `loss`, or `fv.Metric` of one, which says how a report compares
            it; evaluations report their means beside the loss. Progress and summaries show the metric called
            `accuracy` if there is one.
        block_of: path of a tensor -> name of its block; defaults to the top-level module.

    Raises:
        UsageError: if the module changes another collection, or batch statistics would include padding.

    >>> task = linen_task(nn.Dense(1), lambda output, y: (output[0] - y) ** 2, jnp.ones((1, 3)))
    >>> variables = task.init(jax.random.key(0))
    >>> batch = Batch(jnp.zeros((4, 3)), jnp.full(4, 2.0))
    >>> float(task.loss(*variables, batch, jnp.arange(4) < 3, True)[0])
    4.0
    """
    if not isinstance(module, nn.Module):
        raise UsageError(
            f"linen_task: module must be an instance of a flax.linen.Module, such as Net(); got {module!r:.99}"
        )
    row = _row(example)
    call = _caller(type(module), row)

    def draw(key: Array) -> dict[str, Tree]:
        x = jnp.zeros(row.shape, row.dtype)
        run = functools.partial(module.init, key)
        return call(run, x, jnp.ones(len(x), bool), False)

    def init(key: Array) -> Variables:
        variables = draw(key)
        return Variables(variables.get("params", {}), variables.get("batch_stats", {}))

    key = jax.random.key(0)
    has_constants = jax.eval_shape(draw, key).keys() - {"params", "batch_stats"}
    constants = draw(key) if has_constants else {}

    def apply(params, stats, x, mask, train, key):
        collections = {**constants, "params": params, "batch_stats": stats}
        drawn = jax.random.key(0) if key is None else key
        rngs = {"params": drawn, "dropout": drawn}
        run = functools.partial(module.apply, collections, mutable=["batch_stats"], rngs=rngs)
        with nn.intercept_methods(_skip_dropout) if key is None else contextlib.nullcontext():
            outputs, new = call(run, x, mask, train)
        return outputs, new.get("batch_stats", stats)

    return _task(type(module), row, init, apply, loss, metrics, block_of)


def nnx_task(
    make: Callable[[Any], Any],
    loss: PerExample,
    example,
    *,
    metrics: Metrics | None = None,
    block_of: BlockOf | None = None,
) -> Task:
    """Returns the same task as `linen_task`, for an NNX module.

    Args:
        make: nnx.Rngs -> the module, e.g. `lambda rngs: Net(rngs=rngs)`. Its Params are trained and its BatchStats
            averaged; it runs as `module.train()` in training and as `module.eval()` otherwise. Variables of other
            kinds and arrays, which it may only read, are constants.
        loss: as in `linen_task`.
        example: as in `linen_task`.
        metrics: as in `linen_task`.
        block_of: as in `linen_task`.

    Raises:
        UsageError: as `linen_task`.

    >>> from flax import nnx
    >>> task = nnx_task(lambda rngs: nnx.Linear(3, 1, rngs=rngs), lambda out, y: (out[0] - y) ** 2, jnp.ones((1, 3)))
    >>> tree.paths(task.init(jax.random.key(0)).params)
    ['bias', 'kernel']
    """
    from flax import nnx

    kinds = nnx.Param, nnx.BatchStat, nnx.RngKey, nnx.RngCount, ...
    with checks.calling("nnx_task: make"):
        module = make(nnx.Rngs(0))
        graph, *states, constants = nnx.split(module, *kinds)
    row = _row(example)
    call = _caller(type(module), row)

    def init(key: Array) -> Variables:
        _, params, stats, *_ = nnx.split(make(nnx.Rngs(key)), *kinds)
        return Variables(nnx.to_pure_dict(params), nnx.to_pure_dict(stats))

    def with_values(state, values: Tree):
        # a copy, because replace_by_pure_dict works in place
        state = jax.tree.map(lambda leaf: leaf, state)
        nnx.replace_by_pure_dict(state, values)
        return state

    def apply(params, stats, x, mask, train, key):
        keys, counts = map(nnx.to_pure_dict, states[2:])
        keys = _keys_like(keys, jax.random.key(0) if key is None else key)
        values = params, stats, keys, tree.zeros_like(counts)
        module = nnx.merge(graph, *map(with_values, states, values), constants)
        module.train() if train else module.eval()
        if key is None:
            module.set_attributes(nnx.Dropout, deterministic=True, raise_if_not_found=False)
        outputs = call(module, x, mask, train)
        _, _, new, _, _, others = nnx.split(module, *kinds)
        pairs = zip(jax.tree.leaves(others), jax.tree.leaves(constants), strict=True)
        if any(after is not before for after, before in pairs):
            raise UsageError(
                f"{type(module).__name__} changes variables other than Param, BatchStat and RngState; make them one of"
                " these"
            )
        return outputs, nnx.to_pure_dict(new)

    return _task(type(module), row, init, apply, loss, metrics, block_of)


def _task(
    kind: type,
    row: jax.ShapeDtypeStruct,
    init: Callable[[Array], Variables],
    apply: Apply,
    loss: PerExample,
    metrics: Metrics | None,
    block_of: BlockOf | None,
) -> Task:
    """Returns the task of a module of some kind as functions; further arguments as in `linen_task`."""
    _check_statistics(kind, init, apply, row)
    with checks.calling("metrics, a dict of functions of one example by name,"):
        custom = dict(metrics or {})
    if "loss" in custom:
        raise UsageError("metrics has a loss, which is the name of the task's own; use another one")
    measured = {
        name: metric if isinstance(metric, Metric) else Metric(metric)
        for name, metric in {"loss": loss, **custom}.items()
    }

    def forward(params, stats, batch, mask, train, key=None):
        with recorded_features() as features:
            outputs, stats = apply(params, stats, batch.x, mask, train, key)
        losses = _per_example("loss", loss, outputs, batch.y)
        return Outputs(mean_over_rows(losses, mask), outputs, features.value), stats

    def mean_loss(params, stats, batch, mask, train, key=None):
        outputs, stats = forward(params, stats, batch, mask, train, key)
        return outputs.loss, stats

    def predict(params, stats, batch: Batch):
        return apply(params, stats, batch.x, jnp.ones(len(batch.x), bool), False, None)[0]

    def measure(params, stats, batch, mask):
        outputs = predict(params, stats, batch)
        dtype = tree.wide_dtype(params)
        totals = {}
        for name, metric in measured.items():
            values = _per_example(name, metric.function, outputs, batch.y)
            totals[name] = jnp.where(mask, values.astype(dtype), 0).sum()
        return {"totals": totals, "rows": mask.sum()}

    def means(sums):
        return {name: float(total) / float(sums["rows"]) for name, total in sums["totals"].items()}

    return Task(
        init,
        mean_loss,
        predict,
        measure,
        means,
        block_of or groups.first_component,
        forward=forward,
        better=tuple((name, metric.better) for name, metric in measured.items() if metric.better),
    )


def _row(example: Any) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype of examples; raises UsageError without any axis, which cannot be a batch."""
    if not np.ndim(example):
        raise UsageError(
            f"example must be one array with a leading axis [B, ...], as x[:1]; got {example!r:.99}"
        )
    return jax.eval_shape(jnp.asarray, np.asarray(example))


def _caller(kind: type, row: jax.ShapeDtypeStruct) -> Callable[..., Any]:
    """Returns (f, x, mask, train) -> f(x, ...) with those keywords that the module's `__call__` has.

    It reports an error of the module as a UsageError that names the shapes of x and of the task's example.
    """
    names = inspect.signature(kind.__call__).parameters

    def call(f: Callable, x: Array, mask: Array, train: bool) -> Any:
        modes = {"mask": mask}
        modes |= dict.fromkeys(("train", "training", "is_training"), train)
        modes |= dict.fromkeys(("deterministic", "use_running_average"), not train)
        shapes = f"x {list(x.shape)}, of a task made with example {list(row.shape)},"
        with checks.calling(f"{kind.__name__} on {shapes}"):
            return f(x, **{name: value for name, value in modes.items() if name in names})

    return call


def _skip_dropout(call: Callable, args: tuple, kwargs: Mapping[str, Any], context) -> Any:
    """Makes Linen's Dropout the identity; an interceptor of `nn.intercept_methods`."""
    is_dropout = isinstance(context.module, nn.Dropout) and context.method_name == "__call__"
    if not is_dropout:
        return call(*args, **kwargs)
    return args[0] if args else kwargs["inputs"]


def _keys_like(keys: Tree, key: Array) -> Tree:
    """Returns keys derived from `key`, one for each leaf of `keys` and of the leaf's shape."""
    leaves, structure = jax.tree.flatten(keys)

    def derived(number: int, shape: Any) -> Array:
        of_leaf = jax.random.fold_in(key, number)
        return jax.random.split(of_leaf, shape) if shape else of_leaf

    return structure.unflatten([derived(i, leaf.shape) for i, leaf in enumerate(leaves)])


def _check_statistics(kind: type, init: Callable, apply: Apply, row: jax.ShapeDtypeStruct) -> None:
    """Raises UsageError if batch statistics read padded rows, from what the trace of the module reads."""

    def train(model: Variables, x: Array, mask: Array) -> dict[str, Tree]:
        return tree.by_path(apply(*model, x, mask, True, None)[1])

    model = jax.eval_shape(init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((3, *row.shape[1:]), row.dtype)
    read, _ = checks.dependencies(train, model, x, jax.ShapeDtypeStruct((3,), bool))
    if any(of_x and not of_mask for _, of_x, of_mask in read.values()):
        raise UsageError(
            f"{kind.__name__} has batch statistics, which must exclude padded rows: give its __call__ an argument mask,"
            " bool [B], and pass it on; BatchNorm takes mask=mask[:, None] for x [B, C], and"
            " mask=mask[:, None, None, None] for images"
        )


def _per_example(name: str, f: PerExample, outputs: Tree, y: Array) -> Array:
    """Returns f of every example, [B]; raises UsageError if f does not return a scalar."""
    shapes = [list(jnp.shape(leaf)) for leaf in (*jax.tree.leaves(outputs), y)]
    what = f"{name} of one example, of outputs and y {shapes},"
    with checks.calling(what):
        values = jax.vmap(f)(outputs, y)
    dtype = jnp.floating if name == "loss" else jnp.generic
    if jnp.shape(values) != (len(y),) or not jnp.issubdtype(values.dtype, dtype):
        got = f"{checks.described(values)} for {len(y)} examples"
        raise UsageError(f"{what} must be one number, of a loss a float; got {got}")
    return values
