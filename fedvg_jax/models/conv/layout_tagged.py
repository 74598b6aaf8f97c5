"""Images that lie in memory in another order than their axes say, for as long as the operations on them allow it.

A convolution computes its output in the order that suits it (`planes`). Putting that into the order of its
axes costs as much as the convolution of a small network, so it waits for the first operation that needs it.
Elementwise operations, sums, 2 x 2 max-pooling and the next convolution do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend import core

from fedvg_jax.models.conv import planes
from fedvg_jax.models.conv.taps import pad_images
from fedvg_jax.models.layers import fusion_barrier

ELEMENTWISE = {
    "abs", "add", "and", "clamp", "convert_element_type", "div", "eq", "erf", "exp", "exp2", "expm1", "ge", "gt",
    "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or",
    "pow", "rsqrt", "select_n", "sign", "sqrt", "square", "sub", "tanh",
}  # fmt: skip
"""Primitives; each entry of their result depends on one entry of each operand."""

_GROUPS = {
    4: ((3,), (0,), (1,), (2,)),
    5: ((4,), (1,), (2, 0), (3,)),
    8: ((7,), (4,), (5, 2, 0), (6, 3, 1)),
}
"""Axes of memory -> axes of images, channels, height and width, of what `planes` computes."""


class LayoutTagged(NamedTuple):
    """An operand or a result of a rule: an array with the order in which it lies in memory."""

    memory: Any
    """The array as it lies in memory; of a literal, a number."""
    groups: Sequence[Sequence[int]] = ()
    """For every axis of the array, the axes of `memory` that it consists of, the slowest first; () where the array is
    `memory` itself."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the sizes of the array's axes."""
        sizes = jnp.shape(self.memory)
        if not self.groups:
            return sizes
        return tuple(np.take(sizes, group).prod().item() for group in self.groups)

    @property
    def axes(self) -> list[int]:
        """Returns the axes of `memory` in the order of the array's."""
        return [axis for group in self.groups for axis in group]

    def array(self) -> Any:
        """Returns the array in the order of its axes."""
        if not self.groups:
            return self.memory
        return self.memory.transpose(self.axes).reshape(self.shape)

    def lay(self, x: LayoutTagged) -> Any:
        """Returns x in the order of this `memory`; x is a scalar, or its axes have this array's sizes or 1."""
        sizes = self.memory.shape
        is_alike = x.groups == self.groups and x.memory.shape == sizes
        if is_alike or not x.shape:
            return x.memory
        of_axes = zip(self.groups, x.shape, strict=True)
        split = [1 if n == 1 else sizes[axis] for group, n in of_axes for axis in group]
        return x.array().reshape(split).transpose(np.argsort(self.axes))


class Operation(NamedTuple):
    """One operation of a jaxpr, as rules take it."""

    conv: str
    """Which convolutions are used, as `--conv` takes it."""
    jaxpr: core.Jaxpr
    eqn: core.JaxprEqn
    operands: Sequence[LayoutTagged]

    @property
    def params(self) -> dict[str, Any]:
        """Returns the parameters of the primitive."""
        return self.eqn.params

    @property
    def tagged(self) -> list[LayoutTagged]:
        """Returns the operands that lie in another order than their axes say."""
        return [x for x in self.operands if x.groups]


def original(operation: Operation) -> list[LayoutTagged]:
    """Returns the results of the primitive itself, which takes arrays."""
    eqn = operation.eqn
    atoms = zip(eqn.invars, operation.operands, strict=True)
    variables = {atom: x.array() for atom, x in atoms if not isinstance(atom, core.Literal)}
    alone = operation.jaxpr.replace(
        constvars=[],
        invars=list(variables),
        outvars=eqn.outvars,
        eqns=[eqn],
        effects=eqn.effects,
    )
    results = core.jaxpr_as_fun(core.ClosedJaxpr(alone, []))(*variables.values())
    return list(map(LayoutTagged, results))


