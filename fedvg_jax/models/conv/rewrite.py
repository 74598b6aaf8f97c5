"""Replaces the convolutions and max-poolings of any function by those of this package, whatever library wrote them.

XLA's CPU back end computes the gradients of its own convolution up to a hundred times slower inside a loop of local
steps, and `vmap` over clients makes it a grouped convolution. The function is traced to a jaxpr, which is evaluated
with other rules for `conv_general_dilated` and `reduce_window_max`; its derivatives are then those of the rules.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend import core

from fedvg_jax.core.types import Task
from fedvg_jax.host import hardware as hw
from fedvg_jax.models.conv import layout_tagged, patches, taps, winograd
from fedvg_jax.models.conv.planes import first_max

F = TypeVar("F", bound=Callable)

Value = Any
"""An array, or a `layout_tagged.LayoutTagged` one; Python numbers stand for literals."""

Rule = Callable[["Operation", Sequence[Value]], list[Value]]

MAX_TAPS = 128
"""Taps of a kernel, or entries of a pooling window, up to which each becomes a slice; more take long to compile."""

_MAX_SMALL = 32
"""Input channels up to which a convolution moves the images innermost, on a CPU. The CNN's local steps take 2.2 times
as long where its second layer, of 32, does not; one core, batches of 32."""


def fast_task(task: Task, conv: str = "auto") -> Task:
    """Returns the task with the convolutions of its loss, outputs and measures replaced; see `fast_convolutions`."""
    functions = {"loss": task.loss, "predict": task.predict, "measure": task.measure}
    if task.forward:
        functions["forward"] = task.forward
    return task._replace(
        **{name: fast_convolutions(function, conv) for name, function in functions.items()}
    )


def fast_convolutions(function: F, conv: str = "auto") -> F:
    """Returns a function of equal results, up to rounding, whose convolutions are fast in loops and under `vmap`.

    Kernels, strides, dilations, groups and layouts are arbitrary. Where no rule is faster, or on hardware that computes
    XLA's own convolution well (`host.hardware`), the original operation remains. So do operations inside of functions
    with a derivative of their own (`jax.custom_jvp`, `jax.custom_vjp`).

    Args:
        function: of pytrees of arrays, and of Python bools and None, which are passed through.
        conv: which convolutions are used, as `--conv` takes it; "lax" leaves XLA's and replaces poolings only.

    >>> def convolve(x, w):
    ...     return lax.conv(x, w, (1, 1), "SAME")
    >>> x, w = jnp.ones((1, 1, 3, 3)), jnp.ones((1, 1, 3, 3))
    >>> fast_convolutions(convolve)(x, w)[0, 0].tolist()
    [[4.0, 6.0, 4.0], [6.0, 9.0, 6.0], [4.0, 6.0, 4.0]]
    """

    @functools.wraps(function)
    def rewritten(*args, **kwargs):
        leaves, structure = jax.tree.flatten((args, kwargs))
        is_static = [isinstance(leaf, bool) for leaf in leaves]
        arrays = [leaf for leaf, static in zip(leaves, is_static, strict=True) if not static]

        def of_arrays(*arrays):
            remaining = iter(arrays)
            values = [
                leaf if static else next(remaining)
                for leaf, static in zip(leaves, is_static, strict=True)
            ]
            args, kwargs = jax.tree.unflatten(structure, values)
            return function(*args, **kwargs)

        closed, shape = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
        # without a rule, too, its jaxpr is evaluated: tracing the function again takes longer
        has_rule = _has_rule(closed.jaxpr)
        results = (
            _evaluate(conv, closed, *arrays) if has_rule else core.jaxpr_as_fun(closed)(*arrays)
        )
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return rewritten  # pyright: ignore[reportReturnType]


def _has_rule(jaxpr: core.Jaxpr) -> bool:
    """Returns whether an operation that this module replaces occurs, also in nested jaxprs."""
    return any(eqn.primitive.name in REPLACED or _has_nested_rule(eqn) for eqn in jaxpr.eqns)


def _has_nested_rule(eqn: core.JaxprEqn) -> bool:
    return any(map(_has_rule, core.jaxprs_in_params(eqn.params)))


def _evaluate(conv: str, closed: core.ClosedJaxpr, *args) -> list[Any]:
    """Evaluates a jaxpr as `jax.core.eval_jaxpr` does, but by the rules of this module."""
    return list(map(layout_tagged.array, _evaluate_tagged(conv, closed, args)))


def _evaluate_tagged(conv: str, closed: core.ClosedJaxpr, args: Sequence[Value]) -> list[Value]:
    """As `_evaluate`; arguments and results may be layout_tagged."""
    jaxpr, values = closed.jaxpr, {}

    def read(atom):
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    values.update(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))
    for eqn in jaxpr.eqns:
        rule = _RULES.get(eqn.primitive.name, Operation.original)
        results = rule(Operation(conv, jaxpr, eqn), [read(atom) for atom in eqn.invars])
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


class Operation(NamedTuple):
    """One operation of a jaxpr, as rules take it."""

    conv: str
    """which convolutions are used"""
    jaxpr: core.Jaxpr
    eqn: core.JaxprEqn

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the primitive."""
        return self.eqn.params

    def original(self, operands: Sequence[Value]) -> list[Value]:
        """Returns the results of the primitive itself, which takes arrays. It is the rule of all other primitives."""
        variables = [atom for atom in self.eqn.invars if not isinstance(atom, core.Literal)]
        parts = {"constvars": [], "invars": variables, "outvars": self.eqn.outvars}
        alone = self.jaxpr.replace(**parts, eqns=[self.eqn], effects=self.eqn.effects)
        pairs = zip(operands, self.eqn.invars, strict=True)
        arrays = [layout_tagged.array(x) for x, atom in pairs if not isinstance(atom, core.Literal)]
        return core.jaxpr_as_fun(core.ClosedJaxpr(alone, []))(*arrays)


