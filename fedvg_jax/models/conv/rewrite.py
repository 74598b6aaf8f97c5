"""Replaces the convolutions and max-poolings of any function by this package's, whatever library wrote them.

XLA's CPU back end computes the gradients of its convolution up to a hundred times slower inside a loop of local
steps, and `vmap` over clients makes it a grouped convolution. The function is traced to a jaxpr, which is evaluated
with other rules for `conv_general_dilated` and `reduce_window_max`; its derivatives then follow from the rules.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend import core

from fedvg_jax.core.types import Task
from fedvg_jax.host import hardware as hw
from fedvg_jax.models.conv import layout_tagged, patches, taps, winograd
from fedvg_jax.models.conv.layout_tagged import LayoutTagged, Operation, original
from fedvg_jax.models.conv.planes import first_max
from fedvg_jax.models.conv.taps import Pads, Size
from fedvg_jax.models.task import wrapped

Rule = Callable[[Operation], list[LayoutTagged]]
"""operation -> results, which are those of `original` where no other way is faster."""

MAX_TAPS = 128
"""Taps of a kernel, or entries of a pooling window, up to which each becomes a slice; more take long to compile."""

_MAX_SMALL = 32
"""Input channels up to which a convolution moves the images innermost, on a CPU. The CNN's local steps take 2.2 times
as long where its second layer, of 32, does not; one core, batches of 32."""


def fast_task(task: Task, conv: str = "auto") -> Task:
    """Returns the task with the convolutions of its loss, outputs and measures replaced; see `fast_convolutions`."""
    return wrapped(task, functools.partial(fast_convolutions, conv=conv))


def fast_convolutions(function: Callable, conv: str = "auto") -> Callable:
    """Returns a function of equal results, up to rounding, with convolutions that are fast in loops and under `vmap`.

    These are plain and depthwise convolutions of rows and images, of any layout and strides, without dilation. Where
    no rule is faster, or on hardware that computes XLA's own convolution well (`host.hardware`), the original operation
    remains. So do operations inside of loops and conditionals, and of functions with a custom derivative.

    Args:
        function: of pytrees of arrays, and of Python bools, which are static.
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
        arrays = [leaf for leaf in leaves if not isinstance(leaf, bool)]

        def of_arrays(*traced):
            values = iter(traced)
            merged = [leaf if isinstance(leaf, bool) else next(values) for leaf in leaves]
            positional, named = structure.unflatten(merged)
            return function(*positional, **named)

        closed, shape = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
        # without a rule, too, its jaxpr is evaluated: tracing the function again takes longer
        if _has_rule([closed.jaxpr]):
            results = _evaluate(conv, closed, *arrays)
        else:
            results = core.jaxpr_as_fun(closed)(*arrays)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return rewritten


def _has_rule(jaxprs: Iterable[core.Jaxpr]) -> bool:
    """Returns whether an operation that this module replaces occurs, also in nested jaxprs."""
    operations = [eqn for jaxpr in jaxprs for eqn in jaxpr.eqns]
    return any(
        eqn.primitive.name in REPLACED or _has_rule(core.jaxprs_in_params(eqn.params))
        for eqn in operations
    )


def _evaluate(conv: str, closed: core.ClosedJaxpr, *args) -> list[Any]:
    """Evaluates a jaxpr as `jax.core.eval_jaxpr` does, but by the rules of this module."""
    results = _evaluate_tagged(conv, closed, map(LayoutTagged, args))
    return [result.array() for result in results]


