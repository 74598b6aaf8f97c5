"""A `Task` from a user's own Linen or NNX module and a loss per example. Neither images nor classes are assumed.

    task = linen_task(Net(), lambda output, y: (output - y) ** 2, x[:1])

The module is called as `module(x)` with x [B, ...], plus those of the following arguments that its `__call__` has:
`mask` [B] bool, the real rows; `train` or `training`; `deterministic` or `use_running_average`, their negation.

Modules may draw random numbers in local training. Without a key, as where D_val is scored with the batch statistics of
training, Dropout is the identity and any other random layer uses a fixed key.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from fedvg_jax.core import checks, files, groups, tree
from fedvg_jax.core.types import Batch, Outputs, Task, Tree, UsageError, Variables
from fedvg_jax.models.features import recorded_features

_MASK_OF_BATCH_NORM = "BatchNorm takes mask=mask[:, None] for x [B, C], and mask=mask[:, None, None, None] for images"

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
        module: x [B, ...] -> outputs, a pytree with leading axis B. Allowed collections: params and batch_stats.
        loss: (output, y) of one example -> scalar.
        example: one or more examples x [B, ...], for shape and dtype; e.g. `x[:1]`.
        metrics: name -> function of one example, as `loss`; evaluations report their means beside the loss. Progress
            and summaries show the metric called `accuracy` if there is one.
        block_of: path of a tensor -> name of its block; defaults to the top-level module.

    Raises:
        UsageError: if the module has another collection, or batch statistics that would include padding; or if its
            outputs lack the leading axis B.

    >>> task = linen_task(nn.Dense(1), lambda output, y: (output[0] - y) ** 2, jnp.ones((1, 3)))
    >>> variables = task.init(jax.random.key(0))
    >>> batch = Batch(jnp.zeros((4, 3)), jnp.full(4, 2.0))
    >>> float(task.loss(*variables, batch, jnp.arange(4) < 3, True)[0])
    4.0
    """
    _check_instance(module)
    example = _checked_example(example)
    call = _caller(module)

    def init(key: Array) -> Variables:
        x = jnp.zeros(example.shape, example.dtype)
        with _calling(module, x, example):
            variables = call(lambda *x, **modes: module.init(key, *x, **modes), x, jnp.ones(len(x), bool), False)
        others = variables.keys() - {"params", "batch_stats"}
        if others:
            raise UsageError(f"{_name(module)} has variables {', '.join(sorted(others))}; allowed: params, batch_stats")
        return Variables(variables.get("params", {}), variables.get("batch_stats", {}))

    is_random = _draws_random_numbers(_linen_apply(module, is_random=False), init, example)
    return _task(module, init, _linen_apply(module, is_random), is_random, example, loss, metrics, block_of)


def _linen_apply(module: nn.Module, is_random: bool) -> Apply:
    """Returns the forward pass of a Linen module.

    Args:
        is_random: whether the module may draw random numbers.
    """
    call = _caller(module)

    def apply(params: Tree, stats: Tree, x: Array, mask: Array, train: bool, key: Array | None) -> tuple[Tree, Tree]:
        # streams that are not named, such as dropout, are taken from params
        rngs = {"params": jax.random.key(0) if key is None else key} if is_random else None

        def run(*x, **modes):
            return module.apply(
                {"params": params, "batch_stats": stats}, *x, **modes, mutable=["batch_stats"], rngs=rngs
            )

        skips_dropout = is_random and key is None
        with nn.intercept_methods(_skip_dropout) if skips_dropout else contextlib.nullcontext():
            outputs, new = call(run, x, mask, train)
        return outputs, new.get("batch_stats", stats)

    return apply


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
            averaged; it runs as `module.train()` in training and as `module.eval()` otherwise.
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
    checks.takes(make, ("rngs",), "nnx_task: make")
    with checks.calling("nnx_task: make"):
        abstract = nnx.eval_shape(lambda: make(nnx.Rngs(0)))
    kinds = nnx.Param, nnx.BatchStat, nnx.RngKey, nnx.RngCount
    graph, *abstract_states, other_state = nnx.split(abstract, *kinds, ...)
    others = sorted({type(variable).__name__ for _, variable in nnx.to_flat_state(other_state)})
    if others:
        raise UsageError(f"{_name(abstract)} has variables {', '.join(others)}; allowed: Param, BatchStat, RngState")
    call, is_random = _caller(abstract), bool(jax.tree.leaves(abstract_states[2]))

    def init(key: Array) -> Variables:
        _, params, stats, *_ = nnx.split(make(nnx.Rngs(key)), *kinds)
        return Variables(nnx.to_pure_dict(params), nnx.to_pure_dict(stats))

    def with_values(state, values: Tree):
        state = jax.tree.map(lambda leaf: leaf, state)  # a copy, because replace_by_pure_dict works in place
        nnx.replace_by_pure_dict(state, values)
        return state

    def apply(params: Tree, stats: Tree, x: Array, mask: Array, train: bool, key: Array | None) -> tuple[Tree, Tree]:
        keys, counts = map(nnx.to_pure_dict, abstract_states[2:])
        values = params, stats, _keys_like(keys, jax.random.key(0) if key is None else key), tree.zeros_like(counts)
        module = nnx.merge(graph, *map(with_values, abstract_states, values))
        module.train() if train else module.eval()
        if key is None:
            module.set_attributes(nnx.Dropout, deterministic=True, raise_if_not_found=False)
        outputs = call(module, x, mask, train)
        return outputs, nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))

    return _task(type(abstract), init, apply, is_random, example, loss, metrics, block_of)