# --- rules: (operation, operands) -> results, each an array or layout-tagged
def _elementwise(operation: Operation, operands: Sequence[Value]) -> list[Value]:
    """Leaves layout-tagged operands as they are in memory."""
    results = layout_tagged.elementwise(operation.eqn, operands, operation.original)
    return operation.original(operands) if results is None else results


def _sum(operation: Operation, operands: Sequence[Value]) -> list[Value]:
    """Sums a layout-tagged array in the order of its memory."""
    (x,) = operands
    if not isinstance(x, layout_tagged.LayoutTagged):
        return operation.original(operands)
    return [layout_tagged.total(x, operation.params["axes"])]


def _convolve(operation: Operation, operands: Sequence[Value]) -> list[Value]:
    """Convolves in any layout, as NHWC and HWIO."""
    params = operation.params
    lhs, rhs, out = params["dimension_numbers"]
    x, w = operands[0], layout_tagged.array(operands[1])
    size, window = [x.shape[axis] for axis in lhs[2:]], [w.shape[axis] for axis in rhs[2:]]
    name = hw.auto_conv(math.prod(size)) if operation.conv == "auto" else operation.conv
    if name == "lax" or not _is_supported(x, w, window, params):
        return operation.original(operands)
    w = w.transpose(*rhs[2:], rhs[1], rhs[0])
    strides, pads, precision = params["window_strides"], params["padding"], params["precision"]
    is_dense = _is_dense(size, window, params)
    is_plain = is_dense and w.ndim == 4 and params["feature_group_count"] == 1
    if is_plain and {*strides} == {1} and _has_images_innermost(operation.conv, w.shape[-2]):
        axes, out = ((spec[0], *spec[2:], spec[1]) for spec in (lhs, out))
        return [layout_tagged.convolve(x, w, pads, axes, out, precision)]
    x = layout_tagged.array(x).transpose(lhs[0], *lhs[2:], lhs[1])
    if is_plain:
        convolve = _fewest_products if name == "winograd" else patches.convolve
        y = convolve(x, w, strides, pads, precision)
    else:
        y = _convolve_any(x, w, is_dense, **params)
    # of y, in the order of `out`: images, channels, space
    axes = [
        0,
        y.ndim - 1,
        *range(1, y.ndim - 1),
    ]
    return [y.transpose([axes[out.index(axis)] for axis in range(y.ndim)])]


def _max_pool(operation: Operation, operands: Sequence[Value]) -> list[Value]:
    """Returns the maxima of windows; of equal values the first takes the gradient, as in the original operation.

    With the original operation, the CNN's steps take 1.36 times as long on a CPU.
    """
    (x,), params = operands, operation.params
    window, strides = params["window_dimensions"], params["window_strides"]
    padding = params["padding"]
    is_dilated = {*params["base_dilation"], *params["window_dilation"]} != {1}
    spans = zip(window, x.shape, padding, strict=True)
    fits = all(k <= n + low + high for k, n, (low, high) in spans)
    if is_dilated or not fits or not jnp.issubdtype(x.dtype, jnp.floating):
        return operation.original(operands)
    if isinstance(x, layout_tagged.LayoutTagged):
        pooled = layout_tagged.max_pool(x, window, strides, padding)
        if pooled is not None:
            return [pooled]
    x = layout_tagged.array(x)
    if not x.size or math.prod(window) > MAX_TAPS:
        return operation.original(operands)
    if any(low or high for low, high in padding):
        lowest = jnp.array(-jnp.inf, x.dtype)
        x = lax.pad(x, lowest, [(low, high, 0) for low, high in padding])
    # one after the other: 4 instead of 8 maxima for a window of 3 x 3
    for axis in reversed(range(x.ndim)):
        if (window[axis], strides[axis]) != (1, 1):
            x = _max_along(x, axis, window[axis], strides[axis])
    return [x]