def _evaluate_tagged(
    conv: str, closed: core.ClosedJaxpr, args: Iterable[LayoutTagged]
) -> list[LayoutTagged]:
    """Evaluates a jaxpr as `_evaluate` does, on arrays with their layouts."""
    jaxpr = closed.jaxpr
    values = dict(zip(jaxpr.invars, args, strict=True))
    values |= zip(jaxpr.constvars, map(LayoutTagged, closed.consts), strict=True)

    def read(atom):
        return LayoutTagged(atom.val) if isinstance(atom, core.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        operation = Operation(conv, jaxpr, eqn, list(map(read, eqn.invars)))
        rule = _RULES.get(eqn.primitive.name, original)
        values |= zip(eqn.outvars, rule(operation), strict=True)
    return list(map(read, jaxpr.outvars))


# --- rules ------------------------------------------------------------------------------------------------------------
def _convolve(operation: Operation) -> list[LayoutTagged]:
    """Convolves in any layout, with the images innermost or as NHWC and HWIO; a row is an image of height 1."""
    params = operation.params
    lhs, rhs, out = params["dimension_numbers"]
    x, w = operation.operands
    size = [x.shape[axis] for axis in lhs[2:]]
    name = hw.auto_conv(math.prod(size)) if operation.conv == "auto" else operation.conv
    if name == "lax" or not _is_supported(x, w, size, params):
        return original(operation)
    kernel = w.array().transpose(*rhs[2:], rhs[1], rhs[0])
    strides = params["window_strides"]
    is_plain = params["feature_group_count"] == 1
    is_image = len(size) == 2
    has_few_channels = w.shape[rhs[1]] <= _MAX_SMALL and hw.choices().layout == "images_last"
    is_innermost = name == "planes" or (operation.conv == "auto" and has_few_channels)
    if is_innermost and is_image and is_plain and {*strides} == {1}:
        return layout_tagged.convolve(operation, kernel)
    images = x.array().transpose(_channels_last(lhs))
    pads = params["padding"]
    if not is_image:
        images, kernel = images[:, None], kernel[None]
        strides, pads = (1, *strides), ((0, 0), *pads)
    convolve = _fewest_products if name == "winograd" else patches.convolve
    convolve = convolve if is_plain else _convolve_depthwise
    y = convolve(images, kernel, strides, pads, params["precision"])
    y = y if is_image else y[:, 0]
    return [LayoutTagged(y.transpose(np.argsort(_channels_last(out))))]


def _channels_last(axes: Size) -> Size:
    """Returns axes of images, channels and space in the order images, space and channels."""
    return axes[0], *axes[2:], axes[1]


def _max_pool(operation: Operation) -> list[LayoutTagged]:
    """Returns the maxima of windows; of equal values the first takes the gradient, as in the original operation.

    With the original operation, the CNN's steps take 1.36 times as long on a CPU.
    """
    (operand,), params = operation.operands, operation.params
    window = params["window_dimensions"]
    strides = params["window_strides"]
    padding = params["padding"]
    is_dilated = {*params["base_dilation"], *params["window_dilation"]} != {1}
    spans = zip(window, operand.shape, padding, strict=True)
    fits = all(k <= n + low + high for k, n, (low, high) in spans)
    is_float = jnp.issubdtype(operand.memory.dtype, jnp.floating)
    if is_dilated or not fits or not is_float or math.prod(window) > MAX_TAPS:
        return original(operation)
    if layout_tagged.is_2x2(operation):
        return layout_tagged.max_pool(operation)
    x = operand.array()
    if any(map(any, padding)):
        lowest = jnp.array(-jnp.inf, x.dtype)
        x = lax.pad(x, lowest, [(low, high, 0) for low, high in padding])
    # one after the other: 4 instead of 8 maxima for a window of 3 x 3
    for axis in reversed(range(x.ndim)):
        if (window[axis], strides[axis]) != (1, 1):
            x = _max_along(x, axis, window[axis], strides[axis])
    return [LayoutTagged(x)]


def _jit(operation: Operation) -> list[LayoutTagged]:
    """Evaluates the function by the rules if an operand is tagged or it has an operation to replace.

    An elementwise function stays whole.
    """
    is_inlined = operation.tagged or _has_rule(core.jaxprs_in_params(operation.params))
    if is_inlined and not layout_tagged.is_elementwise(operation):
        return _evaluate_tagged(operation.conv, operation.params["jaxpr"], operation.operands)
    return layout_tagged.elementwise(operation)


def _checkpoint(operation: Operation) -> list[LayoutTagged]:
    """Evaluates the function behind a checkpoint by the rules, on arrays, if an operation has a rule."""
    params = operation.params
    if not _has_rule([params["jaxpr"]]):
        return original(operation)
    inner = functools.partial(_evaluate, operation.conv, core.ClosedJaxpr(params["jaxpr"], []))
    kept = jax.checkpoint(inner, policy=params["policy"], prevent_cse=params["prevent_cse"])
    return list(map(LayoutTagged, kept(*[x.array() for x in operation.operands])))


REPLACED = ("conv_general_dilated", "reduce_window_max")
"""Primitives that a function is rewritten for."""

_RULES: dict[str, Rule] = {
    "conv_general_dilated": _convolve,
    "reduce_window_max": _max_pool,
    "reduce_sum": layout_tagged.total,
    **dict.fromkeys((*layout_tagged.ELEMENTWISE, "custom_jvp_call"), layout_tagged.elementwise),
    "jit": _jit,
    "checkpoint": _checkpoint,
    "remat2": _checkpoint,
}
"""Primitive -> its rule."""


# --- convolutions -----------------------------------------------------------------------------------------------------
def _is_supported(x: LayoutTagged, w: LayoutTagged, size: Size, params: dict[str, Any]) -> bool:
    """Returns whether the functions of this package compute a convolution: of rows or images, plain or depthwise."""
    lhs, rhs, _ = params["dimension_numbers"]
    window = [w.shape[axis] for axis in rhs[2:]]
    dtype = x.memory.dtype
    is_float = jnp.issubdtype(dtype, jnp.floating)
    is_in_dtype = params["preferred_element_type"] in (None, dtype)
    is_dilated = {*params["lhs_dilation"], *params["rhs_dilation"]} != {1}
    windows = zip(params["padding"], window, size, strict=True)
    # every window begins before the image ends
    fits = all(0 <= low < k <= n + low + high and high >= 0 for (low, high), k, n in windows)
    fits &= len(size) in (1, 2) and math.prod(window) <= MAX_TAPS
    groups = params["feature_group_count"], params["batch_group_count"]
    is_depthwise = groups == (x.shape[lhs[1]], 1) and w.shape[rhs[0]] == groups[0]
    is_usual = groups == (1, 1) or is_depthwise
    return is_float and is_in_dtype and fits and is_usual and not is_dilated


def _fewest_products(x: Array, w: Array, strides: Size, pads: Pads, precision=None) -> Array:
    """Convolves x with w by taps, by Winograd's minimal filtering, or by patches, whichever has the fewest products."""
    if min(w.shape[2:]) >= winograd.MIN_CHANNELS:
        size = x.shape[1:3]
        filtered = winograd.is_faster(x, w, strides, pads)
        limit = winograd.num_products(size) if filtered else math.inf
        if taps.is_faster(size, w.shape[:2], strides, pads, limit):
            return taps.convolve(x, w, strides, pads, precision)
        if filtered:
            return winograd.convolve(x, w, precision)
    return patches.convolve(x, w, strides, pads, precision)


def _convolve_depthwise(x: Array, w: Array, strides: Size, pads: Pads, precision=None) -> Array:
    """Convolves x [N, H, W, C] with w [r, s, 1, C]; precision concerns matmuls only; here there is none.

    With an axis for the features of a channel, XLA's gradient of w takes 7 times as long.
    """
    slices, w = patches.slices_and_kernel(x, w, strides, pads)
    kernels = jnp.expand_dims(w.reshape(-1, w.shape[3]), (1, 2, 3))
    products = [part * kernels[tap] for tap, part in enumerate(slices)]
    return functools.reduce(jnp.add, products)


# --- pooling ----------------------------------------------------------------------------------------------------------
def _max_along(x: Array, axis: int, window: int, stride: int) -> Array:
    """Returns the maxima of windows along one axis; of equal values the first takes the gradient."""
    if window == stride:  # by reshape, because its gradient is no sum of padded slices
        size = x.shape[axis] // window
        tiles = lax.slice_in_dim(x, 0, size * window, axis=axis)
        tiles = tiles.reshape(*x.shape[:axis], size, window, *x.shape[axis + 1 :])
        entries = [lax.index_in_dim(tiles, i, axis + 1, keepdims=False) for i in range(window)]
    else:
        last = (x.shape[axis] - window) // stride * stride
        entries = [lax.slice_in_dim(x, i, i + last + 1, stride, axis) for i in range(window)]
    return functools.reduce(first_max, entries)
