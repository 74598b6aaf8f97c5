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
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend import core

from fedvg_jax.core.types import Task
from fedvg_jax.host import hardware as hw
from fedvg_jax.models.conv import laid, patches, taps, winograd
from fedvg_jax.models.conv.planes import first_max

F = TypeVar("F", bound=Callable)

MAX_TAPS = 128
"""Taps of a kernel, or entries of a pooling window, up to which each becomes a slice; more take long to compile."""

_MAX_SMALL = 32
"""Input channels up to which a convolution moves the images innermost, on a CPU. The CNN's local steps take 2.2 times
as long where its second layer, of 32, does not; one core, batches of 32."""


def fast_task(task: Task, conv: str = "auto") -> Task:
    """Returns the task with the convolutions of its loss, outputs and measures replaced; see `fast_convolutions`."""
    names = ("loss", "predict", "measure", *(["forward"] if task.forward else []))
    return task._replace(**{name: fast_convolutions(getattr(task, name), conv) for name in names})


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
            values = [leaf if static else next(remaining) for leaf, static in zip(leaves, is_static, strict=True)]
            args, kwargs = jax.tree.unflatten(structure, values)
            return function(*args, **kwargs)

        closed, shape = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
        # without a rule, too, its jaxpr is evaluated: tracing the function again takes longer
        has_rule = _has_rule(closed.jaxpr)
        results = _evaluate(conv, closed, *arrays) if has_rule else core.jaxpr_as_fun(closed)(*arrays)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return rewritten  # pyright: ignore[reportReturnType]


def _has_rule(jaxpr: core.Jaxpr) -> bool:
    """Returns whether a primitive with a rule occurs, also in nested jaxprs."""
    return any(
        eqn.primitive.name in _RULES or any(map(_has_rule, core.jaxprs_in_params(eqn.params))) for eqn in jaxpr.eqns
    )


def _evaluate(conv: str, closed: core.ClosedJaxpr, *args) -> list[Any]:
    """Evaluates a jaxpr as `jax.core.eval_jaxpr` does, but by the rules of this module."""
    return list(map(laid.array, _evaluate_laid(conv, closed, *args)))


def _evaluate_laid(conv: str, closed: core.ClosedJaxpr, *args) -> list[Any]:
    """As `_evaluate`; arguments and results may be laid."""
    jaxpr, values = closed.jaxpr, {}

    def read(atom):
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    values.update(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))
    for eqn in jaxpr.eqns:
        results = _results(conv, jaxpr, eqn, [read(atom) for atom in eqn.invars])
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _results(conv: str, jaxpr: core.Jaxpr, eqn: core.JaxprEqn, operands: list[Any]) -> Sequence[Any]:
    """Returns the results of one operation of a jaxpr; operands and results may be laid."""
    name = eqn.primitive.name

    def original(*operands):
        names = [atom for atom in eqn.invars if not isinstance(atom, core.Literal)]
        alone = jaxpr.replace(constvars=[], invars=names, outvars=eqn.outvars, eqns=[eqn], effects=eqn.effects)
        pairs = zip(operands, eqn.invars, strict=True)
        return core.jaxpr_as_fun(core.ClosedJaxpr(alone, []))(*[x for x, a in pairs if not isinstance(a, core.Literal)])

    results = _RULES[name](conv, *operands, **eqn.params) if name in _RULES else None
    has_laid = any(isinstance(x, laid.Laid) for x in operands)
    if results is None and has_laid:
        results = laid.apply(eqn, operands, original)
    if results is None and name in _NESTED:
        inner = core.jaxprs_in_params(eqn.params)
        if any(map(_has_rule, inner)) or (has_laid and _NESTED[name] is _jit):
            operands = operands if _NESTED[name] is _jit else list(map(laid.array, operands))
            results = _NESTED[name](conv, *operands, **eqn.params)
    return original(*map(laid.array, operands)) if results is None else results


# --- nested functions ------------------------------------------------------------------------------------------------
def _jit(conv: str, *operands, jaxpr: core.ClosedJaxpr, **_) -> list[Any]:
    return _evaluate_laid(conv, jaxpr, *operands)


def _checkpoint(conv: str, *operands, jaxpr: core.Jaxpr, policy, prevent_cse, **_) -> list[Any]:
    inner = functools.partial(_evaluate, conv, core.ClosedJaxpr(jaxpr, []))
    return jax.checkpoint(inner, policy=policy, prevent_cse=prevent_cse)(*operands)


def _cond(conv: str, index, *operands, branches: Sequence[core.ClosedJaxpr], **_) -> list[Any]:
    return lax.switch(index, [functools.partial(_evaluate, conv, branch) for branch in branches], *operands)


def _scan(conv: str, *operands, jaxpr: core.ClosedJaxpr, **params) -> list[Any]:
    evaluated = functools.partial(_evaluate, conv, jaxpr)
    return lax.scan_p.bind(*operands, jaxpr=jax.make_jaxpr(evaluated)(*jaxpr.in_avals), **params)


def _while(conv: str, *operands, cond_jaxpr, cond_nconsts: int, body_jaxpr, body_nconsts: int, **_) -> list[Any]:
    cond_consts, body_consts = operands[:cond_nconsts], operands[cond_nconsts : cond_nconsts + body_nconsts]
    return lax.while_loop(
        lambda carry: _evaluate(conv, cond_jaxpr, *cond_consts, *carry)[0],
        lambda carry: _evaluate(conv, body_jaxpr, *body_consts, *carry),
        list(operands[cond_nconsts + body_nconsts :]),
    )


