"""Low-rank adapters of dense layers and 1x1 convolutions (LoRA), beside a kernel W that stays as it is.

    y = x W + (x A) B s / r,    A: inputs x r, drawn from a normal distribution;  B: r x outputs, initially 0;  s = 8

The adapters of a layer stand in its parameters, as `lora_a` and `lora_b`. No client ever forms W + A B s / r.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

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


def lora(
    task: Task, variables: Variables, rank: int, include: str = "", train: str = ""
) -> tuple[Task, Variables]:
    """Returns a task with adapters that a run trains, and the variables that the run has to start from.

    The layers are Linen's `Dense` and `Conv` with kernels of one pixel. Their outputs are unchanged until B moves.

    Args:
        task: has nested dicts of parameters, as `linen_task` makes them.
        variables: of the task; all tensors keep these values, except the adapters and those that `train` names.
        rank: r.
        include: regular expression of the paths of layers, such as "block_0/fc1", that get an adapter; default: all.
        train: regular expression of the paths of further tensors that are trained, such as "^head/".

    Raises:
        UsageError: `include` matches no layer without an adapter, or the rank is larger than a layer.

    >>> from fedvg_jax.models import adapt
    >>> module = nn.Sequential([nn.Dense(6), nn.relu, nn.Dense(1)])
    >>> task = adapt.linen_task(module, lambda output, y: (output[0] - y) ** 2, jnp.ones((1, 4)))
    >>> task, start = lora(task, task.init(jax.random.key(0)), rank=2, include="_0$", train="^layers_2/")
    >>> [path for path in tree.paths(start.params) if not task.is_frozen(path)]
    ['layers_0/lora_a', 'layers_0/lora_b', 'layers_2/bias', 'layers_2/kernel']
    """
    adapted = with_adapters(task, rank, include)
    trained = compiled(train, "train").search if train else lambda path: None
    drawn = hardware.jit_once(adapted.init)(jax.random.key(0))
    task = adapted._replace(is_frozen=lambda path: not (IS_ADAPTER(path) or trained(path)))
    return task, filled(drawn, variables)


def with_adapters(task: Task, rank: int, include: str = "") -> Task:
    """Returns the task with adapters beside its parameters; arguments and errors as in `lora`."""
    all_layers, pattern = _layers(task), compiled(include, "lora")
    layers = {path: kernel for path, kernel in all_layers.items() if pattern.search(path)}
    if not layers:
        names = trained_part.listed(list(all_layers)) or "none"
        raise UsageError(
            f"lora {include} matches no dense layer or 1x1 convolution; there are {names}"
        )
    most = min(min(kernel.shape[-2:]) for kernel in layers.values())
    if not isinstance(rank, int | np.integer) or not 1 <= rank <= most:
        raise UsageError(
            f"lora rank must be from 1 to {most}, the least width of the layers; got {rank}"
        )

    def init(key: Array) -> Variables:
        variables = task.init(key)
        tensors: dict[Any, Any] = flatten_dict(variables.params)
        for number, (path, kernel) in enumerate(layers.items()):
            of_layer = tuple(path.split("/")) if path else ()
            inputs, outputs = kernel.shape[-2:]
            a = jax.random.normal(jax.random.fold_in(key, number), (inputs, rank), kernel.dtype)
            tensors[(*of_layer, "lora_a")] = a * inputs**-0.5
            tensors[(*of_layer, "lora_b")] = jnp.zeros((rank, outputs), a.dtype)
        return variables._replace(params=unflatten_dict(tensors))

    def intercepted(f: Callable) -> Callable:
        @functools.wraps(f)
        def run(*args, **kwargs):
            with nn.intercept_methods(_add_adapter):
                return f(*args, **kwargs)

        return run

    functions = {name: getattr(task, name) for name in ("loss", "predict", "measure", "forward")}
    functions = {name: intercepted(f) for name, f in functions.items() if f is not None}
    return task._replace(init=init, **functions)


def removed(variables: Variables) -> Variables:
    """Returns variables without their adapters."""
    tensors: dict[Any, Any] = flatten_dict(variables.params)
    others = {path: tensor for path, tensor in tensors.items() if path[-1] not in NAMES}
    return variables._replace(params=unflatten_dict(others))


def filled(drawn: Variables, given: Variables) -> Variables:
    """Returns `drawn` with the tensors of `given`, which may lack adapters, in place of its own, and their dtype."""
    values, dtype = tree.by_path(given), tree.dtype(given.params)
    leaves = [values.get(path, leaf.astype(dtype)) for path, leaf in tree.by_path(drawn).items()]
    return jax.tree.structure(drawn).unflatten(leaves)


def merged(variables: Variables) -> Variables:
    """Returns the variables of the model without adapters that computes the same, with W + A B s / r."""
    tensors: dict[Any, Any] = flatten_dict(variables.params)
    merged: dict[Any, Any] = flatten_dict(removed(variables).params)
    for (*layer, name), a in tensors.items():
        if name == "lora_a":
            product = tree.wide(a) @ tree.wide(tensors[(*layer, "lora_b")])
            kernel = tensors[(*layer, "kernel")]  # of half precision, it is rounded once
            total = tree.wide(kernel) + product.reshape(kernel.shape) * (SCALE / a.shape[-1])
            merged[(*layer, "kernel")] = total.astype(kernel.dtype)
    return variables._replace(params=unflatten_dict(merged))


def _layers(task: Task) -> dict[str, Any]:
    """Returns path -> kernel, arrays' shapes, of the layers that can have an adapter and have none."""
    found: dict[str, Any] = {}

    def note(call, args, kwargs, context):
        outputs, layer = call(*args, **kwargs), context.module
        if _is_adaptable(layer, context.method_name):
            found["/".join(layer.path)] = layer.variables["params"]["kernel"].shape
        return outputs

    with nn.intercept_methods(note):  # a new function is traced anew
        shapes = tree.by_path(jax.eval_shape(lambda key: task.init(key).params, jax.random.key(0)))
    layers = {}
    for path, shape in found.items():
        prefix = f"{path}/" if path else ""
        kernel = shapes.get(f"{prefix}kernel")
        is_alone = kernel is not None and kernel.shape == shape  # not one of a lifted module
        if is_alone and f"{prefix}lora_a" not in shapes:
            layers[path] = kernel
    return layers


