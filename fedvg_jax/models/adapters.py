"""Low-rank adapters of dense layers and 1x1 convolutions (LoRA), beside a kernel W that stays as it is.

    y = x W + (x A) B s / r,    A: inputs x r, drawn from a normal distribution;  B: r x outputs, initially 0;  s = 8

The adapters of a layer stand in its own parameters, as `lora_a` and `lora_b`. No client ever forms W + A B s / r.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array

from fedvg_jax.core import trained_part, tree
from fedvg_jax.core.types import Task, UsageError, Variables, compiled
from fedvg_jax.host import hardware

SCALE = 8.0
"""s. A learning rate then fits other ranks, too; peft has the same default."""

NAMES = ("lora_a", "lora_b")

EXCEPT_HEAD = "^(?!classifier|patch_embed)"
"""Regular expression of the layers of a named model that get an adapter by default."""

WITH_HEAD = "(^|/)lora_[ab]$|^classifier/"
"""Regular expression of the tensors of a named model with adapters that are trained by default."""

IS_ADAPTER = re.compile("(^|/)lora_[ab]$").search
"""path of a tensor -> whether it belongs to an adapter"""


class _Layer(NamedTuple):
    """A layer that can have an adapter."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dtype: Any


def lora(
    task: Task, variables: Variables, rank: int, include: str = "", train: str = ""
) -> tuple[Task, Variables]:
    """Returns a task with adapters that a run trains, and the variables that the run has to start from.

    The layers are Linen's `Dense`, `DenseGeneral` and `Conv` with kernels of one pixel. Their outputs are unchanged
    until B moves.

    Args:
        task: has nested dicts of parameters, as `linen_task` makes them.
        variables: of the task; all tensors keep these values, except the adapters and those that `train` names.
        rank: r.
        include: regular expression of the paths of layers, such as "block_0/fc1", that get an adapter; default: all.
        train: regular expression of the paths of further tensors that are trained, such as "^head/".

    Raises:
        UsageError: no layer can have an adapter or one has, `include` matches none, or the rank is larger than a layer.

    >>> from fedvg_jax.models import adapt
    >>> module = nn.Sequential([nn.Dense(6), nn.relu, nn.Dense(1)])
    >>> task = adapt.linen_task(module, lambda output, y: (output[0] - y) ** 2, jnp.ones((1, 4)))
    >>> task, start = lora(task, task.init(jax.random.key(0)), rank=2, include="_0$", train="^layers_2/")
    >>> [path for path in tree.paths(start.params) if not task.is_frozen(path)]
    ['layers_0/lora_a', 'layers_0/lora_b', 'layers_2/bias', 'layers_2/kernel']
    """
    adapted = with_adapters(task, rank, include)
    pattern = compiled(train, "train")
    trained = pattern.search if train else lambda path: None

    def is_frozen(path: str) -> bool:
        return not (IS_ADAPTER(path) or trained(path)) or bool(
            task.is_frozen and task.is_frozen(path)
        )

    drawn = hardware.jit_once(adapted.init)(jax.random.key(0))
    return adapted._replace(is_frozen=is_frozen), filled(drawn, variables)


def with_adapters(task: Task, rank: int, include: str = "") -> Task:
    """Returns the task with adapters beside its parameters; arguments and errors as in `lora`."""
    layers = {
        path: layer
        for path, layer in _layers(task).items()
        if compiled(include, "lora").search(path)
    }
    if not layers:
        names = trained_part.listed(list(_layers(task))) or "none"
        raise UsageError(
            f"lora {include} matches no dense layer or 1x1 convolution; there are {names}"
        )
    if any(map(IS_ADAPTER, tree.paths(jax.eval_shape(task.init, jax.random.key(0)).params))):
        raise UsageError("lora: the task has adapters already; name all their layers in one call")
    for path, (inputs, outputs, _) in layers.items():
        most = min(math.prod(inputs), math.prod(outputs))
        if not isinstance(rank, int | np.integer) or not 1 <= rank <= most:
            raise UsageError(
                f"lora rank must be from 1 to {most}, the smaller width of {path}; got {rank}"
            )

    def init(key: Array) -> Variables:
        variables = task.init(key)
        tensors: dict[Any, Any] = flatten_dict(variables.params)
        for number, (path, layer) in enumerate(layers.items()):
            of_layer = tuple(path.split("/")) if path else ()
            drawn = jax.random.fold_in(key, number)
            a = jax.random.normal(drawn, (*layer.inputs, rank), layer.dtype)
            tensors[(*of_layer, "lora_a")] = a * math.prod(layer.inputs) ** -0.5
            tensors[(*of_layer, "lora_b")] = jnp.zeros((rank, *layer.outputs), a.dtype)
        return variables._replace(params=unflatten_dict(tensors))

    def intercepted(f: Callable) -> Callable:
        @functools.wraps(f)
        def run(*args, **kwargs):
            with nn.intercept_methods(_add_adapter):
                return f(*args, **kwargs)

        return run

    functions = {name: getattr(task, name) for name in ("loss", "predict", "measure", "forward")}
    return task._replace(
        init=init, **{name: intercepted(f) for name, f in functions.items() if f is not None}
    )


def removed(variables: Variables) -> Variables:
    """Returns variables without their adapters."""
    tensors: dict[Any, Any] = flatten_dict(variables.params)
    others = {path: tensor for path, tensor in tensors.items() if path[-1] not in NAMES}
    return variables._replace(params=unflatten_dict(others))


