"""A `Task` from a user's own Linen or NNX module and a loss per example. Neither images nor classes are assumed.

    task = linen_task(Net(), lambda output, y: (output - y) ** 2, x[:1])

The module is called as `module(x)` with x [B, ...], and with those following arguments that its `__call__` has:
`mask` [B] bool, the real rows; `train`, `training` or `is_training`; `deterministic` or `use_running_average`, their
negation.

Modules may draw random numbers in local training. Without a key, as where D_val is scored with the batch statistics of
training, Dropout is the identity and any other random layer uses a fixed key.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from fedvg_jax.core import checks, groups, tree
from fedvg_jax.core.checks import dependencies
from fedvg_jax.core.types import Batch, Metric, Outputs, Task, Tree, UsageError, Variables
from fedvg_jax.models.task import loss_of, recorded_features

_MASK_OF_BATCH_NORM = (
    "BatchNorm takes mask=mask[:, None] for x [B, C], and mask=mask[:, None, None, None] for images"
)

_MODES: tuple[str, ...] = (
    "mask",
    "train",
    "training",
    "is_training",
    "deterministic",
    "use_running_average",
)

PerExample = Callable[[Tree, Array], Array]
"""(the module's output for one example, its y) -> scalar."""

Apply = Callable[[Tree, Tree, Array, Array, bool, Array | None], tuple[Tree, Tree]]
"""(params, stats, x, mask, train, key or None) -> (outputs [B, ...], new stats)."""


def linen_task(
    module: nn.Module,
    loss: PerExample,
    example,
    *,
    metrics: Mapping[str, PerExample | Metric] | None = None,
    block_of: Callable[[str], str] | None = None,
) -> Task:
    """Returns the task of minimising the mean of loss(module(x)_i, y_i) over the real rows of a batch.

    Args:
        module: x [B, ...] -> outputs, a pytree with leading axis B. Its params are trained and its batch_stats
            averaged; other collections, which it may only read, are frozen.
        loss: (output, y) of one example -> scalar.
        example: one or more examples x [B, ...], for shape and dtype; e.g. `x[:1]`.
        metrics: name -> function of one example, as `loss`, or `fv.Metric` of one, which says how a report compares
            it; evaluations report their means beside the loss. Progress and summaries show the metric called
            `accuracy` if there is one.
        block_of: path of a tensor -> name of its block; defaults to the top-level module.

    Raises:
        UsageError: if the module changes another collection, or batch statistics would include padding; or if its
            outputs lack the leading axis B.

    >>> task = linen_task(nn.Dense(1), lambda output, y: (output[0] - y) ** 2, jnp.ones((1, 3)))
    >>> variables = task.init(jax.random.key(0))
    >>> batch = Batch(jnp.zeros((4, 3)), jnp.full(4, 2.0))
    >>> float(task.loss(*variables, batch, jnp.arange(4) < 3, True)[0])
    4.0
    """
    if not isinstance(module, nn.Module):
        name = getattr(module, "__name__", "")
        got = f"the class {name}" if isinstance(module, type) else f"a {type(module).__name__}"
        raise UsageError(
            f"linen_task: module must be an instance of a flax.linen.Module, such as Net(); got {got}"
        )
    example, kind = _checked_example(example), type(module)
    parameters = _parameters(kind)
    has_keywords = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if has_keywords and not isinstance(module, nn.Sequential):
        raise UsageError(
            f"{kind.__name__}.__call__ takes **; name what it passes on among {', '.join(_MODES)}"
        )
    call = _caller(parameters)

    def init(key: Array) -> Variables:
        x = jnp.zeros(example.shape, jax.dtypes.canonicalize_dtype(example.dtype))
        with _calling(kind, x, example):
            variables = call(
                lambda *x, **modes: module.init(key, *x, **modes), x, jnp.ones(len(x), bool), False
            )
        frozen.update(variables.keys() - {"params", "batch_stats"})
        params = {**variables.get("params", {}), **{name: variables[name] for name in frozen}}
        return Variables(params, variables.get("batch_stats", {}))

    frozen: set[str] = set()  # names of collections, once `init` is traced

    def apply(
        params: Tree, stats: Tree, x: Array, mask: Array, train: bool, key: Array | None
    ) -> tuple[Tree, Tree]:
        # other streams are taken from params; a module that asks `has_rng("dropout")` has it in local training only
        rngs = {"params": jax.random.key(0)}
        if key is not None and train:
            rngs = {"params": key, "dropout": key}
        collections = {name: params[name] for name in frozen}
        trained = {name: own for name, own in params.items() if name not in frozen}
        collections |= {"params": trained if frozen else params, "batch_stats": stats}

        def run(*x, **modes):
            return module.apply(collections, *x, **modes, mutable=["batch_stats"], rngs=rngs)

        with nn.intercept_methods(_skip_dropout) if key is None else contextlib.nullcontext():
            outputs, new = call(run, x, mask, train)
        return outputs, new.get("batch_stats", stats)

    return _task(kind, init, apply, False, example, loss, metrics, block_of, frozen)


def nnx_task(
    make: Callable[[Any], Any],
    loss: PerExample,
    example,
    *,
    metrics: Mapping[str, PerExample | Metric] | None = None,
    block_of: Callable[[str], str] | None = None,
) -> Task:
    """Returns the same task as `linen_task`, for an NNX module.

    Args:
        make: nnx.Rngs -> the module, e.g. `lambda rngs: Net(rngs=rngs)`. Its Params are trained and its BatchStats
            averaged; it runs as `module.train()` in training and as `module.eval()` otherwise. Variables of other
            kinds, which it may only read, are frozen.
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

    example = _checked_example(example)
    with checks.calling("nnx_task: make"):
        abstract = nnx.eval_shape(lambda: make(nnx.Rngs(0)))
    kinds = nnx.Param, nnx.BatchStat, nnx.RngKey, nnx.RngCount, nnx.Variable
    graph, *abstract_states, other_state = nnx.split(abstract, *kinds, ...)
    frozen = {"frozen"} if jax.tree.leaves(abstract_states[-1]) else set()
    # where Flax keeps tracers
    attributes = (getattr(attribute, "value", None) for _, attribute in graph.attributes)
    has_constants = any(isinstance(value, jax.Array) for value in attributes)
    if nnx.to_flat_state(other_state) or has_constants:  # which need their values
        graph, *abstract_states, other_state = nnx.split(make(nnx.Rngs(0)), *kinds, ...)
    kind, call = type(abstract), _caller(_parameters(type(abstract)))
    has_dropout = any(
        isinstance(node, nnx.Dropout) and node.rate > 0 for _, node in nnx.iter_graph(abstract)
    )

    def init(key: Array) -> Variables:
        _, *states = nnx.split(make(nnx.Rngs(key)), *kinds, ...)
        params, stats, _, _, others, _ = map(nnx.to_pure_dict, states)
        return Variables({**params, **dict.fromkeys(frozen, others)}, stats)

    def with_values(state, values: Tree):
        # a copy, because replace_by_pure_dict works in place
        state = jax.tree.map(lambda leaf: leaf, state)
        nnx.replace_by_pure_dict(state, values)
        return state

    def apply(
        params: Tree, stats: Tree, x: Array, mask: Array, train: bool, key: Array | None
    ) -> tuple[Tree, Tree]:
        keys, counts, others = map(nnx.to_pure_dict, abstract_states[2:])
        keys = _keys_like(keys, jax.random.key(0) if key is None else key)
        if frozen:
            params, others = (
                {name: own for name, own in params.items() if name not in frozen},
                params["frozen"],
            )
        values = params, stats, keys, tree.zeros_like(counts), others
        module = nnx.merge(graph, *map(with_values, abstract_states, values), other_state)
        module.train() if train else module.eval()
        if key is None:
            module.set_attributes(nnx.Dropout, deterministic=True, raise_if_not_found=False)
        outputs = call(module, x, mask, train)
        *_, after, _ = nnx.split(module, *kinds, ...)
        pairs = zip(jax.tree.leaves(after), jax.tree.leaves(others), strict=True)
        if any(value is not given for value, given in pairs):
            frozen_kinds = "variables other than Param, BatchStat and RngState"
            raise UsageError(
                f"{kind.__name__} changes {frozen_kinds}, which are frozen; make them one of these"
            )
        return outputs, nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))

    return _task(kind, init, apply, has_dropout, example, loss, metrics, block_of, frozen)


def _task(
    kind: type,
    init: Callable[[Array], Variables],
    apply: Apply,
    has_dropout: bool,
    example,
    loss: PerExample,
    metrics: Mapping[str, PerExample | Metric] | None,
    block_of: Callable[[str], str] | None,
    frozen: Collection[str],
) -> Task:
    """Returns the task of a module given as functions; further arguments as in `linen_task`.

    Args:
        kind: class of the module, named in messages.
        init: key -> variables.
        apply: see `Apply`.
        has_dropout: whether the module has layers of Dropout, unless it is a Linen module.
        frozen: names of what `params` has beside the parameters.
    """
    if not isinstance(metrics or {}, Mapping) or "loss" in (metrics or {}):
        raise UsageError(
            f"metrics must be a dict, name -> function, with other names than loss; got {metrics!r:.99}"
        )
    functions: dict[str, Any] = {"loss": loss}
    better: dict[str, str] = {}
    for metric_name, metric in (metrics or {}).items():
        given = metric if isinstance(metric, Metric) else Metric(metric)
        functions[metric_name] = given.function
        if given.better:
            better[metric_name] = given.better

    def checked_apply(
        params: Tree, stats: Tree, x: Array, mask: Array, train: bool, key: Array | None = None
    ):
        with _calling(kind, x, example):
            outputs, stats = apply(params, stats, x, mask, train, key)
        for path, leaf in tree.by_path(outputs).items():
            if jnp.shape(leaf)[:1] != (len(mask),):
                expected = f"[{len(mask)}, ...], one output per example of a batch of {len(mask)}"
                got = f"leaf '{path}' of shape {list(jnp.shape(leaf))}"
                raise UsageError(f"{kind.__name__} returned {got}; expected {expected}")
        return outputs, stats

    def forward(
        params: Tree, stats: Tree, batch: Batch, mask: Array, train: bool, key: Array | None = None
    ) -> tuple[Outputs, Tree]:
        with recorded_features() as features:
            outputs, stats = checked_apply(params, stats, batch.x, mask, train, key)
        total = jnp.where(mask, _per_example("loss", loss, outputs, batch.y), 0).sum()
        mean = total / jnp.maximum(mask.sum(), 1).astype(total.dtype)
        return Outputs(mean, outputs, features.value), stats

    def random_loss(
        params: Tree, stats: Tree, batch: Batch, mask: Array, train: bool, key: Array | None = None
    ) -> tuple[Array, Tree]:
        outputs, stats = forward(params, stats, batch, mask, train, key)
        return outputs.loss, stats

    def predict(params: Tree, stats: Tree, batch: Batch) -> Tree:
        return checked_apply(params, stats, batch.x, jnp.ones(len(batch.x), bool), False)[0]

    def measure(params: Tree, stats: Tree, batch: Batch, mask: Array) -> Tree:
        outputs = predict(params, stats, batch)
        values = {name: _per_example(name, f, outputs, batch.y) for name, f in functions.items()}
        dtype = tree.wide_dtype(params)
        totals = {
            name: jnp.where(mask, value.astype(dtype), 0).sum() for name, value in values.items()
        }
        return {"totals": totals, "rows": mask.sum()}

    def means(sums: Tree) -> dict[str, float]:
        return {name: float(total) / float(sums["rows"]) for name, total in sums["totals"].items()}

    mean_loss = (
        random_loss
        if _is_random(kind, init, checked_apply, example, has_dropout)
        else loss_of(forward)
    )
    names = block_of or groups.first_component
    task = Task(
        init,
        mean_loss,
        predict,
        measure,
        means,
        names,
        forward=forward,
        better=tuple(better.items()),
    )
    return (
        task._replace(is_frozen=lambda path: groups.first_component(path) in frozen)
        if frozen
        else task
    )


def _checked_example(example: Any) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype of examples; raises UsageError without any axis, which cannot be a batch."""
    if isinstance(example, (Mapping, tuple)) or not jnp.ndim(example) or not len(example):
        is_tree = isinstance(example, (Mapping, tuple))
        got = f"a {type(example).__name__}" if is_tree else list(jnp.shape(example))
        raise UsageError(
            f"example must be one array with a leading axis [B, ...], as x[:1]; got {got}"
        )
    return jax.ShapeDtypeStruct(jnp.shape(example), jnp.asarray(example).dtype)


def _calling(kind: type, x: Array, example: Any) -> contextlib.AbstractContextManager[None]:
    """Reports an error of the module as a UsageError that names the shape of x and what may be wrong with it."""
    shape, expected = list(jnp.shape(x)), list(example.shape[1:])
    hint = (
        f", where mask is of shape {shape[:1]} ({_MASK_OF_BATCH_NORM})"
        if "mask" in _parameters(kind)
        else ""
    )
    if shape[1:] != expected:
        hint = f", where the task's example had rows {expected}; make the task with example=x[:1]:"
    return checks.calling(f"{kind.__name__} on x {shape}{hint}")


def _skip_dropout(call: Callable, args: tuple, kwargs: Mapping[str, Any], context) -> Any:
    """Makes Linen's Dropout the identity; an interceptor of `nn.intercept_methods`."""
    is_dropout = isinstance(context.module, nn.Dropout) and context.method_name == "__call__"
    return (args[0] if args else kwargs["inputs"]) if is_dropout else call(*args, **kwargs)


def _keys_like(keys: Tree, key: Array) -> Tree:
    """Returns keys derived from `key`, one for each leaf of `keys` and of the leaf's shape."""
    leaves, structure = jax.tree.flatten(keys)
    derived = [jax.random.fold_in(key, i) for i in range(len(leaves))]
    shaped = [
        jax.random.split(k, leaf.shape) if leaf.shape else k
        for k, leaf in zip(derived, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, shaped)


def _is_random(kind: type, init: Callable, apply: Callable, example, has_dropout: bool) -> bool:
    """Returns whether the module draws random numbers in training, from what its trace reads.

    Raises:
        UsageError: batch statistics include padding, or Dropout is off in training.
    """
    variables, name, dropouts = (
        jax.eval_shape(init, jax.random.key(0)),
        kind.__name__,
        [has_dropout],
    )

    def note(call, args, kwargs, context):
        dropouts.append(isinstance(context.module, nn.Dropout) and context.module.rate > 0)
        return call(*args, **kwargs)

    def train(v: Variables, x: Array, mask: Array, key: Array) -> dict[str, Tree]:
        with nn.intercept_methods(note):
            outputs, stats = apply(*v, x, mask, True, key)
        return {"outputs": outputs} | tree.by_path({"stats": stats})

    def read_with(num_rows: int) -> dict[str, tuple]:
        """Returns what the outputs, and what every running statistic reads of (variables, x, mask, key)."""
        x = jax.ShapeDtypeStruct(
            (num_rows, *example.shape[1:]), jax.dtypes.canonicalize_dtype(example.dtype)
        )
        return dependencies(
            train, variables, x, jax.ShapeDtypeStruct((num_rows,), bool), jax.random.key(0)
        )[0]

    read = read_with(3)
    if any(of_mask for _, _, of_mask, _ in read.values()):
        read_with(5)  # raises an error where a mask [3] fits 3 channels in place of the rows
    _, _, _, is_random = read.pop("outputs")
    if any(of_x and not of_mask for _, of_x, of_mask, _ in read.values()):
        raise UsageError(
            f"{name} has batch statistics, which must exclude padded rows: give its __call__ an argument mask,"
            f" bool [B], and pass it on; {_MASK_OF_BATCH_NORM}"
        )
    if any(dropouts) and not is_random:
        modes = ", ".join(_MODES[1:])
        raise UsageError(
            f"{name} has Dropout that is off in training: use one of {modes} in its __call__, or rate 0"
        )
    return is_random


def _per_example(name: str, f: PerExample, outputs: Tree, y: Array) -> Array:
    """Returns f of every example, [B]; raises UsageError if f does not return a scalar."""
    given = ", ".join(str(list(leaf.shape[1:])) for leaf in jax.tree.leaves(outputs))
    what = f"{name} of one example, with output {given} and y {list(y.shape[1:])},"
    with checks.calling(what):
        values = jax.vmap(f)(outputs, y)
    is_number = isinstance(values, jax.Array) and values.ndim == 1
    if not is_number or (name == "loss" and not jnp.issubdtype(values.dtype, jnp.floating)):
        is_array = isinstance(values, jax.Array)
        got = checks.described(jax.eval_shape(lambda v: v[0], values)) if is_array else values
        raise UsageError(f"{what} must be one number, of a loss a float; got {got!r:.99}")
    return values


def _caller(parameters: Collection[str]) -> Callable:
    """Returns (f, x, mask, train) -> f(x, ...) with those keywords of `_MODES` that are in `parameters`."""

    def call(f: Callable, x: Array, mask: Array, train: bool):
        modes = zip(_MODES, (mask, train, train, train, not train, not train), strict=True)
        return f(x, **{name: value for name, value in modes if name in parameters})

    return call


def _parameters(kind: type) -> Mapping[str, inspect.Parameter]:
    """Returns the parameters of the module's `__call__` by name."""
    return inspect.signature(kind.__call__).parameters
