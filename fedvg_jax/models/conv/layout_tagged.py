"""Images that lie in memory in another order than their axes say, for as long as the operations on them allow it.

A convolution computes its output in the order that suits it (`planes`). Putting that into the order of its
axes costs as much as the convolution of a small network, so it waits for the first operation that needs it.
Elementwise operations, sums, 2 x 2 max-pooling and the next convolution do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend import core

from fedvg_jax.models.conv import planes
from fedvg_jax.models.conv.taps import Pads, pad_images
from fedvg_jax.models.layers import fusion_barrier

ELEMENTWISE = {
    "abs", "add", "and", "clamp", "convert_element_type", "div", "eq", "erf", "exp", "exp2", "expm1", "ge", "gt",
    "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or",
    "pow", "rsqrt", "select_n", "sign", "sqrt", "square", "sub", "tanh",
}  # fmt: skip
"""Primitives; each entry of their result depends on one entry of each operand."""

_GROUPS = {
    4: ((3,), (1,), (2,), (0,)),
    5: ((4,), (2, 0), (3,), (1,)),
    8: ((7,), (5, 2, 0), (6, 3, 1), (4,)),
}
"""Axes of memory -> axes of images, height, width and channels, of what `planes` computes."""


class LayoutTagged(NamedTuple):
    """An array, as it lies in memory."""

    memory: Array
    groups: Sequence[Sequence[int]]
    """For every axis of the array, the axes of `memory` that it consists of, the slowest first."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        return tuple(np.take(self.memory.shape, group).prod().item() for group in self.groups)

    @property
    def dtype(self):
        """Of the array."""
        return self.memory.dtype

    @property
    def layout(self) -> tuple[Any, ...]:
        """Equal of arrays that lie in memory alike."""
        return self.groups, self.memory.shape

    def array(self) -> Array:
        """Returns the array in the order of its axes."""
        axes = [axis for group in self.groups for axis in group]
        return self.memory.transpose(axes).reshape(self.shape)

    def lay(self, x: Array) -> Array:
        """Returns x in the order of `memory`; its axes have this array's sizes or 1."""
        axes = [(axis, n) for group, n in zip(self.groups, x.shape, strict=True) for axis in group]
        x = x.reshape([1 if n == 1 else self.memory.shape[axis] for axis, n in axes])
        return x.transpose(np.argsort([axis for axis, _ in axes]))


Value = Any
"""An array, or a layout-tagged one; Python numbers stand for literals."""


class Operation(NamedTuple):
    """One operation of a jaxpr, as rules take it."""

    conv: str
    """which convolutions are used"""
    jaxpr: core.Jaxpr
    eqn: core.JaxprEqn
    operands: Sequence[Value]

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the primitive."""
        return self.eqn.params

    def original(self, operands: Sequence[Value]) -> list[Value]:
        """Returns the results of the primitive itself, which takes arrays."""
        invars = self.eqn.invars
        is_variable = [not isinstance(atom, core.Literal) for atom in invars]
        alone = self.jaxpr.replace(
            constvars=[],
            invars=list(itertools.compress(invars, is_variable)),
            outvars=self.eqn.outvars,
            eqns=[self.eqn],
            effects=self.eqn.effects,
        )
        arrays = map(array, itertools.compress(operands, is_variable))
        return core.jaxpr_as_fun(core.ClosedJaxpr(alone, []))(*arrays)


def array(x: Value) -> Any:
    """Returns a layout-tagged array in the order of its axes, and anything else unchanged."""
    return x.array() if isinstance(x, LayoutTagged) else x


def convolve(
    x: Value,
    w: Array,
    pads: Pads,
    axes: Sequence[int],
    out: Sequence[int],
    precision=None,
) -> LayoutTagged:
    """Returns the layout-tagged convolution of x with w [r, s, C, O] at stride 1.

    Args:
        pads: (before, after) of height and width.
        axes: axes of x that are images, height, width and channels.
        out: these axes of the result.
        precision: of the matmuls, as `lax.dot_general` takes it.
    """
    last = [axes[3], axes[1], axes[2], axes[0]]
    if isinstance(x, LayoutTagged) and max(map(len, x.groups)) == 1:
        images = x.memory.transpose([x.groups[axis][0] for axis in last])
    else:  # without the barrier, XLA transposes for every patch: LeNet-5's steps take 1.15 times as long
        images = fusion_barrier(array(x).transpose(last))
    y = planes.convolve(pad_images(images, *pads), w, precision)
    y = y.reshape(2, 2, *y.shape[1:]) if y.ndim == 7 else y
    groups = _GROUPS[y.ndim]
    return LayoutTagged(y, [groups[out.index(axis)] for axis in range(4)])


def max_pool(operation: Operation) -> LayoutTagged | None:
    """Returns the layout-tagged 2 x 2 maxima, stride 2; None for other windows, and for arrays."""
    (x,), params = operation.operands, operation.params
    if not isinstance(x, LayoutTagged):
        return None
    first = x.memory.ndim - 3  # axis of the height; the width is next
    expected = tuple(1 if {first, first + 1}.isdisjoint(group) else 2 for group in x.groups)
    is_usual = params["window_dimensions"] == params["window_strides"] == expected
    if not is_usual or any(map(any, params["padding"])):
        return None
    memory = x.memory.reshape(4, *x.memory.shape[2:]) if x.memory.ndim == 8 else x.memory
    groups = [(group[0] - first + 1,) for group in x.groups]
    return LayoutTagged(planes.max_pool(memory), groups)


def total(operation: Operation) -> list[Value] | None:
    """Returns the sum over some axes, added up in the order of memory; None for an array."""
    (x,), axes = operation.operands, operation.params["axes"]
    if not isinstance(x, LayoutTagged):
        return None
    summed = [axis for position in axes for axis in x.groups[position]]
    sums = LayoutTagged(x.memory.sum(summed, x.dtype, keepdims=True), x.groups)
    return [sums.array().squeeze(axes)]


def elementwise(operation: Operation) -> list[Value] | None:
    """Returns the results of an elementwise operation, in the layout of its first tagged operand; None without one."""
    eqn = operation.eqn
    operands = operation.operands
    first = next((x for x in operands if isinstance(x, LayoutTagged)), None)
    if first is None or not _is_elementwise(eqn):
        return None
    if any(getattr(out.aval, "shape", ()) != first.shape for out in eqn.outvars):
        return None

    def memory(x: Value) -> Any:
        if isinstance(x, LayoutTagged) and x.layout == first.layout:
            return x.memory
        return first.lay(array(x)) if jnp.shape(x) else x

    stored = [memory(x) for x in operands]
    if eqn.primitive.name in ELEMENTWISE:
        return [LayoutTagged(eqn.primitive.bind(*stored, **eqn.params), first.groups)]
    # a traced function takes the entries in memory order, as arrays of the shape that it was traced for
    if any(jnp.ndim(x) and x.size != first.memory.size for x in stored):
        return None
    results = operation.original([x.reshape(first.shape) if jnp.ndim(x) else x for x in stored])
    return [LayoutTagged(y.reshape(first.memory.shape), first.groups) for y in results]


def _is_elementwise(eqn: core.JaxprEqn) -> bool:
    """Returns whether an operation is elementwise, or a function of such operations with a custom derivative."""
    name = eqn.primitive.name
    if name not in ("custom_jvp_call", "jit"):
        return name in ELEMENTWISE
    inner = [operation for jaxpr in core.jaxprs_in_params(eqn.params) for operation in jaxpr.eqns]
    return bool(inner) and all(map(_is_elementwise, inner))