def filled(drawn: Variables, given: Variables) -> Variables:
    """Returns `drawn` with the tensors of `given`, which may have no adapters, in place of its own, and their dtype."""
    values, dtype = tree.by_path(given), tree.dtype(given.params)
    leaves = [values.get(path, leaf.astype(dtype)) for path, leaf in tree.by_path(drawn).items()]
    return jax.tree.structure(drawn).unflatten(leaves)


def merged(variables: Variables) -> Variables:
    """Returns the variables of the model without adapters that computes the same, with W + A B s / r."""
    tensors: dict[Any, Any] = flatten_dict(variables.params)
    merged: dict[Any, Any] = flatten_dict(removed(variables).params)
    for (*layer, name), a in tensors.items():
        if name == "lora_a":
            product = jnp.tensordot(tree.wide(a), tree.wide(tensors[(*layer, "lora_b")]), 1)
            kernel = tensors[(*layer, "kernel")]  # of half precision, it is rounded once
            total = tree.wide(kernel) + product.reshape(kernel.shape) * (SCALE / a.shape[-1])
            merged[(*layer, "kernel")] = total.astype(kernel.dtype)
    return variables._replace(params=unflatten_dict(merged))


def _layers(task: Task) -> dict[str, _Layer]:
    """Returns the layers that can have an adapter, by path."""
    noted: dict[str, Any] = {}

    def note(call, args, kwargs, context):
        outputs = call(*args, **kwargs)
        if _is_adaptable(context):
            noted["/".join(context.module.path)] = (
                context.module,
                context.module.variables["params"]["kernel"].shape,
            )
        return outputs

    with nn.intercept_methods(note):  # a new function is traced anew
        shapes = tree.by_path(jax.eval_shape(lambda key: task.init(key).params, jax.random.key(0)))
    layers = {}
    for path, (layer, shape) in noted.items():
        kernel = shapes.get(f"{path}/kernel" if path else "kernel")
        if kernel is not None and kernel.shape == shape:  # not one of several in a lifted module
            count, widths = len(_axes(layer)), shape[-2:] if isinstance(layer, nn.Conv) else shape
            layers[path] = _Layer(widths[:count], widths[count:], kernel.dtype)
    return layers


def _is_adaptable(context: Any) -> bool:
    """Returns whether an intercepted method is the product of a layer, and not one of a user that may call it."""
    layer, method = context.module, getattr(context.orig_method, "func", context.orig_method)
    if context.method_name != "__call__" or method.__module__ != nn.Dense.__module__:
        return False
    if isinstance(layer, nn.Conv):
        is_padded = not isinstance(layer.padding, str) and np.any(layer.padding)
        is_dilated = np.any(np.not_equal(layer.input_dilation or 1, 1))
        is_one_pixel = math.prod(_each(layer.kernel_size)) == 1 and layer.feature_group_count == 1
        return is_one_pixel and layer.mask is None and not is_padded and not is_dilated
    is_general = isinstance(layer, nn.DenseGeneral) and not layer.batch_dims
    return isinstance(layer, nn.Dense) or is_general


def _axes(layer: nn.Module) -> tuple[int, ...]:
    """Returns the axes of its input that a layer contracts."""
    return _each(layer.axis) if isinstance(layer, nn.DenseGeneral) else (-1,)


def _each(value: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, Sequence) else (value,)


def _add_adapter(call: Callable, args: tuple, kwargs: Mapping[str, Any], context) -> Any:
    """Returns x W + (x A) B s / r of a layer with an adapter; an interceptor of `nn.intercept_methods`.

    A convolution becomes products of matrices: otherwise the convolutions of a CPU would lay out x W unlike (x A) B
    (`models.conv.planes`), and EfficientNet-Lite0's rounds take 1.4 times as long.
    """
    layer = context.module
    own = layer.variables.get("params", {}) if _is_adaptable(context) else {}
    if NAMES[0] not in own:
        return call(*args, **kwargs)
    x, axes = args[0] if args else kwargs["inputs"], _axes(layer)
    tensors = (own.get(name) for name in ("kernel", "bias", *NAMES))
    x, kernel, bias, a, b = layer.promote_dtype(x, *tensors, dtype=layer.dtype)
    if isinstance(layer, nn.Conv):
        strides = np.broadcast_to(layer.strides or 1, len(_each(layer.kernel_size)))
        x = x[(..., *(slice(None, None, int(stride)) for stride in strides), slice(None))]
    has_own_product = isinstance(layer, nn.Conv) and not (
        layer.conv_general_dilated or layer.conv_general_dilated_cls
    )
    if has_own_product:
        outputs = _contracted(x, kernel.reshape(kernel.shape[-2:]), axes, layer.precision)
        outputs = outputs if bias is None else outputs + jnp.expand_dims(bias, range(x.ndim - 1))
    else:
        outputs = call(*args, **kwargs)
    return outputs + _contracted(_contracted(x, a, axes), b, (-1,)) * (SCALE / b.shape[0])


def _contracted(x: Array, w: Array, axes: Sequence[int], precision: Any = None) -> Array:
    """Returns x with these axes contracted with the first axes of w; the other axes of w become its last."""
    # in the kernel's order
    x = jnp.moveaxis(x, sorted(axis % x.ndim for axis in axes), range(-len(axes), 0))
    kept = x.shape[: x.ndim - len(axes)]
    # with more axes, XLA on a CPU transposes a factor of w's gradient in memory
    rows = x.reshape(math.prod(kept), -1)
    product = jnp.matmul(rows, w.reshape(rows.shape[1], -1), precision=precision)
    return product.reshape(*kept, *w.shape[len(axes) :])
