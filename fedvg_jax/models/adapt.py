"""A `Task` from a user's own Linen or NNX module and a loss per example. Neither images nor classes are assumed.

    task = linen_task(Net(), lambda output, y: (output - y) ** 2, x[:1])

The module is called as `module(x)` with x [B, ...], plus those of the following arguments that its `__call__` has:
`mask` [B] bool, the real rows; `train`, `training` or `is_training`; `deterministic` or `use_running_average`, their
negation. One with `**kwargs` gets those that it accepts. The task says what has no effect where one is expected.

Modules may draw random numbers in local training. Without a key, as where D_val is scored with the batch statistics of
training, Dropout is the identity and any other random layer uses a fixed key.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from fedvg_jax.core import checks, groups, tree
from fedvg_jax.core.dependence import last_activation, reads
from fedvg_jax.core.types import Batch, Outputs, Task, Tree, UsageError, Variables
from fedvg_jax.host import files
from fedvg_jax.models.features import recorded_features

_log_warning = logging.getLogger(__name__).warning

_MASK_OF_BATCH_NORM = "BatchNorm takes mask=mask[:, None] for x [B, C], and mask=mask[:, None, None, None] for images"

_MODES: tuple[str, ...] = ("mask", "train", "training", "is_training", "deterministic", "use_running_average")

PerExample = Callable[[Tree, Array], Array]
"""(the module's output for one example, its y) -> scalar."""

Apply = Callable[[Tree, Tree, Array, Array, bool, Array | None], tuple[Tree, Tree]]
"""(params, stats, x, mask, train, key or None) -> (outputs [B, ...], new stats)."""


def linen_task(
    module: nn.Module,
    loss: PerExample,
    example,
    *,
    metrics: Mapping[str, PerExample] | None = None,
    block_of: Callable[[str], str] | None = None,
) -> Task:
    """Returns the task of minimising the mean of loss(module(x)_i, y_i) over the real rows of a batch.

    Args:
        module: x [B, ...] -> outputs, a pytree with leading axis B. Its params are trained and its batch_stats
            averaged; other collections, which it may only read, are frozen.
        loss: (output, y) of one example -> scalar.
        example: one or more examples x [B, ...], for shape and dtype; e.g. `x[:1]`.
        metrics: name -> function of one example, as `loss`; evaluations report their means beside the loss. Progress
            and summaries show the metric called `accuracy` if there is one.
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
    _check_instance(module)
    example = _checked_example(example)
    call = _caller(_accepted(module, example))

    def init(key: Array) -> Variables:
        x = jnp.zeros(example.shape, jax.dtypes.canonicalize_dtype(example.dtype))
        with _calling(module, x, example):
            variables = call(lambda *x, **modes: module.init(key, *x, **modes), x, jnp.ones(len(x), bool), False)
        frozen.update(variables.keys() - {"params", "batch_stats"})
        params = _with_frozen(module, variables.get("params", {}), {name: variables[name] for name in frozen})
        return Variables(params, variables.get("batch_stats", {}))

    frozen: set[str] = set()  # names of collections, once `init` is traced

    def apply(params: Tree, stats: Tree, x: Array, mask: Array, train: bool, key: Array | None) -> tuple[Tree, Tree]:
        # other streams are taken from params; a module that asks `has_rng("dropout")` has it in local training only
        rngs = {"params": jax.random.key(0)} if key is None or not train else {"params": key, "dropout": key}
        trained = {name: own for name, own in params.items() if name not in frozen} if frozen else params
        collections = {"params": trained, "batch_stats": stats, **{name: params[name] for name in frozen}}

        def run(*x, **modes):
            return module.apply(collections, *x, **modes, mutable=["batch_stats"], rngs=rngs)

        with nn.intercept_methods(_skip_dropout) if key is None else contextlib.nullcontext():
            outputs, new = call(run, x, mask, train)
        return outputs, new.get("batch_stats", stats)

    return _task(module, init, apply, False, example, loss, metrics, block_of, frozen)


def _with_frozen(module: Any, params: Tree, frozen: Mapping[str, Tree]) -> Tree:
    """Returns the parameters with the frozen tensors beside them, under the names of their collections."""
    if both := sorted(frozen.keys() & params.keys()):
        raise UsageError(f"{_name(module)} has a layer and a collection of variables named {both[0]}; rename one")
    return {**params, **frozen} if frozen else params


def nnx_task(
    make: Callable[[Any], Any],
    loss: PerExample,
    example,
    *,
    metrics: Mapping[str, PerExample] | None = None,
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
    if isinstance(make, nnx.Module):
        name = _name(make)
        raise UsageError(f"nnx_task: give a function, lambda rngs: {name}(..., rngs=rngs), in place of a {name}")
    checks.takes(make, ("rngs",), "nnx_task: make")
    with checks.calling("nnx_task: make"):
        abstract = nnx.eval_shape(lambda: make(nnx.Rngs(0)))
    kinds = nnx.Param, nnx.BatchStat, nnx.RngKey, nnx.RngCount, nnx.Variable
    graph, *abstract_states, other_state = nnx.split(abstract, *kinds, ...)
    frozen = {"frozen"} if jax.tree.leaves(abstract_states[-1]) else set()
    attributes = (getattr(attribute, "value", None) for _, attribute in graph.attributes)  # where Flax keeps tracers
    has_constants = any(isinstance(value, jax.Array) for value in attributes)
    if nnx.to_flat_state(other_state) or has_constants:  # which need their values
        graph, *abstract_states, other_state = nnx.split(make(nnx.Rngs(0)), *kinds, ...)
    kind, call = type(abstract), _caller(_signature(abstract))
    has_dropout = any(isinstance(node, nnx.Dropout) and node.rate > 0 for _, node in nnx.iter_graph(abstract))

    def init(key: Array) -> Variables:
        _, *states = nnx.split(make(nnx.Rngs(key)), *kinds, ...)
        params, stats, _, _, others, _ = map(nnx.to_pure_dict, states)
        return Variables(_with_frozen(kind, params, dict.fromkeys(frozen, others)), stats)

    def with_values(state, values: Tree):
        state = jax.tree.map(lambda leaf: leaf, state)  # a copy, because replace_by_pure_dict works in place
        nnx.replace_by_pure_dict(state, values)
        return state

    def apply(params: Tree, stats: Tree, x: Array, mask: Array, train: bool, key: Array | None) -> tuple[Tree, Tree]:
        keys, counts, others = map(nnx.to_pure_dict, abstract_states[2:])
        keys = _keys_like(keys, jax.random.key(0) if key is None else key)
        if frozen:
            params, others = {name: own for name, own in params.items() if name not in frozen}, params["frozen"]
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
            raise UsageError(f"{_name(kind)} changes {frozen_kinds}, which are frozen; make them one of these")
        return outputs, nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))

    return _task(kind, init, apply, has_dropout, example, loss, metrics, block_of, frozen)


def _task(
    module: Any,
    init: Callable[[Array], Variables],
    apply: Apply,
    has_dropout: bool,
    example,
    loss: PerExample,
    metrics: Mapping[str, PerExample] | None,
    block_of: Callable[[str], str] | None,
    frozen: Collection[str],
) -> Task:
    """Returns the task of a module given as functions; further arguments as in `linen_task`.

    Args:
        module: named in messages.
        init: key -> variables.
        apply: see `Apply`.
        has_dropout: whether the module has layers of Dropout, unless it is a Linen module.
        frozen: names of what `params` has beside the parameters.
    """
    if not isinstance(metrics or {}, Mapping):
        raise UsageError(f"metrics must be a dict, name -> function; got {type(metrics).__name__}")
    metrics = dict(metrics or {})
    if "loss" in metrics:
        raise UsageError("a metric is named loss, which is reserved for the loss itself; choose another name")

    def checked_apply(params: Tree, stats: Tree, x: Array, mask: Array, train: bool, key: Array | None = None):
        with _calling(module, x, example):
            outputs, stats = apply(params, stats, x, mask, train, key)
        _check_rows(_name(module), outputs, len(mask))
        return outputs, stats

    def forward(
        params: Tree, stats: Tree, batch: Batch, mask: Array, train: bool, key: Array | None = None
    ) -> tuple[Outputs, Tree]:
        batch = _cast_floats(params, batch)
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

    def fixed_loss(params: Tree, stats: Tree, batch: Batch, mask: Array, train: bool) -> tuple[Array, Tree]:
        return random_loss(params, stats, batch, mask, train)

    def predict(params: Tree, stats: Tree, batch: Batch) -> Tree:
        batch = _cast_floats(params, batch)
        return checked_apply(params, stats, batch.x, jnp.ones(len(batch.x), bool), False)[0]

    def measure(params: Tree, stats: Tree, batch: Batch, mask: Array) -> Tree:
        outputs, batch = predict(params, stats, batch), _cast_floats(params, batch)
        values = {name: _per_example(name, f, outputs, batch.y) for name, f in {"loss": loss, **metrics}.items()}
        dtype = tree.wide_dtype(params)
        totals = {name: jnp.where(mask, value.astype(dtype), 0).sum() for name, value in values.items()}
        return {"totals": totals, "rows": mask.sum()}

    def means(sums: Tree) -> dict[str, float]:
        return {name: float(total) / float(sums["rows"]) for name, total in sums["totals"].items()}

    is_random = _check_module(module, init, checked_apply, example, loss, has_dropout)
    mean_loss = random_loss if is_random else fixed_loss
    names = block_of or groups.first_component
    task = Task(init, mean_loss, predict, measure, means, names, forward=forward)
    return task._replace(is_frozen=lambda path: groups.first_component(path) in frozen) if frozen else task


def _check_instance(module: Any) -> None:
    """Raises UsageError for a class in place of its instance, or anything else that is no Linen module."""
    if isinstance(module, type):
        raise UsageError(f"linen_task: give an instance, {module.__name__}(), in place of the class {module.__name__}")
    if not isinstance(module, nn.Module):
        raise UsageError(f"linen_task: the module is a {type(module).__name__}; expected a flax.linen.Module")


def _checked_example(example: Any) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype of examples; raises UsageError without any axis, which cannot be a batch."""
    if isinstance(example, (Mapping, tuple)):
        raise UsageError(f"example is a {type(example).__name__}; x is one array [B, ...]: join inputs along an axis")
    if not jnp.ndim(example) or not len(example):
        raise UsageError(f"example is of shape {list(jnp.shape(example))}; it needs a leading axis, as x[:1]")
    return jax.ShapeDtypeStruct(jnp.shape(example), jnp.asarray(example).dtype)


@contextlib.contextmanager
def _calling(module: Any, x: Array, example: Any) -> Iterator[None]:
    """Reports an error of the module as a UsageError that names the shape of x and what may be wrong with it."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        rows, expected = list(jnp.shape(x)[1:]), list(example.shape[1:])
        if rows != expected:
            reason = f"data x has rows {rows}; the task's example had {expected}"
            raise UsageError(f"{reason}; make the task with example=x[:1]") from error
        hint = "; an example needs a leading axis, as x[:1]" if example.shape[0] != 1 else ""
        if "mask" in _signature(module):
            hint += f"; mask is of shape {list(jnp.shape(x)[:1])}; {_MASK_OF_BATCH_NORM}"
        raise UsageError(
            f"{_name(module)} failed on x {list(jnp.shape(x))}: {type(error).__name__}: {files.reason(error)}{hint}"
        ) from error


def _skip_dropout(call: Callable, args: tuple, kwargs: Mapping[str, Any], context) -> Any:
    """Makes Linen's Dropout the identity; an interceptor of `nn.intercept_methods`."""
    is_dropout = isinstance(context.module, nn.Dropout) and context.method_name == "__call__"
    return (args[0] if args else kwargs["inputs"]) if is_dropout else call(*args, **kwargs)


def _keys_like(keys: Tree, key: Array) -> Tree:
    """Returns keys derived from `key`, one for each leaf of `keys` and of the leaf's shape."""
    leaves, structure = jax.tree.flatten(keys)
    derived = [jax.random.fold_in(key, i) for i in range(len(leaves))]
    shaped = [jax.random.split(k, leaf.shape) if leaf.shape else k for k, leaf in zip(derived, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


def _abstract_inputs(init: Callable[[Array], Variables], example) -> tuple[Variables, jax.ShapeDtypeStruct]:
    """Returns shapes and dtypes of the variables and of three examples."""
    x = jax.ShapeDtypeStruct((3, *example.shape[1:]), jax.dtypes.canonicalize_dtype(example.dtype))
    with checks.without_notes():
        return jax.eval_shape(init, jax.random.key(0)), x


def _check_module(module: Any, init: Callable, apply: Callable, example, loss: PerExample, has_dropout: bool) -> bool:
    """Returns whether the module draws random numbers in training, after tracing it in both modes.

    A warning names what has no effect: a mode, Dropout, or the logits that a loss takes.

    Raises:
        UsageError: as `linen_task`.
    """
    (variables, x), name, dropouts = _abstract_inputs(init, example), _name(module), []

    def note(call, args, kwargs, context):
        dropouts.append(isinstance(context.module, nn.Dropout) and context.module.rate > 0)
        return call(*args, **kwargs)

    def results(train: bool, v: Variables, x: Array, mask: Array, key: Array) -> dict[str, Tree]:
        with nn.intercept_methods(note):
            outputs, stats = apply(*v, x, mask, train, key)
        return {"outputs": outputs} | tree.by_path({"stats": stats})

    def arguments(num_rows: int) -> tuple:
        batch = jax.ShapeDtypeStruct((num_rows, *x.shape[1:]), x.dtype), jax.ShapeDtypeStruct((num_rows,), bool)
        return variables, *batch, jax.random.key(0)

    def read_by(function: Callable, num_rows: int) -> tuple[tuple, list[tuple]]:
        """Returns what the outputs, and what every running statistic reads of (variables, x, mask, key)."""
        with checks.without_notes():
            read, _ = reads(function, *arguments(num_rows))
        return read.pop("outputs"), list(read.values())

    training, evaluation = (functools.partial(results, train) for train in (True, False))
    (outputs, stats), (_, evaluated) = read_by(training, 3), read_by(evaluation, 3)
    if any(of_mask for _, _, of_mask, _ in (outputs, *stats)):
        read_by(training, 5)  # raises an error where a mask [3] fits 3 channels in place of the rows
    if any(of_x and not of_mask for _, of_x, of_mask, _ in stats):
        raise UsageError(
            f"{name} has batch statistics, which must exclude padded rows: give its __call__ an argument mask,"
            f" bool [B], and pass it on; {_MASK_OF_BATCH_NORM}"
        )
    moves = any(of_x or any(jax.tree.leaves(of_model.params)) for of_model, of_x, *_ in stats)
    warnings = {
        "has Dropout that is off in training": (any(dropouts) or has_dropout) and not outputs[3],
        "has running statistics that do not move in training": bool(stats) and not moves,
        "uses the statistics of each batch in evaluation, too": any(of_x for _, of_x, *_ in evaluated),
    }
    for warning in filter(warnings.get, warnings):
        _log_warning("%s %s: its __call__ has no effective argument %s", name, warning, ", ".join(_MODES[1:]))
    if activation := _applied_twice(evaluation, loss, *arguments(3)):
        _log_warning("%s ends in a %s, and loss takes logits: return logits", name, activation)
    return outputs[3]


def _applied_twice(results: Callable, loss: PerExample, *arguments: Any) -> str:
    """Returns the softmax or sigmoid that `outputs` of a function ends in, if the loss takes it for logits; else "".

    Of logits z, both cross-entropies have the derivative activation(z) - y, times a constant, at any z.
    """
    name, outputs = last_activation(results, *arguments), jax.eval_shape(results, *arguments)["outputs"]
    if not name or not isinstance(outputs, jax.ShapeDtypeStruct):
        return ""
    shape = outputs.shape[1:]
    activation, y = getattr(jax.nn, name), (jnp.arange(math.prod(shape)) == 0).reshape(shape).astype(float)
    p = activation(jnp.linspace(0.0, 1.0, 2 * y.size).reshape(2, *shape))
    expected = activation(p) - y[None]
    for labels in (y, y.ravel()[0], jnp.int32(0)):
        with contextlib.suppress(Exception):  # it takes other labels, or other outputs
            given = jax.vmap(jax.grad(loss), (0, None))(p, labels)
            if jnp.allclose(given * jnp.abs(expected).sum(), expected * jnp.abs(given).sum()) and given.any():
                return name
    return ""


def _check_rows(name: str, outputs: Tree, batch_size: int) -> None:
    """Raises UsageError unless every output has leading axis B."""
    for path, leaf in zip(tree.paths(outputs), jax.tree.leaves(outputs), strict=True):
        if jnp.shape(leaf)[:1] != (batch_size,):
            raise UsageError(
                f"{name} must return one output per example, shape [{batch_size}, ...] for a batch of {batch_size};"
                f" got {list(jnp.shape(leaf))}" + (f" at {path}" if path else "")
            )


def _per_example(name: str, f: PerExample, outputs: Tree, y: Array) -> Array:
    """Returns f of every example, [B]; raises UsageError if f does not return a scalar."""
    given = ", ".join(str(list(leaf.shape[1:])) for leaf in jax.tree.leaves(outputs))
    checks.takes(f, ("output", "y"), name)
    with checks.calling(f"{name}, which is called with one example (output {given}, y {list(y.shape[1:])}),"):
        values = jax.vmap(f)(outputs, y)
    if not isinstance(values, jax.Array) or values.ndim != 1:
        got = [list(leaf.shape[1:]) for leaf in jax.tree.leaves(values)]
        raise UsageError(
            f"{name} of one example must be a scalar, shape []; got {', '.join(map(str, got)) or 'nothing'} from an"
            f" output {given} and y {list(y.shape[1:])}"
        )
    if name == "loss" and not jnp.issubdtype(values.dtype, jnp.floating):
        raise UsageError(f"loss of one example must be a float, which has a gradient; got {values.dtype}")
    return values


def _cast_floats(params: Tree, batch: Batch) -> Batch:
    """Returns the batch with its float arrays in the dtype of the parameters; integers are unchanged."""
    dtype = tree.dtype(params)
    return jax.tree.map(lambda a: a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a, batch)


def _caller(names: set[str]) -> Callable:
    """Returns (f, x, mask, train) -> f(x, ...) with those keywords of `_MODES` that are in `names`."""

    def call(f: Callable, x: Array, mask: Array, train: bool):
        modes = zip(_MODES, (mask, train, train, train, not train, not train), strict=True)
        return f(x, **{name: value for name, value in modes if name in names})

    return call


def _accepted(module: nn.Module, example: jax.ShapeDtypeStruct) -> set[str]:
    """Returns the arguments that a module takes; of one with `**kwargs`, those of `_MODES` that no layer rejects."""
    if not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(type(module).__call__).parameters.values()):
        return _signature(module)
    names, x = set(_MODES), jnp.zeros(example.shape, example.dtype)
    init = functools.partial(module.init, jax.random.key(0))
    while names:
        try:
            jax.eval_shape(lambda: _caller(names)(init, x, jnp.ones(len(x), bool), False))  # noqa: B023
            break
        except Exception as error:
            rejected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            names = names - {rejected[1]} if rejected and rejected[1] in names else set()
    return names


def _signature(module: Any) -> set[str]:
    """Returns the argument names of the module's `__call__`."""
    return set(inspect.signature(_class(module).__call__).parameters)


def _name(module: Any) -> str:
    return _class(module).__name__


def _class(module: Any) -> type:
    return module if isinstance(module, type) else type(module)