_NESTED = {"jit": _jit, "checkpoint": _checkpoint, "remat2": _checkpoint, "cond": _cond, "scan": _scan, "while": _while}


# --- rules: return None where the original operation is to remain ----------------------------------------------------
def _convolve(conv: str, x: Any, w: Any, *, dimension_numbers, batch_group_count: int, **params) -> list[Any] | None:
    """Convolves in any layout, as NHWC and HWIO."""
    lhs, rhs, out = dimension_numbers
    w = laid.array(w)
    is_real = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype == w.dtype
    if batch_group_count != 1 or not is_real or w.ndim < 3:
        return None
    size = math.prod(x.shape[axis] for axis in lhs[2:])
    name = hw.auto_conv(size) if conv == "auto" else conv
    w = w.transpose(*rhs[2:], rhs[1], rhs[0])
    if params["preferred_element_type"] not in (None, x.dtype) or name == "lax":
        return None
    if not all(x.shape) or not w.size or math.prod(w.shape[:-2]) > MAX_TAPS:
        return None
    strides, pads, precision = params["window_strides"], params["padding"], params["precision"]
    is_dense = {*params["lhs_dilation"], *params["rhs_dilation"]} == {1}
    windows = zip(pads, w.shape[:-2], [x.shape[axis] for axis in lhs[2:]], strict=True)
    is_dense &= all(0 <= low < k <= n + low + high and high >= 0 for (low, high), k, n in windows)
    is_plain = is_dense and w.ndim == 4 and params["feature_group_count"] == 1
    if is_plain and {*strides} == {1} and _has_images_innermost(conv, w.shape[-2]):
        axes, out = ((spec[0], *spec[2:], spec[1]) for spec in (lhs, out))
        return [laid.convolve(x, w, pads, axes, out, precision)]
    x = laid.array(x).transpose(lhs[0], *lhs[2:], lhs[1])
    if is_plain:
        convolve = _fewest_products if name == "winograd" else patches.convolve
        y = convolve(x, w, strides, pads, precision)
    else:
        y = _convolve_any(x, w, is_dense, **params)
    axes = [0, y.ndim - 1, *range(1, y.ndim - 1)]  # of y, in the order of `out`: images, channels, space
    return [y.transpose([axes[out.index(axis)] for axis in range(y.ndim)])]


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
        x, w = patches.pad_to_box(x, box, out, window_strides, padding), w[tuple(slice(*live) for live in box)]
    else:
        pads = [(low, high, dilation - 1) for (low, high), dilation in zip(padding, lhs_dilation, strict=True)]
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *pads, (0, 0, 0)])
    slices = _slices(x, w.shape[:-2], window_strides, rhs_dilation)
    w = w.reshape(-1, *w.shape[-2:])
    if feature_group_count == 1:
        return jnp.matmul(jnp.concatenate(slices, -1), w.reshape(-1, w.shape[-1]), precision=precision)
    groups, features = feature_group_count, w.shape[-1] // feature_group_count
    if w.shape[1] == 1:  # depthwise; with an axis for the features, XLA's gradient of w takes 7 times as long
        kernels = jnp.expand_dims(w, range(1, x.ndim - 1))
        products = [jnp.repeat(part, features, -1) * kernels[tap] for tap, part in enumerate(slices)]
        return functools.reduce(jnp.add, products)
    parts = jnp.stack([part.reshape(*part.shape[:-1], groups, -1) for part in slices], -3)
    kernel = w.reshape(len(slices), w.shape[1], groups, features)
    y = jnp.einsum("...tgc,tcgo->...go", parts, kernel, precision=precision)
    return y.reshape(*y.shape[:-2], groups * features)


def _slices(x: Array, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> list[Array]:
    """Returns, for every entry of a window on x [N, ..., C] that lies within it, the pixels under that entry."""
    spans = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
    sizes = [max(0, (n - span) // s + 1) for n, span, s in zip(x.shape[1:-1], spans, strides, strict=True)]
    starts = [[entry * d for entry in range(k)] for k, d in zip(window, dilation, strict=True)]
    return [
        x[(slice(None), *[slice(b, b + n * s, s) for b, n, s in zip(start, sizes, strides, strict=True)])]
        for start in itertools.product(*starts)
    ]


def _max_pool(
    conv: str, x: Any, *, window_dimensions, window_strides, padding, base_dilation, window_dilation
) -> list[Any] | None:
    """Returns the maxima of windows; of equal values the first takes the gradient, as in the original operation.

    With the original operation, the CNN's steps take 1.36 times as long on a CPU.
    """
    is_plain = {*base_dilation, *window_dilation} == {1} and jnp.issubdtype(x.dtype, jnp.floating)
    is_plain &= all(k <= n + low + high for k, n, (low, high) in zip(window_dimensions, x.shape, padding, strict=True))
    is_laid = is_plain and type(x) is laid.Laid
    if is_laid and (pooled := laid.max_pool(x, window_dimensions, window_strides, padding)):
        return [pooled]
    x = laid.array(x)
    if not is_plain or not x.size or math.prod(window_dimensions) > MAX_TAPS:
        return None
    if any(low or high for low, high in padding):
        lowest = jnp.array(-jnp.inf, x.dtype)
        x = lax.pad(x, lowest, [(low, high, 0) for low, high in padding])
    for axis in reversed(range(x.ndim)):  # one after the other: 4 instead of 8 maxima for a window of 3 x 3
        if (window_dimensions[axis], window_strides[axis]) != (1, 1):
            x = _max_along(x, axis, window_dimensions[axis], window_strides[axis])
    return [x]


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


_RULES = {"conv_general_dilated": _convolve, "reduce_window_max": _max_pool}