def _jit(operation: Operation, operands: Sequence[Value]) -> list[Value]:
    """Evaluates the function, unless it is elementwise."""
    results = layout_tagged.elementwise(operation.eqn, operands, operation.original)
    if results is not None:
        return results
    is_tagged = any(isinstance(x, layout_tagged.LayoutTagged) for x in operands)
    if is_tagged or _has_nested_rule(operation.eqn):
        return _evaluate_tagged(operation.conv, operation.params["jaxpr"], operands)
    return operation.original(operands)


def _on_arrays(rebuild: Callable[[Operation, list[Any]], list[Any]]) -> Rule:
    """Returns the rule of an operation with jaxprs; `rebuild` gets arrays, where a rule occurs in one of the jaxprs."""

    def rule(operation: Operation, operands: Sequence[Value]) -> list[Value]:
        if not _has_nested_rule(operation.eqn):
            return operation.original(operands)
        return rebuild(operation, list(map(layout_tagged.array, operands)))

    return rule


@_on_arrays
def _checkpoint(operation: Operation, arrays: list[Any]) -> list[Any]:
    params = operation.params
    inner = functools.partial(_evaluate, operation.conv, core.ClosedJaxpr(params["jaxpr"], []))
    return jax.checkpoint(inner, policy=params["policy"], prevent_cse=params["prevent_cse"])(
        *arrays
    )


@_on_arrays
def _cond(operation: Operation, arrays: list[Any]) -> list[Any]:
    index, *others = arrays
    branches = operation.params["branches"]
    return lax.switch(
        index,
        [functools.partial(_evaluate, operation.conv, branch) for branch in branches],
        *others,
    )


@_on_arrays
def _scan(operation: Operation, arrays: list[Any]) -> list[Any]:
    body = operation.params["jaxpr"]
    rewritten = jax.make_jaxpr(functools.partial(_evaluate, operation.conv, body))(*body.in_avals)
    return lax.scan_p.bind(*arrays, **operation.params | {"jaxpr": rewritten})


@_on_arrays
def _while(operation: Operation, arrays: list[Any]) -> list[Any]:
    params = operation.params
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    cond_consts, body_consts, start = arrays[:first], arrays[first:second], arrays[second:]
    is_left = functools.partial(_evaluate, operation.conv, params["cond_jaxpr"], *cond_consts)
    body = functools.partial(_evaluate, operation.conv, params["body_jaxpr"], *body_consts)
    return lax.while_loop(lambda carry: is_left(*carry)[0], lambda carry: body(*carry), start)


REPLACED = ("conv_general_dilated", "reduce_window_max")
"""Primitives for whose sake a function is rewritten."""

_RULES: dict[str, Rule] = {
    "conv_general_dilated": _convolve,
    "reduce_window_max": _max_pool,
    "reduce_sum": _sum,
    **dict.fromkeys(layout_tagged.ELEMENTWISE, _elementwise),
    "custom_jvp_call": _elementwise,
    "jit": _jit,
    "checkpoint": _checkpoint,
    "remat2": _checkpoint,
    "cond": _cond,
    "scan": _scan,
    "while": _while,
}
"""Primitive -> its rule; all others have `Operation.original`."""


# --- convolutions -----------------------------------------------------------------------------------------------------
def _is_supported(x: Value, w: Array, window: Sequence[int], params: dict[str, Any]) -> bool:
    """Returns whether the functions of this package compute a convolution."""
    is_real = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype == w.dtype
    is_in_dtype = params["preferred_element_type"] in (None, x.dtype)
    is_small = bool(all(x.shape) and w.size) and math.prod(window) <= MAX_TAPS
    return is_real and is_in_dtype and is_small and params["batch_group_count"] == 1 and w.ndim >= 3


def _is_dense(size: Sequence[int], window: Sequence[int], params: dict[str, Any]) -> bool:
    """Returns whether nothing is dilated, and every window begins before the image ends."""
    if {*params["lhs_dilation"], *params["rhs_dilation"]} != {1}:
        return False
    windows = zip(params["padding"], window, size, strict=True)
    return all(0 <= low < k <= n + low + high and high >= 0 for (low, high), k, n in windows)