def _task(
    module: Any,
    init: Callable[[Array], Variables],
    apply: Apply,
    is_random: bool,
    example,
    loss: PerExample,
    metrics: Mapping[str, PerExample] | None,
    block_of: Callable[[str], str] | None,
) -> Task:
    """Returns the task of a module given as functions; further arguments as in `linen_task`.

    Args:
        module: named in messages.
        init: key -> variables.
        apply: see `Apply`.
        is_random: whether the module draws random numbers in training.
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

    mean_loss = random_loss if is_random else fixed_loss
    task = Task(init, mean_loss, predict, measure, means, block_of or groups.first_component, forward=forward)
    _check_module(module, init, checked_apply, example)
    return task


def _draws_random_numbers(apply: Apply, init: Callable[[Array], Variables], example) -> bool:
    """Returns whether a Linen module draws random numbers in training, tracing it on three examples without any key."""
    variables, x = _abstract_inputs(init, example)
    try:
        jax.eval_shape(lambda v, x: apply(v.params, v.stats, x, jnp.ones(3, bool), True, None)[0], variables, x)
    except flax.errors.InvalidRngError:
        return True
    except Exception:
        return False  # `_check_module` reports it
    return False


def _check_instance(module: Any) -> None:
    """Raises UsageError for a class in place of its instance, or anything else that is no Linen module."""
    if isinstance(module, type):
        raise UsageError(f"linen_task: give an instance, {module.__name__}(), in place of the class {module.__name__}")
    if not isinstance(module, nn.Module):
        raise UsageError(f"linen_task: the module is a {type(module).__name__}; expected a flax.linen.Module")


def _checked_example(example: Any) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype of examples; raises UsageError without any axis, which cannot be a batch."""
    if not jnp.ndim(example) or not len(example):
        raise UsageError(f"example is of shape {list(jnp.shape(example))}; it needs a leading axis, as x[:1]")
    return jax.ShapeDtypeStruct(jnp.shape(example), jnp.asarray(example).dtype)


@contextlib.contextmanager
def _calling(module: Any, x: Array, example: Any) -> Iterator[None]:
    """Reports an error of the module as a UsageError that names the shape of x and what may be wrong with it.

    A missing key of a random layer passes, because it shows that the module is random.
    """
    try:
        yield
    except (UsageError, flax.errors.InvalidRngError):
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
    x = jax.ShapeDtypeStruct((3, *example.shape[1:]), example.dtype)
    with checks.without_notes():
        return jax.eval_shape(init, jax.random.key(0)), x


def _check_module(module: Any, init: Callable, apply: Callable, example) -> None:
    """Traces the module's initialisation and outputs, without computing them, and raises UsageError as `linen_task`."""
    variables, x = _abstract_inputs(init, example)
    if jax.tree.leaves(variables.stats) and "mask" not in _signature(module):
        raise UsageError(
            f"{_name(module)} has batch statistics, which must exclude padded rows: give its __call__ an argument mask,"
            f" bool [B]; {_MASK_OF_BATCH_NORM}"
        )
    # a mask [3] would fit 3 channels in place of the rows; one of these numbers of rows shows it
    for num_rows, train in ((3, True), (3, False), (5, True)):
        x, mask = jax.ShapeDtypeStruct((num_rows, *x.shape[1:]), x.dtype), jnp.ones(num_rows, bool)
        with checks.without_notes():
            jax.eval_shape(lambda v, x, mask=mask, train=train: apply(*v, x, mask, train)[0], variables, x)


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


def _caller(module: Any) -> Callable:
    """Returns (f, x, mask, train) -> f(x, ...) with the keywords that the module's `__call__` has."""
    names = _signature(module)

    def call(f: Callable, x: Array, mask: Array, train: bool):
        modes = {"mask": mask, "train": train, "training": train}
        modes |= dict.fromkeys(("deterministic", "use_running_average"), not train)
        return f(x, **{name: value for name, value in modes.items() if name in names})

    return call


def _signature(module: Any) -> set[str]:
    """Returns the argument names of the module's `__call__`."""
    return set(inspect.signature(_class(module).__call__).parameters)


def _name(module: Any) -> str:
    return _class(module).__name__


def _class(module: Any) -> type:
    return module if isinstance(module, type) else type(module)