def _is_adaptable(layer: Any, method: str) -> bool:
    """Returns whether a call is of a dense layer of Linen's, or of a convolution of one pixel without padding."""
    if method != "__call__" or type(layer) not in (nn.Dense, nn.Conv):
        return False
    is_one_pixel = (
        type(layer) is nn.Conv
        and np.prod(layer.kernel_size) == 1
        and layer.feature_group_count == 1
        and layer.mask is None
        and isinstance(layer.padding, str)
    )
    return type(layer) is nn.Dense or is_one_pixel


def _add_adapter(call: Callable, args: tuple, kwargs: Mapping[str, Any], context) -> Any:
    """Returns x W + (x A) B s / r of a layer with an adapter; an interceptor of `nn.intercept_methods`.

    A convolution becomes products of matrices: otherwise the convolutions of a CPU would lay out x W unlike (x A) B
    (`models.conv.planes`), and EfficientNet-Lite0's rounds take 1.4 times as long.
    """
    layer = context.module
    own = layer.variables.get("params", {}) if _is_adaptable(layer, context.method_name) else {}
    if NAMES[0] not in own:
        return call(*args, **kwargs)
    x = args[0] if args else kwargs["inputs"]
    tensors = (own.get(name) for name in ("kernel", "bias", *NAMES))
    x, kernel, bias, a, b = layer.promote_dtype(x, *tensors, dtype=layer.dtype)
    if isinstance(layer, nn.Conv):
        strides = np.broadcast_to(layer.strides or 1, x.ndim - 2).tolist()
        x = x[(slice(None), *(slice(None, None, stride) for stride in strides))]
        outputs = _product(x, kernel.reshape(kernel.shape[-2:]), layer.precision)
        outputs = outputs if bias is None else outputs + jnp.expand_dims(bias, range(x.ndim - 1))
    else:
        outputs = call(*args, **kwargs)
    return outputs + _product(_product(x, a), b) * (SCALE / b.shape[0])


def _product(x: Array, w: Array, precision: Any = None) -> Array:
    """Returns x [..., D] times w [D, F]; with more axes, XLA on a CPU transposes a factor of w's gradient in memory."""
    product = jnp.matmul(x.reshape(-1, x.shape[-1]), w, precision=precision)
    return product.reshape(*x.shape[:-1], -1)