def _fewest_products(
    x: Array, w: Array, strides: Sequence[int], pads: Sequence[tuple[int, int]], precision=None
) -> Array:
    """Convolves x with w by taps, by Winograd's minimal filtering, or by patches, whichever has the fewest products."""
    if min(w.shape[2:]) >= winograd.MIN_CHANNELS:
        size, filtered = x.shape[1:3], winograd.is_faster(x, w, strides, pads)
        limit = winograd.num_products(size) if filtered else math.inf
        if taps.is_faster(size, w.shape[:2], strides, pads, limit):
            return taps.convolve(x, w, tuple(strides), tuple(map(tuple, pads)), precision)
        if filtered:
            return winograd.convolve(x, w, precision)
    return patches.convolve(x, w, strides, pads, precision)


def _has_images_innermost(conv: str, channels: int) -> bool:
    """Returns whether a plain convolution of that many input channels moves the images innermost."""
    is_chosen = conv == "auto" and hw.choices().layout == "images_last"
    return conv == "planes" or (is_chosen and channels <= _MAX_SMALL)


def _convolve_any(
    x: Array,
    w: Array,
    is_dense: bool,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    feature_group_count: int,
    precision,
    **_,
) -> Array:
    """Convolves x [N, ..., C] with w [..., C / G, O]; is_dense: without dilation, every window begins before x ends."""
    dims = list(zip(x.shape[1:-1], w.shape[:-2], window_strides, padding, strict=True))
    out = [taps.output_size(*dim) for dim in dims]
    if is_dense and min(out) > 0:
        box = taps.live_box(*zip(*dims, strict=True))
        x, w = (
            patches.pad_to_box(x, box, out, window_strides, padding),
            w[tuple(slice(*live) for live in box)],
        )
    else:
        pads = [
            (low, high, dilation - 1)
            for (low, high), dilation in zip(padding, lhs_dilation, strict=True)
        ]
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *pads, (0, 0, 0)])
    slices = _slices(x, w.shape[:-2], window_strides, rhs_dilation)
    w = w.reshape(-1, *w.shape[-2:])
    if feature_group_count == 1:
        return jnp.matmul(
            jnp.concatenate(slices, -1), w.reshape(-1, w.shape[-1]), precision=precision
        )
    groups, features = feature_group_count, w.shape[-1] // feature_group_count
    # depthwise; with an axis for the features, XLA's gradient of w takes 7 times as long
    if w.shape[1] == 1:
        kernels = jnp.expand_dims(w, range(1, x.ndim - 1))
        products = [
            jnp.repeat(part, features, -1) * kernels[tap] for tap, part in enumerate(slices)
        ]
        return functools.reduce(jnp.add, products)
    parts = jnp.stack([part.reshape(*part.shape[:-1], groups, -1) for part in slices], -3)
    kernel = w.reshape(len(slices), w.shape[1], groups, features)
    y = jnp.einsum("...tgc,tcgo->...go", parts, kernel, precision=precision)
    return y.reshape(*y.shape[:-2], groups * features)


def _slices(
    x: Array, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> list[Array]:
    """Returns, for every entry of a window on x [N, ..., C] that lies within it, the pixels under that entry."""
    spans = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
    sizes = [
        max(0, (n - span) // s + 1)
        for n, span, s in zip(x.shape[1:-1], spans, strides, strict=True)
    ]
    starts = [range(0, k * d, d) for k, d in zip(window, dilation, strict=True)]

    def pixels(start: Sequence[int]) -> Array:
        spaces = [slice(b, b + n * s, s) for b, n, s in zip(start, sizes, strides, strict=True)]
        return x[(slice(None), *spaces)]

    return [pixels(start) for start in itertools.product(*starts)]


# --- pooling ----------------------------------------------------------------------------------------------------------
def _max_along(x: Array, axis: int, window: int, stride: int) -> Array:
    """Returns the maxima of windows along one axis; of equal values the first takes the gradient."""
    if window == stride:  # by reshape, of which the gradient is no sum of padded slices
        size = x.shape[axis] // window
        tiles = lax.slice_in_dim(x, 0, size * window, axis=axis)
        tiles = tiles.reshape(*x.shape[:axis], size, window, *x.shape[axis + 1 :])
        entries = [lax.index_in_dim(tiles, i, axis + 1, keepdims=False) for i in range(window)]
    else:
        last = (x.shape[axis] - window) // stride * stride
        entries = [lax.slice_in_dim(x, i, i + last + 1, stride, axis) for i in range(window)]
    return functools.reduce(first_max, entries)