def convolve(operation: Operation, w: Array) -> list[LayoutTagged]:
    """Returns the convolution of images with w [r, s, C, O] at stride 1, with the images innermost in memory."""
    params = operation.params
    lhs, _, out = params["dimension_numbers"]
    innermost = *lhs[1:], lhs[0]
    x = operation.operands[0]
    if {*map(len, x.groups)} == {1}:
        pixels = x.memory.transpose([x.groups[axis][0] for axis in innermost])
    else:  # without the barrier, XLA transposes for every patch: LeNet-5's steps take 1.15 times as long
        pixels = fusion_barrier(x.array().transpose(innermost))
    y = planes.convolve(pad_images(pixels, *params["padding"]), w, params["precision"])
    y = y.reshape(2, 2, *y.shape[1:]) if y.ndim == 7 else y
    groups = _GROUPS[y.ndim]
    return [LayoutTagged(y, [groups[out.index(axis)] for axis in range(4)])]


def is_2x2(operation: Operation) -> bool:
    """Returns whether a pooling of a tagged array has windows of 2 x 2, stride 2, and no padding."""
    (x,), params = operation.operands, operation.params
    height = x.memory.ndim - 3  # axis of memory; the width is next
    window = tuple(1 if {height, height + 1}.isdisjoint(group) else 2 for group in x.groups)
    is_usual = params["window_dimensions"] == params["window_strides"] == window
    return is_usual and not any(map(any, params["padding"]))


def max_pool(operation: Operation) -> list[LayoutTagged]:
    """Returns the 2 x 2 maxima, stride 2, of a tagged array."""
    (x,) = operation.operands
    height = x.memory.ndim - 3
    memory = x.memory.reshape(4, *x.memory.shape[2:]) if x.memory.ndim == 8 else x.memory
    groups = [(group[0] - height + 1,) for group in x.groups]
    return [LayoutTagged(planes.max_pool(memory), groups)]


def total(operation: Operation) -> list[LayoutTagged]:
    """Returns the sum over some axes; of a tagged array, it is added up in the order of memory."""
    if not operation.tagged:
        return original(operation)
    (x,), axes = operation.operands, operation.params["axes"]
    summed = [axis for position in axes for axis in x.groups[position]]
    sums = LayoutTagged(x.memory.sum(summed, x.memory.dtype, keepdims=True), x.groups)
    return [LayoutTagged(sums.array().squeeze(axes))]


def elementwise(operation: Operation) -> list[LayoutTagged]:
    """Returns the results of an operation; of an elementwise one, in the layout of its first tagged operand.

    A traced function then takes the entries in memory order, as arrays of the shape that it was traced for.
    """
    if not is_elementwise(operation):
        return original(operation)
    first = operation.tagged[0]
    laid = [first.lay(x) for x in operation.operands]
    primitive = operation.eqn.primitive
    if primitive.name in ELEMENTWISE:
        return [LayoutTagged(primitive.bind(*laid, **operation.params), first.groups)]
    reshaped = [LayoutTagged(x.reshape(first.shape) if jnp.ndim(x) else x) for x in laid]
    results = original(operation._replace(operands=reshaped))
    return [LayoutTagged(y.memory.reshape(first.memory.shape), first.groups) for y in results]


def is_elementwise(operation: Operation) -> bool:
    """Returns whether an operation is elementwise, and keeps the shape of its first tagged operand.

    The other operands of a primitive may have axes of size 1, those of a traced function may not.
    """
    eqn = operation.eqn
    if not operation.tagged or not _is_elementwise(eqn):
        return False
    shape = operation.tagged[0].shape
    if any(getattr(out.aval, "shape", ()) != shape for out in eqn.outvars):
        return False
    is_primitive = eqn.primitive.name in ELEMENTWISE
    return is_primitive or {x.shape for x in operation.operands} <= {(), shape}


def _is_elementwise(eqn: core.JaxprEqn) -> bool:
    """Returns whether an operation is elementwise, or a function of such operations with a custom derivative."""
    name = eqn.primitive.name
    if name not in ("custom_jvp_call", "jit"):
        return name in ELEMENTWISE
    inner = [operation for jaxpr in core.jaxprs_in_params(eqn.params) for operation in jaxpr.eqns]
    return bool(inner) and all(map(_is_elementwise, inner))
